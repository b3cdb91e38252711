from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray.sources.cooperative_tasks import Spread, TeamSourceConfig, TwoStep, make_teams
from bray_actor.runners.teams import Teams
from bray_core.errors import ConfigError

N, M = 4, 3


def spread(seed: int = 0) -> Spread:
    task = Spread(N)
    task.reset(np.ones(N, bool), seed)
    return task


def test_spread_moves_as_mpe_says_written_as_loops() -> None:
    task, random = spread(), np.random.default_rng(1)
    task.place *= 0.2  # close together, so that they bump
    moves = {0: (0, 0), 1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}
    for _ in range(20):
        action = random.integers(0, 5, (N, M))
        place, speed = task.place.copy(), task.speed.copy()
        reward = task.step(action).reward
        for n in range(N):
            touching = 0
            for i in range(M):
                force = 5.0 * np.array(moves[int(action[n, i])], float)
                for j in range(M):
                    if i != j:
                        apart = place[n, i] - place[n, j]
                        distance = np.hypot(*apart)
                        depth = np.logaddexp(0, -(distance - 0.3) / 1e-3) * 1e-3
                        force += 100.0 * apart / distance * depth
                        touching += bool(np.hypot(*(task.place[n, i] - task.place[n, j])) < 0.3)
                np.testing.assert_allclose(task.place[n, i], place[n, i] + 0.1 * speed[n, i])
                np.testing.assert_allclose(task.speed[n, i], 0.75 * speed[n, i] + 0.1 * force)
            nearest = [
                min(np.hypot(*(mark - task.place[n, i])) for i in range(M))
                for mark in task.landmark[n]
            ]
            assert reward[n] == pytest.approx(-0.5 * (sum(nearest) + touching / M), rel=1e-5)


def test_spread_shows_what_mpe_shows_without_its_silent_channel() -> None:
    task = spread()
    task.step(np.full((N, M), 2))
    agents, state = task.look()
    assert agents.shape == (N, M, task.observation_size)
    assert state.shape == (N, task.state_size)
    here = task.place[1, 2]
    parts = [task.speed[1, 2], here, *(task.landmark[1] - here), *(task.place[1, :2] - here)]
    np.testing.assert_allclose(agents[1, 2], np.concatenate(parts), rtol=1e-6, atol=1e-30)
    everything = np.concatenate([task.speed[1], task.place[1], task.landmark[1]])
    np.testing.assert_allclose(state[1], everything.ravel(), rtol=1e-6, atol=1e-30)


def test_agents_apart_see_all_but_the_others() -> None:
    apart = Spread(N, sees_others=False)
    apart.reset(np.ones(N, bool), 0)
    np.testing.assert_array_equal(apart.look().agents, spread().look().agents[..., :10])


def test_spread_is_cut_after_25_steps_and_begins_anew_where_asked() -> None:
    task = spread()
    for _ in range(10):
        task.step(np.zeros((N, M), int))
    task.reset(np.array([True, False, False, False]))
    ends = [task.step(np.zeros((N, M), int)) for _ in range(15)]
    assert not any(end.terminated.any() for end in ends)
    assert not any(end.truncated.any() for end in ends[:-1])
    assert ends[-1].truncated.tolist() == [False, True, True, True]


def test_the_two_step_game_pays_what_the_paper_says() -> None:
    for choice, first, second in itertools.product(range(2), repeat=3):
        game = TwoStep(1)
        game.reset(np.ones(1, bool))
        assert game.look().state.tolist() == [[1, 0, 0]]
        step = game.step(np.array([[choice, 1]]))
        assert (step.reward[0], step.terminated[0]) == (0, False)
        assert game.look().agents[0].argmax(-1).tolist() == [1 + choice] * 2
        step = game.step(np.array([[first, second]]))
        assert step.reward[0] == (7 if choice == 0 else [0, 1, 8][first + second])
        assert (step.terminated[0], step.truncated[0]) == (True, False)


def test_tasks_by_name() -> None:
    assert make_teams(TeamSourceConfig(environment="spread"), 2).observation_size == 14
    assert make_teams(TeamSourceConfig(environment="spread-apart"), 2).observation_size == 10
    assert make_teams(TeamSourceConfig(environment="two-step"), 2).num_agents == 2
    with pytest.raises(ConfigError, match=r"unknown 'two_step'.*did you mean 'two-step'"):
        make_teams(TeamSourceConfig(environment="two_step"), 1)
    with pytest.raises(ConfigError, match=r"json\.tool: expected a module with parallel_env"):
        make_teams(TeamSourceConfig(environment="json.tool"), 1)
    for make in (Spread, TwoStep):
        with pytest.raises(ConfigError, match="num_teams: expected 1 or more, got 0"):
            make(0)


CROWD = """
from gymnasium import spaces


class Crowd:
    metadata = {"name": "crowd"}

    def __init__(self, size=2):
        self.possible_agents = [f"walker_{index}" for index in range(size)]

    def observation_space(self, agent):
        return spaces.Dict({"room": spaces.Discrete(5), "at": spaces.Box(-1, 1, (2, 2))})

    def action_space(self, agent):
        return spaces.Discrete(2)
"""


def test_tasks_of_others(tmp_path: Path) -> None:
    def of(environment: str, **settings: Any) -> Teams:
        return make_teams(TeamSourceConfig(environment=environment, **settings), 2)

    assert of("simple_spread_v3", kwargs={"N": 2}).num_agents == 2
    assert of("mpe2.simple_spread_v3").num_agents == 3
    (tmp_path / "crowd.py").write_text(CROWD)
    crowd = of(f"{tmp_path}/crowd.py:Crowd", kwargs={"size": 4})
    assert (crowd.num_agents, crowd.observation_size) == (4, 9), "a room of five, and four reals"
    with pytest.raises(ConfigError, match="did you mean 'simple_spread_v3'"):
        of("simple_spraed_v3")
    with pytest.raises(ConfigError, match=r"tictactoe_v3: expected .* at once .*of another kind"):
        of("tictactoe_v3")
    with pytest.raises(ConfigError, match="two-step takes neither kwargs nor wrappers"):
        of("two-step", kwargs={"size": 4})
