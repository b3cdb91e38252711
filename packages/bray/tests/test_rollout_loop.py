"""The loop of docs/guides/environments.md, with vector environments of each autoreset mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import bray
from bray.algorithms import ppo
from bray.policies.config import NetworkConfig
from bray.policies.networks import make_policy
from bray.sources.environments import read_spaces
from bray.training.on_policy import segment_layout
from bray_actor import Runner
from bray_buffer import BufferConfig

NUM_ENVS, STEPS, ROUNDS = 3, 48, 6


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
def test_each_collect_is_a_replay(mode: AutoresetMode, tmp_path: Path) -> None:
    """Nothing waits for steps that never come, and none are left over."""
    spaces = read_spaces("CartPole-v1")
    environments = SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS, autoreset_mode=mode
    )
    network = make_policy(spaces, NetworkConfig(hidden=(8,)), seed=1)
    config = ppo.PPO.of(
        "CartPole-v1", steps_per_replay=STEPS, epochs=1, minibatch_size=16, num_envs=NUM_ENVS
    ).config
    with bray.init(tmp_path, "loop") as run:
        model = run.model("policy", network, spaces.example)
        layout = segment_layout(spaces, 8, 0)
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
