"""Environments of several agents stepped in the caller's thread, each seat recorded by itself."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bray_actor.episodes import record_metrics
from bray_actor.multi_agent.environment import MultiAgentEnvironment
from bray_actor.multi_agent.game_in_play import GameInPlay
from bray_actor.multi_agent.player import Player
from bray_actor.multi_agent.seat import Cast, GameResult, Seat
from bray_actor.multi_agent.seat_batch import SeatBatches
from bray_actor.multi_agent.seat_record import SeatRecord
from bray_actor.runners.open_segments import PUSH_TIMEOUT_S
from bray_core import metrics
from bray_core.errors import ConfigError

_KEPT = 10_000
"""Results that wait for being taken at most."""


class MultiAgentRunner:
    """Plays N environments of several agents, and pushes each seat's segments to its buffer.

    In each round all agents that act are asked: one batch for each seat, all models side by side.
    The segments are those of `PolicyActor`. With one seed a run repeats bit for bit on one kind of
    CPU, as long as the models' versions come at the same steps.

    With a quota a seat's batch never mixes two versions of its policy: what it plays beyond the
    quota is not recorded until its model has another version.

    Args:
        environments: Environments, N.
        cast: Says before each game who plays which agent.
        seed: Seed of the environments, casts and draws.
        quotas: Steps of one policy version that are recorded, by the seat's name; seats that are
            not named have no bound.
        ends_with_first: Whether `run` returns as soon as one seat's quota is filled, so that its
            trainer need not wait for the others; else once all are.
        info_metrics: Keys of the agents' infos that are metrics of their episodes, beside those of
            `info["metrics"]`.
        reset_options: Options that games begin with, see `set_reset_options`; None: none.

    Raises:
        ConfigError: no environment, a quota below 1, or a cast in which nothing is recorded or an
            agent has no seat.
    """

    def __init__(
        self,
        environments: Sequence[MultiAgentEnvironment],
        cast: Cast,
        *,
        seed: int,
        quotas: Mapping[str, int] | None = None,
        ends_with_first: bool = True,
        info_metrics: Sequence[str] = (),
        reset_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not environments:
            raise ConfigError("environments: expected one or more, got none")
        for name, quota in (quotas or {}).items():
            if quota < 1:
                raise ConfigError(f"quotas: {name}: expected 1 or more, got {quota}")
        self._cast = cast
        self._quotas = dict(quotas or {})
        self._ends_with_first = ends_with_first
        self._records: dict[str, SeatRecord] = {}
        self._batches = SeatBatches()
        self._results: deque[GameResult] = deque(maxlen=_KEPT)
        self._returns: deque[float] = deque(maxlen=_KEPT)
        self._frames: dict[str, int] = {}
        self._games = [
            GameInPlay(
                env,
                index,
                cast,
                self._batches,
                seed=seed,
                record_of=self._record_of,
                info_metrics=info_metrics,
            )
            for index, env in enumerate(environments)
        ]
        if reset_options is not None:
            self.set_reset_options(reset_options)
        for index, game in enumerate(self._games):
            game.begin(seed + index)
        if not any(seat.buffer for game in self._games for seat in game.seats.values()):
            raise ConfigError(
                "cast: expected a seat with a buffer, got none: `play_games` records nothing"
            )

    @property
    def num_envs(self) -> int:
        """Number of environments, N."""
        return len(self._games)

    def _record_of(self, seat: Seat) -> SeatRecord | None:
        if seat.buffer is None:
            return None
        record = self._records.get(seat.name)
        if record is None:
            quota = self._quotas.get(seat.name)
            record = self._records[seat.name] = SeatRecord(seat, quota)
        record.seat = seat
        return record

    @property
    def _limited(self) -> list[SeatRecord]:
        """Records of the seats that have a quota."""
        return [record for record in self._records.values() if record.quota is not None]

    async def run(self, steps: int) -> int:
        """Play until enough is recorded; return how many steps that were, of all seats.

        Enough is `steps` times N, or quotas that are filled in this run; see `ends_with_first`. A
        step counts once its reward is known. Spent quotas whose models have another version by now
        are renewed first; where all are spent nothing is played.

        Args:
            steps: Recorded steps of each environment in the mean, those of all its agents together.

        Raises:
            ConfigError: steps is below 1.
            SpecError: an environment or a model returned arrays that do not fit; names them.
            DeadlineError: a buffer had no room in time.
            BrayError: an environment keeps failing.
        """
        if steps < 1:
            raise ConfigError(f"steps: expected 1 or more, got {steps}")
        self.renew()
        filled = {record.seat.name for record in self._limited if record.is_filled}
        started, stepping_s = time.perf_counter(), 0.0
        recorded = self._take_frames()
        while recorded < steps * self.num_envs and not self._is_enough(filled):
            stepping_s += await self._round()
            recorded += self._take_frames()
        metrics.record("actor/steps", max(recorded, 0), kind="count")
        metrics.record("actor/utilisation", stepping_s / (time.perf_counter() - started))
        return recorded

    def _is_enough(self, before: set[str]) -> bool:
        """Return whether quotas are filled that end a run; `before` names those it began with."""
        limited = self._limited  # of seats that have not been drawn yet nothing is known
        is_all = bool(limited) and all(record.is_filled for record in limited)
        newly = any(r.is_filled and r.seat.name not in before for r in limited)
        return is_all or (self._ends_with_first and newly)

    def _take_frames(self) -> int:
        """Return how many steps were finished since the last call, less those that were lost."""
        total = 0
        for name, record in self._records.items():
            self._frames[name] = self._frames.get(name, 0) + record.frames
            total += record.frames
            record.frames = 0
        return total

    async def _round(self) -> float:
        """Let all act once; return how long the environments took, in seconds."""
        await self._batches.act([each for game in self._games for each in game.acting])
        started = time.perf_counter()
        for game in self._games:
            if not game.step():
                game.begin()
            elif game.is_over:
                self._note(game)
                game.begin()
        stepping_s = time.perf_counter() - started
        for record in self._records.values():
            if record.is_filled:
                self._cut_seat(record)
            record.push()
        return stepping_s

    def _note(self, game: GameInPlay) -> None:
        """Keep how a game ended."""
        result = game.result()
        self._results.append(result)
        for agent, seat in game.seats.items():
            if seat.buffer is None or agent not in result.returns:
                continue
            self._returns.append(result.returns[agent])
            metrics.record("actor/episode_return", result.returns[agent], policy=seat.name)
            metrics.record("actor/episode_length", result.lengths[agent], policy=seat.name)
            metrics.record("actor/episodes", 1, kind="count", policy=seat.name)
            own = result.metrics.get(agent, {})
            record_metrics(own, "environment: info: metrics", policy=seat.name)

    def _players(self) -> Iterator[Player]:
        for game in self._games:
            yield from game.players.values()

    def _cut_seat(self, record: SeatRecord) -> None:
        for player in self._players():
            if player.seat.name == record.seat.name:
                player.cut()

    def cut(self) -> None:
        """Push all open segments, so that all that was counted can be popped."""
        for player in self._players():
            player.cut()
        for record in self._records.values():
            record.push()

    def renew(self) -> None:
        """Give each seat whose quota is filled a whole one, if its model has another version."""
        for record in self._limited:
            record.renew()

    async def next_version(self, timeout_s: float = PUSH_TIMEOUT_S) -> None:
        """Wait, if all quotas are filled, until one of their models has another version; renew.

        Raises:
            DeadlineError: no model had one within `timeout_s`.
        """
        self.renew()
        limited = self._limited
        if not limited or not all(record.is_filled for record in limited):
            return
        waits = [
            asyncio.ensure_future(record.seat.model.wait_version(record.version + 1, timeout_s))
            for record in limited
        ]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            for wait in waits:
                with suppress(asyncio.CancelledError, Exception):
                    await wait
        for wait in done:
            wait.result()
        self.renew()

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Let later games begin with options: `reset(seed, options=…)` of the environments.

        Raises:
            ConfigError: the environments take none.
        """
        for game in self._games:
            game.check_reset_options()
            game.reset_options = options

    def tell(self, news: Any) -> None:
        """Tell the cast what the driver says, such as new opponents."""
        self._cast.tell(news)

    def take_returns(self) -> list[float]:
        """Return the returns of the recorded agents whose games ended since the last call (the
        newest 10,000)."""
        returns = list(self._returns)
        self._returns.clear()
        return returns

    def take_results(self) -> list[GameResult]:
        """Return how the games ended since the last call (the newest 10,000)."""
        results = list(self._results)
        self._results.clear()
        return results

    def take_frames_by_seat(self) -> dict[str, int]:
        """Return how many steps were recorded since the last call, by the seat's name."""
        frames, self._frames = self._frames, {}
        return frames

    def close(self) -> None:
        """Close the environments."""
        for game in self._games:
            game.close()
