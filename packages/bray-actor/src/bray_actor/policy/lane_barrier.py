"""Answers a fixed set of sessions together, each always in the same row of the same batch.

A matrix product rounds a row by its place in the batch, in another way on each kind of CPU. So a
run repeats bit by bit only if nothing about a batch depends on which session was quicker: neither
its rows' places, nor their number, nor who is left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bray_actor.policy.row_block import RowBlock, row_of
from bray_actor.policy.step_budget import Budget
from bray_core.errors import ConfigError, SpecError
from bray_core.nested import Nested
from bray_core.protocols import Answer, ModelProtocol
from bray_server.limits.bounded_log import BoundedLog

logger = logging.getLogger(__name__)

_LEND_AFTER_S = 0.1
"""How long a tick that waits for the budget may keep a simulator from its other sessions, until it
is known that it does."""
_LEAST_LEND_AFTER_S = 0.001
"""The same of a simulator that ticks its sessions one after the other."""
_ANOTHER_RUN = "from here on this is another run than the one that its seed repeats"


def lane_of(session: str) -> str:
    """Return the lane that a session plays in: the part of its name before the first `/`."""
    return session.partition("/")[0]


class LaneBarrier:
    """Collects one tick of each declared lane, then asks the model once for all of them.

    A lane is one environment whose episodes follow each other: the sessions `3/0`, `3/1`, … are
    lane `3`. Lane k of the list is row k of every batch; the rows of lanes that take no part are
    zeros. Its users live on one event loop.

    With a budget the barrier also paces a run: ticks beyond it wait until there is more. Where the
    lanes do not divide what is left, those that have played the fewest steps go first.

    A lane that sends nothing for `late_s` is left out until it comes back. Steps of a lane that is
    lost are given back, and played by whoever is there. Both make the run another one, which is
    logged.

    Args:
        model: Model that answers; its batches should hold as many rows as there are lanes.
        lanes: Names of the lanes, in the order of their rows.
        budget: Budget of the steps that may be answered; None sets no bound.
        plays_on: Whether a lane begins another episode after each. If so, it is waited for
            between its episodes and from the beginning; if not, only while a session is open.
        waits: Whether a batch waits for all lanes. If not, those that have come are answered
            together, nothing is promised about repeating, and a tick that waits for the budget
            does not keep a simulator from its other sessions for good.
        gives_up: Whether the first lane that is late ends the waiting for all, for good: a
            simulator may tick its sessions one after the other.
        late_s: Seconds that a batch waits for a lane that has played before.
        first_s: Seconds that it waits for a lane that has never sent anything.

    Raises:
        ConfigError: there is no lane, or one is named twice.
    """

    def __init__(
        self,
        model: ModelProtocol,
        lanes: Iterable[str],
        *,
        budget: Budget | None = None,
        plays_on: bool = True,
        waits: bool = True,
        gives_up: bool = False,
        late_s: float = 10.0,
        first_s: float = 60.0,
    ) -> None:
        names = list(lanes)
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"lanes: expected one or more names, each once, got {names}")
        self._model = model
        self._lanes = {name: _Lane(name, row) for row, name in enumerate(names)}
        self._budget = budget
        self._plays_on = plays_on
        self._waits = waits
        self._gives_up = gives_up
        self._late_s = late_s
        self._first_s = first_s
        self._block = RowBlock(len(names))
        self._out = set(self._lanes.values()) if plays_on else set()
        """Lanes that are waited for."""
        self._waiting: dict[int, _Turn] = {}
        """Ticks that are not answered yet, by their rows."""
        self._round: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loan: asyncio.TimerHandle | None = None
        self._lend_after_s = _LEND_AFTER_S
        self._borrowers: set[int] = set()
        """Rows that waited when a step was lent, until the next tick comes."""
        self._is_due = False
        """Whether a round begins with the loop's next turn."""
        self._since = 0.0
        """When this round began to wait for lanes."""
        self._lost: list[str] = []
        self._log = BoundedLog(logger)

    def join(self, session: str, on_held: Callable[[Nested], None]) -> LaneSeat:
        """Return the seat of a new session, which takes the place of the lane's last one.

        Args:
            session: Name of the session, `lane/…`.
            on_held: Function that is called with the observation of a tick that waits because the
                budget is used up, so that the steps recorded until then can be handed over.

        Raises:
            SpecError: its lane was not declared.
        """
        lane = self._lanes.get(lane_of(session))
        if lane is None:
            raise SpecError(
                f"session {session!r}: expected a name that begins with one of the lanes "
                f"{', '.join(self._lanes)} and '/': this server plays with those alone"
            )
        if (turn := self._waiting.pop(lane.row, None)) is not None:
            turn.fail(SpecError(f"session {session!r} took the place of this one"))
            self._out.add(lane)
        if not self._plays_on:
            self._out.add(lane)
        lane.seat = LaneSeat(self, lane, on_held)
        return lane.seat

    @property
    def names(self) -> list[str]:
        """Names of the lanes, in the order of their rows."""
        return list(self._lanes)

    def free_lane(self) -> str | None:
        """Return the first lane that has no session; None if all have one."""
        return next((name for name, lane in self._lanes.items() if lane.seat is None), None)

    def stop_waiting(self, reason: str) -> None:
        """Wait for no lane any more, as if made with `waits=False`.

        Args:
            reason: Why, for the log.
        """
        if self._waits:
            self._waits = False
            logger.warning("%s: each tick is answered when it comes; %s", reason, _ANOTHER_RUN)
            self._stop_timer()

    def refund(self, steps: int) -> None:
        """Give back steps that were answered but will not be recorded."""
        if steps and self._budget is not None:
            self._budget.refund(steps)
            asyncio.get_running_loop().call_soon(self._look)

    def _put(self, turn: _Turn) -> None:
        """Take a lane's tick."""
        self._learn_from(turn.lane.row)
        self._waiting[turn.lane.row] = turn
        self._out.discard(turn.lane)
        turn.lane.has_come = True
        self._look()

    def _take_back(self, turn: _Turn) -> None:
        """Forget a tick whose client does not wait any more."""
        if self._waiting.get(turn.lane.row) is turn:
            del self._waiting[turn.lane.row]
            if turn.lane.seat is not None or self._plays_on:
                self._out.add(turn.lane)
        elif turn.is_answered:
            self.refund(1)

    def _leave(self, seat: LaneSeat, *, is_lost: bool) -> None:
        """Close a session; its lane may play on with another."""
        lane = seat.lane
        if is_lost:
            self._lost.append(lane.name)
        if lane.seat is not seat:
            return
        lane.seat = None
        if not self._plays_on:
            self._out.discard(lane)
            self._look()

    def _look(self) -> None:
        """Begin a round if all lanes are there; called whenever something has changed."""
        if self._round is not None or not self._waiting:
            return
        if self._is_spent:
            self._stop_timer()
            self._hold()
            return
        self._stop_loan()  # another turn may be held, too, for a moment
        if not self._waits:
            self._begin_soon()
        elif self._out:
            self._wait_for_lanes()
        else:
            self._stop_timer()
            self._begin()

    @property
    def _is_spent(self) -> bool:
        return self._budget is not None and not self._budget.left

    def _hold(self) -> None:
        """Let all ticks wait until the budget has steps left."""
        for turn in list(self._waiting.values()):
            if not turn.is_held and not turn.hold():
                del self._waiting[turn.lane.row]
                self._out.add(turn.lane)
        if self._waiting and self._watcher is None and self._budget is not None:
            self._watcher = asyncio.create_task(self._watch(self._budget))
        if self._loan is None and self._may_borrow:
            after_s = self._late_s if self._waits else self._lend_after_s
            self._loan = asyncio.get_running_loop().call_later(after_s, self._borrow)

    @property
    def _may_borrow(self) -> bool:
        """Whether lanes may be out that come only when those that wait are answered."""
        return bool(self._out) or not self._waits

    def _borrow(self) -> None:
        """Take a step of the next ones, if those of now cannot end without it."""
        self._loan = None
        if self._round is None and self._waiting and self._is_spent and self._may_borrow:
            assert self._budget is not None
            if self._budget.lend():
                self._borrowers = set(self._waiting)
                self._look()
            else:
                self._loan = asyncio.get_running_loop().call_later(self._late_s, self._borrow)

    def _learn_from(self, row: int) -> None:
        """Lend sooner where a loan let another session tick, later where it only let one go on."""
        if self._borrowers:
            has_helped = row not in self._borrowers
            self._lend_after_s = (
                max(_LEAST_LEND_AFTER_S, self._lend_after_s / 2) if has_helped else _LEND_AFTER_S
            )
            self._borrowers.clear()

    def _begin_soon(self) -> None:
        """Begin a round when all that came together has been taken."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin_due)

    def _begin_due(self) -> None:
        self._is_due = False
        if self._round is None and self._waiting and not self._is_spent:
            self._begin()
        else:
            self._look()

    async def _watch(self, budget: Budget) -> None:
        try:
            await budget.wait()
        except Exception as error:  # noqa: BLE001  the requests' boundary: passed to all who wait
            if self._is_spent:
                while self._waiting:
                    _, turn = self._waiting.popitem()
                    turn.fail(error)
                    self._out.add(turn.lane)
        finally:
            self._watcher = None
        self._look()

    def _wait_for_lanes(self) -> None:
        """Go on without the lanes that are late, once their time is over."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._since = loop.time()
            self._timer = loop.call_at(self._since + self._late_s, self._go_without, self._late_s)

    def _go_without(self, waited_s: float) -> None:
        self._timer = None
        late = [lane for lane in self._out if lane.has_come or waited_s >= self._first_s]
        if late and self._waiting:
            self._out.difference_update(late)
            names = ", ".join(lane.name for lane in sorted(late, key=lambda lane: lane.row))
            logger.warning(
                "lanes %s: nothing came for %g s: the others go on; %s",
                names,
                waited_s,
                _ANOTHER_RUN,
            )
            if self._gives_up:
                self.stop_waiting(f"lanes {names} are late")
        if self._waits and self._out and self._waiting:  # of these some have never come
            loop = asyncio.get_running_loop()
            due = self._since + max(self._first_s, waited_s)
            self._timer = loop.call_at(due, self._go_without, self._first_s)
        self._look()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_loan(self) -> None:
        if self._loan is not None:
            self._loan.cancel()
            self._loan = None

    def _begin(self) -> None:
        """Answer those who wait, or as many of them as there are steps left."""
        if self._lost:
            names = ", ".join(dict.fromkeys(self._lost))
            self._log.error(f"lanes {names}: a session was lost: {_ANOTHER_RUN}")
            self._lost.clear()
        turns = [self._waiting[row] for row in sorted(self._waiting)]
        if self._budget is not None:
            if (left := self._budget.left) < len(turns):
                fewest = sorted(turns, key=lambda turn: turn.lane.steps)[:left]
                turns = sorted(fewest, key=lambda turn: turn.lane.row)
            self._budget.take(len(turns))
        for turn in turns:
            del self._waiting[turn.lane.row]
            turn.is_answered = True
            turn.lane.steps += 1
        self._round = asyncio.create_task(self._answer(turns))

    async def _answer(self, turns: Sequence[_Turn]) -> None:
        try:
            answers = await self._ask(turns)
        finally:
            self._round = None
        for turn, answer in zip(turns, answers, strict=True):
            if turn.lane.seat is not None or self._plays_on:
                self._out.add(turn.lane)
            if isinstance(answer, BaseException):
                turn.fail(answer)
            elif not turn.future.done():
                turn.future.set_result(answer)
        self._look()

    async def _ask(self, turns: Sequence[_Turn]) -> Sequence[Answer | BaseException]:
        """Ask for all rows at once; where that fails, for each alone, so that a bad one does."""
        try:
            batch = self._block.fill({turn.lane.row: turn.inputs for turn in turns})
            answer = await self._model.infer(*batch, batch=True)
            return [Answer(row_of(answer.outputs, turn.lane.row), answer.version) for turn in turns]
        except Exception:  # noqa: BLE001  the requests' boundary: each is asked for again below
            self._block.forget()
        alone = (self._model.infer(*turn.inputs) for turn in turns)
        return await asyncio.gather(*alone, return_exceptions=True)


