"""Run by each of two processes that test_ranks.py starts as torchrun would: prints what it found.

Each check has a group of its own, so that one may end it. What is right is worked out in
test_ranks.py, in one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore

from bray_core import metrics, nested
from bray_core.errors import BrayError, ClosedError, DeadlineError, SpecError
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig
from bray_trainer.distributed import process_group, ranks
from bray_trainer.distributed.gradient_buckets import GradientBuckets

LAYOUT = Layout(nested.spec({"x": np.zeros(3, np.float32), "y": np.float32(0)}))


def rows(seed: int, count: int) -> Packed:
    x = np.random.default_rng(seed).normal(size=(count, 3)).astype("f4")
    return Packed(LAYOUT, LAYOUT.pack({"x": x, "y": x.sum(1) + 1}))


class Feed:
    """Prepared replays; an exception among them is raised."""

    layout = LAYOUT

    def __init__(self, replays: list[Any]) -> None:
        self.replays = replays

    def pop(self, timeout_s: float | None = None) -> Packed:
        item = self.replays.pop(0) if self.replays else DeadlineError("used up")
        if isinstance(item, Exception):
            raise item
        return item


class Regression(Trainer):
    """Its `handle` cuts a replay into batches of `size` rows; notes the mean losses."""

    size = 1000
    goal = 10**9

    def handle(self, replay: Any) -> Any:
        (tensors,) = super().handle(replay)
        for start in range(0, len(tensors["x"]), self.size):
            yield {name: leaf[start : start + self.size] for name, leaf in tensors.items()}

    def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        error = (self.module(batch["x"])[:, 0] - batch["y"]).square().mean()
        return error, {"error": error}

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.module.parameters(), lr=0.05, momentum=0.9)

    def should_pause(self) -> bool:
        assert self.ranks.is_first, "only rank 0 is asked"
        return self.replays >= self.goal


class Noisy(Regression):
    """Its loss depends on the global generator, and its own state on the rank."""

    seen = ()

    def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        loss, _ = super().loss(batch, step)
        noise = torch.rand(())
        self.seen = (*self.seen, float(noise))
        return loss * (1 + noise), {}

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def line(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(3, 1)


def flat(module: nn.Module) -> list[float]:
    return torch.cat([p.detach().ravel() for p in module.parameters()]).tolist()


def make(replays: list[Any], kind: Any = Regression, directory: Any = None, **config: Any) -> Any:
    module = line(
        seed=ranks.Ranks.current().rank
    )  # the ranks begin differently, and must not stay so
    feed: Any = Feed(replays)
    return kind(module, feed, config=TrainerConfig(**config), directory=directory)


def run(trainer: Trainer, replays: int) -> str:
    """Return the error, without the name of a port."""
    try:
        trainer.run(replays)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at outside
        return f"{type(error).__name__}: {error}"
    return "none"


# The checks: each is given this process's ranks, and returns plain values.


class Partly(nn.Module):
    """Parameters of which some have no gradient on some rank, in three dtypes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Parameter(torch.randn(3))
        self.only_1 = nn.Parameter(torch.randn(3))
        self.nobody = nn.Parameter(torch.randn(3))
        self.wide = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.narrow = nn.Parameter(torch.randn(3).bfloat16())

    def forward(self, x: Tensor, rank: int) -> Tensor:
        y = x @ self.a + x.double() @ self.wide + (x.bfloat16() * self.narrow).sum(1)
        return (y + x @ self.only_1 if rank else y).square()


