"""TQC and CrossQ: their losses as the papers write them, their settings, and runs of the whole."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import relu

import bray
from bray.algorithms import crossq, tqc
from bray.goal import Goal
from bray.sources.environments import read_spaces
from bray_core.errors import ConfigError

SPACES = read_spaces("Pendulum-v1")
N = 6


class _NoReplay:
    def pop(self, timeout_s: float | None = None) -> Any:
        raise AssertionError


def trainer(algorithm: Any, **settings: Any) -> Any:
    made = algorithm.of("Pendulum-v1", hidden=(8,), **settings)
    model: Any = type("NoModel", (), {"version": 0, "publish": None})()
    return made.trainer_for(SPACES)(SPACES, made.parts, 0, model, _NoReplay())


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "observation": torch.randn(N, 3, generator=generator),
        "next_observation": torch.randn(N, 3, generator=generator) + 2,
        "action": 4 * torch.rand(N, 1, generator=generator) - 2,
        "reward": torch.randn(N, generator=generator),
        "discount": torch.tensor([0.99, 0.0, 0.99, 0.99, 0.0, 0.99]),
    }


def drawn(mean: Any, log_std: Any, noise: Any) -> tuple[Any, Any]:
    """Return squashed actions and their log probabilities, in numpy."""
    action = np.tanh(mean + np.exp(log_std) * noise)
    normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
    return action, (normal - np.log(1 - action**2)).squeeze(-1)


def noises() -> list[np.ndarray]:
    torch.manual_seed(5)
    return [torch.randn(N, 1).double().numpy() for _ in range(2)]


def test_tqc_cuts_the_pooled_quantiles() -> None:
    made = trainer(tqc.TQC, alpha=0.3, num_critics=3, num_quantiles=4, dropped_quantiles=1)
    with torch.no_grad():
        for parameter in made.target.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    rows = batch()
    torch.manual_seed(5)
    losses, _ = made.loss(rows, 0)
    policy, critics = made.module["policy"], made.module["critics"]
    before, now = noises()
    with torch.no_grad():
        parameters = [
            [x.double().numpy() for x in policy.parameters_of(rows[name])]
            for name in ("next_observation", "observation")
        ]
        (following, log_prob), (action, own) = (
            drawn(*p, noise) for p, noise in zip(parameters, (before, now), strict=True)
        )

        def quantiles(networks: Any, observation: Any, action: Any) -> Any:
            pair = torch.cat([observation, torch.as_tensor(action).float()], 1)
            return np.stack([member(pair).double().numpy() for member in networks.members])

        z = quantiles(made.target, rows["next_observation"], following)
        theta = quantiles(critics, rows["observation"], rows["action"] / 2)
        judged = quantiles(critics, rows["observation"], action)
    want = 0.0
    for i in range(N):
        kept = np.sort(z[:, i].flatten())[:9]
        y = float(rows["reward"][i]) + float(rows["discount"][i]) * (kept - 0.3 * log_prob[i])
        for k in range(3):
            for m in range(4):
                u = y - theta[k, i, m]
                huber = np.where(np.abs(u) <= 1, 0.5 * u**2, np.abs(u) - 0.5)
                want += float((np.abs((m + 0.5) / 4 - (u < 0)) * huber).mean()) / 4 / N
    assert float(losses["critics"].detach()) == pytest.approx(want, rel=1e-4)
    climbed = (0.3 * own - judged.mean((0, 2))).mean()
    assert float(losses["policy"].detach()) == pytest.approx(climbed, abs=1e-5)


def renormed(network: Any, x: Any, joint: Any) -> Any:
    """Run a network of `BatchRenorm → Linear (→ ReLU)` by the figures of a batch's own rows."""
    for index in range(0, len(network), 3):
        norm, linear = network[index], network[index + 1]
        mean, std = joint.mean(0), (joint.var(0, unbiased=False) + 1e-3).sqrt()
        x, joint = (linear((y - mean) / std * norm.weight + norm.bias) for y in (x, joint))
        if index + 2 < len(network):
            x, joint = relu(x), relu(joint)
    return x.squeeze(-1)


