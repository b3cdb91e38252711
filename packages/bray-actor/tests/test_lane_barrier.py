"""Lanes keep their rows, whoever comes first; budgets, late lanes and lost ones."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray_actor import PolicyActor, PolicyConfig, StepBudget, segment_spec
from bray_actor.policy.lane_barrier import LaneBarrier
from bray_actor.policy.row_block import RowBlock
from bray_actor.policy.session_router import RoutedSeat, SessionRouter
from bray_actor.policy.turn_budget import TurnBudget
from bray_core import codec, nested
from bray_core.errors import ClosedError, ConfigError, DeadlineError, ServiceError, SpecError
from bray_core.layout import Layout
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer

LAYOUT = Layout(segment_spec(ArraySpec(np.dtype("f4"), (2,)), ArraySpec(np.dtype("i8"), ()), 8))


class Plain:
    """A model that notes the batches it is asked for; refuses rows with a negative number."""

    def __init__(self) -> None:
        self.version = 0
        self.batches: list[np.ndarray] = []
        self.alone = 0
        self._changed = asyncio.Event()

    async def infer(self, *inputs: Any, batch: bool = False) -> Answer:
        rows = inputs[0] if batch else inputs[0][None]
        await asyncio.sleep(0)
        if rows.dtype != np.float32 or rows.shape[1:] != (2,):
            raise SpecError("inputs[0]: expected float32 (2,)")
        if (rows < 0).any():
            raise IndexError("negative")
        if batch:
            self.batches.append(rows.copy())
        else:
            self.alone += 1
        logits, value = rows * 2, rows.sum(-1)
        outputs = {"logits": logits, "value": value}
        if not batch:
            outputs = {name: leaf[0, ...] for name, leaf in outputs.items()}
        return Answer(outputs, self.version)

    def publish(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        try:
            async with asyncio.timeout(timeout_s):
                while self.version < version:
                    await self._changed.wait()
        except TimeoutError:
            raise DeadlineError("no version") from None
        return self.version


def row(lane: int, tick: int) -> np.ndarray:
    return np.array([lane, tick], np.float32)


def nothing(observation: Any) -> None:
    """What is called of a tick that is held."""


def make(lanes: int, model: Any = None, **settings: Any) -> tuple[Any, LaneBarrier]:
    model = model or Plain()
    if (steps := settings.pop("steps", None)) is not None:
        settings["budget"] = StepBudget(steps, model, settings.pop("timeout_s", 600.0))
    return model, LaneBarrier(model, map(str, range(lanes)), **settings)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_every_batch_is_the_same_whoever_comes_first() -> None:
    model, barrier = make(5)

    async def lane(number: int, dice: random.Random) -> None:
        tick = 0
        for episode in range(6):
            seat = barrier.join(f"{number}/{episode}", nothing)
            for _ in range(1 + (number + episode) % 4):
                for _ in range(dice.randrange(9)):
                    await asyncio.sleep(0)
                answer = await seat.ask(row(number, tick))
                assert answer.outputs["logits"].tolist() == [2 * number, 2 * tick]
                assert answer.outputs["value"].shape == ()
                tick += 1
            seat.end()

    seen = []
    for seed in range(3):
        dice = random.Random(seed)
        order = dice.sample(range(5), 5)
        done, left = await asyncio.wait(
            [asyncio.create_task(lane(number, dice)) for number in order],
            return_when=asyncio.FIRST_COMPLETED,  # then its lane is missing: that ends the play
        )
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for task in done:
            task.result()
        seen.append(model.batches)
        model, barrier = make(5)
    for batches in zip(*seen, strict=False):
        assert batches[0].shape == (5, 2)
        assert batches[0][:, 0].tolist() == [0, 1, 2, 3, 4]
        for other in batches[1:]:
            np.testing.assert_array_equal(other, batches[0])
    assert min(map(len, seen)) >= 10


async def test_steps_that_the_lanes_do_not_divide_wait_for_the_version_not_for_a_clock() -> None:
    """Seven steps of three lanes: two rounds of all, one of the lane whose turn it is."""
    model, barrier = make(3, steps=7)
    held: list[int] = []
    counts = [0, 0, 0]

    async def lane(number: int) -> None:
        seat = barrier.join(f"{number}/0", lambda observation: held.append(int(observation[0])))
        for tick in range(100):
            await seat.ask(row(number + 1, tick))
            counts[number] += 1

    tasks = [asyncio.create_task(lane(number)) for number in (2, 0, 1)]
    for version in range(1, 4):
        await settle()
        await settle()
        assert sum(counts) == 7 * version
        assert max(counts) - min(counts) <= 1, "those with the fewest steps go first"
        assert sorted(held[-3:]) == [1, 2, 3], "each is told once that it waits"
        assert len(held) == 3 * version
        model.publish()
    absent = [batch for batch in model.batches if (batch[:, 0] == 0).any()]
    assert [batch[:, 0].tolist() for batch in absent[:3]] == [[1, 0, 0], [0, 2, 0], [0, 0, 3]]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_lanes_that_wait_for_each_other_go_on() -> None:
    """A simulator that waits for the answers of all its lanes, and steps that do not divide."""
    budget = TurnBudget(LAYOUT)
    _, barrier = make(2, budget=budget, late_s=0.02)
    seats = [barrier.join(f"{number}/0", nothing) for number in range(2)]
    budget.grant(1)
    async with asyncio.timeout(5):
        await asyncio.gather(*(seat.ask(row(1, 0)) for seat in seats))


async def test_all_that_wait_for_a_turn_borrow_nothing() -> None:
    budget = TurnBudget(LAYOUT)
    _, barrier = make(2, budget=budget, late_s=0.02)
    seats = [barrier.join(f"{number}/0", nothing) for number in range(2)]
    budget.grant(2)
    await asyncio.gather(*(seat.ask(row(1, 0)) for seat in seats))
    held = [asyncio.create_task(seat.ask(row(1, 1))) for seat in seats]
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in held)
    budget.grant(2)
    async with asyncio.timeout(5):
        await asyncio.gather(*held)


async def test_a_trainer_that_misses_a_step_gets_one_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bray_actor.policy.step_budget._SHORT_S", 0.05)
    model = Plain()
    budget = StepBudget(2, model)  # type: ignore[arg-type]
    _, barrier = make(1, model, budget=budget, waits=False, late_s=0.02)
    seat = barrier.join("0/0", lambda observation: budget.note_pushed(2))
    for tick in range(2):
        await seat.ask(row(1, tick))
    async with asyncio.timeout(5):
        await seat.ask(row(1, 2))


async def test_a_simulator_that_ticks_one_session_after_the_other_borrows_sooner_and_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = TurnBudget(Layout(nested.spec({"length": np.int32(0)})))
    _, barrier = make(3, budget=budget, waits=False)
    loop, open_steps, delays = asyncio.get_running_loop(), [0, 0, 0], []
    call_later = loop.call_later

    def noted(delay: float, *call: Any) -> asyncio.TimerHandle:
        if delay < 1:  # a turn that is over lends nothing, and is asked again much later
            delays.append(delay)
        return call_later(delay, *call)

    monkeypatch.setattr(loop, "call_later", noted)

    def hand_over(number: int) -> None:
        if open_steps[number]:
            budget.push({"length": np.int32(open_steps[number])})
            open_steps[number] = 0

    seats = [
        barrier.join(f"{number}/0", lambda observation: hand_over(int(observation[0])))
        for number in range(3)
    ]

    async def simulate() -> None:
        for tick in range(100):
            for number, seat in enumerate(seats):
                await seat.ask(row(number, tick))
                open_steps[number] += 1

    playing = asyncio.create_task(simulate())
    for _ in range(20):
        budget.grant(6)
        assert await asyncio.to_thread(budget.wait_played, 30)
    assert max(delays[-10:]) < 0.01 < delays[0]
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)


async def test_a_late_lane_is_left_out_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    model, barrier = make(2, late_s=0.02, first_s=0.05)
    first, second = (barrier.join(f"{number}/0", nothing) for number in range(2))
    async with asyncio.timeout(5):
        await first.ask(row(1, 0))  # the other has never come
        assert "lanes 1: nothing came for 0.05 s" in caplog.text
        assert "another run than the one that its seed repeats" in caplog.text
        await first.ask(row(1, 1))  # at once
        back = asyncio.create_task(second.ask(row(2, 0)))
        await settle()
        assert not back.done(), "it waits for the others as they do for it"
        await asyncio.gather(back, first.ask(row(1, 2)))
        caplog.clear()
        await first.ask(row(1, 3))  # now it is waited for again
    assert "lanes 1: nothing came for 0.02 s" in caplog.text
    assert [batch[:, 0].tolist() for batch in model.batches] == [[1, 0], [1, 0], [1, 2], [1, 0]]


async def test_what_is_lost_is_given_back_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """A client that goes away while it waits, or after its answer, costs no step."""
    model, barrier = make(2, steps=4)
    first, second = (barrier.join(f"{number}/0", nothing) for number in range(2))
    waiting = asyncio.create_task(second.ask(row(2, 0)))
    await settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    second.lose()
    second = barrier.join("1/0", nothing)
    async with asyncio.timeout(5):
        for tick in range(2):
            await asyncio.gather(first.ask(row(1, tick)), second.ask(row(2, tick)))
        assert "lanes 1: a session was lost" in caplog.text
        caplog.clear()
        second.lose()
        barrier.refund(2)  # its open segment
        second = barrier.join("1/0", nothing)
        await asyncio.gather(first.ask(row(1, 3)), second.ask(row(2, 3)))
        assert "lanes 1: a session was lost" in caplog.text
    held = asyncio.create_task(first.ask(row(1, 4)))
    await settle()
    assert not held.done(), "four steps were recorded"
    model.publish()
    barrier.refund(3)  # late: of the version before
    await settle()
    pair = asyncio.create_task(second.ask(row(2, 4)))
    await asyncio.wait_for(asyncio.gather(held, pair), 5)


def test_a_row_that_is_far_too_large_takes_no_memory_for_the_others() -> None:
    """The model refuses the batch by its shape; until then its other rows are pages of zeros."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    batch = RowBlock(512).fill({0: np.ones(1 << 20, np.uint8)})
    assert batch.shape == (512, 1 << 20)
    assert resident() - before < 100 << 20


