"""Runner over PettingZoo's parallel environments beside stepping one by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from bray_actor import Runner, segment_spec
from bray_actor.runners.parallel_teams import ParallelTeams
from bray_actor.runners.team_environments import AgentEnvironment, TeamEnvironment
from bray_actor.spaces import spec_of
from bray_core.errors import BrayError, ConfigError
from bray_core.layout import Layout, Packed
from bray_core.protocols import Answer

N, M, D, A, T = 3, 2, 4, 3, 4
AGENTS = ["left", "right"]


class Meeting(ParallelEnv[str, Any, Any]):
    """Two agents draw numbers, move, and meet (termination) or are cut off after 6 steps."""

    metadata = {"name": "meeting"}  # noqa: RUF012
    possible_agents = AGENTS

    def __init__(self, *, leaves: bool = False) -> None:
        self.leaves = leaves
        self.state_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-np.inf, np.inf, (2, 2), np.float64)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(A, start=-1)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if seed is not None:
            self.name, self.random = seed, np.random.default_rng(seed)
        self.agents = list(AGENTS)
        self.place = self.random.uniform(-2, 2, 2)
        self.count = 0
        return self._seen(), {}

    def _seen(self) -> Any:
        first, second = self.place
        return {
            "left": np.array([[first, second], [self.count, 0]]),
            "right": np.array([[second, first], [self.count, 1]]),
        }

    def state(self) -> Any:
        return np.array([*self.place, self.count, self.name], np.float32)

    def step(self, actions: dict[str, int]) -> Any:
        assert list(actions) == self.agents
        assert all(self.action_space(agent).contains(one) for agent, one in actions.items())
        self.place += [actions.get(agent, 0) for agent in AGENTS]
        self.place += self.random.uniform(-0.3, 0.3, 2)
        self.count += 1
        met, cut = abs(self.place[0] - self.place[1]) < 0.5, self.count >= 6
        reward = {"left": float(self.place[0]), "right": 0.5}
        if met or cut:
            self.agents = []
        elif self.leaves:
            self.agents = ["left"]
        return self._seen(), reward, *(dict.fromkeys(AGENTS, end) for end in (met, cut)), {}


class Anyhow:
    """A policy that takes all actions alike."""

    version = 0

    def __init__(self, heads: int) -> None:
        self.heads = heads

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        rows = len(observation["state"])
        logits = np.zeros((rows, A), np.float32)
        value = observation["state"][:, 0]
        return Answer(
            {"logits": [logits] * self.heads if self.heads else logits, "value": value}, 0
        )


class Kept:
    """A buffer that keeps all segments."""

    def __init__(self, environment: TeamEnvironment) -> None:
        observation = spec_of(environment.single_observation_space)
        action = spec_of(environment.single_action_space)
        self.layout = Layout(segment_spec(observation, action, T))
        self.trees: list[Any] = []

    def push(self, *segments: Packed, wait: bool = False, timeout_s: float | None = None) -> int:
        for segment in segments:
            rows = np.array(segment.block).reshape(-1, self.layout.nbytes)
            self.trees.extend(self.layout.views(row) for row in rows)
        return len(segments)


def by_hand(seed: int, actions: Any) -> list[Any]:
    """Return what each step of one environment saw and brought."""
    env, steps = Meeting(), []
    seen, _ = env.reset(seed=seed)
    for action in actions:
        before = np.stack([seen[agent].ravel() for agent in AGENTS]), env.state()
        seen, reward, terminated, truncated, _ = env.step(
            dict(zip(AGENTS, (action - 1).tolist(), strict=True))
        )
        after = np.stack([seen[agent].ravel() for agent in AGENTS]), env.state()
        met = terminated["left"]
        cut = truncated["left"] and not met
        steps.append((before, np.mean(list(reward.values())), met, cut, after))
        if met or cut:
            seen, _ = env.reset()
    return steps


def check(steps: list[Any], segments: list[Any], rows: Any) -> None:
    """Compare steps by hand with a row's segments; `rows` makes an observation of both."""
    index, total = 0, 0.0
    for tree in segments:
        for at in range(tree["length"]):
            before, reward, met, cut, after = steps[index]
            for name, leaf in rows(*before).items():
                np.testing.assert_allclose(tree["observation"][name][at], leaf, rtol=1e-6)
            assert tree["reward"][at] == pytest.approx(reward, rel=1e-6)
            assert (tree["terminated"][at], tree["truncated"][at]) == (met, cut)
            total += reward
            index += 1
        if met or cut:
            assert tree["episode_return"] == pytest.approx(total, rel=1e-5)
            total = 0.0
        if not met:
            for name, leaf in rows(*after).items():
                np.testing.assert_allclose(tree["final_observation"][name], leaf, rtol=1e-6)
    assert index > 20


