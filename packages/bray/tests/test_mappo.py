from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms.mappo import MAPPO, CentralCriticConfig, MAPPOConfig, MAPPOTrainer, policy
from bray.goal import Goal
from bray.sources.cooperative_tasks import TeamSourceConfig, TwoStep, make_teams
from bray_actor.runners.team_environments import AgentEnvironment
from bray_algo import gae
from bray_algo.distributions import categorical
from bray_algo.losses import ppo
from bray_buffer import Buffer, BufferConfig
from bray_core.cli import main
from bray_core.errors import ConfigError
from bray_model import Model

ROWS, T = 4, 3
QUICK = {"hidden": (16,), "num_envs": 16, "steps_per_replay": 16, "epochs": 4}


def made(config: MAPPOConfig) -> tuple[MAPPOTrainer, Buffer, AgentEnvironment]:
    environment = AgentEnvironment(TwoStep(ROWS // 2))
    module = policy(environment.teams, CentralCriticConfig(), 1)
    example, _ = environment.reset()
    settings = BufferConfig(batch_size=ROWS, capacity=ROWS)
    buffer = Buffer(environment.layout(T), settings)
    model = Model(module, example)
    return MAPPOTrainer(module, config, 1, model, buffer), buffer, environment


def fill(buffer: Buffer, seed: int = 0) -> list[Any]:
    """Push segments of noise, some cut short, one terminated."""
    random, views = np.random.default_rng(seed), []
    for row in range(ROWS):
        block = buffer.layout.empty()
        view = buffer.layout.views(block)
        for tree in (view["observation"], view["final_observation"]):
            tree["agent"][...] = row % 2
            tree["own"][...] = random.normal(size=tree["own"].shape)
            tree["state"][...] = random.normal(size=tree["state"].shape)
        for name in ("reward", "value"):
            view[name][...] = random.normal(size=T)
        view["log_prob"][...] = np.log(random.uniform(0.2, 0.8, T))
        view["action"][...] = random.integers(0, 2, T)
        view["length"][...] = T - row % 2
        view["terminated"][T - 1] = row == 2
        buffer.push(view)
        views.append(view)
    return views


def test_the_policy_sees_what_the_agent_sees_and_the_critic_what_it_was_told() -> None:
    seen = {
        "agent": torch.tensor([0, 1]),
        "own": torch.randn(2, 3, requires_grad=True),
        "state": torch.randn(2, 3, requires_grad=True),
    }
    for critic in ("state", "own"):
        module = policy(TwoStep(1), CentralCriticConfig(critic=critic), 1)  # type: ignore[arg-type]
        logits, value = module.parts(seen)
        for output, leaves in ((logits[:, 0], {"own"}), (value, {critic})):
            names = ("own", "state")
            grads = torch.autograd.grad(
                output.sum(), [seen[n] for n in names], allow_unused=True, retain_graph=True
            )
            used = {n for n, g in zip(names, grads, strict=True) if g is not None}
            assert used == leaves
        same = {**seen, "own": seen["own"][[0, 0]], "state": seen["state"][[0, 0]]}
        logits, value = module.parts(same)
        assert (logits[0] != logits[1]).any(), "the agents differ by who they are"
        assert value[0] != value[1]


def test_steps_and_loss_are_those_by_hand() -> None:
    trainer, buffer, _ = made(MAPPOConfig(epochs=1, minibatches=1))
    views = fill(buffer)
    (batch,) = trainer.handle(buffer.pop())
    columns: dict[str, list[Any]] = {"advantage": [], "return": [], "log_prob": []}
    for view in views:
        length = int(view["length"])
        final = {
            name: torch.as_tensor(leaf)[None] for name, leaf in view["final_observation"].items()
        }
        # The scale is still that of no row, as when `handle` asked.
        value = trainer.module.parts(final)[1].detach()
        advantage = gae(
            torch.tensor(view["reward"][:length, None]),
            torch.tensor(view["value"][:length, None]),
            value,
            torch.tensor(view["terminated"][:length, None]),
            torch.tensor([length]),
            gamma=0.99,
            lambda_=0.95,
        )[:, 0].tolist()
        columns["advantage"] += advantage
        columns["return"] += (np.array(advantage) + view["value"][:length]).tolist()
        columns["log_prob"] += view["log_prob"][:length].tolist()
    for name, column in columns.items():
        assert sorted(batch[name].tolist()) == pytest.approx(sorted(column), rel=1e-4)
    returns = torch.tensor(columns["return"], dtype=torch.float64)
    assert trainer.module.scale.mean.item() == pytest.approx(returns.mean().item(), rel=1e-4)
    logits, value = trainer.module.parts(batch["observation"])
    advantage = batch["advantage"]
    wanted, _ = ppo.loss(
        categorical.log_prob(logits, batch["action"]),
        categorical.entropy(logits),
        value,
        batch["log_prob"],
        (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8),
        (batch["return"] - returns.mean()) / returns.std(correction=0),
        entropy_coefficient=0.01,
    )
    assert trainer.loss(batch, 0)[0].item() == pytest.approx(wanted.item(), rel=1e-4)


def test_minibatches_share_all_steps_of_each_pass() -> None:
    trainer, buffer, _ = made(MAPPOConfig(epochs=3, minibatches=2))
    fill(buffer)
    batches = [batch["return"].tolist() for batch in trainer.handle(buffer.pop())]
    assert len(batches) == 6
    passes = [sorted(batches[i] + batches[i + 1]) for i in (0, 2, 4)]
    assert passes[0] == passes[1] == passes[2]
    assert len(passes[0]) == 2 * T + 2 * (T - 1)
    assert batches[0] != batches[2]


def test_published_values_are_in_the_scale_of_returns() -> None:
    trainer, _, environment = made(MAPPOConfig())
    trainer.module.scale.update(torch.tensor([10.0, 30.0]))
    example, _ = environment.reset()
    seen = {name: torch.as_tensor(leaf) for name, leaf in example.items()}
    value, outputs = trainer.module.parts(seen)[1], trainer.module(seen)
    torch.testing.assert_close(outputs["value"], 20 + 10 * value)


@pytest.mark.isa
def test_it_learns_to_choose_together_and_goes_on(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    goal = Goal(episode_return=6.9, evaluate_at=6.5, max_frames=12_000, evaluation_episodes=4)
    with bray.init(tmp_path, "trial") as run:
        outcome = MAPPO.of("two-step", **QUICK).train(run, goal=goal)
    assert outcome.reached
    assert outcome.version == outcome.frames // (16 * 2 * 16)
    with bray.init(tmp_path, "trial") as run:
        again = MAPPO.of("two-step", **QUICK).train(run, goal=goal)
    assert again.reached
    assert again.version > outcome.version


@pytest.mark.ray
@pytest.mark.slow  # appo's and those of rollouts and workers show the same in less time
def test_the_same_recipe_on_ray(tmp_path: Path, ray_cluster: None) -> None:
    goal = Goal(episode_return=6.9, evaluate_at=6.5, max_frames=24_000, evaluation_episodes=4)
    with bray.init(tmp_path, "trial", "ray") as run:
        outcome = MAPPO.of("two-step", **QUICK).train(run, goal=goal)
    assert outcome.version >= 1
    assert outcome.evaluation_return >= 6.9


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="critic: expected one of state, own, got 'all'"):
        MAPPO.of("two-step", critic="all")
    with pytest.raises(ConfigError, match="hidden: expected one or more numbers, got"):
        MAPPO.of("two-step", hidden=())
    with pytest.raises(ConfigError, match="minibatches: expected 1 or more, got 0"):
        MAPPO.of("two-step", minibatches=0)
    assert make_teams(TeamSourceConfig(environment="spread"), 1).num_agents == 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_agents_spread_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random play has −26.6, standing still −24.3."""
    command = "train mappo spread --json --goal -23 --evaluate-at -23 --frames 200000"
    assert main([*command.split(), "--project", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["reached"]