async def test_lost_sessions_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    _, barrier = make(1)
    for tick in range(200):
        seat = barrier.join("0/0", nothing)
        await seat.ask(row(1, tick))
        seat.lose()
    assert 0 < caplog.text.count("lanes 0: a session was lost") < 60


async def test_a_bad_row_fails_alone_and_is_given_back() -> None:
    model, barrier = make(3, steps=6)
    seats = [barrier.join(f"{number}/0", nothing) for number in range(3)]
    for bad, error in (
        (row(-1, 0), IndexError),
        (np.zeros(3, np.float32), SpecError),
        ("text", (SpecError, AttributeError, TypeError)),
    ):
        rows = [row(0, 0), bad, row(2, 0)]
        asked = (seat.ask(one) for seat, one in zip(seats, rows, strict=True))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(answers[1], error)
        assert not isinstance(answers[0], BaseException)
        assert not isinstance(answers[2], BaseException)
        model.publish()
    answers = await asyncio.gather(*(seat.ask(row(i, 1)) for i, seat in enumerate(seats)))
    assert [answer.outputs["value"] for answer in answers] == [1, 2, 3]
    assert model.batches[-1].shape == (3, 2), "rows are asked for together again"


async def test_evaluations_wait_for_open_sessions_alone() -> None:
    model, barrier = make(3, plays_on=False)
    seats = [barrier.join(f"{number}/0", nothing) for number in range(2)]
    async with asyncio.timeout(5):
        await asyncio.gather(*(seat.ask(row(i + 1, 0)) for i, seat in enumerate(seats)))
        seats[0].end()
        await seats[1].ask(row(2, 1))
    assert [batch[:, 0].tolist() for batch in model.batches] == [[1, 2, 0], [0, 2, 0]]


