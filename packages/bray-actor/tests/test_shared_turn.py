"""Turns and versions of several policies that play together, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from bray_actor import PolicyActor, PolicyConfig, segment_spec
from bray_actor.policy.session_router import RoutedSeat, SessionRouter
from bray_actor.policy.shared_turn import SharedTurn, TurnSeat
from bray_actor.policy.shared_versions import SharedVersions, VersionSeat
from bray_core import codec
from bray_core.errors import BrayError, ConfigError, DeadlineError, SpecError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer
from bray_core.spaces import Spaces
from bray_server import Client, Request, ServerThread

AGENTS = ("hunter", "runner")
LAYOUT = Layout(segment_spec(ArraySpec(np.dtype("f4"), (1,)), ArraySpec(np.dtype("i8"), ()), 8))
SPACES = Spaces.parse("test", {"observation": {"shape": [1]}, "action": {"discrete": 2}})
TICK = codec.encode({"observation": np.zeros(1, np.float32), "reward": 1.0})
END = codec.encode({"reward": 1.0, "terminated": True})
PLENTY = 10**6


class Even:
    """A model that finds all actions alike."""

    def __init__(self) -> None:
        self.version = 0

    async def infer(self, *inputs: Any, batch: bool = False) -> Answer:
        return Answer({"logits": np.zeros(2, np.float32), "value": np.float32(0)}, self.version)

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        try:
            async with asyncio.timeout(timeout_s):
                while self.version < version:  # noqa: ASYNC110  another thread counts it up
                    await asyncio.sleep(0.001)
        except TimeoutError:
            raise DeadlineError(f"version {version} did not come") from None
        return self.version


def together(client: Client, games: Sequence[int]) -> None:
    """Both agents of all games act at once."""
    client.exchange([tick(game, agent) for game in games for agent in AGENTS])


def alternating(client: Client, games: Sequence[int]) -> None:
    """One agent of all games acts, then the other."""
    for agent in AGENTS:
        client.exchange([tick(game, agent) for game in games])


def one_by_one(client: Client, games: Sequence[int]) -> None:
    """The simulator waits for each answer before it sends the next tick."""
    for game in games:
        for agent in AGENTS:
            client.exchange([tick(game, agent)])


Round = Callable[[Client, Sequence[int]], None]


def tick(game: int, agent: str) -> Request:
    return Request("tick", f"{game}/{agent}", TICK)


def play(address: str, play_round: Round, games: Sequence[int], stop: threading.Event) -> None:
    """Play episodes of some rounds until the server is gone."""
    with suppress(BrayError), Client(address) as client:
        while not stop.is_set():
            for game in games:
                for agent in AGENTS:
                    body = codec.encode({"agent": agent})
                    client.start(f"{game}/{agent}", body)
            for _ in range(7):
                play_round(client, games)
            client.exchange([Request("end", f"{g}/{a}", END) for g in games for a in AGENTS])


@contextmanager
def playing(seats: Any, rounds: Sequence[Round], models: Mapping[str, Even]) -> Iterator[str]:
    """Let simulators play, two games each, until the end of the block."""
    router = SessionRouter(
        {
            agent: RoutedSeat(
                spaces=SPACES,
                make=PolicyActor.factory(
                    models[agent],  # type: ignore[arg-type]
                    PolicyConfig(),
                    buffer=seats[agent],
                    budget=seats[agent],
                ),
            )
            for agent in AGENTS
        }
    )
    server = ServerThread(router)
    stop = threading.Event()
    threads = [
        threading.Thread(
            target=play, args=(server.addresses[0], play_round, (2 * i, 2 * i + 1), stop)
        )
        for i, play_round in enumerate(rounds)
    ]
    for thread in threads:
        thread.start()
    yield server.addresses[0]
    stop.set()
    server.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def steps(segments: Sequence[Packed]) -> int:
    return sum(int(segment.tree["length"]) for segment in segments)


def versions(segments: Sequence[Packed]) -> set[int]:
    return {
        int(version)
        for segment in segments
        for version in segment.tree["policy_version"][: int(segment.tree["length"])]
    }


def turn_of(hunter: int | None, runner: int | None) -> SharedTurn:
    return SharedTurn({"hunter": TurnSeat(LAYOUT, hunter), "runner": TurnSeat(LAYOUT, runner)})


class TestTurn:
    @pytest.mark.parametrize("play_round", [together, alternating, one_by_one])
    def test_the_first_that_has_its_steps_ends_it(self, play_round: Round) -> None:
        turn, models = turn_of(30, 75), {agent: Even() for agent in AGENTS}
        played = dict.fromkeys(AGENTS, 0)
        with playing(turn, [play_round, play_round], models):
            for index in range(6):
                turn.grant(PLENTY)
                assert turn.wait_played(20)
                found = turn.segments()
                assert versions(found["hunter"]) <= {models["hunter"].version}
                assert versions(found["runner"]) <= {models["runner"].version}
                for agent, quota in (("hunter", 30), ("runner", 75)):
                    played[agent] += steps(found[agent])
                    assert played[agent] <= quota, f"turn {index}: not one too many"
                done = [a for a, quota in (("hunter", 30), ("runner", 75)) if played[a] == quota]
                assert done
                for agent in done:
                    played[agent] = 0
                    models[agent].version += 1
                assert not any(turn.segments().values()), "nobody plays between two turns"
        assert models["runner"].version >= 1

    def test_without_quotas_it_ends_with_the_steps_of_all(self) -> None:
        turn, models = turn_of(None, None), {agent: Even() for agent in AGENTS}
        with playing(turn, [one_by_one, together], models):
            for granted in (12, 1, 40):
                turn.grant(granted)
                assert turn.wait_played(20)
                assert sum(map(steps, turn.segments().values())) == granted

    def test_a_session_that_is_lost_gives_its_steps_back(self) -> None:
        turn, models = turn_of(200, None), {agent: Even() for agent in AGENTS}
        with playing(turn, [together], models) as address:
            client = Client(address)
            client.start("9/hunter", codec.encode({"agent": "hunter"}))
            turn.grant(PLENTY)
            for _ in range(5):
                client.tick("9/hunter", TICK)
            client.close()  # its five steps never come
            assert turn.wait_played(20)
            assert steps(turn.segments()["hunter"]) == 200

    def test_nonsense_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="seats: expected one or more, got none"):
            SharedTurn({})
        with pytest.raises(ConfigError, match="seats: hunter: quota: expected 1 or more, got 0"):
            turn_of(0, None)
        other = Layout(segment_spec(LAYOUT.spec["action"], LAYOUT.spec["action"], 1))
        with pytest.raises(SpecError, match="expected the layout that this turn is of"):
            turn_of(1, 1)["hunter"].push(Packed(other, other.empty()))


class Queue:
    """A buffer that counts the steps of each version."""

    layout = LAYOUT

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.changed = threading.Condition()

    def push(self, segment: Packed) -> int:
        with self.changed:
            for version in segment.tree["policy_version"][: int(segment.tree["length"])]:
                self.steps[int(version)] = self.steps.get(int(version), 0) + 1
            self.changed.notify_all()
        return 1

    async def push_async(self, segment: Packed, **options: Any) -> int:
        return self.push(segment)

    def wait(self, version: int, quota: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.steps.get(version, 0) >= quota, 20)


def versions_of(models: Mapping[str, Even], queues: Mapping[str, Queue]) -> SharedVersions:
    quotas = {"hunter": 30, "runner": 75}
    return SharedVersions(
        {
            agent: VersionSeat(models[agent], queues[agent], quotas[agent])  # type: ignore[arg-type]
            for agent in AGENTS
        }
    )


class TestVersions:
    @pytest.mark.parametrize("play_round", [together, alternating, one_by_one])
    def test_two_trainers_never_wait_for_each_other(self, play_round: Round) -> None:
        models = {agent: Even() for agent in AGENTS}
        queues = {agent: Queue() for agent in AGENTS}
        seats = versions_of(models, queues)
        with playing(seats, [play_round, play_round], models):
            for version in range(2):  # the slower one's steps come, whatever the other has
                for agent, quota in (("hunter", 30), ("runner", 75)):
                    assert queues[agent].wait(version, quota)
                    if agent == "runner":
                        assert queues["hunter"].steps[version] == 30, "the others were not recorded"
                for model in models.values():
                    model.version += 1
        assert {v: queues["runner"].steps[v] for v in range(2)} == {0: 75, 1: 75}

    def test_all_wait_when_all_are_spent(self) -> None:
        models = {agent: Even() for agent in AGENTS}
        queues = {agent: Queue() for agent in AGENTS}
        seats = versions_of(models, queues)
        with playing(seats, [one_by_one, together], models) as address:
            assert queues["runner"].wait(0, 75)
            assert queues["hunter"].wait(0, 30)
            client = Client(address, timeout_s=0.3)
            client.start("9/hunter", codec.encode({"agent": "hunter"}))
            with pytest.raises(BrayError):
                client.tick("9/hunter", TICK)
            client.close()
