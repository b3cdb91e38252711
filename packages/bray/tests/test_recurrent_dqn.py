"""DQN with a memory: segments with the state in which each began, burn-in, n-step in a segment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bray
from bray.algorithms import dqn
from bray.goal import Goal
from bray.policies.networks import example_inputs
from bray.policies.values import QNetworkConfig
from bray.sources.environments import read_spaces
from bray.training.off_policy.sequence_learning import (
    n_step_sums,
    num_warm,
    sequence_loss,
    unroll_values,
)
from bray_actor import PolicyActor, PolicyConfig
from bray_actor.gamecores.gamecore import play
from bray_buffer import ReplayBuffer, ReplayConfig
from bray_core import nested
from bray_core.errors import ConfigError
from bray_model import Model

pytestmark = pytest.mark.usefixtures("evaluated_here")

RECALL = "bray.sources.tasks:Recall-v0"
T, GAMMA, N_STEP, BURN_IN = 7, 0.9, 3, 2
LENGTH = torch.tensor([7, 5, 2, 1])
B = len(LENGTH)
MEMORIES = [{"memory": "lstm"}, {"memory": "gru"}, {"memory": "gtrxl", "memory_length": 3}]


def make(seed: int, **settings: Any) -> Any:
    """Return a policy far from uniform."""
    config = QNetworkConfig(hidden=(8,), memory_size=6, **settings)
    policy: Any = dqn.make_policy(read_spaces(RECALL), config, seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        policy.epsilon.fill_(0.1)
    return policy


def segments(policy: Any) -> dict[str, Tensor]:
    """Return segments of which the first begins its episode and the second terminates."""
    torch.manual_seed(1)
    state = torch.zeros(B, policy.state_size)
    for seen in torch.rand(3, B, 9):  # some steps of an earlier segment
        state = policy(seen, state)["state"].detach()
    state[0] = 0.0
    terminated = torch.zeros(T, B, dtype=torch.bool)
    terminated[4, 1] = True
    return {
        "observation": torch.rand(T, B, 9),
        "final_observation": torch.rand(B, 9),
        "action": torch.randint(4, (T, B)),
        "reward": torch.rand(T, B),
        "terminated": terminated,
        "length": LENGTH,
        "initial_state": state,
        "weight": torch.tensor([1.0, 0.5, 0.8, 0.2]),
    }


@pytest.mark.parametrize("settings", [*MEMORIES, {"dueling": True, "normalize_observation": True}])
def test_one_step_at_a_time_is_a_whole_segment(settings: dict[str, Any]) -> None:
    policy = make(1, **settings)
    observation, state = torch.rand(T, B, 9), torch.zeros(B, policy.state_size)
    values, _, last = policy.replay(observation, state, LENGTH)
    for t, seen in enumerate(observation):
        outputs = policy(seen, state)
        state, valid = outputs["state"], t < LENGTH
        torch.testing.assert_close(values[t].amax(-1)[valid], outputs["value"][valid])
        assert (values[t].argmax(-1) == outputs["logits"].argmax(-1))[valid].all()
        ends = t == LENGTH - 1
        torch.testing.assert_close(last[ends], state[ends])


@pytest.mark.parametrize("settings", MEMORIES)
def test_burn_in_brings_the_state_up_to_date_without_a_gradient(settings: dict[str, Any]) -> None:
    policy = make(1, **settings)
    batch = segments(policy)
    warm = num_warm(batch, BURN_IN)
    assert warm.tolist() == [0, 2, 1, 0], "none where an episode begins, one step is left"
    # The stored state is this network's own: so burn-in changes no value.
    with_burn_in, _ = unroll_values(policy, batch, warm, BURN_IN)
    whole, _ = unroll_values(policy, batch, torch.zeros_like(warm), BURN_IN)
    for column, (begin, length) in enumerate(zip(warm.tolist(), LENGTH.tolist(), strict=True)):
        torch.testing.assert_close(
            with_burn_in[: length + 1 - begin, column], whole[begin : length + 1, column]
        )
    batch["observation"].requires_grad_(True)
    unroll_values(policy, batch, warm, BURN_IN)[0].sum().backward()
    gradient: Any = batch["observation"].grad
    used = gradient.abs().sum(-1) > 0
    assert used.sum(0).tolist() == (LENGTH - warm).tolist()
    assert not used[0, 1]


def test_rewards_are_summed_within_a_segment() -> None:
    reward = torch.arange(1.0, 5.0)[:, None].repeat(1, 2)
    terminated = torch.zeros(4, 2, dtype=torch.bool)
    terminated[2, 1] = True
    total, discount, end = n_step_sums(reward, terminated, torch.tensor([4, 3]), 2, 0.5)
    assert total.T.tolist() == [[2.0, 3.5, 5.0, 4.0], [2.0, 3.5, 3.0, 0.0]]
    assert discount[:, 0].tolist() == [0.25, 0.25, 0.25, 0.5]
    assert discount[:3, 1].tolist() == [0.25, 0.0, 0.0]
    assert end[:, 0].tolist() == [2, 3, 4, 4]
    assert end[:3, 1].tolist() == [2, 3, 3]


def test_the_loss_is_that_of_double_q_learning_step_by_step() -> None:
    online, target = make(1), make(2)
    batch = segments(online)
    loss, _, priority = sequence_loss(
        online, target, batch, double=True, burn_in=BURN_IN, n_step=N_STEP, gamma=GAMMA
    )
    warm, losses = num_warm(batch, BURN_IN).tolist(), []
    for b, length in enumerate(LENGTH.tolist()):
        steps = [*batch["observation"][:length, b], batch["final_observation"][b]]
        q, q_target = (values_of(network, steps, batch, b) for network in (online, target))
        errors = []
        for t in range(warm[b], length):
            end = min(t + N_STEP, length)
            aim = sum(GAMMA ** (k - t) * batch["reward"][k, b] for k in range(t, end))
            if not (end == length and batch["terminated"][length - 1, b]):
                aim = aim + GAMMA ** (end - t) * q_target[end][q[end].argmax()]
            errors.append((aim - q[t][batch["action"][t, b]]).abs())
            huber = torch.nn.functional.huber_loss(errors[-1], torch.zeros(()))
            losses.append(batch["weight"][b] * huber)
        found = torch.stack(errors)
        torch.testing.assert_close(priority[b], 0.9 * found.max() + 0.1 * found.mean())
    torch.testing.assert_close(loss.detach(), torch.stack(losses).mean())
    loss.backward()
    assert all(parameter.grad is not None for parameter in online.parameters())


def values_of(
    network: Any, steps: list[Tensor], batch: dict[str, Tensor], column: int
) -> list[Tensor]:
    """Return action values of one segment, each step played after the other."""
    state, found = batch["initial_state"][column][None], []
    for seen in steps:
        values, _, state = network.replay(seen[None, None], state, torch.tensor([1]))
        found.append(values[0, 0].detach())
    return found


def test_a_state_of_as_many_numbers_as_steps_stays_whole() -> None:
    segment = {
        "observation": np.zeros((4, 2), np.float32),
        "final_observation": np.zeros(2, np.float32),
        "action": np.zeros(4, np.int64),
        "reward": np.zeros(4, np.float32),
        "terminated": np.zeros(4, bool),
        "initial_state": np.arange(4, dtype=np.float32),
        "length": np.int32(2),
    }
    config = ReplayConfig(unit="sequence", sequence_length=4, capacity=8, batch_size=1)
    replay = ReplayBuffer(nested.spec(segment), config)
    replay.push(segment)
    assert replay.pop(timeout_s=1).tree["initial_state"].tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    "settings",
    [
        {"memory": "lstm", "prioritized": True, "normalize_reward": True},
        {"memory": "gtrxl", "memory_length": 8, "normalize_observation": True},
    ],
)
def test_it_trains_goes_on_and_is_served_from_its_export(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    small = {"memory_size": 4, "hidden": (8,), "num_envs": 2, "steps_per_collect": 4}
    algorithm = dqn.DQN.of(
        RECALL, **small, replays_per_collect=2, batch_size=16, warmup_frames=40, **settings
    )
    versions = []
    for frames in (80, 160):
        goal = Goal(evaluate_at=1e9, max_frames=frames, evaluation_episodes=1)
        with bray.init(tmp_path, "trial") as run:
            versions.append(algorithm.train(run, goal=goal, seed=1).version)
    assert versions[1] > versions[0] > 0
    spaces = read_spaces(RECALL)
    policy: Any = algorithm.policy(spaces, 1)
    config = {"deterministic": True, "state_size": policy.state_size}
    with Model(policy, example_inputs(spaces, policy.state_size)) as model:
        model.export(tmp_path / "export", actor={"name": "policy", "config": config})
        made = PolicyActor.factory(model, PolicyConfig(**config))
        wanted = play(RECALL, made, episodes=4, num_envs=2)
    with Model(tmp_path / "export") as served:
        made = PolicyActor.from_export(config, served)
        assert play(RECALL, made, episodes=4, num_envs=2) == wanted


def test_what_has_no_memory_yet_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory_size: expected noisy=false, .* with noisy=True"):
        dqn.DQN.of(RECALL, memory_size=8, noisy=True)
    with pytest.raises(ConfigError, match=r"memory_size: expected .* distributional=c51"):
        dqn.DQN.of(RECALL, memory_size=8, distributional="c51")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("memory", ["lstm", "gtrxl"])
def test_what_was_seen_is_recalled(memory: str, tmp_path: Path) -> None:
    algorithm = dqn.DQN.of(
        RECALL, memory=memory, memory_size=32, hidden=(64,), steps_per_collect=8, epsilon_steps=1000
    )
    goal = Goal(episode_return=0.95, max_frames=30_000)
    with bray.init(tmp_path, "trial") as run:
        outcome = algorithm.train(run, goal=goal, seed=1)
    assert (outcome.evaluation_return or 0.0) > 0.9