async def test_a_lane_belongs_to_its_newest_session() -> None:
    _, barrier = make(2)
    old = barrier.join("1/0", nothing)
    waiting = asyncio.create_task(old.ask(row(2, 0)))
    await settle()
    new = barrier.join("1/1", nothing)
    with pytest.raises(SpecError, match="session '1/1' took the place of this one"):
        await waiting
    with pytest.raises(SpecError, match="lane '1': another session has taken it over"):
        await old.ask(row(2, 0))
    old.lose()
    first = barrier.join("0/0", nothing)
    await asyncio.wait_for(asyncio.gather(first.ask(row(1, 0)), new.ask(row(2, 0))), 5)
    with pytest.raises(SpecError, match="session '7/0': expected a name that begins with one of"):
        barrier.join("7/0", nothing)


async def test_waiting_for_a_version_ends_with_the_models_error() -> None:
    class Closed(Plain):
        async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
            raise ClosedError("the model was closed")

    for model, error in ((Plain(), DeadlineError), (Closed(), ClosedError)):
        _, barrier = make(2, model, steps=2, timeout_s=0.02)
        seats = [barrier.join(f"{number}/0", nothing) for number in range(2)]
        await asyncio.gather(*(seat.ask(row(1, 0)) for seat in seats))
        asked = (seat.ask(row(1, 1)) for seat in seats)
        assert [type(e) for e in await asyncio.gather(*asked, return_exceptions=True)] == [
            error,
            error,
        ]