def check_average(own: ranks.Ranks) -> Any:
    found = []
    for bucket_bytes in (10**6, 20):
        module = Partly()
        x = torch.randn((8, 3), generator=torch.Generator().manual_seed(1))
        mine = x[:5] if own.is_first else x[5:]
        module(mine, own.rank).mean().backward()
        parameters = list(module.parameters())
        total = GradientBuckets(parameters, bucket_bytes).average(own._joined(), len(mine))
        grads = [None if p.grad is None else p.grad.tolist() for p in parameters]
        found.append([total, grads])
    module.a.grad = torch.tensor([1.0, float("nan" if own.is_first else "inf"), 2.0])
    own.average([module.a], 1)
    found.append(module.a.grad.isfinite().tolist())
    module.a.grad = torch.ones(3)
    found.append([own.average([module.a], 0), module.a.grad.tolist()])
    module.zero_grad()
    sparse = nn.Embedding(4, 2, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    try:
        own.average(sparse.parameters(), 1)
    except SpecError as error:
        found.append(str(error))
    return found


def check_values(own: ranks.Ranks) -> Any:
    one = own.rank == 1
    values = torch.arange(10.0)[own.rank * 3 : 3 + own.rank * 7] ** 2
    mask = values != 4
    return {
        "agree": own.agree(2 - own.rank),
        "any": [own.any(one), own.any(False)],
        "gather": own.gather({"rank": own.rank, "list": [1.5, "x", None] * (1 + own.rank)}),
        "first": own.first({"rank": own.rank}),
        "sum": own.sum(torch.tensor([1.0, own.rank])).tolist(),
        "normalize": own.normalize(values).tolist(),
        "masked": own.normalize(values, mask).tolist(),
        "nothing": own.normalize(values, torch.zeros_like(mask) if one else mask).tolist(),
        "mean": [own.mean(values), own.mean(values, mask)],
    }


def check_share(own: ranks.Ranks) -> Any:
    module = nn.Sequential(
        line(own.rank), nn.BatchNorm1d(2).to(memory_format=torch.preserve_format)
    )
    module[1].running_mean += own.rank
    module.register_buffer("turned", torch.full((2, 3), float(own.rank)).t())
    module.register_buffer("flag", torch.tensor(own.is_first))
    module.register_buffer("empty", torch.zeros(0))
    own.share({**module.state_dict(), "extra": "no tensor"})
    assert module.flag
    found: list[Any] = [flat(module), module[1].running_mean.tolist(), module.turned.tolist()]
    try:
        own.share({"weight": torch.zeros(2 + own.rank)})
    except SpecError as error:
        found.append(str(error))
    return found


def check_training(own: ranks.Ranks) -> Any:
    """Replays of unequal length, and batches of which rank 0 has more than rank 1."""
    sizes = (8, 7, 5) if own.is_first else (3, 1, 6)
    trainer = make([rows(10 * i + own.rank, n) for i, n in enumerate(sizes)])
    trainer.size = 3
    error = run(trainer, 3)
    figures = {key: trainer.progress()[key] for key in ("replays", "steps", "loss", "error")}
    return [error, flat(trainer.module), figures]


class Segmented(Regression):
    """A replay's rows, padded, as one batch of segments of at most three steps, `[T, B, …]`."""

    def handle(self, replay: Any) -> Any:
        (tensors,) = Trainer.handle(self, replay)
        parts = list(zip(tensors["x"].split(3), tensors["y"].split(3), strict=True))
        columns = torch.zeros((3, len(parts), 4))
        for at, (x, y) in enumerate(parts):
            columns[: len(y), at] = torch.cat([x, y[:, None]], 1)
            columns[len(y) :, at] = torch.nan
        yield {"columns": columns, "length": torch.tensor([len(y) for _, y in parts])}

    def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        valid = torch.arange(3)[:, None] < batch["length"]
        steps = batch["columns"][valid]
        error = (self.module(steps[:, :3])[:, 0] - steps[:, 3]).square().mean()
        return error, {"error": error}


def check_segments(own: ranks.Ranks) -> Any:
    """Ranks of as many segments, and of very unequal valid steps."""
    sizes = (9, 8) if own.is_first else (7, 7)
    replays = [rows(10 * i + own.rank, n) for i, n in enumerate(sizes)]
    trainer = make(replays, Segmented)
    error = run(trainer, 2)
    return [error, flat(trainer.module), trainer.progress()["error"]]


def check_skip(own: ranks.Ranks) -> Any:
    """The second replay of rank 1 is no number."""
    replays = [rows(own.rank, 4), rows(own.rank, 4), rows(own.rank, 4)]
    if own.rank:
        replays[1].tree["x"][0] = np.nan
    trainer = make(replays, when_not_finite="skip", max_grad_norm=1.0)
    return [run(trainer, 3), flat(trainer.module), trainer.steps]


def check_fp16(own: ranks.Ranks) -> Any:
    """The fifth replay of rank 1 overflows."""
    replays = [rows(own.rank, 4) for _ in range(6)]
    if own.rank:
        replays[4].tree["x"][0] = 6e4
    trainer = make(replays, precision="fp16", when_not_finite="skip")
    trainer._stepper.scaler = torch.amp.GradScaler("cpu", init_scale=16)
    scales = []
    for _ in range(6):
        trainer.run(1)
        scales.append(trainer._stepper.scaler.get_scale())
    return [scales, flat(trainer.module), trainer.steps]


def check_not_finite(own: ranks.Ranks) -> Any:
    replay = rows(own.rank, 4)
    if own.rank:
        replay.tree["x"][0] = np.nan
    return run(make([replay]), 1)


def check_several(own: ranks.Ranks) -> Any:
    """Two optimisers, one of which steps every second time; rank 1 runs out of batches."""

    class Two(Regression):
        size = 2

        disagrees = False

        def loss(self, batch: Any, step: int) -> Any:
            loss, _ = super().loss(batch, step)
            if self.disagrees:
                return {"bias" if self.ranks.rank else "weight": loss}, {}
            return ({"weight": loss} if step % 2 else {"weight": loss, "bias": 2 * loss}), {}

        def make_optimizer(self) -> Any:
            return {
                "weight": torch.optim.SGD([self.module.weight], lr=0.1),
                "bias": torch.optim.Adam([self.module.bias], lr=0.1),
            }

    trainer = make([rows(own.rank, 2 if own.rank else 6)], Two, max_grad_norm=0.5)
    found = [run(trainer, 1), flat(trainer.module), trainer.steps]
    counts = [s["step"].item() for s in trainer.optimizer["bias"].state.values()]
    trainer.disagrees = True
    trainer.buffer.replays.append(rows(0, 1))
    return [*found, counts, run(trainer, 1)]


def check_dry(own: ranks.Ranks) -> Any:
    """Rank 1 has nothing at first; rank 0's source ends last."""
    late = [DeadlineError("not yet")] * 3 * own.rank
    replays = [*late, rows(1, 2), rows(2, 2), ClosedError("the end")]
    trainer = make([*replays[:-1], rows(3, 2)] if own.is_first else replays)
    metrics.drain()
    trainer.start()
    ended = trainer.wait(30)
    counts = {s.name: s.total for s in metrics.drain()}
    return [ended, trainer.replays, counts.get("trainer/unused_replays")]


def check_pause_and_stop(own: ranks.Ranks) -> Any:
    trainer = make([rows(i, 2) for i in range(20)])
    trainer.goal = 4
    trainer.start()
    found = [trainer.wait(30), trainer.replays]
    trainer.goal = 10**9
    trainer.start()
    if own.rank:
        trainer.stop()
    found += [trainer.wait(30), trainer.replays]
    return [*found, own.gather(trainer.replays)]


def check_anew(own: ranks.Ranks) -> Any:
    """The second rank is told a replay later."""
    trainer = make([rows(40 + own.rank, 4), rows(42 + own.rank, 4)])
    weights = {name: value.numpy() for name, value in line(seed=7).state_dict().items()}
    for rank in range(2):
        if own.rank == rank:
            trainer.begin_anew(weights)
        run(trainer, 1)
    return flat(trainer.module)


def check_resume(own: ranks.Ranks) -> Any:
    """Whole, and in two parts: the generators and the own state are each rank's."""
    directory = Path(sys.argv[1]) / "two"

    def replays() -> list[Any]:
        return [rows(10 * i + own.rank, 4) for i in range(4)]

    whole = make(replays(), Noisy, seed=3)
    found = [run(whole, 4)]
    for part in range(2):
        trainer = make(replays()[2 * part :], Noisy, directory, seed=3)
        found.append(run(trainer, 2))
    return [*found, whole.seen, trainer.seen, flat(whole.module), flat(trainer.module)]


def check_late(own: ranks.Ranks) -> Any:
    """Only the second rank's clock asks for a checkpoint: the first one writes it."""
    directory = Path(sys.argv[1]) / "late"
    batches = [rows(10 * i + own.rank, 4) for i in range(3)]
    interval_s = None if own.is_first else 1e-9
    trainer = make(batches, Noisy, directory, checkpoint_interval_s=interval_s)
    trainer.run(2, checkpoint=False)
    own.agree(1)  # the first one has written
    return sorted(path.name for path in directory.glob("*.pt"))


def check_resume_of_one(own: ranks.Ranks) -> Any:
    trainer = make([rows(1, 4)], Noisy, Path(sys.argv[1]) / "one", seed=3)
    return [run(trainer, 1), trainer.replays, trainer.seen, flat(trainer.module)]


def check_dry_for_too_long(own: ranks.Ranks) -> Any:
    return run(make([] if own.rank else [rows(0, 2)], pop_timeout_s=0.1 if own.rank else 9), 1)


def check_fault(own: ranks.Ranks) -> Any:
    """Rank 0 fails in `loss`, then each is used again."""

    class Faulty(Regression):
        def loss(self, batch: Any, step: int) -> Any:
            if self.ranks.is_first:
                raise TypeError("my fault")
            return super().loss(batch, step)

    trainer = make([rows(0, 2), rows(0, 2)], Faulty)
    return [run(trainer, 1), run(trainer, 1), own.is_lost, own.is_connected]


def check_absent(own: ranks.Ranks) -> Any:
    """Rank 1 does not come: it waits for rank 0's error."""
    try:
        if own.is_first:
            own.agree(1)
    except BrayError as error:
        STORE.set("absent", "")
        return f"{type(error).__name__}: {error}"
    STORE.wait(["absent"])
    return None


def check_killed(own: ranks.Ranks) -> Any:
    own.agree(1)
    if own.rank:
        print(json.dumps(FOUND), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        own.agree(1)
    except BrayError as error:
        return f"{type(error).__name__}: {error}"
    return None


FOUND: dict[str, Any] = {}
STORE: Any = None


def main() -> None:
    global STORE
    process_group._ROLL_CALL_S = 0.3
    torch.set_num_threads(1)
    first = ranks.Ranks.from_environment(timeout_s=30)
    assert ranks.Ranks.current() is first
    port = first.first(free_port() if first.is_first else 0)
    STORE = TCPStore("127.0.0.1", port, None, first.is_first, wait_for_workers=False)
    first.agree(1)
    first.close()
    for name, check in [item for item in globals().items() if item[0].startswith("check_")]:
        own = ranks.Ranks(first.rank, first.size)
        own.connect(PrefixStore(name, STORE), timeout_s=0.3 if name == "check_absent" else 20)
        ranks.assign(own)
        FOUND[name.removeprefix("check_")] = check(own)
        own.close()
    print(json.dumps(FOUND), flush=True)


def free_port() -> int:
    """Return a port that no system hands out by itself, so that none takes it in between."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


if __name__ == "__main__":
    main()
