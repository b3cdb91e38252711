"""DQN's step by hand, beside the one through autograd: same gradients, same training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bray.algorithms import dqn
from bray.training.off_policy.perceptron_dqn import PerceptronDQN, fits
from bray.training.on_policy import segment_layout
from bray_buffer import ReplayBuffer
from bray_core.layout import Packed
from bray_core.spaces import Spaces
from bray_trainer.flat_adam import FlatAdam

ACTIONS, LENGTH = 3, 8


def spaces_of(observation: Any) -> Spaces:
    return Spaces.parse("none", {"observation": observation, "action": {"discrete": ACTIONS}})


SPACES = spaces_of({"shape": [5]})


class ByAutograd(dqn.DQNTrainer):
    def gradients(self, batch: Any, step: int) -> None:
        """Leave them to autograd."""


def made(kind: type[dqn.DQNTrainer], spaces: Spaces = SPACES, **settings: Any) -> dqn.DQNTrainer:
    settings = {
        "hidden": (16, 16),
        "batch_size": 32,
        "capacity": 64,
        "warmup_frames": 1,
        **settings,
    }
    algorithm = dqn.DQN.of("CartPole-v1", target_every=5, **settings)
    layout = segment_layout(spaces, LENGTH, 0)
    replay = ReplayBuffer(layout, algorithm.buffer(is_local=True))
    views = layout.views(block := layout.empty(8))
    rng = np.random.default_rng(0)
    views["length"][...] = LENGTH
    views["terminated"][::2, -1] = True
    views["action"][...] = rng.integers(0, ACTIONS, views["action"].shape)
    views["reward"][...] = 3 * rng.normal(size=views["reward"].shape)
    for name in ("observation", "final_observation"):
        tree = views[name]
        leaves = tree.values() if isinstance(tree, dict) else [tree]
        for leaf in leaves:
            leaf[...] = 1 if leaf.dtype.kind == "i" else rng.normal(size=leaf.shape)
    replay.push(Packed(layout, block))
    return kind(spaces, algorithm.parts, 0, None, replay)  # type: ignore[arg-type]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note of each call whether the gradients were found by hand."""
    noted: list[bool] = []
    by_hand = PerceptronDQN.__call__

    def noting(self: PerceptronDQN, *args: Any, **settings: Any) -> Any:
        found = by_hand(self, *args, **settings)
        noted.append(found is not None)
        return found

    monkeypatch.setattr(PerceptronDQN, "__call__", noting)
    return noted


@pytest.mark.parametrize(
    "settings",
    [{}, {"double": False}, {"prioritized": True}, {"n_step": 1, "normalize_observation": True}],
)
def test_both_ways_train_alike(settings: dict[str, Any], asked: list[bool]) -> None:
    ours, theirs = made(dqn.DQNTrainer, **settings), made(ByAutograd, **settings)
    assert isinstance(ours.optimizer, FlatAdam)
    for trainer in (ours, theirs):
        trainer.run(12, checkpoint=False)
    assert len(asked) == 12
    assert all(asked)
    torch.testing.assert_close(
        ours.module.state_dict(), theirs.module.state_dict(), rtol=1e-5, atol=2e-6
    )
    for name in ("loss", "td_error", "q", "grad_norm"):
        assert ours.progress()[name] == pytest.approx(theirs.progress()[name], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    "observation",
    [
        {"shape": [5]},
        {"discrete": 4},
        {"multi_discrete": [3, 4]},
        {"multi_binary": [3]},
        {"shape": [2], "dtype": "int64", "low": 0, "high": 9},
        {"x": {"shape": [2]}, "y": {"discrete": 3}},
    ],
    ids=str,
)
def test_gradients_agree_with_autograd(observation: Any) -> None:
    trainer = made(dqn.DQNTrainer, spaces_of(observation))
    (batch,) = trainer.handle(trainer.replay.pop(1.0))
    loss, terms = trainer.loss(batch, 0)
    loss.backward()
    wanted = [parameter.grad.clone() for parameter in trainer.module.parameters()]
    found = trainer.gradients(batch, 0)
    assert found is not None
    ours = [parameter.grad for parameter in trainer.module.parameters()]
    torch.testing.assert_close(found[0], loss.detach())
    torch.testing.assert_close(found[1], terms)
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{"dueling": True}, {"noisy": True}, {"distributional": "qr"}, {"value_rescaling": True}],
)
def test_what_does_not_fit(settings: dict[str, Any]) -> None:
    algorithm = dqn.DQN.of("CartPole-v1", hidden=(16, 16), **settings)
    assert not fits(algorithm.policy(SPACES, 0), algorithm.parts.model)


def test_a_network_of_ones_own_goes_through_autograd(asked: list[bool]) -> None:
    class Gated(dqn.DQNPolicy):
        def numbers(self, observation: Any, levels: Any = None) -> Any:
            found, rest = super().numbers(observation, levels)
            return 10 * torch.tanh(found / 10), rest

    class Trainer(dqn.DQNTrainer):
        @classmethod
        def networks(cls, spaces: Spaces, parts: Any, seed: int) -> dict[str, Any]:
            return {"policy": Gated(spaces, parts.model)}

    made(Trainer).run(2, checkpoint=False)
    assert not asked


def test_masked_actions_go_through_autograd(asked: list[bool]) -> None:
    mask = {"shape": [ACTIONS], "dtype": "int8"}
    trainer = made(dqn.DQNTrainer, spaces_of({"observation": {"shape": [5]}, "action_mask": mask}))
    trainer.run(2, checkpoint=False)
    assert asked == [False, False]
