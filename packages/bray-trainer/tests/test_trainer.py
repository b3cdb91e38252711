from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bray_core import nested
from bray_core.errors import BrayError, ConfigError, SpecError
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig, to_torch
from bray_trainer.checkpoints import checkpoint

SPEC = nested.spec({"x": np.zeros(3, np.float32), "y": np.float32(0)})
LAYOUT = Layout(SPEC)


def batch_of(seed: int, size: int = 8) -> Packed:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 3)).astype(np.float32)
    return Packed(LAYOUT, LAYOUT.pack({"x": x, "y": x.sum(1) + 1}))


class Feed:
    """A buffer of prepared batches; DeadlineError when they are used up."""

    layout = LAYOUT

    def __init__(self, batches: list[Packed]) -> None:
        self._batches = iter(batches)

    def push(self, *segments: Any, wait: bool = False, timeout_s: float | None = None) -> int:
        return 0

    def pop(self, timeout_s: float | None = None) -> Packed:
        from bray_core.errors import DeadlineError

        for batch in self._batches:
            return batch
        raise DeadlineError("used up")

    def stats(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


class Target:
    """Where weights are published to."""

    def __init__(self) -> None:
        self.version = 0
        self.published: list[dict[str, np.ndarray]] = []
        self.checkpoints = 0

    def publish(self, weights: Any) -> int:
        self.published.append({name: array.copy() for name, array in weights.items()})
        self.version += 1
        return self.version

    def checkpoint(self) -> None:
        self.checkpoints += 1


class Regression(Trainer):
    def __init__(self, *arguments: Any, pause_after: int = 10**9, **options: Any) -> None:
        self.losses: list[float] = []
        self.pause_after = pause_after
        super().__init__(*arguments, **options)

    def loss(self, batch: Any, step: int) -> tuple[torch.Tensor, dict[str, Any]]:
        noise = torch.rand(()) + random.random() + np.random.random()  # all three generators
        error = (self.module(batch["x"])[:, 0] - batch["y"]).square().mean() * (1 + 0.01 * noise)
        self.losses.append(error.item())
        return error, {"noise": noise}

    def should_pause(self) -> bool:
        return self.replays >= self.pause_after

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = state["losses"]


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def make(
    batches: list[Packed], model: Any = None, directory: Path | None = None, **config: Any
) -> Regression:
    settings = TrainerConfig(**{"learning_rate": 0.05, "seed": 1, **config})
    return Regression(module(), Feed(batches), model=model, config=settings, directory=directory)


@pytest.fixture(autouse=True)
def same_randomness() -> None:
    random.seed(5)
    np.random.seed(5)


@pytest.mark.isa
def test_it_learns_publishes_and_counts() -> None:
    target = Target()
    trainer = make([batch_of(i) for i in range(200)], target, publish_every=10)
    trainer.run(200)
    assert trainer.losses[-1] < 0.05 * trainer.losses[0]
    assert target.version == 20
    assert np.array_equal(
        target.published[-1]["weight"], trainer.module.state_dict()["weight"].numpy()
    )
    progress = trainer.progress()
    assert (progress["replays"], progress["steps"], progress["version"]) == (200, 200, 20)
    assert set(progress) >= {"loss", "noise"}


def test_it_runs_in_the_background_pauses_and_goes_on() -> None:
    trainer = make([batch_of(i) for i in range(30)])
    trainer.pause_after = 10
    trainer.start()
    assert trainer.wait(10)
    assert trainer.replays == 10
    trainer.pause_after = 20
    trainer.start()
    assert trainer.wait(10)
    assert trainer.replays == 20
    trainer.pause_after = 10**9
    trainer.start()
    assert not trainer.wait(0.05)
    trainer.start()
    trainer.stop()
    trainer.stop()
    assert trainer.replays == 30


def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(tmp_path: Path) -> None:
    batches = [batch_of(i) for i in range(20)]
    whole = make(batches)
    whole.run(20)
    random.seed(5)
    np.random.seed(5)
    first = make(batches[:8], directory=tmp_path)
    first.run(8)
    target = Target()
    second = make(batches[8:], target, directory=tmp_path)
    second.run(12)
    assert second.losses == whole.losses
    assert second.replays == 20
    assert np.array_equal(
        target.published[0]["weight"], first.module.state_dict()["weight"].numpy()
    ), "what was restored is published at once"


def test_a_broken_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make([batch_of(i) for i in range(6)], directory=tmp_path, checkpoint_every=2)
    trainer.run(6)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"replay-00000000{n}.pt" for n in (2, 4, 6)]
    files[-1].write_bytes(files[-1].read_bytes()[:100])
    again = make([batch_of(0)], directory=tmp_path)
    again.run(1)
    assert again.replays == 5
    assert "cannot be read" in caplog.text
    for file in tmp_path.iterdir():
        file.write_bytes(b"")
    assert checkpoint.load_newest(tmp_path) is None


def test_a_checkpoint_that_would_run_code_is_not_read(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "pwned",))

    torch.save({"replays": Evil()}, tmp_path / "replay-000000001.pt")
    assert checkpoint.load_newest(tmp_path) is None
    assert not (tmp_path / "pwned").exists()


