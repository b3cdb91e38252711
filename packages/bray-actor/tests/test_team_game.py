"""Teams in environments of several agents: what their members are told, and when they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from bray_actor.environments.error_limit import ERROR
from bray_actor.multi_agent.environment import AgentTick, takes_options
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.team import Team
from bray_actor.multi_agent.team_game import TeamedSpec, TeamGame
from bray_actor.runners.parallel_teams import ParallelTeams
from bray_actor.runners.team_environments import AgentEnvironment
from bray_core.errors import ConfigError, SpecError
from bray_core.spaces import Spaces

SEEN = {"place": {"shape": [2]}, "kind": {"discrete": 3}, "flags": {"multi_binary": 2}}
SPACES = Spaces.parse("scripted", {"observation": SEEN, "action": {"discrete": 4}})
NOBODY = Spaces.parse("scripted", {"observation": {"shape": [1]}, "action": {"discrete": 2}})


def seen(number: float) -> dict[str, Any]:
    return {
        "place": np.array([number, -number], np.float32),
        "kind": np.int64(2),
        "flags": np.array([1, 0], np.int8),
    }


def row(number: float) -> list[float]:
    """What `seen` is as a row: leaves in their order, a choice as a one-hot."""
    return [1, 0, 0, 0, 1, number, -number]


class Scripted:
    """Plays the ticks that a test wrote down, and keeps the actions."""

    acts_at_once = True
    agents = ("a", "b", "c", "prey")

    def __init__(self, *ticks: Mapping[str, AgentTick], **settings: Any) -> None:
        self.ticks = list(ticks)
        self.taken: list[Mapping[str, Any]] = []
        self.state_size: int | None = None
        for name, value in settings.items():
            setattr(self, name, value)

    def spaces(self, agent: str) -> Spaces:
        return NOBODY if agent == "prey" else SPACES

    def state(self) -> Any:
        return np.arange(3)

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        return dict(self.ticks.pop(0))

    def step(self, actions: Mapping[str, Any]) -> dict[str, AgentTick]:
        self.taken.append(actions)
        return dict(self.ticks.pop(0))

    def close(self) -> None: ...


PREY = AgentTick(np.zeros(1, np.float32))
MEMBERS = Team(agents=("a", "b"), rows="member")
WHOLE = Team(agents=("a", "b"), rows="team")


def both(one: AgentTick, other: AgentTick) -> dict[str, AgentTick]:
    return {"a": one, "b": other, "c": AgentTick(seen(9)), "prey": PREY}


def test_members_see_their_number_and_what_all_see() -> None:
    game = Scripted(
        both(AgentTick(seen(1)), AgentTick(seen(2))),
        both(AgentTick(seen(3), 1.0), AgentTick(seen(4), 4.0)),
    )
    played = TeamGame(game, [MEMBERS])

    assert played.agents == ["a", "b", "c", "prey"]
    assert played.spaces("c") == SPACES
    assert played.spaces("b").described() == {
        "observation": {"agent": {"discrete": 2}, "own": {"shape": [7]}, "state": {"shape": [14]}},
        "action": {"discrete": 4},
    }
    ticks = played.reset()
    assert ticks["b"].observation["agent"] == 1
    assert ticks["b"].observation["own"].tolist() == row(2)
    assert ticks["a"].observation["state"].tolist() == row(1) + row(2)
    ticks = played.step({"a": 3, "b": 1, "c": 0, "prey": 1})
    assert game.taken == [{"a": 3, "b": 1, "c": 0, "prey": 1}]
    assert (ticks["a"].reward, ticks["b"].reward) == (2.5, 2.5), "the mean of the members'"
    assert not ticks["a"].has_ended


def test_a_team_that_acts_as_one_is_known_by_its_first_member() -> None:
    ends = both(AgentTick(None, 2.0, terminated=True), AgentTick(None, terminated=True))
    game = Scripted(both(AgentTick(seen(1)), AgentTick(seen(2))), ends, state_size=3)
    played = TeamGame(game, [WHOLE])

    assert played.agents == ["a", "c", "prey"]
    assert played.spaces("a").described() == {
        "observation": {"agents": {"shape": [2, 7]}, "state": {"shape": [3]}},
        "action": {"multi_discrete": [4, 4]},
    }
    tick = played.reset()["a"]
    assert tick.observation["agents"].tolist() == [row(1), row(2)]
    assert tick.observation["state"].tolist() == [0, 1, 2], "the environment's own"
    ticks = played.step({"a": np.array([3, 1]), "c": 0, "prey": 0})
    assert game.taken == [{"a": 3, "b": 1, "c": 0, "prey": 0}]
    assert (ticks["a"].reward, ticks["a"].terminated, ticks["c"].has_ended) == (1.0, True, False)


@pytest.mark.parametrize("team", [MEMBERS, WHOLE])
def test_a_team_goes_on_until_all_its_members_have_gone(team: Team) -> None:
    gone = AgentTick(seen(5), -1.0, terminated=True)
    cut = AgentTick(seen(7), 1.0, truncated=True)
    later = {"b": AgentTick(seen(6)), "prey": PREY}
    game = Scripted(
        {"a": AgentTick(seen(1)), "prey": PREY},  # b comes later
        both(gone, AgentTick(seen(2))),
        later,
        {"b": cut, "prey": PREY},
        {"prey": PREY},
    )
    played = TeamGame(game, [team])

    def step(ticks: Mapping[str, AgentTick]) -> dict[str, AgentTick]:
        acts = {"a": 1, "b": 2} if team is MEMBERS else {"a": np.array([1, 2])}
        active = [name for name, tick in ticks.items() if not tick.has_ended]
        return played.step({name: acts.get(name, 0) for name in active})

    def owns(ticks: Mapping[str, AgentTick]) -> Any:
        if team is WHOLE:
            return ticks["a"].observation["agents"].tolist()
        return [ticks[name].observation["own"].tolist() for name in ("a", "b")]

    ticks = played.reset()
    assert owns(ticks) == [row(1), [0] * 7]
    ticks = step(ticks)
    assert game.taken[-1] == {"a": 1, "prey": 0}, "b's action is dropped"
    assert owns(ticks) == [row(5), row(2)], "the last that a saw"
    assert ticks["a"].reward == -0.5
    assert not ticks["a"].has_ended, "its team plays on"
    ticks = step(ticks)
    assert owns(ticks) == [[0] * 7, row(6)]
    assert "a" not in game.taken[-1]
    ticks = step(ticks)
    assert ticks["a"].truncated
    assert not ticks["a"].terminated
    ticks = step(ticks)
    assert list(ticks) == ["prey"], "the others play on"


def test_a_game_that_is_over_ends_its_teams() -> None:
    over = AgentTick(None, 1.0, terminated=True)
    game = Scripted({"b": AgentTick(seen(1)), "prey": PREY}, {"b": over, "prey": over})
    played = TeamGame(game, [MEMBERS])
    played.reset()
    ticks = played.step({"a": 0, "b": 0, "prey": 0})
    assert ticks["a"].terminated, "who never came ends with the rest"


def test_whoever_comes_back_to_a_team_that_has_ended_is_an_error() -> None:
    over = AgentTick(None, terminated=True)
    first = both(AgentTick(seen(1)), AgentTick(seen(1)))
    game = Scripted(first, both(over, over), both(AgentTick(seen(1)), over))
    played = TeamGame(game, [MEMBERS])
    played.reset()
    played.step({"a": 0, "b": 0, "c": 0, "prey": 0})
    with pytest.raises(SpecError, match="a came back after its whole team had left"):
        played.step({"c": 0, "prey": 0})


def test_a_step_that_failed_is_handed_on() -> None:
    failed = {"prey": AgentTick(None, truncated=True, info={ERROR: "it broke"})}
    played = TeamGame(Scripted(both(AgentTick(seen(1)), AgentTick(seen(1))), failed), [MEMBERS])
    played.reset()
    assert played.step({"a": 0, "b": 0, "c": 0, "prey": 0}) == failed


class Masked(Scripted):
    def spaces(self, agent: str) -> Spaces:
        seen = {"observation": {"shape": [2]}, "action_mask": {"multi_binary": 4}}
        return Spaces.parse("masked", {"observation": seen, "action": {"discrete": 4}})


class OfReals(Scripted):
    def spaces(self, agent: str) -> Spaces:
        return Spaces.parse("reals", {"observation": {"shape": [2]}, "action": {"shape": [1]}})


@pytest.mark.parametrize(
    ("game", "team", "words"),
    [
        (Scripted(acts_at_once=False), MEMBERS, "got agents that take turns"),
        (Masked(), MEMBERS, r"without masks for a team, got an action mask \(action_mask\)"),
        (OfReals(), WHOLE, r"expected one choice \(Discrete\) of each agent of a team"),
        (
            Scripted(),
            Team(agents=("a", "prey"), rows="member"),
            "expected a team whose agents see and may do the same, but prey differs from a: ",
        ),
    ],
)
def test_what_is_no_team_is_refused(game: Any, team: Team, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TeamGame(game, [team])


def test_it_is_made_where_it_is_played_and_plays_as_a_team_alone_does() -> None:
    """Rows of the members, rewards and ends are those of `AgentEnvironment`."""
    pytest.importorskip("pettingzoo")
    spec = MultiAgentSpec(environment="simple_spread_v3", kwargs={"max_cycles": 6})
    alone = AgentEnvironment(ParallelTeams(spec.make_parallel, 1))
    names = tuple(f"agent_{number}" for number in range(3))
    team = Team(agents=names, rows="member")
    played: Any = TeamedSpec(
        environment="simple_spread_v3", kwargs={"max_cycles": 6}, teams=(team,)
    ).make()
    assert takes_options(played)
    assert str(played.name) == "simple_spread_v3"

    rows, _ = alone.reset(seed=3)
    ticks = played.reset(3, options={})
    draws = np.random.default_rng(0)
    for _ in range(6):
        for index, name in enumerate(names):
            for leaf in ("agent", "own", "state"):
                np.testing.assert_allclose(ticks[name].observation[leaf], rows[leaf][index])
        actions = draws.integers(0, 5, 3)
        rows, reward, terminated, truncated, _ = alone.step(actions)
        ticks = played.step(dict(zip(names, actions, strict=True)))
        assert [ticks[name].reward for name in names] == pytest.approx(reward.tolist())
        assert [ticks[name].truncated for name in names] == truncated.tolist()
        assert [ticks[name].terminated for name in names] == terminated.tolist()
    assert truncated.all()
    played.close()
