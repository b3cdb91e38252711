from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bray_actor import Agent, AgentActor, TickState
from bray_actor.agents.agent_actor import AgentError
from bray_actor.agents.tick_state import WaitCycleError
from bray_core import codec, metrics
from bray_core.errors import (
    AlreadyExistsError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    ServiceError,
    SpecError,
)


class Doubler(Agent):
    def __init__(self) -> None:
        self.episodes: list[tuple[list[Any], bool]] = []

    async def on_tick(self, state: TickState) -> Any:
        return state.observation * 2

    async def on_episode(self, episode: Sequence[Any], done: bool) -> None:
        self.episodes.append((list(episode), done))


class Adder(Doubler):
    async def on_tick(self, state: TickState) -> Any:
        return await state.wait("doubler") + 1


class Failing(Doubler):
    async def on_tick(self, state: TickState) -> Any:
        raise ValueError(f"cannot do {state.observation}")


async def tick(actor: AgentActor, observation: Any) -> Any:
    return codec.decode(await actor.tick(codec.encode(observation)))


async def test_agents_wait_for_each_others_results() -> None:
    actor = AgentActor({"adder": Adder(), "doubler": Doubler()})
    assert await tick(actor, 5) == {"doubler": 10, "adder": 11}


async def test_episodes_are_cut_and_ended() -> None:
    agent = Doubler()
    actor = AgentActor({"a": agent}, episode_length=2)
    for number in range(5):
        await tick(actor, number)
    await actor.end(b"")
    assert agent.episodes == [([0, 2], False), ([4, 6], False), ([8], True)]


async def test_on_episode_does_not_delay_the_next_tick_and_keeps_its_order() -> None:
    release, seen = asyncio.Event(), []

    class Slow(Doubler):
        async def on_episode(self, episode: Sequence[Any], done: bool) -> None:
            await release.wait()
            seen.append(list(episode))

    actor = AgentActor({"a": Slow()}, episode_length=1)
    for number in range(3):
        await tick(actor, number)
    assert seen == []
    release.set()
    await actor.end(b"")
    assert seen == [[0], [2], [4], []]


async def test_a_slow_on_episode_drops_the_oldest_part_that_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release, seen = asyncio.Event(), []

    class Slow(Doubler):
        async def on_episode(self, episode: Sequence[Any], done: bool) -> None:
            await release.wait()
            seen.append((list(episode), done))

    before = metrics.snapshot().get("actor/parts_dropped", 0.0)
    actor = AgentActor({"a": Slow()}, episode_length=1, max_waiting=2)
    for number in range(6):
        await tick(actor, number)
        await asyncio.sleep(0)
    release.set()
    await actor.end(b"")
    assert seen == [([0], False), ([10], False), ([], True)]
    assert metrics.snapshot()["actor/parts_dropped"] - before == 4
    assert caplog.text.count("slower than the ticks") == 1


async def test_one_agents_failure_is_named_and_the_others_keep_their_work() -> None:
    good, bad = Doubler(), Failing()
    actor = AgentActor({"good": good, "bad": bad})
    with pytest.raises(AgentError, match="agents failed: bad: ValueError: cannot do 3"):
        await tick(actor, 3)
    await actor.end(b"")
    assert good.episodes == [([6], True)]
    assert bad.episodes == [([None], True)]


async def test_who_waits_for_a_failed_agent_fails_at_once() -> None:
    class Late(Doubler):
        async def on_tick(self, state: TickState) -> Any:
            for _ in range(10):
                await asyncio.sleep(0)
            return await state.wait("doubler")

    actor = AgentActor({"early": Adder(), "doubler": Failing(), "late": Late()}, timeout_s=100)
    with pytest.raises(AgentError) as raised:
        await tick(actor, 3)
    for name in ("early", "late"):
        lost = f"{name}: NotFoundError: state: 'doubler' failed: ValueError: cannot do 3"
        assert lost in str(raised.value)


async def test_a_failing_on_episode_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Doubler):
        async def on_episode(self, episode: Sequence[Any], done: bool) -> None:
            raise ValueError("no episode")

    good = Doubler()
    actor = AgentActor({"broken": Broken(), "good": good})
    await tick(actor, 1)
    await actor.abort("gone")
    assert good.episodes == [([2], False)]
    assert "no episode" in caplog.text


