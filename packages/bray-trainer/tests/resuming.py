"""A trainer whose losses show whether everything came back; a child that is killed trains it.

    python resuming.py <directory> <kills> <replays>

Children of one warm process are killed at random moments, one after the other; the last one may
finish. Then how often one was killed, and the losses of the finished run, are printed as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bray_core import nested
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig

LAYOUT = Layout(nested.spec({"x": np.zeros(4, np.float32)}))


class Source:
    """Goes through shuffled rows, epoch after epoch; its place is all that it has to keep."""

    layout = LAYOUT

    def __init__(self):
        self.rows = np.random.default_rng(5).normal(size=(40, 4)).astype("f4")
        self.state = {"epoch": 0, "position": np.int64(0)}

    def pop(self, timeout_s=None):
        epoch, position = self.state["epoch"], int(self.state["position"])
        order = np.random.default_rng(epoch).permutation(len(self.rows))
        rows = self.rows[order[position : position + 8]]
        position += 8
        self.state = {
            "epoch": epoch + position // len(order),
            "position": np.int64(position % len(order)),
        }
        return Packed(LAYOUT, LAYOUT.pack({"x": rows}))

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        self.state = state


class Replay:
    """Draws at random from what was pushed: content and generator are to be kept."""

    layout = LAYOUT

    def __init__(self):
        self.blocks = LAYOUT.empty(0)
        self.random = np.random.default_rng(3)

    def push(self, block):
        self.blocks = np.concatenate([self.blocks, block])

    def pop(self, timeout_s=None):
        index = self.random.integers(len(self.blocks), size=8)
        return Packed(LAYOUT, self.blocks[index])

    def stats(self):
        return {"queued": len(self.blocks)}

    def save(self, path):
        np.save(path.with_suffix(".npy"), self.blocks)

    def load(self, path):
        try:
            self.push(np.load(path.with_suffix(".npy")))
        except (ValueError, EOFError) as error:
            raise OSError(f"{path}: {error}") from error

    def state_dict(self):
        return {"random": self.random.bit_generator.state}

    def load_state_dict(self, state):
        self.random.bit_generator.state = state["random"]


class Everything(Trainer):
    """Uses all that a checkpoint must hold; fails before the replay `dies_at`."""

    dies_at = 10**9
    replays_wanted = 0
    losses = ()

    def handle(self, replay):
        if self.replays == self.dies_at:
            raise KeyboardInterrupt  # nothing is written
        if isinstance(self.buffer, Replay):  # experience comes in while it trains
            row = LAYOUT.pack({"x": np.full((1, 4), np.random.standard_normal(), "f4")})
            self.buffer.push(row)
        for batch in super().handle(replay):
            yield {"x": batch["x"] + random.gauss(0, 0.1)}
            yield {"x": batch["x"] * float(np.random.standard_normal())}

    def loss(self, batch, step):
        loss = (self.module["net"](batch["x"]) - self.module["bias"].weight).square().mean()
        self.losses = (*self.losses, loss.item())
        return {"net": loss, "bias": loss * 0.5}, {}

    def make_optimizer(self):
        sgd = torch.optim.SGD(self.module["bias"].parameters(), lr=0.1, momentum=0.9)
        return {"net": torch.optim.Adam(self.module["net"].parameters(), lr=0.01), "bias": sgd}

    def make_scheduler(self):
        return {
            "net": torch.optim.lr_scheduler.ExponentialLR(self.optimizer["net"], 0.99),
            "bias": torch.optim.lr_scheduler.StepLR(self.optimizer["bias"], 3, 0.9),
        }

    def should_pause(self):
        return self.replays >= self.replays_wanted

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state):
        self.losses = state["losses"]


def make(buffer, directory, **config):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
    config = TrainerConfig(**{"seed": 7, "checkpoint_every": 2, **config})
    return Everything(
        {"net": net, "bias": nn.Linear(4, 1)}, buffer, config=config, directory=directory
    )


def finish(trainer, replays):
    """Train until so many replays, in the background as in real life; return the losses."""
    trainer.replays_wanted = replays
    trainer.start()
    assert trainer.wait(60)
    assert trainer.replays == replays
    return trainer.losses


def run_in_child(directory, replays, seconds):
    """Return the losses, or None where the child is killed after so many seconds."""
    child = os.fork()
    if child == 0:
        losses = finish(make(Source(), directory, prefetch=2, checkpoint_every=5), replays)
        (directory / "losses.json").write_text(json.dumps(losses))
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return None if status else json.loads((directory / "losses.json").read_text())


def main():
    directory, kills, replays = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    # Its lazy parts are imported once, here: a child has no time for that.
    finish(make(Source(), None, prefetch=0), 1)
    for name in ("cut", "whole"):
        (directory / name).mkdir()
    moments = random.Random(1)
    for _ in range(kills):  # the first replays are on disk after 0.05 s or so
        run_in_child(directory / "cut", 10**9, moments.uniform(0.0, 0.15))
    written = [
        int(path.stem.rpartition("-")[2]) for path in (directory / "cut").glob("replay-*.pt")
    ]
    total = max(written, default=0) + replays
    cut = run_in_child(directory / "cut", total, None)
    whole = run_in_child(directory / "whole", total, None)
    print(json.dumps({"written": max(written, default=0), "cut": cut, "whole": whole}))


if __name__ == "__main__":
    main()
