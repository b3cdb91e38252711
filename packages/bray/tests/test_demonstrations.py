"""Recorded episodes as samples, and the recipes that imitate them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms import bc, rl_imitation
from bray.goal import Goal
from bray.policies.config import NetworkConfig
from bray.policies.networks import VectorPolicy, make_policy
from bray.sources import demonstrations
from bray.sources.environments import read_spaces
from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.protocols import Answer

pytestmark = pytest.mark.usefixtures("evaluated_here")

SPACES = read_spaces("CartPole-v1")


class Player:
    """Pushes to the side to which the pole falls, and holds it a little to one side."""

    version = 0

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        push = int(observation[2] + 0.5 * observation[3] > 0.06)
        probability = np.full(2, 0.05, np.float32)
        probability[push] = 0.95
        return Answer({"logits": np.log(probability), "value": np.float32(0)}, 0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    folder = tmp_path_factory.mktemp("demonstrations")
    returns = demonstrations.record(folder, "CartPole-v1", Player(), episodes=8, seed=1)
    return folder, returns


def all_steps(folder: Path, gamma: float) -> list[dict[str, Any]]:
    source = demonstrations.Demonstrations(folder, gamma)
    return list(source.read(range(source.num_units)))


def test_the_same_seed_records_the_same_episodes(
    recorded: tuple[Path, list[float]], tmp_path: Path
) -> None:
    folder, returns = recorded
    assert demonstrations.record(tmp_path, "CartPole-v1", Player(), episodes=8, seed=1) == returns
    assert demonstrations.mean_return(folder) == np.mean(returns)
    for one, other in zip(all_steps(folder, 0.9), all_steps(tmp_path, 0.9), strict=True):
        np.testing.assert_array_equal(one["observation"], other["observation"])
        np.testing.assert_array_equal(one["action"], other["action"])


def test_a_step_has_the_discounted_return_to_the_end(
    recorded: tuple[Path, list[float]],
) -> None:
    folder, returns = recorded
    for episode, total in zip(all_steps(folder, 0.5), returns, strict=True):
        count = int(total)  # a reward of 1 a step
        assert episode["action"].dtype == np.int64
        if count == 500:  # truncated: what would have followed is not known
            assert np.isnan(episode["return"]).all()
        else:
            expected = [2.0 * (1 - 0.5 ** (count - at)) for at in range(count)]
            assert episode["return"][::-1] == pytest.approx(expected)


def test_a_folder_without_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"demonstrations: expected a folder of \*\.episode"):
        demonstrations.files(tmp_path)


def test_cloning_follows_the_demonstrator(recorded: tuple[Path, list[float]]) -> None:
    folder, _ = recorded
    module = make_policy(SPACES, NetworkConfig(hidden=(32,)), 1)
    config = bc.BCConfig(learning_rate=0.01, batch_size=64)
    bc.CloningTrainer(module, SPACES, str(folder), config, 1).run(100)
    (steps, *_) = all_steps(folder, 0.99)
    with torch.no_grad():
        outputs = module(torch.from_numpy(steps["observation"]))
    chosen = outputs["logits"].argmax(-1).numpy()
    wanted = steps["observation"] @ [0, 0, 1, 0.5] > 0.06
    assert (chosen == wanted).mean() > 0.9


def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="evaluate_every: expected 1 or more, got 0"):
        bc.BC.of("CartPole-v1", evaluate_every=0)
    with pytest.raises(ConfigError, match=r"memory_size: expected 0, .* got 8"):
        rl_imitation.RLImitation.of("CartPole-v1", memory_size=8)
    with pytest.raises(ConfigError, match="imitation_frames: expected 1 or more, got 0"):
        rl_imitation.RLImitation.of("CartPole-v1", imitation_frames=0)
    with pytest.raises(ConfigError, match="temperature: expected more than 0, got 0"):
        rl_imitation.RLImitation.of("CartPole-v1", temperature=0)
    with pytest.raises(ConfigError, match="imitation_weight: expected 0 or more, got -1"):
        rl_imitation.RLImitation.of("CartPole-v1", imitation_weight=-1)


@pytest.mark.parametrize(
    "environment", ["CartPole-v1", "Pendulum-v1", "bray.sources.tasks:TwoHeads-v0"]
)
def test_a_softened_policy_is_its_power(environment: str) -> None:
    spaces = read_spaces(environment)
    policy = make_policy(spaces, NetworkConfig(hidden=(8,)), 1)
    assert isinstance(policy, VectorPolicy)
    with torch.no_grad():  # away from uniform
        policy.policy[-1].weight.mul_(300.0)
    observation: Any = nested.map(lambda leaf: torch.from_numpy(leaf) + 1, spaces.example)
    sharp: Any = nested.map(torch.clone, policy(observation))
    policy.soften(4.0)
    soft = policy(observation)
    if "mean" in sharp:  # log N(x; μ, σ) / 4, up to a constant: the same mean, a variance of 4 σ²
        x = torch.tensor([[0.3], [1.7], [-2.0]])
        power = [-((x - sharp["mean"]) ** 2) / (2 * sharp["log_std"].exp() ** 2) / 4]
        other = [-((x - soft["mean"]) ** 2) / (2 * soft["log_std"].exp() ** 2)]
    else:
        heads = [
            h["logits"] if isinstance(h["logits"], list) else [h["logits"]] for h in (sharp, soft)
        ]
        power = [head / 4 for head in heads[0]]
        other = list(heads[1])
    for wanted, got in zip(power, other, strict=True):
        torch.testing.assert_close(got, wanted)


def test_the_mixed_loss_fades(recorded: tuple[Path, list[float]], tmp_path: Path) -> None:
    weights: list[float] = []

    class Noting(rl_imitation.ImitatingTrainer):
        def loss(self, batch: Any, step: int) -> Any:
            loss, terms = super().loss(batch, step)
            weights.append(float(terms["imitation_weight"]))
            return loss, terms

    config: dict[str, Any] = {
        "demonstrations": str(recorded[0]),
        "hidden": (8,),
        "cloning_steps": 2,
        "epochs": 1,
        "imitation_weight": 0.5,
        "imitation_frames": 1024,
    }
    goal = Goal(evaluate_at=math.inf, max_frames=1536, evaluation_episodes=1)
    with pytest.MonkeyPatch.context() as patch, bray.init(tmp_path, "trial") as run:
        patch.setattr(rl_imitation.RLImitation, "trainer", Noting)
        heard: list[float] = []
        run.listen(lambda figures, save: heard.append(figures["frames"]))
        outcome = rl_imitation.RLImitation.of("CartPole-v1", **config).train(run, goal=goal)
    assert outcome.frames == 1536
    assert heard == [512, 1024, 1536, 1536]
    assert weights == pytest.approx([0.25] * 4 + [0.0] * 8)


def test_demonstrations_whose_return_nobody_knows_are_imitated(
    recorded: tuple[Path, list[float]], tmp_path: Path
) -> None:
    losses: dict[bool, list[float]] = {True: [], False: []}

    class Noting(rl_imitation.ImitatingTrainer):
        def loss(self, batch: Any, step: int) -> Any:
            for is_known in (True, False):
                given = dict(batch["demonstrated"])
                given["return"] = torch.full_like(given["return"], -1e6 if is_known else math.nan)
                _, terms = super().loss({**batch, "demonstrated": given}, step)
                losses[is_known].append(float(terms["imitation_loss"]))
            return super().loss(batch, step)

    goal = Goal(evaluate_at=math.inf, max_frames=512, evaluation_episodes=1)
    config: dict[str, Any] = {"demonstrations": str(recorded[0]), "hidden": (8,), "epochs": 1}
    with pytest.MonkeyPatch.context() as patch, bray.init(tmp_path, "trial") as run:
        patch.setattr(rl_imitation.RLImitation, "trainer", Noting)
        made = rl_imitation.RLImitation.of("CartPole-v1", cloning_steps=2, **config)
        made.train(run, goal=goal)
    assert set(losses[True]) == {0.0}, "far worse than the policy: the filter leaves them out"
    assert min(losses[False]) > 0.01


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_clone_is_as_good_as_its_demonstrators(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "demonstrations"
    returns = demonstrations.record(folder, "CartPole-v1", Player(), episodes=50, seed=1)
    assert 100 < np.mean(returns) < 200
    goal = Goal(episode_return=float(np.mean(returns)))
    with bray.init(tmp_path, "trial") as run:
        config = {"demonstrations": str(folder)}
        assert bc.BC.of("CartPole-v1", **config).train(run, goal=goal, seed=seed).reached