class LaneSeat:
    """The place of one session in a `LaneBarrier`: `LaneBarrier.join` makes it."""

    def __init__(
        self, barrier: LaneBarrier, lane: _Lane, on_held: Callable[[Nested], None]
    ) -> None:
        self.lane = lane
        self.on_held = on_held
        self._barrier = barrier

    async def ask(self, *inputs: Nested) -> Answer:
        """Answer one row when all lanes have sent theirs.

        A step whose answer fails, or is not waited for, is given back.

        Args:
            inputs: Inputs of the model, the observation first, without batch dimension.

        Raises:
            DeadlineError: the budget had nothing left for too long.
            SpecError: another session has taken over the lane, or the row does not fit the model.
            Exception: the error of the model.
        """
        if self.lane.seat is not self:
            raise SpecError(f"lane {self.lane.name!r}: another session has taken it over")
        turn = _Turn(self.lane, self, inputs, asyncio.get_running_loop().create_future())
        self._barrier._put(turn)
        try:
            return await turn.future
        except BaseException:
            self._barrier._take_back(turn)
            raise

    def end(self) -> None:
        """Leave after the session's end."""
        self._barrier._leave(self, is_lost=False)

    def lose(self) -> None:
        """Leave because the session was lost."""
        self._barrier._leave(self, is_lost=True)


@dataclass(slots=True, eq=False)
class _Lane:
    name: str
    row: int
    seat: LaneSeat | None = None
    has_come: bool = False
    steps: int = 0


@dataclass(slots=True, eq=False)
class _Turn:
    """One tick of a lane, from its arrival to its answer."""

    lane: _Lane
    seat: LaneSeat
    inputs: tuple[Nested, ...]
    future: asyncio.Future[Answer]
    is_held: bool = False
    is_answered: bool = False
    """Whether a step of the budget was taken for it."""

    def hold(self) -> bool:
        """Tell its session that it waits for the budget; False if that failed it."""
        self.is_held = True
        try:
            self.seat.on_held(self.inputs[0])
        except Exception as error:  # noqa: BLE001  the request's boundary: passed to its caller
            self.fail(error)
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """Let its session raise this."""
        if not self.future.done():
            self.future.set_exception(error)