def test_crossq_judges_both_actions_in_one_batch_and_has_no_targets() -> None:
    made = trainer(crossq.CrossQ, alpha=0.3, critic_hidden=(16, 16), delay=2)
    assert made.state_dict()["target"] == {}
    policy, critics, rows = made.module["policy"], made.module["critics"], batch()
    with torch.no_grad():
        policy.eval()
        parameters = [x.double().numpy() for x in policy.parameters_of(rows["next_observation"])]
        policy.train()
        before, _ = noises()
        following, log_prob = drawn(*parameters, before)
        now = torch.cat([rows["observation"], rows["action"] / 2], 1)
        then = torch.cat([rows["next_observation"], torch.tensor(following).float()], 1)
        joint = torch.cat([now, then])
        q, next_q = (
            np.stack([renormed(list(m), x, joint).numpy() for m in critics.members])
            for x in (now, then)
        )
    y = rows["reward"].numpy() + rows["discount"].numpy() * (next_q.min(0) - 0.3 * log_prob)
    torch.manual_seed(5)
    losses, _ = made.loss(rows, 0)
    assert list(losses) == ["critics"], "the policy waits for the second step"
    want = sum(float((0.5 * (one - y) ** 2).mean()) for one in q)
    assert float(losses["critics"].detach()) == pytest.approx(want, rel=1e-3)


def test_crossq_s_policy_climbs_critics_that_do_not_change() -> None:
    made = trainer(crossq.CrossQ, alpha=0.3, critic_hidden=(16,), delay=1)
    critics, policy, rows = made.module["critics"], made.module["policy"], batch()
    torch.manual_seed(5)
    losses, _ = made.loss(rows, 0)
    assert set(losses) == {"critics", "policy", "temperature"}
    assert int(critics.members[0][0].num_batches) == 1, "one batch, of both halves"
    assert int(policy.body[0].num_batches) == 1
    assert critics.training
    policy.body[0].num_batches.zero_()
    with torch.no_grad():
        parameters = [x.double().numpy() for x in policy.parameters_of(rows["observation"])]
        action, log_prob = drawn(*parameters, noises()[1])
        critics.eval()
        q = critics(rows["observation"], torch.tensor(action).float()).numpy()
    want = (0.3 * log_prob - q.min(0)).mean()
    assert float(losses["policy"].detach()) == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        (tqc.TQC, {"dropped_quantiles": 25}, "dropped_quantiles: expected less than num_quantiles"),
        (tqc.TQC, {"num_critics": 0}, "num_critics: expected 1 or more, got 0"),
        (crossq.CrossQ, {"delay": 0}, "delay: expected 1 or more, got 0"),
        (crossq.CrossQ, {"tau": 0.1}, "tau: unknown setting of CrossQ"),
        (crossq.CrossQ, {"critic_hidden": ()}, "critic_hidden: expected one or more numbers"),
    ],
)
def test_settings_out_of_range_are_named(algorithm: Any, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        algorithm.of("Pendulum-v1", **settings)


@pytest.mark.parametrize("algorithm", [tqc.TQC, crossq.CrossQ])
def test_choices_are_refused(algorithm: Any) -> None:
    with pytest.raises(ConfigError, match=r"CartPole-v1: expected actions that are reals alone"):
        algorithm.of("CartPole-v1").policy(read_spaces("CartPole-v1"), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (tqc.TQC, {"hidden": (128, 128), "num_critics": 2}),
        (crossq.CrossQ, {"hidden": (128, 128), "critic_hidden": (256, 256)}),
    ],
)
def test_the_pendulum_is_swung_up(algorithm: Any, settings: Any, tmp_path: Path) -> None:
    goal = Goal(episode_return=-200.0, evaluate_at=-600.0, max_frames=30_000)
    with bray.init(tmp_path, "trial") as run:
        made = algorithm.of("Pendulum-v1", batch_size=128, **settings)
        assert made.train(run, goal=goal, seed=1).reached