async def test_a_row_for_each_team_is_what_stepping_by_hand_gives() -> None:
    environment = TeamEnvironment(ParallelTeams(Meeting, N))
    kept: Any = Kept(environment)
    model: Any = Anyhow(M)
    await Runner(environment, model, kept, seed=5).run(40)
    for team in range(N):
        mine = [tree for tree in kept.trees if tree["observation"]["state"][0, 3] == 5 + team]
        actions = np.concatenate([tree["action"][: tree["length"]] for tree in mine])
        steps = by_hand(5 + team, actions)
        assert any(step[2] for step in steps)
        assert any(step[3] for step in steps)
        check(steps, mine, lambda agents, state: {"agents": agents, "state": state})


async def test_a_row_for_each_agent_is_what_stepping_by_hand_gives() -> None:
    environment = AgentEnvironment(ParallelTeams(Meeting, N))
    assert environment.num_envs == N * M
    kept: Any = Kept(environment)
    model: Any = Anyhow(0)
    await Runner(environment, model, kept, seed=5).run(40)
    for team in range(N):
        rows: list[list[Any]] = [[], []]
        for tree in kept.trees:
            if tree["observation"]["state"][0, 3] == 5 + team:
                rows[tree["observation"]["agent"][0]].append(tree)
        actions = [
            np.concatenate([tree["action"][: tree["length"]] for tree in mine]) for mine in rows
        ]
        steps = by_hand(5 + team, np.stack(actions, -1))
        for agent, mine in enumerate(rows):
            check(
                steps,
                mine,
                lambda agents, state, m=agent: {"own": agents[m], "state": state, "agent": m},
            )


def test_without_a_state_of_its_own_it_is_what_all_agents_see() -> None:
    class Plain(Meeting):
        def __init__(self) -> None:
            super().__init__()
            del self.state_space

    teams = ParallelTeams(Plain, N)
    teams.reset(np.ones(N, bool), 1)
    sight = teams.look()
    assert (teams.observation_size, teams.state_size, teams.num_actions) == (D, M * D, A)
    np.testing.assert_array_equal(sight.state, sight.agents.reshape(N, -1))


def test_only_the_masked_begin_anew() -> None:
    environment = AgentEnvironment(ParallelTeams(Meeting, N))
    before, _ = environment.reset(seed=0)
    mask = np.repeat([True, False, True], M)
    after, _ = environment.reset(options={"reset_mask": mask})
    assert ((before["state"] != after["state"]).any(1) == mask).all()
    mask[0] = False
    with pytest.raises(ConfigError, match="reset_mask: expected whole teams, got some rows of one"):
        environment.reset(options={"reset_mask": mask})


def test_an_agent_that_has_left_sees_zeros_and_gets_nothing() -> None:
    teams = ParallelTeams(lambda: Meeting(leaves=True), 1)
    teams.reset(np.ones(1, bool), 2)
    apart = np.array([[0, 2]]) if teams.look().state[0, 0] < 0 else np.array([[2, 0]])
    first = teams.step(apart)
    assert teams.look().agents[0].any(-1).tolist() == [True, True], "its last observation"
    second = teams.step(apart)
    assert teams.look().agents[0].any(-1).tolist() == [True, False]
    assert first.reward[0] != second.reward[0] == pytest.approx(teams.look().agents[0, 0, 0] / M)
    for step in (first, second):
        assert not step.terminated[0]
        assert not step.truncated[0]


@pytest.mark.parametrize("way", ["terminated", "truncated"])
def test_an_episode_ends_by_its_flags_where_agents_are_never_taken_from_the_list(way: str) -> None:
    class Kept(Meeting):
        def step(self, actions: dict[str, int]) -> Any:
            ends = dict.fromkeys(AGENTS, True)
            stays = dict.fromkeys(AGENTS, False)
            flags = (ends, stays) if way == "terminated" else (stays, ends)
            return self._seen(), dict.fromkeys(AGENTS, 1.0), *flags, {}

    teams = ParallelTeams(Kept, 1)
    teams.reset(np.ones(1, bool), 2)
    step = teams.step(np.zeros((1, M), int))
    assert (step.terminated[0], step.truncated[0]) == (way == "terminated", way == "truncated")


