"""Run by each of two processes that test_sharding.py starts: trains a split module, prints it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bray_core import nested
from bray_core.errors import BrayError
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig
from bray_trainer.distributed.ranks import Ranks

LAYOUT = Layout(nested.spec({"x": np.zeros(3, np.float32), "y": np.float32(0)}))


class Layers(nn.Module):
    """Layers in a list, as transformers have them, of sizes that two does not divide."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh() * self.frozen
        return self.head(x)[:, 0]  # type: ignore[no-any-return]


class Feed:
    """Replays that were made before."""

    layout = LAYOUT

    def __init__(self, replays: list[Packed]) -> None:
        self.replays = replays

    def pop(self, timeout_s: float | None = None) -> Packed:
        return self.replays.pop(0)


class Published:
    """Keeps what was published last."""

    version = 0

    def publish(self, weights: Any) -> int:
        self.version += 1
        self.last = {name: value.copy() for name, value in weights.items()}
        return self.version

    def checkpoint(self) -> None:
        """Keep nothing."""


class Regression(Trainer):
    """Fits y by batches of `size` rows."""

    size = 100

    def handle(self, replay: Any) -> Any:
        (tensors,) = super().handle(replay)
        for start in range(0, len(tensors["x"]), self.size):
            yield {name: leaf[start : start + self.size] for name, leaf in tensors.items()}

    def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        return (self.module(batch["x"]) - batch["y"]).square().mean(), {}

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.module.parameters(), lr=0.05, fused=True)


def rows(seed: int, count: int) -> Packed:
    x = np.random.default_rng(seed).normal(size=(count, 3)).astype("f4")
    return Packed(LAYOUT, LAYOUT.pack({"x": x, "y": x.sum(1) + 1}))


def trained(
    replays: list[Packed],
    *,
    seed: int = 0,
    directory: Path | None = None,
    size: int = 100,
    **settings: Any,
) -> tuple[Regression, dict[str, list[float]]]:
    """Train on so many replays; return the trainer and what was published last."""
    published: Any = Published()
    config = TrainerConfig(max_grad_norm=0.5, prefetch=0, **settings)
    feed: Any = Feed(list(replays))
    trainer = Regression(Layers(seed), feed, model=published, config=config, directory=directory)
    trainer.size = size
    trainer.run(len(replays))
    last = getattr(published, "last", {})
    return trainer, {name: value.ravel().tolist() for name, value in last.items()}


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    ranks = Ranks.from_environment("gloo", timeout_s=30)
    rank = ranks.rank
    # Each rank begins with other weights, and has another number of rows.
    own = [rows(10 + rank, 2 + 3 * rank), rows(20 + rank, 4 - rank)]
    trainer, published = trained(own, seed=rank, directory=directory / "two", shard=True)
    held = sum(p.to_local().numel() for p in trainer.module.parameters())  # type: ignore[attr-defined]
    state = trainer.optimizer.state_dict()["state"]  # type: ignore[union-attr]
    moments = sum(s["exp_avg"].to_local().numel() for s in state.values())
    _, resumed = trained(own[:1], directory=directory / "one", shard=True)
    _, plain = trained(own[:1], directory=directory / "copy")
    parts = [rows(30 + rank, 2 + 2 * rank)]
    _, accumulated = trained(parts, size=1 + rank, accumulate=2, shard=True)
    try:
        trained([rows(40, 3 + rank)], size=1, accumulate=4, shard=True)
        error = ""
    except BrayError as raised:
        error = str(raised)
    found = {
        "published": published,
        "held": held,
        "moments": moments,
        "resumed": resumed,
        "plain": plain,
        "accumulated": accumulated,
        "error": error,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
