"""Steps of SAC and TD3 by hand, beside those through autograd: same gradients, same training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bray.algorithms import crossq, sac, td3, tqc
from bray.training.off_policy.perceptron_critics import fits, slopes_of_lowest
from bray.training.on_policy import segment_layout
from bray_buffer import ReplayBuffer
from bray_core.layout import Packed
from bray_core.spaces import Spaces
from bray_trainer.flat_adam import FlatAdam

LENGTH = 8
REALS = {"shape": [2], "low": -2.0, "high": 1.0}


def spaces_of(observation: Any) -> Spaces:
    return Spaces.parse("none", {"observation": observation, "action": REALS})


SPACES = spaces_of({"shape": [5]})


class SACByAutograd(sac.SACTrainer):
    def gradients(self, batch: Any, step: int) -> None:
        """Leave them to autograd."""


class TD3ByAutograd(td3.TD3Trainer):
    def gradients(self, batch: Any, step: int) -> None:
        """Leave them to autograd."""


BOTH = pytest.mark.parametrize(
    ("kind", "ours", "theirs"),
    [(sac.SAC, sac.SACTrainer, SACByAutograd), (td3.TD3, td3.TD3Trainer, TD3ByAutograd)],
    ids=["sac", "td3"],
)


def made(kind: Any, trainer: Any, spaces: Spaces = SPACES, **settings: Any) -> Any:
    settings = {"hidden": (16, 16), "batch_size": 32, "capacity": 64, "n_step": 1, **settings}
    algorithm = kind.of("Pendulum-v1", warmup_frames=1, **settings)
    layout = segment_layout(spaces, LENGTH, 0)
    replay = ReplayBuffer(layout, algorithm.buffer(is_local=True))
    views = layout.views(block := layout.empty(8))
    rng = np.random.default_rng(0)
    views["length"][...] = LENGTH
    views["terminated"][::2, -1] = True
    views["action"][...] = rng.uniform(-2, 1, views["action"].shape)
    views["reward"][...] = 3 * rng.normal(size=views["reward"].shape)
    for name in ("observation", "final_observation"):
        tree = views[name]
        for leaf in tree.values() if isinstance(tree, dict) else [tree]:
            leaf[...] = 1 if leaf.dtype.kind == "i" else rng.normal(size=leaf.shape)
    replay.push(Packed(layout, block))
    return trainer(spaces, algorithm.parts, 0, None, replay)


@BOTH
@pytest.mark.parametrize("settings", [{}, {"normalize_observation": True, "n_step": 3}], ids=str)
def test_both_ways_train_alike(kind: Any, ours: Any, theirs: Any, settings: Any) -> None:
    by_hand, by_autograd = made(kind, ours, **settings), made(kind, theirs, **settings)
    assert by_hand._by_hand is not None
    for trainer in (by_hand, by_autograd):
        assert all(isinstance(one, FlatAdam) for one in trainer.optimizer.values())
        trainer.run(3, checkpoint=False)
    for name in ("module", "target"):
        pair = (getattr(trainer, name).state_dict() for trainer in (by_hand, by_autograd))
        torch.testing.assert_close(*pair, rtol=0, atol=1e-6)
    figures = by_autograd.progress()
    for name in figures.keys() & {"loss_critics", "loss_policy", "q", "entropy", "alpha"}:
        assert by_hand.progress()[name] == pytest.approx(figures[name], rel=1e-4, abs=1e-5)


@BOTH
@pytest.mark.parametrize(
    "observation",
    [
        {"shape": [5]},
        {"discrete": 4},
        {"x": {"shape": [2]}, "y": {"discrete": 3}},
    ],
    ids=str,
)
def test_gradients_agree_with_autograd(kind: Any, ours: Any, theirs: Any, observation: Any) -> None:
    trainer = made(kind, ours, spaces_of(observation))
    batch = first(trainer)
    torch.manual_seed(1)
    losses, terms = trainer.loss(batch, 1)
    wanted = {}
    for name, loss in losses.items():
        inputs = [*trainer.module[name].parameters()]
        wanted[name] = torch.autograd.grad(loss, inputs, retain_graph=True)
    torch.manual_seed(1)
    found = trainer.gradients(batch, 1)
    torch.testing.assert_close(found[0], {n: one.detach() for n, one in losses.items()})
    torch.testing.assert_close(found[1], {n: one.detach() for n, one in terms.items()})
    for name, gradients in wanted.items():
        given = [parameter.grad for parameter in trainer.module[name].parameters()]
        torch.testing.assert_close(given, [*gradients], rtol=1e-5, atol=1e-6)


def first(trainer: Any) -> Any:
    """Return the trainer's first batch."""
    return next(iter(trainer.handle(trainer.buffer.pop(1.0))))


def test_a_log_std_beyond_its_bounds_has_no_gradient() -> None:
    trainer = made(sac.SAC, sac.SACTrainer)
    with torch.no_grad():
        trainer.module["policy"].body[-1].bias[2:] = torch.tensor([7.0, 0.5])
    batch = first(trainer)
    torch.manual_seed(1)
    loss = trainer.loss(batch, 0)[0]["policy"]
    inputs = [*trainer.module["policy"].parameters()]
    wanted = torch.autograd.grad(loss, inputs)
    torch.manual_seed(1)
    trainer.gradients(batch, 0)
    torch.testing.assert_close(
        [parameter.grad for parameter in inputs], [*wanted], rtol=1e-4, atol=1e-5
    )
    assert not inputs[-1].grad[2]


def test_critics_that_agree_share_the_gradient() -> None:
    q = torch.tensor([[1.0, 2.0, 5.0], [3.0, 2.0, 4.0]], requires_grad=True)
    (wanted,) = torch.autograd.grad(q.amin(0).sum(), q)
    torch.testing.assert_close(slopes_of_lowest(q.detach()), wanted)


@BOTH
def test_the_target_lies_side_by_side_and_follows(kind: Any, ours: Any, theirs: Any) -> None:
    trainer = made(kind, ours, tau=0.25)
    before = {name: one.clone() for name, one in trainer.target.state_dict().items()}
    source = trainer.followed(dict(trainer.module.items())).state_dict()
    with torch.no_grad():
        for parameter in trainer.module.parameters():
            parameter.add_(1.0)
    trainer.move_target(0.25)
    for name, parameter in trainer.target.named_parameters():
        wanted = before[name] + 0.25 * (source[name] - before[name])
        torch.testing.assert_close(parameter.detach(), wanted)
    followers, leaders = trainer.move_target._parameters
    assert len(followers) == len(leaders) == (2 if kind is td3.TD3 else 1)


def test_what_is_more_than_two_perceptrons_goes_through_autograd() -> None:
    for kind, trainer in ((tqc.TQC, tqc.TQCTrainer), (crossq.CrossQ, crossq.CrossQTrainer)):
        other = made(kind, trainer)
        assert other._by_hand is None
    images = spaces_of({"shape": [3, 36, 36], "dtype": "uint8", "low": 0, "high": 255})
    algorithm = sac.SAC.of("Pendulum-v1", hidden=(16,))
    module = torch.nn.ModuleDict(sac.SACTrainer.networks(images, algorithm.parts, 0))
    assert not fits(module, sac.SACPolicy)
