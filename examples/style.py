"""A policy that acts in the style asked for: the style is part of its observation.

    python examples/style.py

Two players show CartPole, one drifting left, one right. One network imitates both, with the style
of the one who played beside each observation. Served, it drifts to the side that a client names.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from bray.algorithms import bc
from bray.policies.config import NetworkConfig
from bray.policies.networks import make_policy
from bray.sources import demonstrations
from bray.sources.environments import read_spaces
from bray_actor import PolicyActor, PolicyConfig, Recorder
from bray_actor.gamecores.gamecore import play
from bray_core.nested import Nested
from bray_core.protocols import Answer
from bray_model import Model
from bray_server import ServerThread

STYLES = ("left", "right")


class Styled(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole whose observation ends in the style wanted of its player, one-hot.

    Args:
        style: its number; None draws one for each episode.
    """

    def __init__(self, style: int | None = None) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = spaces.Box(-np.inf, np.inf, (4 + len(STYLES),), np.float32)
        self._wanted = self._style = style

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode."""
        if self._wanted is None:
            self._style = int(self.np_random.integers(len(STYLES)))
        return super().reset(seed=seed, options=options)

    def observation(self, observation: Any) -> Any:
        """Add the style."""
        return np.concatenate([observation, np.eye(len(STYLES), dtype=np.float32)[self._style]])


gymnasium.register("Styled-v0", Styled)
for _number, _style in enumerate(STYLES):
    gymnasium.register(f"Styled-{_style}-v0", Styled, kwargs={"style": _number})


class Player:
    """Holds the pole a little to the side of its style, and so drifts there."""

    version = 0

    async def infer(self, observation: Nested, batch: bool = False) -> Answer:
        """Map one observation to the probabilities of both pushes."""
        _, _, angle, speed, left, right = np.asarray(observation)
        probability = np.full(2, 0.05, np.float32)
        probability[int(angle + 0.5 * speed > 0.06 * (right - left))] = 0.95
        return Answer({"logits": np.log(probability), "value": np.float32(0)}, self.version)


def ends(folder: Path) -> dict[str, float]:
    """Return by style where the cart is at the end of an episode, in m, on average."""
    recorded = demonstrations.Demonstrations(folder, gamma=1.0)
    found = defaultdict(list)
    for episode in recorded.read(range(recorded.num_units)):
        last: Any = episode["observation"][0]  # samples begin at the end
        found[STYLES[int(last[4:].argmax())]].append(last[0])
    return {style: float(np.mean(found[style])) for style in STYLES}


def main(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Record both players, imitate them, serve the policy; return `ends` of them and of it."""
    shown, served = folder / "shown", folder / "served"
    demonstrations.record(shown, "Styled-v0", Player(), episodes=20, seed=1)
    layout = read_spaces("Styled-v0")
    policy = make_policy(layout, NetworkConfig(hidden=(64, 64)), 1)
    config = bc.BCConfig(learning_rate=3e-3)
    bc.CloningTrainer(policy, layout, str(shown), config, 1).run(60)

    recorder = Recorder(served, every=1, max_waiting=10)
    with Model(policy, layout.example, name="styled") as model:
        actors = PolicyActor.factory(model, PolicyConfig(deterministic=True))
        server = ServerThread(recorder.record(actors))
        for style in STYLES:  # clients that ask for one style each
            play(f"Styled-{style}-v0", server.addresses[0], episodes=5, num_envs=5, seed=1000)
        server.close()
    recorder.close()
    return ends(shown), ends(served)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        demonstrated, acted = main(Path(temporary))
    for style in STYLES:
        print(f"{style}: shown {demonstrated[style]:+.2f} m, served {acted[style]:+.2f} m")
        assert abs(acted[style] - demonstrated[style]) < 0.5