class Failing(Meeting):
    """Fails in a way, at the second step of the first one made, or at its first reset."""

    made = 0

    def __init__(self, way: str) -> None:
        super().__init__()
        Failing.made += 1
        self.way = way if Failing.made == 1 else ""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if self.way == "reset":
            raise RuntimeError("no window")
        return super().reset(seed, options)

    def state(self) -> Any:
        return super().state() * (np.nan if self.way == "state" and self.count == 2 else 1)

    def step(self, actions: dict[str, int]) -> Any:
        seen, reward, *ends = super().step(actions)
        if self.count == 2 and self.way == "raise":
            raise RuntimeError("the physics")
        if self.count == 2 and self.way == "reward":
            reward["left"] = np.nan
        if self.count == 2 and self.way == "observation":
            seen["right"][0, 0] = np.nan
        return seen, reward, *ends


@pytest.mark.parametrize("way", ["raise", "reward", "observation", "state"])
def test_a_team_that_fails_is_made_anew_and_its_episode_truncated(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "made", 0)
    teams = ParallelTeams(lambda: Failing(way), 2)
    teams.reset(np.ones(2, bool), 2)
    apart = np.where(teams.look().state[:, :1] < 0, [[0, 2]], [[2, 0]])
    teams.step(apart)
    before = teams.look()
    failed = teams.step(apart)
    assert (failed.truncated.tolist(), failed.terminated.tolist()) == ([True, False], [False] * 2)
    assert failed.reward[0] == 0
    np.testing.assert_array_equal(teams.look().agents[0], before.agents[0])
    assert (teams.look().agents[1] != before.agents[1]).any(), "the other one goes on"
    teams.reset(failed.truncated)
    assert not teams.step(apart).truncated.any()
    assert Failing.made == 3


def test_a_team_that_cannot_begin_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "made", 0)
    teams = ParallelTeams(lambda: Failing("reset"), 1)
    teams.reset(np.ones(1, bool), 2)
    assert teams.look().agents.any()


def test_a_team_that_keeps_failing_ends_the_run_by_its_name() -> None:
    class Broken(Meeting):
        def step(self, actions: dict[str, int]) -> Any:
            raise RuntimeError("the physics")

    teams = ParallelTeams(Broken, 1, "broken-v0")
    every = np.ones(1, bool)
    teams.reset(every, 1)
    for _ in range(10):
        assert teams.step(np.zeros((1, M), int)).truncated.all()
        teams.reset(every)
    with pytest.raises(BrayError, match=r"broken-v0 failed 11 times .* RuntimeError: the physics"):
        teams.step(np.zeros((1, M), int))


def test_what_is_no_team_is_refused() -> None:
    class Odd(Meeting):
        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2 + len(agent))

    with pytest.raises(ConfigError, match=r"action_space: expected agents that are alike, got .*6"):
        ParallelTeams(Odd, 1)

    class Real(Meeting):
        def action_space(self, agent: str) -> Any:
            return spaces.Box(0, 1, (2,))

    with pytest.raises(
        ConfigError, match="expected observations of a fixed size and Discrete actions, got"
    ):
        ParallelTeams(Real, 1)

    class Masked(Meeting):
        def observation_space(self, agent: str) -> Any:
            seen = super().observation_space(agent)
            return spaces.Dict({"observation": seen, "action_mask": spaces.MultiBinary(2)})

    with pytest.raises(ConfigError, match="have an action_mask, which algorithms of teams do not"):
        ParallelTeams(Masked, 1)

    class Telling(Meeting):
        def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
            mask = {"action_mask": np.array([1, 0, 1], np.int8)}
            return super().reset(seed, options)[0], dict.fromkeys(AGENTS, mask)

    with pytest.raises(ConfigError, match="its infos have an action_mask, which algorithms of tea"):
        ParallelTeams(Telling, 1).reset(np.ones(1, bool), 1)
    with pytest.raises(ConfigError, match="num_teams: expected 1 or more, got 0"):
        ParallelTeams(Meeting, 0)
