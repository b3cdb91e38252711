from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from bray_actor import PolicyActor, PolicyConfig
from bray_actor.gamecore import play
from bray_actor.pettingzoo import play_parallel
from bray_actor.spaces import spec_of, to_action, to_arrays
from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.protocols import Answer
from bray_server import ServerThread

SPACES = [
    spaces.Box(-1, 1, (3, 2), np.float32),
    spaces.Box(0, 255, (4,), np.uint8),
    spaces.Discrete(5),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary(6),
    spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Tuple([spaces.Box(0, 1, (2,))])}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_values_fit_the_spec(space: Any) -> None:
    spec = spec_of(space)
    for _ in range(20):
        nested.check(to_arrays(space, space.sample()), nested.map(lambda s: s, _listed(spec)))


def _listed(spec: Any) -> Any:
    if isinstance(spec, dict):
        return {name: _listed(child) for name, child in spec.items()}
    return [_listed(child) for child in spec] if isinstance(spec, tuple) else spec


def test_other_spaces_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="got Text"):
        spec_of(spaces.Text(3))
    with pytest.raises(ConfigError, match="got Sequence"):
        spec_of(spaces.Dict({"x": spaces.Sequence(spaces.Discrete(2))}))


def test_actions_are_checked() -> None:
    assert to_action(spaces.Discrete(3), np.int64(2)) == 2
    assert to_action(spaces.Box(-1, 1, (1,)), np.array([3.0])).tolist() == [1.0]
    with pytest.raises(ConfigError, match="action: expected one of Discrete"):
        to_action(spaces.Discrete(3), 3)


class Anything:
    """Answers whatever it is asked with even odds."""

    version = 0

    def __init__(self, outputs: Any) -> None:
        self.outputs = outputs
        self.seen: Any = None

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        self.seen = observation
        return Answer(self.outputs, 0)


@pytest.mark.parametrize(
    ("environment", "outputs"),
    [
        ("Blackjack-v1", {"logits": np.zeros(2, np.float32)}),  # Tuple observations
        ("FrozenLake-v1", {"logits": np.zeros(4, np.float32)}),  # Discrete observations
        ("MountainCar-v0", {"logits": np.zeros(3, np.float32)}),
        (
            "Pendulum-v1",
            {"mean": np.zeros(1, np.float32), "log_std": np.zeros(1, np.float32)},
        ),  # Box actions
    ],
)
def test_environments_of_many_spaces_play(environment: str, outputs: Any) -> None:
    model = Anything(outputs)
    factory = PolicyActor.factory(model, PolicyConfig())  # type: ignore[arg-type]
    thread = ServerThread(factory)
    assert len(play(environment, thread.addresses[0], episodes=2, num_envs=2)) == 2
    thread.close()
    spec = _listed(spec_of(gymnasium.make(environment).observation_space))
    nested.check(model.seen, spec)


def test_pettingzoo_agents_are_sessions() -> None:
    class Count:
        """Two agents; the second leaves after two steps, the first after four."""

        def __init__(self) -> None:
            self.agents: list[str] = []

        def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
            self.agents, self.steps = ["one", "two"], 0
            return {agent: np.zeros(2, np.float32) for agent in self.agents}, {}

        def observation_space(self, agent: str) -> Any:
            return spaces.Box(0, 9, (2,))

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2)

        def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
            self.steps += 1
            playing = list(self.agents)
            done = {a: self.steps == (4 if a == "one" else 2) for a in playing}
            self.agents = [a for a in playing if not done[a]]
            observations = {a: np.zeros(2, np.float32) for a in playing}
            none = dict.fromkeys(playing, False)
            return observations, dict.fromkeys(playing, 1.0), done, none, {}

    sessions: list[str] = []
    make = PolicyActor.factory(
        Anything({"logits": np.zeros(2, np.float32)}),  # type: ignore[arg-type]
        PolicyConfig(),
    )

    def noted(session: str) -> PolicyActor:
        sessions.append(session)
        return make(session)

    thread = ServerThread(noted)
    games = play_parallel(Count(), thread.addresses[0], episodes=2)
    thread.close()
    assert games == [{"one": 4.0, "two": 2.0}] * 2
    assert sessions == ["0/one", "0/two", "1/one", "1/two"]
    with pytest.raises(ConfigError, match="episodes: expected 1 or more, got 0"):
        play_parallel(Count(), "tcp://127.0.0.1:1", episodes=0)
