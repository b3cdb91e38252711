"""Optimiser steps: against the one large batch, and against values that are not finite."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from bray_core import nested
from bray_core.errors import BrayError, ConfigError, SpecError
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig, to_torch

LAYOUT = Layout(nested.spec({"x": np.zeros(3, np.float32), "y": np.float32(0)}))


class Feed:
    """A buffer of the same random rows, of which some may be spoiled."""

    layout = LAYOUT

    def __init__(self, rows=12, spoiled=()):
        self.rows = rows
        self.spoiled = spoiled
        self.popped = 0

    def pop(self, timeout_s=None):
        rng = np.random.default_rng(self.popped)
        x = rng.normal(size=(self.rows, 3)).astype("f4")
        y = x.sum(1)
        if self.popped in self.spoiled:
            y[0] = np.inf
        self.popped += 1
        return Packed(LAYOUT, LAYOUT.pack({"x": x, "y": y}))


class Regression(Trainer):
    """Each replay in parts of the given sizes."""

    sizes = (12,)

    def handle(self, replay):
        tensors = to_torch(replay)
        yield from (
            dict(zip(tensors, parts, strict=True))
            for parts in zip(*(leaf.split(self.sizes) for leaf in tensors.values()), strict=True)
        )

    def loss(self, batch, step):
        return (self.module(batch["x"])[:, 0] - batch["y"]).square().mean(), {}


def make(kind=Regression, feed=None, module=None, directory=None, **config):
    torch.manual_seed(0)
    module = module or nn.Linear(3, 1)
    config = TrainerConfig(**{"learning_rate": 0.05, "seed": 1, **config})
    trainer = kind(module, feed or Feed(), config=config, directory=directory)
    if (scaler := trainer._stepper.scaler) is not None:  # so that the first step is not skipped
        scaler.load_state_dict({**scaler.state_dict(), "scale": 256.0})
    return trainer


def weights_of(trainer):
    return torch.cat([p.detach().ravel() for p in trainer.module.parameters()])


@pytest.mark.parametrize("sizes", [(1, 11), (5, 4, 3), (2,) * 6])
@pytest.mark.parametrize("max_grad_norm", [None, 0.3])
def test_unequal_parts_step_as_the_one_large_batch(sizes, max_grad_norm):
    parts, whole = (make(max_grad_norm=max_grad_norm, accumulate=n) for n in (len(sizes), 1))
    parts.sizes = sizes
    parts.run(5)
    whole.run(5)
    assert parts.steps == whole.steps == 5
    assert torch.allclose(weights_of(parts), weights_of(whole), atol=1e-6, rtol=0)
    assert parts.progress()["loss"] == pytest.approx(whole.progress()["loss"], rel=1e-5)


def test_the_mask_counts_where_there_is_one():
    class Masked(Regression):
        """Of each part only some rows count."""

        def handle(self, replay):
            for index, batch in enumerate(super().handle(replay)):
                mask = torch.arange(len(batch["y"])) <= index
                yield {**batch, "mask": mask}

        def loss(self, batch, step):
            error = (self.module(batch["x"])[:, 0] - batch["y"]).square() * batch["mask"]
            return error.sum() / batch["mask"].sum(), {}

    class Plain(Regression):
        """The same rows as one batch."""

        def handle(self, replay):
            tensors = to_torch(replay)
            rows = torch.tensor([0, 5, 6, 9, 10, 11])  # the first, then two, then three
            yield {name: leaf[rows] for name, leaf in tensors.items()}

    masked, plain = make(Masked, accumulate=3), make(Plain)
    masked.sizes = (5, 4, 3)
    masked.run(4)
    plain.run(4)
    assert torch.allclose(weights_of(masked), weights_of(plain), atol=1e-6, rtol=0)


def test_a_weight_of_ones_own():
    class Twice(Regression):
        def batch_weight(self, batch):
            return 3.0 if len(batch["y"]) == 5 else 1.0

    trainer = make(Twice, accumulate=2, learning_rate=1.0)
    trainer.sizes = (5, 7)
    trainer.optimizer.step = lambda: None
    trainer.run(1)
    first, second = trainer.handle(Feed().pop())
    module = nn.Linear(3, 1)
    module.load_state_dict(trainer.module.state_dict())
    loss = 0.75 * (module(first["x"])[:, 0] - first["y"]).square().mean()
    loss = loss + 0.25 * (module(second["x"])[:, 0] - second["y"]).square().mean()
    loss.backward()
    assert torch.allclose(trainer.module.weight.grad, module.weight.grad, atol=1e-6)


@pytest.mark.isa
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_each_precision_learns_and_clips_the_true_gradient(precision):
    trainer = make(precision=precision, max_grad_norm=1e9)
    trainer.run(1)
    x, y = (to_torch(Feed().pop())[name] for name in ("x", "y"))
    torch.manual_seed(0)
    module = nn.Linear(3, 1)
    (module(x)[:, 0] - y).square().mean().backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in module.parameters()))
    assert trainer.progress()["grad_norm"] == pytest.approx(norm, rel=0.02), "not the scaled one"
    before = trainer.progress()["loss"]
    trainer.run(150)
    assert trainer.progress()["loss"] < 0.02 * before


def test_clipping_comes_after_unscaling():
    class Plain(Regression):
        def make_optimizer(self):
            return torch.optim.SGD(self.module.parameters(), lr=1.0)

    trainer = make(Plain, precision="fp16", max_grad_norm=0.1)
    before = weights_of(trainer)
    trainer.run(1)
    assert float((weights_of(trainer) - before).norm()) == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_is_not_finite_is_skipped_and_counted(precision, recorded):
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    config = {"when_not_finite": "skip", "precision": precision}

    class Whole(Regression):
        def loss(self, batch, step):
            if not batch["y"].isfinite().all():
                batch = {"x": batch["x"] * math.nan, "y": batch["y"]}  # the running mean too
            return super().loss(batch, step)

    spoiled = make(Whole, Feed(spoiled=(1, 2)), module, **config)
    spoiled.run(1)
    saved = [t.clone() for t in [*module.state_dict().values(), *moments(spoiled)]]
    spoiled.run(2)
    after = [*module.state_dict().values(), *moments(spoiled)]
    assert all(map(torch.equal, saved, after))
    assert (spoiled.replays, spoiled.steps) == (3, 1)
    assert spoiled.progress()["skipped_steps"] == 2
    spoiled.run(20)
    assert spoiled.steps == 21
    assert math.isfinite(spoiled.progress()["loss"])
    assert recorded()["trainer/skipped_steps"] == [2, 2]


def moments(trainer):
    states = trainer.optimizer.state_dict()["state"].values()
    return [value.clone() for state in states for value in state.values()]


def test_a_gradient_that_overflows_in_fp16_is_skipped_also_if_a_loss_would_stop():
    class Steep(Regression):
        def loss(self, batch, step):
            loss, terms = super().loss(batch, step)
            return loss * (1e35 if step == 0 and self.replays == 0 else 1.0), terms

    trainer = make(Steep, precision="fp16")
    before = weights_of(trainer)
    trainer.run(1)
    assert torch.equal(weights_of(trainer), before)
    assert trainer.progress()["skipped_steps"] == 1
    assert trainer._stepper.scaler.get_scale() == 128
    trainer.run(1)
    assert trainer.steps == 1


def test_a_loss_that_is_not_finite_stops_in_fp16_too():
    with pytest.raises(BrayError, match=r"not finite in replay 2: loss=inf"):
        make(feed=Feed(spoiled=(1,)), precision="fp16").run(3)


def test_the_scale_is_in_the_checkpoint(tmp_path):
    config = {"precision": "fp16", "when_not_finite": "skip", "directory": tmp_path}
    make(feed=Feed(spoiled=(0,)), **config).run(1)
    again = make(**config)
    again.run(1)
    assert again._stepper.scaler.get_scale() == 128


def test_an_error_names_what_is_wrong():
    for settings, message in (
        ({"when_not_finite": "stopp"}, "expected one of stop, skip, got 'stopp', did you mean"),
        ({"publish_every": None}, "publish_every: None needs a publish_interval_s"),
        ({"publish_interval_s": 0}, "publish_interval_s: expected more than 0, got 0"),
        ({"eval_every": 0}, "eval_every: expected 1 or more, got 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            TrainerConfig(**settings)


class Pair(Trainer):
    """An actor that follows a critic, which follows the target; a frozen teacher looks on."""

    def make_optimizer(self):
        return {
            name: torch.optim.SGD(self.module[name].parameters(), lr=lr)
            for name, lr in (("actor", 0.1), ("critic", 0.01))
        }

    def loss(self, batch, step):
        assert not self.module["teacher"].training
        critic = self.module["critic"](batch["x"])[:, 0]
        actor = self.module["critic"](self.module["actor"](batch["x"])).mean()
        losses = {"actor": -actor, "critic": (critic - batch["y"]).square().mean()}
        if step % 2:
            del losses["actor"]  # a delayed update
        return losses, {"teacher": self.module["teacher"](batch["x"]).mean()}


def pair():
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).requires_grad_(False)
    return {"actor": nn.Linear(3, 3), "critic": nn.Linear(3, 1), "teacher": teacher}


def test_each_loss_moves_the_parameters_of_its_own_optimiser_alone(recorded):
    trainer = make(Pair, module=pair())
    modules = pair()
    actor, critic = modules["actor"], modules["critic"]
    feed = Feed()
    for step in range(3):  # by hand: all gradients first, then all updates
        batch = to_torch(feed.pop())
        loss = (critic(batch["x"])[:, 0] - batch["y"]).square().mean()
        of_critic = torch.autograd.grad(loss, critic.parameters())
        of_actor = torch.autograd.grad(-critic(actor(batch["x"])).mean(), actor.parameters())
        with torch.no_grad():
            for parameter, gradient in zip(critic.parameters(), of_critic, strict=True):
                parameter -= 0.01 * gradient
            for parameter, gradient in zip(actor.parameters(), of_actor, strict=True):
                parameter -= 0.1 * gradient if step % 2 == 0 else 0
    trainer.run(3)
    for name, module in modules.items():
        for mine, other in zip(module.parameters(), trainer.module[name].parameters(), strict=True):
            assert torch.allclose(mine, other, atol=1e-6), name
    assert recorded()["trainer/loss_actor"][0] == 2
    assert recorded() == {}
    assert set(trainer.eval(to_torch(feed.pop()))) == {"loss_actor", "loss_critic", "teacher"} or (
        trainer.steps % 2 == 1
    )


def test_several_optimisers_accumulate_clip_and_scale_as_one_does():
    class Parts(Pair):
        parts = (12,)

        def handle(self, replay):
            tensors = to_torch(replay)
            for x, y in zip(
                tensors["x"].split(self.parts), tensors["y"].split(self.parts), strict=True
            ):
                yield {"x": x, "y": y}

    whole = make(Parts, module=pair(), max_grad_norm=0.1)
    parts = make(Parts, module=pair(), max_grad_norm=0.1, accumulate=2)
    parts.parts = (4, 8)
    scaled = make(Parts, module=pair(), max_grad_norm=0.1, precision="fp16")
    for trainer in (whole, parts, scaled):
        trainer.run(4)
    assert torch.allclose(weights_of(whole), weights_of(parts), atol=1e-6)
    assert torch.allclose(weights_of(whole), weights_of(scaled), atol=5e-3)
    assert {"grad_norm_actor", "grad_norm_critic"} & set(whole.progress())


def test_a_loss_of_only_some_accumulated_batches_steps_too():
    class Sometimes(Pair):
        def handle(self, replay):
            yield from [to_torch(replay)] * 2
            self.calls = 0

        calls = 0

        def loss(self, batch, step):
            self.calls += 1
            losses, terms = super().loss(batch, 0)
            return {k: v for k, v in losses.items() if k == "critic" or self.calls == 2}, terms

    trainer = make(Sometimes, module=pair(), accumulate=2)
    before = trainer.module["actor"].weight.clone()
    trainer.run(1)
    assert not torch.equal(before, trainer.module["actor"].weight)


def test_a_single_loss_steps_all_optimisers():
    class Sum(Pair):
        def loss(self, batch, step):
            return self.module["critic"](self.module["actor"](batch["x"])).mean(), {}

    trainer = make(Sum, module=pair())
    before = [p.clone() for p in trainer.module.parameters()]
    trainer.run(1)
    changed = [
        not torch.equal(a, b) for a, b in zip(before, trainer.module.parameters(), strict=True)
    ]
    assert changed == [True] * 4 + [False] * 2, "all but the teacher's"


def test_a_loss_without_an_optimiser_is_named():
    class Wrong(Pair):
        def loss(self, batch, step):
            return {"acter": self.module["critic"](batch["x"]).mean()}, {}

    message = r"loss: 'acter': expected losses named as the optimisers \('actor', 'critic'\)"
    with pytest.raises(SpecError, match=message):
        make(Wrong, module=pair()).run(1)


def test_modules_and_models_are_named_alike():
    class Target:
        version = 0

        def publish(self, weights):
            return 1

    with pytest.raises(ConfigError, match=r"names among .* \['actor', .* got 'actr'"):
        Pair(pair(), Feed(), model={"actr": Target()})
    with pytest.raises(ConfigError, match=r"model: expected names among none: one .* got 'actor'"):
        Pair(nn.Linear(1, 1), Feed(), model={"actor": Target()})
    with pytest.raises(ConfigError, match=r"module: .*choose another name"):
        Pair({"a.b": nn.Linear(1, 1)}, Feed())
