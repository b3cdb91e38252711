"""The training loop: pop a replay, train on it, publish, checkpoint."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bray_core import metrics
from bray_core.errors import BrayError, ClosedError, DeadlineError
from bray_core.layout import Packed
from bray_core.protocols import Buffer, Model
from bray_trainer import checkpoint
from bray_trainer.config import TrainerConfig
from bray_trainer.transfer import to_torch

logger = logging.getLogger(__name__)

_POP_TIMEOUT_S = 0.2
"""How long a stop may go unnoticed while no replay is ready."""
_STOP_TIMEOUT_S = 60.0

Terms = Mapping[str, Tensor | float]


class Trainer:
    """Trains a module on the replays of a buffer. Subclass it and write `loss`.

    Args:
        module: trained in place.
        buffer: where replays are popped from.
        model: where weights are published to; None publishes nowhere.
        config: see `TrainerConfig`.
        directory: of the checkpoints; an existing one is resumed at the first start. None writes
            none.

    Example:
        >>> class Regression(Trainer):
        ...     def loss(self, batch, step):
        ...         error = (self.module(batch["x"])[..., 0] - batch["y"]).square().mean()
        ...         return error, {}
    """

    def __init__(
        self,
        module: nn.Module,
        buffer: Buffer,
        *,
        model: Model | None = None,
        config: TrainerConfig | None = None,
        directory: Path | None = None,
    ) -> None:
        self.config = config or TrainerConfig()
        self.device = torch.device(self.config.device)
        self.module = module.to(self.device)
        self.buffer = buffer
        self.model = model
        self.directory = directory
        self.replays = 0
        self.steps = 0
        self.optimizer = self.make_optimizer()
        self.scheduler = self.make_scheduler()
        self._version = 0
        self._progress: dict[str, float] = {}
        self._prepared = False
        self._stopping = threading.Event()
        # Waited for instead of the thread: CPython 3.11's `join` takes a thread for ended when
        # Ctrl-C interrupts it.
        self._idle = threading.Event()
        self._idle.set()
        self._error: Exception | None = None

    # What a user may override.

    def handle(self, replay: Packed) -> Iterable[Any]:
        """Turn a replay into batches, each for one `loss`; by default its tensors `[B, …]`."""
        yield to_torch(replay, self.device)

    def loss(self, batch: Any, step: int) -> tuple[Tensor, Terms]:
        """Return the scalar loss of a batch and named terms of it to report."""
        raise TypeError(f"{type(self).__name__}.loss: not written: override it")

    def eval(self, batch: Any) -> dict[str, float]:
        """Return figures of a batch without training; by default the loss and its terms."""
        with torch.no_grad():
            loss, terms = self.loss(batch, self.steps)
        return {"loss": float(loss), **{name: float(term) for name, term in terms.items()}}

    def should_pause(self) -> bool:
        """Return whether to pause, asked after each replay; by default never."""
        return False

    def make_optimizer(self) -> Optimizer:
        """Return the optimiser; by default fused Adam."""
        return torch.optim.Adam(
            self.module.parameters(), lr=self.config.learning_rate, eps=1e-5, fused=True
        )

    def make_scheduler(self) -> LRScheduler | None:
        """Return a learning-rate scheduler, stepped once a replay; by default none."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the subclass's own state for checkpoints: tensors, numbers, strings."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    # The life of the loop.

    def start(self) -> None:
        """Train in a background thread; the first start resumes from the newest checkpoint."""
        if not self._idle.is_set():
            return
        self._prepare()
        self._stopping.clear()
        self._error = None
        self._idle.clear()
        threading.Thread(target=self._main, name="trainer", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the loop pauses or fails; return whether it did.

        Raises:
            Exception: what the loop failed with.
        """
        if not self._idle.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """Finish the replay at hand, write a checkpoint and stop; again is harmless.

        Raises:
            DeadlineError: the replay at hand takes longer than a minute.
            Exception: what the loop failed with, if nobody has seen it yet.
        """
        self._stopping.set()
        if not self._idle.wait(_STOP_TIMEOUT_S):
            raise DeadlineError(f"trainer: still busy with a replay after {_STOP_TIMEOUT_S:g} s")
        error, self._error = self._error, None
        if error is not None:
            raise error

    def run(self, max_replays: int) -> None:
        """Train on so many replays in the caller's thread: for scripts and debuggers."""
        self._prepare()
        self._stopping.clear()
        for _ in range(max_replays):
            self._train_on(self.buffer.pop())
        self._checkpoint()

    def progress(self) -> dict[str, float]:
        """Return counters and the figures of the last replay by name."""
        counters = {"replays": self.replays, "steps": self.steps, "version": self._version}
        return {**counters, **self._progress}

    def _main(self) -> None:
        try:
            self._loop()
            self._checkpoint()
        except Exception as error:
            logger.exception("trainer: stopped by an error")
            self._error = error
        finally:
            self._idle.set()

    def _loop(self) -> None:
        reused = 0
        replay: Packed | None = None
        while not self._stopping.is_set():
            waited = time.perf_counter()
            can_reuse = replay is not None and reused < self.config.max_reuse
            try:
                replay = self.buffer.pop(0.0 if can_reuse else _POP_TIMEOUT_S)
                reused = 0
            except DeadlineError:
                if not can_reuse:
                    continue
            except ClosedError:
                return
            metrics.record("trainer/wait_s", time.perf_counter() - waited)
            reused += 1
            assert replay is not None
            self._train_on(replay)
            if self.should_pause():
                return

    def _prepare(self) -> None:
        """Seed, or resume and publish what was restored: once."""
        if self._prepared:
            return
        self._prepared = True
        if self.config.seed is not None:
            torch.manual_seed(self.config.seed)
        if self.model is not None:
            self._version = self.model.version
        state = checkpoint.load_newest(self.directory) if self.directory else None
        if state is not None:
            self._restore(state)
            self._publish()

    # One replay.

    def _train_on(self, replay: Packed) -> None:
        started = time.perf_counter()
        self._record_lag(replay)
        self.module.train()
        sums: dict[str, Tensor] = {}
        count = 0
        for group in _groups(self.handle(replay), self.config.accumulate):
            self._step(group, sums)
            count += len(group)
        if self.scheduler is not None:
            self.scheduler.step()
        self.replays += 1
        self._report(sums, count, time.perf_counter() - started)
        if self.replays % self.config.publish_every == 0:
            self._publish()
        if self.replays % self.config.checkpoint_every == 0:
            self._checkpoint()

    def _step(self, batches: list[Any], sums: dict[str, Tensor]) -> None:
        """Take one optimiser step on the mean gradient of the batches."""
        self.optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            with self._autocast():
                loss, terms = self.loss(batch, self.steps)
            torch.autograd.backward(loss / len(batches))
            for name, term in {"loss": loss, **terms}.items():
                value = torch.as_tensor(term).detach()
                sums[name] = sums[name] + value if name in sums else value
        if self.config.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.config.max_grad_norm)
        self.optimizer.step()
        self.steps += 1

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.config.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def _report(self, sums: dict[str, Tensor], count: int, train_s: float) -> None:
        """Record the means of a replay; a sum that is not finite stops the trainer."""
        means = {name: float(total) / count for name, total in sums.items()}
        if not all(map(math.isfinite, means.values())):
            terms = ", ".join(f"{name}={value:g}" for name, value in means.items())
            raise BrayError(f"loss: not finite in replay {self.replays}: {terms}")
        for name, value in means.items():
            metrics.record(f"trainer/{name}", value)
        metrics.record("trainer/train_s", train_s)
        metrics.record("trainer/steps", self.steps, kind="last")
        self._progress |= means

    def _record_lag(self, replay: Packed) -> None:
        """Record how many versions behind the replay's steps were acted."""
        names = {field.path for field in replay.layout.fields}
        if not {"length", "policy_version"} <= names:
            return
        tree = replay.tree
        versions = tree["policy_version"]
        valid = np.arange(versions.shape[1]) < tree["length"][:, None]
        lag = float(np.mean(self._version - versions[valid]))
        metrics.record("trainer/policy_lag_versions", lag)
        metrics.record("trainer/frames", int(tree["length"].sum()), kind="count")
        self._progress["lag"] = lag

    def _publish(self) -> None:
        if self.model is None:
            return
        started = time.perf_counter()
        weights = {
            name: tensor.detach().cpu().numpy() for name, tensor in self.module.state_dict().items()
        }
        self._version = self.model.publish(weights)
        metrics.record("trainer/publish_s", time.perf_counter() - started)
        metrics.record("trainer/policy_version", self._version, kind="last")

    def _checkpoint(self) -> None:
        if self.directory is None:
            return
        state = {
            "replays": self.replays,
            "steps": self.steps,
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "random": checkpoint.random_state(),
            "own": self.state_dict(),
        }
        checkpoint.save(self.directory, self.replays, state, self.config.keep_checkpoints)
        if self.model is not None:
            self.model.checkpoint()

    def _restore(self, state: dict[str, Any]) -> None:
        self.replays, self.steps = state["replays"], state["steps"]
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.load_state_dict(state["own"])
        checkpoint.set_random_state(state["random"])
        logger.info("trainer: resumed after %d replays", self.replays)


def _groups(batches: Iterable[Any], size: int) -> Iterable[list[Any]]:
    """Yield lists of `size` batches; the last may be shorter."""
    group: list[Any] = []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
