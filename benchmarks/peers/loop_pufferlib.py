"""PufferLib's serial vector of Gymnasium environments; its loop needs its network."""

from __future__ import annotations

import contextlib
import io

import numpy as np
from loop_environment import Trivial, options, rate, show

with contextlib.redirect_stdout(io.StringIO()):
    import pufferlib.emulation
    import pufferlib.vector


def main() -> None:
    """Measure the vector."""
    given = options()
    vector = pufferlib.vector.make(
        pufferlib.emulation.GymnasiumPufferEnv,
        env_kwargs={"env_creator": Trivial},
        backend=pufferlib.vector.Serial,
        num_envs=given.num_envs,
    )
    vector.reset(seed=0)
    actions = np.zeros(given.num_envs, np.int64)
    show(stepping=rate(lambda: vector.step(actions), given.num_envs, given.seconds))


main()
