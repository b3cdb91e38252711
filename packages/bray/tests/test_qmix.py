from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms.qmix import QMIX, QMixTrainer, networks
from bray.goal import Goal
from bray.sources.cooperative_tasks import TeamSourceConfig, TwoStep, make_teams
from bray.training.evaluation import evaluate_teams
from bray_actor.runners.team_environments import TeamEnvironment
from bray_buffer import ReplayBuffer, ReplayConfig
from bray_core.cli import main
from bray_core.errors import ConfigError
from bray_model import Model
from bray_trainer.checkpoints import checkpoint

GAMMA = 0.99


def all_episodes(replay: ReplayBuffer) -> None:
    """Push every episode of the two-step game once."""
    game = TwoStep(1)
    pairs = list(itertools.product(range(2), repeat=2))
    for first, second in itertools.product(pairs, repeat=2):
        game.reset(np.ones(1, bool))
        segment = replay.layout.empty()
        views = replay.layout.views(segment)
        for at, action in enumerate((first, second)):
            agents, state = game.look()
            views["observation"]["agents"][at] = agents[0]
            views["observation"]["state"][at] = state[0]
            views["action"][at] = action
            step = game.step(np.array([action]))
            views["reward"][at], views["terminated"][at] = step.reward[0], step.terminated[0]
        views["length"][...] = 2
        replay.push(views)


def learnt(mixing: Any, steps: int) -> tuple[float, Any]:
    """Return the greedy return after training on every episode alike, and the trained modules."""
    torch.set_num_threads(1)
    environment = TeamEnvironment(TwoStep(4))
    settings = {"mixing": mixing, "hidden": (32,), "learning_rate": 3e-3}
    parts = QMIX.of("two-step", **settings, replays_per_collect=1).parts
    modules = networks(environment.teams, parts.model, 1)
    replay_config = ReplayConfig(capacity=64, batch_size=64, unit="transition", gamma=GAMMA)
    replay = ReplayBuffer(environment.layout(2), replay_config)
    all_episodes(replay)
    example, _ = environment.reset()
    model = Model(modules["policy"], example)
    QMixTrainer(modules, parts, 1, model, replay).run(steps)
    returns = evaluate_teams(model, TeamEnvironment(TwoStep(3)), by="q", seed=0)
    assert len(returns) == 3
    return returns[0], modules


@pytest.mark.isa
def test_qmix_learns_the_game_that_vdn_cannot_represent() -> None:
    reached, modules = learnt("qmix", 600)
    assert reached == 8
    state = torch.eye(3)[2:]
    q = modules["policy"]({"agents": state[:, None].expand(1, 2, 3)})["q"][0]
    joint = [
        modules["mixer"](torch.stack([q[0, a], q[1, b]])[None], state).item()
        for a in range(2)
        for b in range(2)
    ]
    assert joint == pytest.approx([0, 1, 1, 8], abs=0.3)


@pytest.mark.parametrize("mixing", ["vdn", "independent"])
def test_the_others_take_the_sure_seven(mixing: str) -> None:
    assert learnt(mixing, 400)[0] == 7


def test_the_loss_is_the_papers_by_hand() -> None:
    environment = TeamEnvironment(TwoStep(1))
    for mixing in ("qmix", "vdn", "independent"):
        parts = QMIX.of("two-step", mixing=mixing, hidden=(4,)).parts
        modules = networks(environment.teams, parts.model, 3)
        example, _ = environment.reset()
        settings = ReplayConfig(capacity=8, batch_size=1, unit="transition")
        replay = ReplayBuffer(environment.layout(2), settings)
        trainer = QMixTrainer(modules, parts, 3, Model(modules["policy"], example), replay)
        torch.nn.init.normal_(trainer.target["policy"].q[-1].weight)  # unlike the online ones
        states = torch.eye(3)
        batch = {
            "observation": {"agents": states[[0, 0]][None], "state": states[[0]]},
            "next_observation": {"agents": states[[2, 2]][None], "state": states[[2]]},
            "action": torch.tensor([[1, 0]]),
            "reward": torch.tensor([2.0]),
            "discount": torch.tensor([0.5]),
        }
        q = modules["policy"](batch["observation"])["q"][0]
        best = modules["policy"](batch["next_observation"])["q"][0].argmax(-1).tolist()
        next_q = trainer.target["policy"](batch["next_observation"])["q"][0]
        taken, after = [q[0, 1], q[1, 0]], [next_q[0, best[0]], next_q[1, best[1]]]
        if mixing == "independent":
            errors = [2 + 0.5 * b - a for a, b in zip(taken, after, strict=True)]
        elif mixing == "vdn":
            errors = [2 + 0.5 * sum(after) - sum(taken)]
        else:
            mixed = modules["mixer"].qmix(torch.stack(taken)[None], states[[0]])[0]
            target = trainer.target["mixer"].qmix(torch.stack(after)[None], states[[2]])[0]
            errors = [2 + 0.5 * target - mixed]
        wanted = sum(error.item() ** 2 for error in errors) / len(errors)
        assert trainer.loss(batch, 0)[0].item() == pytest.approx(wanted, rel=1e-5), mixing


def test_settings_are_checked() -> None:
    with pytest.raises(
        ConfigError, match="mixing: expected one of qmix, vdn, independent, got 'sum'"
    ):
        QMIX.of("two-step", mixing="sum")
    with pytest.raises(ConfigError, match=r"gamma: expected 0 to 1, got 1.5"):
        QMIX.of("two-step", gamma=1.5)
    with pytest.raises(ConfigError, match="target_every: expected 1 or more, got 0"):
        QMIX.of("two-step", target_every=0)
    with pytest.raises(ConfigError, match="warmup_frames: expected at most the capacity=10, got"):
        QMIX.of("two-step", capacity=10)
    assert make_teams(TeamSourceConfig(environment="two-step"), 1).num_agents == 2


@pytest.mark.timeout(120)
def test_a_resumed_run_trains_at_once(tmp_path: Path) -> None:
    def steps_after(frames: int, name: str) -> int:
        made = QMIX.of("two-step", warmup_frames=500)
        goal = Goal(evaluate_at=math.inf, max_frames=frames, evaluation_episodes=1)
        with bray.init(tmp_path, name) as run:
            made.train(run, goal=goal)
        state = checkpoint.load_newest(tmp_path / name / "checkpoints")
        assert state is not None
        return int(state["steps"])

    whole = steps_after(2048, "whole")
    assert 0 < steps_after(1024, "parts") < whole
    assert steps_after(2048, "parts") == whole


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mixing", ["qmix", "vdn"])
def test_it_reaches_eight_by_playing_where_vdn_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mixing: str
) -> None:
    command = (
        f"train qmix two-step --json mixing={mixing} epsilon_end=1.0 --goal 7.95 --evaluate-at 100"
    )
    command += f" --frames 10000 --episodes 20 --project {tmp_path}"
    assert main(command.split()) == (0 if mixing == "qmix" else 1)
    outcome = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert outcome["evaluation_return"] == (8 if mixing == "qmix" else 7)