async def test_waiting_has_a_deadline_that_says_who_waits_for_what() -> None:
    state = TickState(None, timeout_s=0.05)
    state.set("here", 1)
    with pytest.raises(
        DeadlineError, match=r"'walker' waited 0\.05 s for 'map'; set are \['here'\]"
    ):
        await state.of("walker").wait("map")


async def test_a_deadline_names_all_that_wait() -> None:
    class Map(Agent):
        async def on_tick(self, state: TickState) -> Any:
            await state.wait("walker")
            state.set("map", 1)

    class Walker(Agent):
        async def on_tick(self, state: TickState) -> Any:
            return await state.wait("map")

    actor = AgentActor({"mapper": Map(), "walker": Walker()}, timeout_s=0.05)
    with pytest.raises(AgentError, match=r"waited 0\.05 s for '(map|walker)'; set are .*; '") as e:
        await tick(actor, 0)
    assert "waits for" in str(e.value)


async def test_a_cycle_through_one_of_many_waits_is_named() -> None:
    class Both(Agent):
        async def on_tick(self, state: TickState) -> Any:
            return await asyncio.gather(state.wait("b"), state.wait("c"))

    class Waits(Agent):
        async def on_tick(self, state: TickState) -> Any:
            await asyncio.sleep(0.01)
            return await state.wait("a")

    agents = {"a": Both(), "b": Waits(), "c": Doubler()}
    with pytest.raises(AgentError, match="cycle of waits: b → a → b"):
        await tick(AgentActor(agents, timeout_s=100), 0)


async def test_who_waits_for_a_cancelled_agent_fails_at_once() -> None:
    class Cancelled(Doubler):
        async def on_tick(self, state: TickState) -> Any:
            await asyncio.sleep(0.01)
            raise asyncio.CancelledError("the model went away")

    actor = AgentActor({"doubler": Cancelled(), "adder": Adder()}, timeout_s=100)
    with pytest.raises(AgentError, match="adder: NotFoundError: state: 'doubler' failed"):
        await tick(actor, 0)


async def test_a_cycle_of_waits_is_named() -> None:
    class Waits(Agent):
        def __init__(self, name: str) -> None:
            self.name = name

        async def on_tick(self, state: TickState) -> Any:
            return await state.wait(self.name)

    actor = AgentActor({"a": Waits("b"), "b": Waits("c"), "c": Waits("a")}, timeout_s=0.2)
    with pytest.raises(AgentError, match="cycle of waits: c → a → b → c"):
        await tick(actor, 0)
    with pytest.raises(AgentError, match="'a' waits for itself"):
        await tick(AgentActor({"a": Waits("a")}), 0)
    assert issubclass(WaitCycleError, Exception)


async def test_state_values() -> None:
    state = TickState()
    state.of("a").set("x", 1)
    assert state.get("x") == await state.wait("x") == 1
    with pytest.raises(AlreadyExistsError, match="'x' was set already, by 'a'"):
        state.of("b").set("x", 2)
    with pytest.raises(NotFoundError, match="'y' is not set"):
        state.get("y")


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="agents: expected one or more"):
        AgentActor({})
    with pytest.raises(ConfigError, match="episode_length: expected 0 or more, got -1"):
        AgentActor({"a": Doubler()}, episode_length=-1)
    with pytest.raises(ConfigError, match="max_waiting: expected 1 or more, got 0"):
        AgentActor({"a": Doubler()}, max_waiting=0)
    with pytest.raises(ConfigError, match="timeout_s: expected more than 0, got 0"):
        AgentActor({"a": Doubler()}, timeout_s=0)


async def test_a_body_that_cannot_be_parsed_is_the_clients_fault() -> None:
    class Checked(AgentActor):
        def parse(self, body: bytes) -> Any:
            raise SpecError("board: expected 9 fields, got 8")

    for actor, message in (
        (AgentActor({"doubler": Doubler()}), "bad_request: decode"),
        (Checked({"doubler": Doubler()}), "bad_request: board: expected 9 fields"),
    ):
        with pytest.raises(ServiceError, match=message):
            await actor.tick(b"\xc1")
