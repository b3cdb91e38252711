"""DQN's variants: networks, losses, noise, Rainbow's settings, and short runs of each."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms import dqn
from bray.cli.launch import Launch
from bray.composition.whole_run import completed_goal, run_template
from bray.goal import Goal
from bray.policies.networks import example_inputs
from bray.policies.values import RESCALING, QNetworkConfig, Returns, votes
from bray.sources.environments import read_spaces
from bray.templates.loading import compose
from bray_algo.losses import c51
from bray_algo.returns.value_rescaling import unrescale
from bray_core.errors import ConfigError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.spaces import LeafSpace, Spaces
from bray_model import Model, ModelConfig

pytestmark = pytest.mark.usefixtures("evaluated_here")

SPACES = read_spaces("CartPole-v1")
MASKED = Spaces(
    "CartPole-v1",
    {"observation": SPACES.observation, "action_mask": LeafSpace("binary", "int8", (2,))},
    SPACES.action,
)
SMALL: dict[str, Any] = {"hidden": (16,), "num_envs": 2, "replays_per_collect": 4}


class Replay:
    """A replay that is never popped; remembers the priorities."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def pop(self, timeout_s: float | None = None) -> Packed:
        raise AssertionError

    def update_priorities(self, keys: Any, priorities: Any) -> int:
        self.given.append((keys.copy(), priorities.copy()))
        return len(keys)


def batch(n: int = 6) -> dict[str, Any]:
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


def trainer(algorithm: dqn.DQN, spaces: Spaces = SPACES, replay: Any = None) -> dqn.DQNTrainer:
    made = dqn.DQNTrainer(spaces, algorithm.parts, 0, None, replay or Replay())  # type: ignore[arg-type]
    for parameter in made.target.parameters():  # so that it differs from the network
        parameter.data.add_(0.1)
    return made


KINDS = ("none", "c51", "qr", "iqn")


def h(z: float) -> float:
    """Pohlen et al. 2018, with ε = 0.001."""
    return math.copysign(1, z) * (math.sqrt(abs(z) + 1) - 1) + 0.001 * z


def h_inverse(x: float) -> float:
    root = (math.sqrt(1 + 0.004 * (abs(x) + 1.001)) - 1) / 0.002
    return math.copysign(1, x) * (root**2 - 1)


def test_values_are_learnt_rescaled() -> None:
    settings: dict[str, Any] = {"hidden": (16,), "value_rescaling": True}
    made, rows = trainer(dqn.DQN.of("CartPole-v1", **settings)), batch()
    rows["reward"] = rows["reward"] * 50
    del rows["weight"]
    loss, _ = made.loss(rows, 0)
    wanted = 0.0
    with torch.no_grad():
        q = made.module.q(rows["observation"]).tolist()
        online = made.module.q(rows["next_observation"]).tolist()
        target = made.target.q(rows["next_observation"]).tolist()
        values = made.module.values(rows["observation"]).tolist()
    for i in range(6):
        best = max((0, 1), key=lambda a: online[i][a])
        aim = h(float(rows["reward"][i] + rows["discount"][i] * h_inverse(target[i][best])))
        error = abs(aim - q[i][int(rows["action"][i])])
        wanted += (0.5 * error**2 if error < 1 else error - 0.5) / 6
        assert values[i] == pytest.approx([h_inverse(x) for x in q[i]], abs=1e-4)
    assert float(loss.detach()) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
def test_every_network_learns_acts_and_takes_masks(kind: str, dueling: bool, noisy: bool) -> None:
    settings = {"distributional": kind, "dueling": dueling, "noisy": noisy, "num_atoms": 5}
    algorithm = dqn.DQN.of("CartPole-v1", hidden=(8,), prioritized=True, **settings)
    replay, rows = Replay(), batch()
    made = trainer(algorithm, MASKED, replay)
    mask = torch.tensor([[True, False], [True, True], [False, True]] * 2)
    for name in ("observation", "next_observation"):
        rows[name] = {"observation": rows[name], "action_mask": mask}
    rows["action"] = torch.tensor([0, 1, 1] * 2)
    optimizer = torch.optim.Adam(made.module.parameters(), lr=1e-2)
    before = float(made.loss(rows, 0)[0].detach())
    for _ in range(30):
        loss, _ = made.loss(rows, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(made.loss(rows, 0)[0].detach()) < before
    assert np.isfinite(replay.given[-1][1]).all()
    made.module.eval()
    outputs = made.module(rows["observation"])
    chances = outputs["logits"].softmax(-1)
    assert float(chances[~mask].max()) < 1e-6
    assert outputs["value"].isfinite().all()


def test_noise_is_voted_on_and_the_mode_is_without() -> None:
    mean = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.1, 0.0]])
    drawn = torch.tensor([[[2.0, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 2]], [[0, 1.0, 0]] * 4])
    chances = votes(drawn, mean).softmax(-1)
    wanted = torch.tensor([[0.5, 0.5, 0.25], [0.0, 1.0, 0.0]])
    torch.testing.assert_close(chances, wanted / wanted.sum(-1, keepdim=True), atol=2e-3, rtol=0)
    assert votes(drawn, mean).argmax(-1).tolist() == [0, 1]


