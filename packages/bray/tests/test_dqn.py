"""The DQN recipe: its trainer's arithmetic, and short runs of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms import dqn
from bray.goal import Goal
from bray.policies.values import QNetworkConfig
from bray.sources.environments import read_spaces
from bray.training import evaluation
from bray.training.algorithm import Parts
from bray.training.on_policy import segment_layout
from bray_core.layout import Layout, Packed
from bray_model import Model

pytestmark = pytest.mark.usefixtures("evaluated_here")

SPACES = read_spaces("CartPole-v1")
SMALL: dict[str, Any] = {
    "hidden": (16,),
    "num_envs": 2,
    "steps_per_collect": 8,
    "replays_per_collect": 4,
    "warmup_frames": 32,
    "batch_size": 8,
    "target_every": 5,
    "epsilon_steps": 10,
}


class Replay:
    """A replay that is never popped; remembers the priorities."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def pop(self, timeout_s: float | None = None) -> Packed:
        raise AssertionError

    def update_priorities(self, keys: Any, priorities: Any) -> int:
        self.given.append((keys.copy(), priorities.copy()))
        return len(keys)


def batch(n: int = 6) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "observation": torch.randn(n, 4, generator=generator),
        "next_observation": torch.randn(n, 4, generator=generator),
        "action": torch.arange(n) % 2,
        "reward": torch.randn(n, generator=generator),
        "discount": torch.tensor([0.97, 0.0] * (n // 2)),
        "key": torch.arange(n),
        "weight": torch.linspace(0.5, 1.0, n),
    }


def trainer(parts: Parts, replay: Replay | None = None) -> dqn.DQNTrainer:
    made = dqn.DQNTrainer(SPACES, parts, 0, None, replay or Replay())  # type: ignore[arg-type]
    for parameter in made.target.parameters():  # so that it differs from the network
        parameter.data.add_(0.1)
    return made


@pytest.mark.parametrize("prioritized", [False, True])
def test_the_loss_is_that_of_double_q_learning(prioritized: bool) -> None:
    parts = dqn.DQN.of("CartPole-v1", hidden=(16,), prioritized=prioritized).parts
    replay, rows = Replay(), batch()
    made = trainer(parts, replay)
    if not prioritized:
        del rows["weight"]
    loss, _ = made.loss(rows, 0)
    q, target = made.module.q, made.target.q
    wanted, errors = 0.0, []
    with torch.no_grad():
        for i in range(6):
            best = int(q(rows["next_observation"][i : i + 1]).argmax())
            value = float(target(rows["next_observation"][i : i + 1])[0, best])
            aim = float(rows["reward"][i]) + float(rows["discount"][i]) * value
            error = abs(aim - float(q(rows["observation"][i : i + 1])[0, rows["action"][i]]))
            row = 0.5 * error**2 if error < 1 else error - 0.5
            wanted += row * float(rows["weight"][i] if prioritized else 1.0) / 6
            errors.append(error)
    assert float(loss.detach()) == pytest.approx(wanted, abs=1e-5)
    assert len(replay.given) == prioritized
    for keys, priorities in replay.given:
        assert keys.tolist() == list(range(6))
        np.testing.assert_allclose(priorities, errors, atol=1e-5)


def test_epsilon_falls_and_the_target_follows_in_steps() -> None:
    made = trainer(dqn.DQN.of("CartPole-v1", **SMALL).parts)
    layout = Layout({"x": bray_spec()})
    replay = Packed(layout, layout.empty(1))
    epsilons, followed = [], []
    for step in (0, 4, 5, 9, 40):
        made.steps = step
        made.target.q[0].weight.data.fill_(7.0)
        next(iter(made.handle(replay)))
        epsilons.append(float(made.module.epsilon))
        followed.append(torch.equal(made.target.q[0].weight, made.module.q[0].weight))
    assert epsilons == pytest.approx([1.0, 0.62, 0.525, 0.145, 0.05])
    assert followed == [True, False, True, False, True]


def bray_spec() -> Any:
    from bray_core.nested import ArraySpec

    return ArraySpec(np.dtype(np.float32), ())


def test_the_policy_is_greedy_but_for_epsilon() -> None:
    policy = dqn.make_policy(SPACES, QNetworkConfig(hidden=SMALL["hidden"]), 3)
    observation = torch.randn(50, 4)
    best = policy.q(observation).argmax(-1)
    for epsilon in (1.0, 0.2, 0.0):
        policy.epsilon.fill_(epsilon)
        chances = policy(observation)["logits"].softmax(-1)
        chance = chances.gather(1, best[:, None]).squeeze(1)
        torch.testing.assert_close(chance, torch.full((50,), 1 - epsilon / 2))
    assert torch.equal(policy(observation)["logits"].argmax(-1), best)


def run_dqn(folder: Path, trial: str, frames: int, seed: int = 1) -> Any:
    goal = Goal(episode_return=500.0, evaluate_at=499.0, max_frames=frames)
    with bray.init(folder, trial) as run:
        return dqn.DQN.of("CartPole-v1", **SMALL).train(run, goal=goal, seed=seed)


@pytest.fixture
def quick_evaluation(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keep the models that are evaluated, instead of playing with them for seconds."""
    seen: list[Any] = []

    def evaluate(model: Any, environment: str, episodes: int, **_: Any) -> list[float]:
        seen.append(model.weights())
        return [float(model.version)]

    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    return seen


def test_a_trial_goes_on_from_its_checkpoint_and_its_replay(
    tmp_path: Path, quick_evaluation: list[Any]
) -> None:
    for launch in range(1, 8):  # more than the margin of a replay that keeps a proportion
        outcome = run_dqn(tmp_path, "trial", 48 * launch)
        # Of the three collects the first launch's first two warm up. Each later launch publishes
        # what it has restored, and trains three times.
        assert outcome.version == 1 + 4 * (launch - 1)
    with bray.init(tmp_path, "trial") as run:
        config = dqn.DQN.of("CartPole-v1", **SMALL).buffer(is_local=True)
        layout = segment_layout(SPACES, 8, 0)
        assert run.buffer("replay", layout, config).stats()["queued"] == 7 * 48


@pytest.mark.slow
def test_cartpole_is_solved(tmp_path: Path) -> None:
    goal = Goal(episode_return=475.0, evaluate_at=150.0, max_frames=100_000)
    with bray.init(tmp_path, "trial") as run:
        assert dqn.DQN.of("CartPole-v1").train(run, goal=goal, seed=1).reached


def test_an_export_of_an_untrained_policy_takes_its_weights_as_inputs(tmp_path: Path) -> None:
    """Its ε is 1, and no larger one is a share of random actions."""
    policy = dqn.DQN.of("CartPole-v1", hidden=(8,)).policy(SPACES, 1)
    with Model(policy, SPACES.example, name="policy") as model:
        model.export(tmp_path / "export")
    assert (tmp_path / "export" / "exchange.onnx").is_file()