async def test_an_end_that_is_refused_gives_its_steps_back() -> None:
    """Its session is over: what it had recorded comes no more."""

    class Kept:
        layout = LAYOUT
        steps = 0

        def push(self, *segments: Any, **options: Any) -> int:
            self.steps += sum(int(segment.tree["length"]) for segment in segments)
            return len(segments)

    for budgeted in (False, True):
        model: Any = Plain()
        buffer: Any = Kept()
        budget = StepBudget(2, model) if budgeted else None
        lanes = None if budgeted else LaneBarrier(model, ["0"], budget=StepBudget(2, model))
        make_actor = PolicyActor.factory(
            model, PolicyConfig(), buffer=buffer, budget=budget, lanes=lanes
        )
        body = codec.encode({"observation": row(0, 0), "reward": 1.0})
        for episode in range(3):
            actor = make_actor(f"0/{episode}")
            async with asyncio.timeout(5):
                await actor.tick(body)
            with pytest.raises(ServiceError, match="expected the key 'observation'"):
                await actor.end(codec.encode({"reward": 1.0}))
        assert buffer.steps == 0
    with pytest.raises(ConfigError, match="budget: expected None beside lanes"):
        PolicyActor("0/0", model, PolicyConfig(), budget=budget, lanes=make(1)[1])


def test_settings_are_checked() -> None:
    for lanes in ([], ["1", "1"]):
        with pytest.raises(ConfigError, match="lanes: expected one or more names, each once"):
            LaneBarrier(Plain(), lanes)


async def test_a_start_that_is_refused_or_lost_leaves_its_lane_to_another() -> None:
    model, barrier = make(1, plays_on=False)
    answer = PolicyActor.factory(model, PolicyConfig(), lanes=barrier)
    with pytest.raises(ServiceError, match="bad_request"):
        await answer("0/0").start(b"no codec")
    assert barrier.free_lane() == "0"
    router = SessionRouter({"*": RoutedSeat(make=answer, lanes=barrier)})
    large = codec.encode({"tags": {str(number): number for number in range(2000)}})
    starting = asyncio.create_task(router("a").start(large))  # type: ignore[arg-type]
    for _ in range(10_000):  # it is decoded in a thread, twice: before it joins, and after
        if barrier.free_lane() is None:
            break
        await asyncio.sleep(0.0005)
    assert not starting.done()
    starting.cancel()  # its connection is lost
    await asyncio.gather(starting, return_exceptions=True)
    assert starting.cancelled()
    assert barrier.free_lane() == "0"