def test_a_noisy_network_acts_by_new_noise_in_each_published_version() -> None:
    made = trainer(dqn.DQN.of("CartPole-v1", **SMALL, noisy=True))
    layout = Layout({"x": ArraySpec(np.dtype(np.float32), ())})
    replay = Packed(layout, layout.empty(1))
    noise = []
    for count in range(8):  # every fourth is published
        made.replays = count
        next(iter(made.handle(replay)))
        noise.append(made.module.q.head.advantage_input_noise.clone())
    changes = [i for i in range(1, 8) if not torch.equal(noise[i], noise[i - 1])]
    assert changes == [3, 7]
    assert float(made.module.epsilon) == 0.0
    made.module.eval()
    observation = torch.randn(40, 4)
    best = made.module.values(observation).argmax(-1)
    assert torch.equal(made.module(observation)["logits"].argmax(-1), best)


@pytest.mark.parametrize("settings", [{"variant": "rainbow"}, {"distributional": "c51"}])
def test_actions_of_which_nothing_is_known_are_alike(settings: Any, tmp_path: Path) -> None:
    """Also in an export: rounding, which differs from row to row, does not choose among them."""
    algorithm = dqn.DQN.of("CartPole-v1", hidden=(16,), **settings)
    module = algorithm.policy(SPACES, 1)
    nothing = torch.zeros(7, 4)
    assert module.eval().values(nothing).unique().numel() == 1
    model = Model(module, example_inputs(SPACES, 0), name="policy", config=ModelConfig())
    model.export(tmp_path / "policy")
    model.close()


@pytest.mark.parametrize("rescales", [False, True])
def test_an_error_in_the_last_bits_moves_no_mean_by_a_grain(rescales: bool) -> None:
    config = QNetworkConfig(distributional="c51", value_rescaling=rescales)
    returns = Returns(config)
    generator = torch.Generator().manual_seed(1)
    numbers = 0.05 * torch.randn(2000, 3, 51, generator=generator)
    moved = numbers * (1 + 1e-6 * torch.randn(numbers.shape, generator=generator))
    support = unrescale(returns.support, RESCALING) if rescales else returns.support
    means, exact = returns(numbers), c51.q_values(numbers, support)
    grain = float(support[-1] - support[0]) * 1e-5
    assert (returns(moved) - means).abs().max() < grain / 10
    assert (means - exact).abs().max() <= 2.01 * grain
    far = exact.amax(-1).abs() > 2 * grain
    assert (means.amax(-1) - exact.amax(-1))[far].abs().max() < grain / 10
    alike = exact.amax(-1, keepdim=True) - exact < 0.4 * grain
    assert torch.equal(means[alike], means.amax(-1, keepdim=True).expand_as(means)[alike])


def test_rainbow_is_the_defaults_of_its_parts() -> None:
    plain, rainbow = (dqn.DQN.of("CartPole-v1", variant=v).parts for v in ("dqn", "rainbow"))
    assert (plain.model.distributional, plain.model.noisy, plain.model.dueling) == (
        "none",
        False,
        False,
    )
    assert (rainbow.model.distributional, rainbow.model.noisy, rainbow.model.dueling) == (
        "c51",
        True,
        True,
    )
    assert (rainbow.buffer.prioritized, rainbow.agent.n_step, rainbow.trainer.double) == (
        True,
        3,
        True,
    )
    assert not dqn.DQN.of("CartPole-v1", variant="rainbow", noisy=False).parts.model.noisy
    composed = compose("dqn", "CartPole-v1", ["variant=rainbow", "dueling=false"]).parts
    assert (composed.model.noisy, composed.model.dueling) == (True, False)
    games = compose("dqn", "ALE/Pong-v5", ["variant=rainbow"]).parts
    assert (games.model.value_max, games.trainer.learning_rate) == (10.0, 6.25e-5)
    assert dqn.DQN(games).buffer(is_local=True).frame_stack == {"observation": 0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value_min": 1.0, "value_max": 1.0}, "value_max: expected more than value_min=1.0"),
        ({"distributional": "c51", "num_atoms": 1}, "num_atoms: expected 2 or more of c51, got 1"),
        ({"distributional": "c52"}, "distributional: expected"),
        ({"variant": "rainbows"}, "variant: expected"),
    ],
)
def test_networks_that_are_none_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dqn.DQN.of("CartPole-v1", **settings)


@pytest.mark.parametrize("settings", ["variant=rainbow", "distributional=iqn num_atoms=4"])
def test_variants_train_and_are_exported(tmp_path: Path, settings: str) -> None:
    small = (
        "hidden=[8] num_envs=2 steps_per_collect=8 replays_per_collect=4 warmup_frames=32 "
        "batch_size=8 goal.max_frames=128 goal.evaluation_episodes=2"
    )
    template = compose("dqn", "CartPole-v1", [*small.split(), *settings.split()])
    launch = Launch(project=tmp_path, trial="t")
    outcome, report = run_template(template, launch.open, completed_goal(template))
    assert outcome.version >= 1
    assert report is not None
    with Model(report.path) as exported:
        outputs = exported(np.zeros(4, np.float32))
    assert outputs["logits"].shape == (2,)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rainbow_learns_cartpole(tmp_path: Path, seed: int) -> None:
    goal = Goal(episode_return=400.0, evaluate_at=250.0, max_frames=100_000)
    with bray.init(tmp_path, "trial") as run:
        assert dqn.DQN.of("CartPole-v1", variant="rainbow").train(run, goal=goal, seed=seed).reached