def test_accumulated_gradients_equal_those_of_the_large_batch() -> None:
    class Halves(Regression):
        def handle(self, replay: Packed) -> Iterator[Any]:
            tensors = to_torch(replay)
            for half in (slice(0, 4), slice(4, 8)):
                yield {name: leaf[half] for name, leaf in tensors.items()}

        def loss(self, batch: Any, step: int) -> tuple[torch.Tensor, dict[str, Any]]:
            return (self.module(batch["x"])[:, 0] - batch["y"]).square().mean(), {}

    class Whole(Halves):
        def handle(self, replay: Packed) -> Iterator[Any]:
            yield to_torch(replay)

    weights = []
    for kind, accumulate in ((Halves, 2), (Whole, 1)):
        config = TrainerConfig(accumulate=accumulate, max_grad_norm=0.5, learning_rate=0.1)
        trainer = kind(module(), Feed([batch_of(i) for i in range(5)]), config=config)
        trainer.run(5)
        assert trainer.steps == 5
        weights.append(trainer.module.weight.detach())
    assert torch.allclose(*weights, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (None, "make_optimizer: expected an optimiser of .*, got None: nothing would be trained"),
        ({}, "make_optimizer: expected an optimiser of .*, got {}: nothing would be trained"),
        ({"own": "adam"}, r"make_optimizer: own: expected a torch\.optim\.Optimizer, got str"),
        (torch.optim.SGD(module().parameters()), "got one of other parameters: nothing would"),
    ],
)
def test_an_optimiser_that_trains_nothing_is_refused(optimizer: Any, message: str) -> None:
    class Wrong(Regression):
        def make_optimizer(self) -> Any:
            return optimizer

    with pytest.raises(ConfigError, match=message):
        Wrong(module(), Feed([batch_of(0)]), config=TrainerConfig())


def test_gradients_are_clipped() -> None:
    class Steep(Regression):
        def loss(self, batch: Any, step: int) -> tuple[torch.Tensor, dict[str, Any]]:
            return 1e6 * self.module(batch["x"]).sum(), {}

        def make_optimizer(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.module.parameters(), lr=1.0)

    before = module().state_dict()["weight"]
    trainer = Steep(module(), Feed([batch_of(0)]), config=TrainerConfig(max_grad_norm=0.1))
    trainer.run(1)
    moved = torch.cat(
        [(trainer.module.weight - before).ravel(), trainer.module.bias - module().bias]
    )
    assert moved.norm().item() == pytest.approx(0.1, rel=1e-3)


def test_a_loss_that_is_not_finite_stops_before_it_is_published() -> None:
    class Broken(Regression):
        def loss(self, batch: Any, step: int) -> tuple[torch.Tensor, dict[str, Any]]:
            return self.module(batch["x"]).sum() * float("nan"), {"other": 1.0}

    target = Target()
    trainer = Broken(module(), Feed([batch_of(0)]), model=target, config=TrainerConfig())
    trainer.start()
    with pytest.raises(BrayError, match=r"loss: not finite in replay 1: loss=nan, other=1"):
        trainer.wait(10)
    assert target.version == 0


def test_an_error_in_the_users_code_is_raised_where_one_waits() -> None:
    class Faulty(Regression):
        def loss(self, batch: Any, step: int) -> tuple[torch.Tensor, dict[str, Any]]:
            raise ValueError("my fault")

    trainer = Faulty(module(), Feed([batch_of(0)]), config=TrainerConfig())
    trainer.start()
    with pytest.raises(ValueError, match="my fault"):
        trainer.wait(10)
    with pytest.raises(TypeError, match=r"Trainer\.loss: not written"):
        Trainer(module(), Feed([batch_of(0)])).run(1)


def test_a_replay_is_used_again_only_while_no_fresh_one_is_there() -> None:
    trainer = make([batch_of(i) for i in range(3)], max_reuse=4)
    trainer.pause_after = 6
    trainer.start()
    assert trainer.wait(10)
    trainer.stop()
    assert trainer.replays == 6, "three fresh ones, then the last again, three times more"


def test_eval_trains_nothing() -> None:
    trainer = make([])
    before = trainer.module.weight.clone()
    figures = trainer.eval(to_torch(batch_of(0)))
    assert set(figures) == {"loss", "noise"}
    assert torch.equal(before, trainer.module.weight)


@pytest.mark.isa
def test_bf16_learns_too() -> None:
    trainer = make([batch_of(i) for i in range(200)], precision="bf16")
    trainer.run(200)
    assert trainer.losses[-1] < 0.1 * trainer.losses[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulate": 0}, "accumulate: expected 1 or more, got 0"),
        ({"learning_rate": 0}, "learning_rate: expected more than 0"),
        ({"max_grad_norm": -1}, "max_grad_norm: expected more than 0"),
        ({"precision": "fp8"}, "precision: expected one of fp32, bf16, fp16, got 'fp8'"),
    ],
)
def test_nonsense_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainerConfig(**settings)


def test_to_torch_copies_nothing_on_the_cpu() -> None:
    dtypes = ["?", "u1", "i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
    rng = np.random.default_rng(0)
    tree = {name: rng.integers(0, 2, (5, 2, 3)).astype(name) for name in dtypes}
    tree["scalar"] = np.arange(5)
    layout = Layout(nested.spec({name: leaf[0] for name, leaf in tree.items()}))
    packed = Packed(layout, layout.pack(tree))
    tensors = to_torch(packed)
    for name, leaf in tree.items():
        assert np.array_equal(tensors[name].numpy(), leaf), name
    packed.tree["f4"][2, 1, 1] = 42
    assert tensors["f4"][2, 1, 1] == 42


def test_a_dtype_that_torch_lacks_is_named() -> None:
    if np.dtype(np.longdouble).itemsize == 8:
        pytest.skip("long double is double on this platform")
    layout = Layout(nested.spec({"x": np.zeros(2, np.longdouble)}))
    with pytest.raises(SpecError, match="x: torch has no dtype"):
        to_torch(Packed(layout, layout.empty(1)))
