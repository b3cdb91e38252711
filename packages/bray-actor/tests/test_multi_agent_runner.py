"""The runner of several agents: quotas, versions, repeating, void games, casts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from playing_models import Hashing, Kept, first_spaces

from bray_actor import Rollouts
from bray_actor.environments.error_limit import MAX_ERRORS
from bray_actor.multi_agent.environment import AgentTick
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.playing import play_games
from bray_actor.multi_agent.recovering_game import RecoveringGame
from bray_actor.multi_agent.runner import MultiAgentRunner
from bray_actor.multi_agent.seat import FixedCast, GameResult, Seat
from bray_actor.policy.policy_config import PolicyConfig
from bray_core import metrics, nested
from bray_core.errors import BrayError, ConfigError, SpecError
from bray_core.spaces import LeafSpace, Spaces

NAMES = ("a", "b")


class Counting:
    """Two agents that act at once; each sees the number of the step; pays 1 and 10 a step."""

    def __init__(self, length: int = 6, fails_at: int = -1, pays: float = 1.0) -> None:
        self.agents: Sequence[str] = NAMES
        self.length, self.fails_at, self.pays = length, fails_at, pays
        self.seeds: list[int | None] = []
        self.total = 0
        self.is_open = True

    def spaces(self, agent: str) -> Spaces:
        choice = LeafSpace("category", "int64", (), (3,))
        return Spaces(agent, LeafSpace("real", "float32", (2,)), choice)

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        self.at = 0
        self.seeds.append(seed)
        self.seen = np.zeros(2, np.float32)
        return {agent: AgentTick(self.seen) for agent in NAMES}

    def step(self, actions: Mapping[str, Any]) -> dict[str, AgentTick]:
        self.at, self.total = self.at + 1, self.total + 1
        if self.total == self.fails_at:
            raise RuntimeError("broke")
        self.seen[:] = self.at  # into the same array, as some do
        is_over = self.at == self.length
        return {
            agent: AgentTick(self.seen, self.pays * 10**k, terminated=is_over)
            for k, agent in enumerate(NAMES)
        }

    def close(self) -> None:
        self.is_open = False


def make_seat(name: str = "main", *, records: bool = True, length: int = 4, **options: Any) -> Any:
    spaces = Counting().spaces("a")
    config = PolicyConfig(**options)
    size = config.state_size
    kept: Any = Kept(spaces, length, state_size=size, discounted=True) if records else None
    model: Any = Hashing(spaces, size)
    return Seat(name=name, model=model, config=config, buffer=kept)


def make_runner(*seats: Any, n: int = 2, environment: Any = None, **options: Any) -> Any:
    both = seats if len(seats) == 2 else seats * 2
    environments = [Counting() if environment is None else environment() for _ in range(n)]
    cast = FixedCast(dict(zip(NAMES, both, strict=True)))
    return MultiAgentRunner(environments, cast, seed=3, **options)


def versions(seat: Any) -> list[int]:
    return [
        int(v) for tree in seat.buffer.trees for v in tree["policy_version"][: int(tree["length"])]
    ]


# What is recorded.


async def test_segments_returns_and_results() -> None:
    one, two = make_seat("one"), make_seat("two", clip_reward=True, gamma=0.5)
    runner = make_runner(one, two, n=1)
    assert await runner.run(12) == 12
    trees = two.buffer.trees
    assert [int(tree["length"]) for tree in trees] == [4, 2]
    np.testing.assert_array_equal(trees[0]["observation"][:, 0], [0, 1, 2, 3])
    assert trees[0]["final_observation"][0] == 4
    assert trees[1]["final_observation"][0] == 0, "it terminated"
    np.testing.assert_array_equal(trees[1]["reward"], [1, 1, 0, 0])
    np.testing.assert_allclose(trees[1]["discounted_return"][:2], [1.9375, 1.96875])
    assert trees[1]["terminated"].tolist() == [False, True, False, False]
    assert (trees[1]["episode_return"], trees[1]["episode_length"]) == (60, 6)
    assert runner.take_returns() == [6.0, 60.0]
    assert runner.take_results() == [
        GameResult({"a": "one", "b": "two"}, {"a": 6.0, "b": 60.0}, {"a": 6, "b": 6})
    ]
    assert (runner.take_returns(), runner.take_results()) == ([], [])
    assert runner.take_frames_by_seat() == {"one": 6, "two": 6}
    value = one.model._row([np.zeros(2, np.float32)])[0] * 0.5
    assert one.buffer.trees[0]["value"][0] == pytest.approx(float(value))
    environment = runner._games[0]._env
    assert environment.seeds == [3, None]
    runner.close()
    assert not environment.is_open


async def test_an_opponent_records_nothing_and_the_most_likely_can_be_taken() -> None:
    opponent = make_seat("v3", records=False, deterministic=True)
    seat = make_seat()
    runner = make_runner(seat, opponent, n=1)
    assert await runner.run(6) == 6
    assert runner.take_returns() == [6.0], "of the recorded one alone"
    assert runner.take_frames_by_seat() == {"main": 6}
    with pytest.raises(ConfigError, match="cast: expected a seat with a buffer, got none"):
        make_runner(opponent)


async def test_a_state_goes_on_through_segments_and_begins_with_a_game() -> None:
    seat = make_seat(state_size=2)
    runner = make_runner(seat, n=1)
    await runner.run(24)
    starts = [tree["initial_state"][0] for tree in seat.buffer.trees]
    assert sorted(starts) == [0, 0, 0, 0, 4, 4, 4, 4]


class ComingBack(Counting):
    """`b` ends with the second step, and comes back with the fourth."""

    def step(self, actions: Mapping[str, Any]) -> dict[str, AgentTick]:
        ticks = super().step(actions)
        if self.at == 2:
            ticks["b"] = ticks["b"]._replace(terminated=True)
        elif self.at == 3:
            del ticks["b"]
        return ticks


async def test_one_who_comes_back_has_forgotten_its_life_before() -> None:
    seat = make_seat("two", state_size=2)
    runner = make_runner(make_seat("one"), seat, n=1, environment=ComingBack)
    await runner.run(10)
    assert [int(tree["length"]) for tree in seat.buffer.trees] == [2, 2]
    assert [tree["initial_state"].tolist() for tree in seat.buffer.trees] == [[0, 0], [0, 0]]
    # The second life is told 10 as it begins, and 10 for each of its two steps.
    assert [float(tree["episode_return"]) for tree in seat.buffer.trees] == [20, 30]
    assert [int(tree["episode_length"]) for tree in seat.buffer.trees] == [2, 2]


async def test_what_is_under_way_is_cut_also_in_games_of_turns() -> None:
    """All that is counted can be popped at once, and nothing is lost or doubled by the cuts."""
    environment = MultiAgentSpec(environment="connect_four_v3").make()
    spaces = first_spaces(environment)
    model: Any = Hashing(spaces)
    buffers: list[Any] = []
    for pieces in ([40], [1, 2, 3, 5, 8, 21]):
        kept: Any = Kept(spaces, length=30)
        seat = Seat(name="main", model=model, config=PolicyConfig(), buffer=kept)
        cast = FixedCast(dict.fromkeys(environment.agents, seat))
        runner = MultiAgentRunner([environment], cast, seed=3)
        told = 0
        for piece in pieces:
            told += await runner.run(piece)
            runner.cut()
            assert kept.num_steps == told
        buffers.append(kept)
    whole, cut = [[*steps(kept)] for kept in buffers]
    assert len(whole) == len(cut)
    assert sorted(whole) == sorted(cut)


def steps(kept: Any) -> Any:
    for tree in kept.trees:
        for k in range(int(tree["length"])):
            board = tree["observation"]["observation"][k].tobytes()
            yield board, int(tree["action"][k]), float(tree["reward"][k])


@pytest.mark.parametrize("environment", ["open_spiel:leduc_poker", "simple_tag_v3"])
async def test_a_run_repeats_bit_for_bit(environment: str) -> None:
    runs = []
    for seed in (5, 5, 6):
        games = [MultiAgentSpec(environment=environment).make() for _ in range(3)]
        seats: dict[str, Any] = {}
        for agent in games[0].agents:
            spaces = games[0].spaces(agent)
            model: Any = Hashing(spaces)
            kept: Any = Kept(spaces)
            seats[agent] = Seat(name=agent, model=model, config=PolicyConfig(), buffer=kept)
        runner = MultiAgentRunner(games, FixedCast(seats), seed=seed)
        await runner.run(30)
        runner.cut()
        trees = [tree for seat in seats.values() for tree in seat.buffer.trees]
        runs.append([leaf.tobytes() for tree in trees for _, leaf in nested.items(tree)])
        assert {size for seat in seats.values() for size in seat.model.sizes} == {3}
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


# Quotas.


async def test_a_quota_is_exact_and_no_batch_mixes_versions() -> None:
    one, two = make_seat("one"), make_seat("two")
    runner = make_runner(one, two, quotas={"one": 7, "two": 11})
    assert await runner.run(1000) == 7 + 8, "all of the first, and what the other played meanwhile"
    runner.cut()
    assert (one.buffer.num_steps, two.buffer.num_steps) == (7, 8)
    await asyncio.wait_for(runner.next_version(), 1)  # the second has steps left
    one.model.version += 1
    assert await runner.run(1000) == 4 + 3, "until the second is filled, two rounds later"
    runner.cut()
    assert (one.buffer.num_steps, two.buffer.num_steps) == (7 + 4, 11)
    two.model.version += 1
    await runner.run(1000)
    runner.cut()
    assert versions(one) == [1] * 7 + [2] * 7
    assert versions(two)[:11] == [1] * 11
    assert set(versions(two)[11:]) <= {2}


@pytest.mark.parametrize("environment", ["connect_four_v3", "open_spiel:leduc_poker"])
async def test_quotas_are_exact_in_games_of_turns(environment: str) -> None:
    games = [MultiAgentSpec(environment=environment).make() for _ in range(3)]
    spaces = first_spaces(games[0])
    model: Any = Hashing(spaces)
    kept: Any = Kept(spaces)
    seat = Seat(name="main", model=model, config=PolicyConfig(), buffer=kept)
    cast = FixedCast(dict.fromkeys(games[0].agents, seat))
    runner = MultiAgentRunner(games, cast, seed=1, quotas={"main": 23})
    for version in range(1, 5):
        assert await runner.run(1000) == 23
        assert kept.num_steps == 23 * version, "pushed without a cut"
        assert versions(seat)[-23:] == [version] * 23
        assert await runner.run(1000) == 0, "spent, and no other version yet"
        waiting = asyncio.ensure_future(runner.next_version())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        model.publish()
        await asyncio.wait_for(waiting, 5)


async def test_all_quotas_may_be_waited_for() -> None:
    one, two = make_seat("one"), make_seat("two")
    runner = make_runner(one, two, quotas={"one": 4, "two": 9}, ends_with_first=False)
    assert await runner.run(1000) == 13
    assert (one.buffer.num_steps, two.buffer.num_steps) == (4, 9)
    waiting = asyncio.ensure_future(runner.next_version())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    two.model.publish()  # one of them is enough
    await asyncio.wait_for(waiting, 5)
    assert await runner.run(1000) == 9
    assert one.buffer.num_steps == 4


async def test_the_wait_for_a_version_has_an_end() -> None:
    class Late(Hashing):
        async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
            raise TimeoutError("no version")

    model: Any = Late(Counting().spaces("a"))
    seat = Seat(name="x", model=model, config=PolicyConfig(), buffer=make_seat().buffer)
    runner = make_runner(seat, quotas={"x": 4})
    await runner.run(1000)
    with pytest.raises(TimeoutError, match="no version"):
        await runner.next_version()


async def test_unrecorded_steps_count_in_returns_but_in_no_segment() -> None:
    seat, opponent = make_seat(gamma=0.5), make_seat("v1", records=False)
    runner = make_runner(seat, opponent, n=1, quotas={"main": 2})
    two = make_seat("two")
    assert await runner.run(100) == 2
    seat.model.version += 1
    assert await runner.run(100) == 2
    lengths = [int(tree["length"]) for tree in seat.buffer.trees]
    assert lengths == [2, 2]
    np.testing.assert_allclose(seat.buffer.trees[1]["discounted_return"][:2], [1.75, 1.875])
    assert two.buffer.num_steps == 0


# Casts.


class Draws:
    """Seats the learner on either side, against one of several opponents."""

    def __init__(self) -> None:
        self.seat = make_seat()
        self.opponents = [make_seat(f"v{k}", records=False) for k in range(4)]
        self.news: list[Any] = []

    def draw(self, generator: random.Random) -> Mapping[str, Seat]:
        pair = [self.seat, generator.choice(self.opponents)]
        generator.shuffle(pair)
        return dict(zip(NAMES, pair, strict=True))

    def tell(self, news: Any) -> None:
        self.news.append(news)


def test_seats_are_drawn_for_each_game_and_rollouts_pass_all_on() -> None:
    cast = Draws()
    rollouts = Rollouts(MultiAgentRunner([Counting() for _ in range(4)], cast, seed=0))
    rollouts.collect(60)
    played = rollouts.poll()
    assert (played.frames, len(played.results)) == (240, 40)
    assert played.frames_by_seat == {"main": 240}
    assert {result.seats[agent] for result in played.results for agent in NAMES} == {
        "main",
        "v0",
        "v1",
        "v2",
        "v3",
    }
    assert {next(a for a in NAMES if r.seats[a] == "main") for r in played.results} == set(NAMES)
    assert set(cast.seat.model.sizes) == {4}, "one row for each environment"
    rollouts.tell({"opponents": 5})
    assert cast.news == [{"opponents": 5}]
    assert rollouts.poll() == (0, [], (), {}, ())
    rollouts.close()


async def test_a_cast_that_leaves_somebody_out_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cast: expected a seat for each .* none for \['b'\]"):
        MultiAgentRunner([Counting()], FixedCast({"a": make_seat()}), seed=0)


# What goes wrong.


def make_failing() -> Any:
    """Fails in its 9th step, once: the third of its second game."""
    tries = iter([9])
    return RecoveringGame(lambda: Counting(fails_at=next(tries, -1)), "counting")


async def test_a_game_that_fails_is_void_and_its_steps_are_played_again() -> None:
    seat = make_seat()
    metrics.drain()
    runner = make_runner(seat, n=1, environment=make_failing, quotas={"main": 30})
    assert await runner.run(1000) == 30
    assert seat.buffer.num_steps == 30, "so that a trainer never waits for what is lost"
    assert len(runner.take_results()) == 2
    lost = [sample for sample in metrics.drain() if sample.name == "actor/steps_lost"]
    assert sum(sample.total for sample in lost) == 6, "two finished steps each and the failed one"
    first = [tree["observation"][0, 0] for tree in seat.buffer.trees]
    assert first.count(0) == 6, "three games of two, none of them the void one"


async def test_lost_steps_are_not_counted() -> None:
    seat = make_seat(length=50)
    runner = make_runner(seat, n=1, environment=make_failing)
    told = 0
    for _ in range(12):
        told += await runner.run(2)
    runner.cut()
    assert told == seat.buffer.num_steps


async def test_one_that_keeps_failing_ends_the_run() -> None:
    def make() -> Any:
        return RecoveringGame(lambda: Counting(fails_at=1), "counting")

    with pytest.raises(BrayError, match=f"counting failed {MAX_ERRORS + 1} times"):
        await make_runner(make_seat(), n=1, environment=make).run(1)


async def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ConfigError, match="environments: expected one or more, got none"):
        make_runner(make_seat(), n=0)
    with pytest.raises(ConfigError, match="quotas: main: expected 1 or more, got 0"):
        make_runner(make_seat(), quotas={"main": 0})
    runner = make_runner(make_seat())
    with pytest.raises(ConfigError, match="steps: expected 1 or more, got 0"):
        await runner.run(0)
    other = Spaces(
        "o", LeafSpace("real", "float32", (5,)), LeafSpace("category", "int64", (), (3,))
    )
    kept: Any = Kept(other)
    model: Any = Hashing(other)
    seat = Seat(name="x", model=model, config=PolicyConfig(), buffer=kept)
    with pytest.raises(ConfigError, match="seat x: its segments' observation is float32"):
        make_runner(seat)
    reals = Spaces("o", LeafSpace("real", "float32", (2,)), LeafSpace("real", "float32", (2,)))
    kept = Kept(reals)
    seat = Seat(name="x", model=model, config=PolicyConfig(), buffer=kept)
    with pytest.raises(ConfigError, match=r"seat x: its segments' action has shape \(2,\)"):
        make_runner(seat)
    kept = Kept(Counting().spaces("a"))
    seat = Seat(name="x", model=model, config=PolicyConfig(state_size=3), buffer=kept)
    with pytest.raises(ConfigError, match="state has size 0, the policy's state_size is 3"):
        make_runner(seat)
    model = Hashing(reals)
    seat = Seat(name="x", model=model, config=PolicyConfig(), buffer=kept)
    with pytest.raises(SpecError, match="model output"):
        await make_runner(seat).run(1)
    with pytest.raises(SpecError, match="reward of a: expected a finite number, got nan"):
        await make_runner(make_seat(), environment=lambda: Counting(pays=np.nan)).run(1)


async def test_an_environment_that_breaks_its_word_is_named() -> None:
    class Wide(Counting):
        def reset(self, seed: int | None = None) -> Any:
            return {"a": AgentTick(np.zeros(3, np.float32))}

    class Blind(Counting):
        def reset(self, seed: int | None = None) -> Any:
            return {"a": AgentTick(None)}

    class Empty(Counting):
        def reset(self, seed: int | None = None) -> Any:
            return {}

    class Strange(Counting):
        def reset(self, seed: int | None = None) -> Any:
            return {"c": AgentTick(np.zeros(2, np.float32))}

    for kind, match in (
        (Wide, r"a: expected float32 \(2,\), got float32 \(3,\)"),
        (Blind, "a acts, expected an observation, got None"),
        (Empty, "a game began in which nobody acts"),
        (Strange, r"expected one of the agents \['a', 'b'\], got 'c': `agents`"),
    ):
        with pytest.raises(BrayError, match=match):
            make_runner(make_seat(), environment=kind)


async def test_one_who_is_not_told_of_the_end_is_truncated() -> None:
    class Rude(Counting):
        def step(self, actions: Any) -> Any:
            ticks = super().step(actions)
            if self.at == self.length:
                del ticks["b"]
            return ticks

    one, two = make_seat("one"), make_seat("two")
    runner = make_runner(one, two, n=1, environment=Rude)
    await runner.run(12)
    last = two.buffer.trees[1]
    assert last["truncated"].tolist() == [False, True, False, False]
    assert last["final_observation"][0] == 5, "the last that it saw"


async def test_the_agents_of_a_seat_are_alike() -> None:
    class Uneven(Counting):
        def spaces(self, agent: str) -> Spaces:
            shape = (2,) if agent == "a" else (3,)
            return Spaces(agent, LeafSpace("real", "float32", shape), super().spaces("a").action)

        def reset(self, seed: int | None = None) -> Any:
            return {a: AgentTick(np.zeros(2 + k, np.float32)) for k, a in enumerate(NAMES)}

    opponent = make_seat("v1", records=False)
    seats = FixedCast({"a": opponent, "b": opponent})
    with pytest.raises(SpecError, match=r"seat v1, agents a, b: row: .* give agents"):
        await asyncio.to_thread(play_games, [Uneven()], seats, 1, 0, max_steps=5)


# Whole games.


class Uncertain(Counting):
    """Games of a length that their seed says."""

    def reset(self, seed: int | None = None) -> Any:
        assert seed is not None
        self.length = 1 + seed % 7
        return super().reset(seed)


def test_whole_games_are_shared_out_beforehand() -> None:
    cast = FixedCast(dict.fromkeys(NAMES, make_seat(records=False)))
    by_number = {
        n: play_games([Uncertain() for _ in range(n)], cast, 11, 4, max_steps=100)
        for n in (1, 3, 20)
    }
    lengths = [result.lengths["a"] for result in by_number[1]]
    assert len(set(lengths)) > 1
    for results in by_number.values():
        assert [result.lengths["a"] for result in results] == lengths
        assert all(result.returns["b"] == 10 * result.lengths["b"] for result in results)
    cut = play_games([Uncertain()], cast, 11, 4, max_steps=3)
    assert [result.lengths["a"] for result in cut] == [min(3, length) for length in lengths]
    for name, options in (("num_games", (0, 4, 5)), ("max_steps", (1, 4, 0))):
        games, seed, most = options
        with pytest.raises(ConfigError, match=f"{name}: expected"):
            play_games([Uncertain()], cast, games, seed, max_steps=most)
    with pytest.raises(ConfigError, match="environments: expected"):
        play_games([], cast, 1, 0, max_steps=1)


def test_a_void_game_is_played_again() -> None:
    cast = FixedCast(dict.fromkeys(NAMES, make_seat(records=False)))
    results = play_games([make_failing()], cast, 5, 0, max_steps=100)
    assert [result.lengths["a"] for result in results] == [6] * 5
