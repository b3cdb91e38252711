"""Record 50 episodes of CartPole by a mediocre scripted player, for the algorithms that imitate.

    python demonstrate.py demonstrations

He balances the pole a little to one side and so leaves the track before long; every tenth action
is drawn at random. The episodes are always the same.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from bray.sources import demonstrations
from bray_core.nested import Nested
from bray_core.protocols import Answer

_LEAN = 0.06
"""Lean of the pole, in rad, that he takes for upright."""
_RANDOM = 0.1
"""Share of random actions."""


class ScriptedPlayer:
    """Pushes to the side to which the pole falls."""

    version = 0

    async def infer(self, observation: Nested, batch: bool = False) -> Answer:
        """Map one observation to the probabilities of both pushes."""
        _, _, angle, speed = np.asarray(observation)
        chosen = int(angle + 0.5 * speed > _LEAN)
        probability = np.full(2, _RANDOM / 2, np.float32)
        probability[chosen] = 1 - _RANDOM / 2
        return Answer({"logits": np.log(probability), "value": np.float32(0)}, self.version)


def main() -> None:
    """Record and print the mean return."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="demonstrations")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    player: Any = ScriptedPlayer()
    returns = demonstrations.record(
        options.folder, "CartPole-v1", player, episodes=options.episodes, seed=options.seed
    )
    sys.stdout.write(
        f"{len(returns)} episodes in {options.folder}: mean return {np.mean(returns):.1f}\n"
    )


if __name__ == "__main__":
    main()
