"""The loop of docs/guides/environments.md, with vector environments of each autoreset mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import bray
from bray.algorithms import ppo
from bray.policies.networks import make_policy
from bray.sources.environments import Spaces
from bray_actor import Runner, segment_spec
from bray_buffer import BufferConfig
from bray_core.layout import Layout

NUM_ENVS, STEPS, ROUNDS = 3, 48, 6


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
def test_each_collect_is_a_replay(mode: AutoresetMode, tmp_path: Path) -> None:
    """Nothing waits for steps that never come, and none are left over."""
    spaces = Spaces.of("CartPole-v1")
    environments = SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS, autoreset_mode=mode
    )
    network = make_policy(spaces, (8,), 0, seed=1)
    config = ppo.PPO.of(
        "CartPole-v1", steps_per_replay=STEPS, epochs=1, minibatch_size=16, num_envs=NUM_ENVS
    ).config
    observation: Any = spaces.observation
    with bray.init(tmp_path, "loop") as run:
        model = run.model("policy", network, np.zeros((1, *observation.shape), observation.dtype))
        layout = Layout(segment_spec(observation, spaces.action, 8))
        buffer: Any = run.buffer(
            "experience", layout, BufferConfig(batch_steps=STEPS, capacity=STEPS, when_full="block")
        )
        trainer = run.trainer(
            "ppo", lambda: ppo.PPOTrainer(network, buffer, model=model, part=config, seed=1)
        )
        rollouts = run.rollouts(
            "rollouts",
            lambda worker: Runner(environments, model, buffer, seed=1),
            steps=STEPS // NUM_ENVS,
        )
        ended = 0
        for number in range(1, ROUNDS + 1):
            rollouts.collect(STEPS // NUM_ENVS)
            played = rollouts.poll()
            ended += len(played.returns)
            assert played.frames == buffer.stats()["queued_steps"] == STEPS
            trainer.run(1)
            assert buffer.stats()["queued"] == 0
            assert model.version == number
        assert ended >= NUM_ENVS, "some episodes began anew"
