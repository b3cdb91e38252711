from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from bray_actor import PolicyActor, PolicyConfig
from bray_actor.gamecores.gamecore import play
from bray_actor.spaces import spec_of, to_action, to_arrays
from bray_core import codec, nested
from bray_core.errors import ConfigError, SpecError
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


NESTED = spaces.Dict(
    {
        "go": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)]),
        "aim": spaces.Box(-1, 1, (2,)),
        "use": spaces.MultiDiscrete([2, 3], start=[5, 0]),
    }
)


def test_nested_actions_are_the_values_of_the_space_that_they_were_made_of() -> None:
    for _ in range(50):
        value = NESTED.sample()
        sent = codec.decode(codec.encode(to_arrays(NESTED, value)))
        action = to_action(NESTED, sent)
        assert NESTED.contains(action)
        assert action["go"][0] == value["go"][0] == int(sent["go"][0]) - 1
        assert action["use"].tolist() == value["use"].tolist()
        np.testing.assert_array_equal(action["aim"], value["aim"])


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(3), 0.7),
        (spaces.Discrete(3), True),
        (spaces.Discrete(3), [1, 2]),
        (spaces.Discrete(3), None),
        (spaces.Discrete(3), 1 << 80),
        (spaces.Box(-1, 1, (2,)), [0.0, np.nan]),
        (spaces.Box(-1, 1, (2,)), [0.0, 0.0, 0.0]),
        (spaces.MultiBinary(2), [0.5, 1.0]),
        (spaces.MultiDiscrete([2, 2]), [0, 2]),
        (NESTED, {"go": [0, [0, 1]]}),
        (NESTED, 3),
        (spaces.Tuple([spaces.Discrete(2)] * 2), [1]),
    ],
    ids=str,
)
def test_what_is_no_action_is_refused(space: Any, action: Any) -> None:
    with pytest.raises(ConfigError, match="action: expected one of"):
        to_action(space, action)


def test_whole_numbers_that_the_spaces_type_cannot_hold_are_refused() -> None:
    """An int64 board in a Box of uint8: 300 would be 44."""
    board = spaces.Dict(board=spaces.Box(0, 255, (2,), np.uint8))
    assert to_arrays(board, {"board": np.array([200, 1])})["board"].tolist() == [200, 1]
    with pytest.raises(SpecError, match="expected uint8 as the space says, got 300: let the space"):
        to_arrays(board, {"board": np.array([300, 1])})


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
