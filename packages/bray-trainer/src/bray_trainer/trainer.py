"""The training loop: pop a replay, train on it, publish, checkpoint."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bray_core import metrics
from bray_core.errors import BrayError, ClosedError, ConfigError, DeadlineError
from bray_core.layout import Packed
from bray_core.protocols import Buffer, Model
from bray_trainer import checkpoint
from bray_trainer.background import Background
from bray_trainer.config import TrainerConfig
from bray_trainer.figures import Terms, num_steps, policy_lag
from bray_trainer.transfer import to_torch

logger = logging.getLogger(__name__)

_POP_SLICE_S = 0.2
"""How long a stop may go unnoticed while no replay is ready."""
_WARN_EVERY_S = 60.0
_STOP_TIMEOUT_S = 60.0


class Trainer:
    """Trains a module on the replays of a buffer. Subclass it and write `loss`.

    Args:
        module: trained in place.
        buffer: where replays are popped from.
        model: where weights are published to; its `publish` must copy what it is given, which is
            the live weights. None publishes nowhere.
        config: see `TrainerConfig`.
        directory: of the checkpoints; an existing one is resumed at the first start (so that a
            subclass's constructor is done by then). None writes none.

    Raises:
        ConfigError: an argument of another kind, or a device that is not there.

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
        _check_kinds(module, buffer, model)
        self.config = config or TrainerConfig()
        self.device = _device(self.config.device)
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
        self._ticked = 0.0
        self._stopping = threading.Event()
        self._background = Background("trainer")

    # What a user may override.

    def handle(self, replay: Packed) -> Iterable[Any]:
        """Turn a replay into batches, each for one `loss`; by default its tensors `[B, …]`.

        On the CPU the tensors are the replay's own memory, which `max_reuse` may bring again.
        """
        yield to_torch(replay, self.device)

    def loss(self, batch: Any, step: int) -> tuple[Tensor, Mapping[str, Tensor | float]]:
        """Return the scalar loss of a batch and named scalar terms of it to report."""
        raise TypeError(f"{type(self).__name__}.loss: not written: override it")

    def eval(self, batch: Any) -> dict[str, float]:
        """Return figures of a batch without training; by default the loss and its terms.

        The module is switched to evaluation meanwhile: call it while the trainer stands still.
        """
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad(), self._autocast():
                loss, terms = self.loss(batch, self.steps)
        finally:
            self.module.train(was_training)
        return {"loss": float(loss), **{name: float(term) for name, term in terms.items()}}

    def should_pause(self) -> bool:
        """Return whether to pause, asked after each replay is published; by default never."""
        return False

    def make_optimizer(self) -> Optimizer:
        """Return the optimiser; by default Adam with eps 1e-5, fused where torch has that."""
        return torch.optim.Adam(
            self.module.parameters(),
            lr=self.config.learning_rate,
            eps=1e-5,
            fused=self.device.type in ("cpu", "cuda"),
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
        """Train in a background thread; the first start resumes from the newest checkpoint.

        Raises:
            BrayError: there are checkpoints, but none is readable, or it is of another module.
        """
        if not self._background.is_idle():
            return
        self._prepare()
        self._stopping.clear()
        self._background.start(self._loop)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the loop pauses or fails; return whether it did.

        It also ends where its buffer is closed.

        Raises:
            Exception: what the loop failed with.
        """
        return self._background.wait(timeout_s)

    def stop(self) -> None:
        """Finish the replay at hand, write a checkpoint and stop; again is harmless.

        Raises:
            DeadlineError: the replay at hand takes longer than a minute.
            Exception: what the loop failed with, if `wait` has not raised it.
        """
        self._stopping.set()
        if not self._background.is_idle(_STOP_TIMEOUT_S):
            raise DeadlineError(f"trainer: still busy with a replay after {_STOP_TIMEOUT_S:g} s")
        self._background.raise_unseen()

    def run(self, max_replays: int) -> None:
        """Train on so many replays in the caller's thread: for scripts and debuggers.

        Raises:
            DeadlineError: the next replay took longer than `pop_timeout_s`.
            ClosedError: the buffer was closed.
        """
        self._prepare()
        self._stopping.clear()
        for _ in range(max_replays):
            replay = self._next_replay(self.config.pop_timeout_s)
            if replay is None:  # stopped from another thread
                break
            self._train_on(replay)
        self._checkpoint()

    def progress(self) -> dict[str, float]:
        """Return counters and the figures of the last replay by name."""
        counters = {"replays": self.replays, "steps": self.steps, "version": self._version}
        return {**counters, **self._progress}

    def _loop(self) -> None:
        replay: Packed | None = None
        uses = 0
        while not self._stopping.is_set():
            may_reuse = replay is not None and uses < self.config.max_reuse
            try:
                fresh = self._next_replay(0.0 if may_reuse else self.config.pop_timeout_s)
            except ClosedError:
                logger.info("trainer: the buffer was closed, training ends")
                break
            if fresh is not None:
                replay, uses = fresh, 0
            elif replay is None or not may_reuse:  # stopped while it waited
                break
            uses += 1
            self._train_on(replay)
            if self.should_pause():
                break
        self._checkpoint()

    def _next_replay(self, timeout_s: float) -> Packed | None:
        """Pop a replay; None if the trainer is stopped, or with no `timeout_s` none is ready."""
        started = warned = time.monotonic()
        while True:
            left = started + timeout_s - time.monotonic()
            try:
                replay = self.buffer.pop(min(_POP_SLICE_S, max(0.0, left)))
            except DeadlineError as error:
                if self._stopping.is_set() or not timeout_s:
                    return None
                if left <= 0:
                    raise DeadlineError(
                        f"trainer: no replay in {timeout_s:g} s: {error}"
                    ) from error
                if time.monotonic() - warned > _WARN_EVERY_S:
                    warned = time.monotonic()
                    logger.warning("trainer: waits for %.0f s now: %s", warned - started, error)
                continue
            metrics.record("trainer/wait_s", time.monotonic() - started)
            return replay

    def _prepare(self) -> None:
        """Seed, or resume and publish what was restored: once."""
        self._ticked = time.perf_counter()
        if self._prepared:
            return
        if self.config.seed is not None:
            checkpoint.seed_all(self.config.seed)
        if self.model is not None:
            self._version = self.model.version
        if self.directory is not None and self._resume(self.directory):
            self._publish()
        self._prepared = True

    def _resume(self, directory: Path) -> bool:
        state = checkpoint.load_newest(directory)
        if state is not None:
            self._restore(directory, state)
        elif number := checkpoint.count(directory):
            raise BrayError(
                f"checkpoint: none of the {number} in {directory} can be read: "
                "move them away to start afresh"
            )
        return state is not None

    # One replay.

    def _train_on(self, replay: Packed) -> None:
        started = time.perf_counter()
        before = self.steps
        terms = Terms()
        self.module.train()
        for group in _groups(self.handle(replay), self.config.accumulate):
            self._step(group, terms)
        if self.scheduler is not None:
            self.scheduler.step()
        self.replays += 1
        means = terms.means(self.replays)  # raises before what is not finite is published
        metrics.record("trainer/train_s", time.perf_counter() - started)
        self._report(replay, means, self.steps - before)
        if self.replays % self.config.publish_every == 0:
            self._publish()
        if self.replays % self.config.checkpoint_every == 0:
            self._checkpoint()

    def _step(self, batches: list[Any], terms: Terms) -> None:
        """Take one optimiser step on the mean gradient of the batches."""
        self.optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            with self._autocast():
                loss, parts = self.loss(batch, self.steps)
            terms.add({"loss": loss, **parts})
            torch.autograd.backward(loss / len(batches))
        if self.config.max_grad_norm is not None:
            norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.config.max_grad_norm)
            terms.add({"grad_norm": norm})
        self.optimizer.step()
        self.steps += 1

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.config.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def _report(self, replay: Packed, means: Mapping[str, float], steps: int) -> None:
        now = time.perf_counter()
        self._progress["steps_per_s"] = steps / (now - self._ticked)
        self._ticked = now
        metrics.record("trainer/steps", self.steps, kind="last")
        for name, value in means.items():
            metrics.record(f"trainer/{name}", value)
        frames = num_steps(replay)
        if frames is not None:
            metrics.record("trainer/frames", frames, kind="count")
        lag = policy_lag(replay, self._version) if self.model is not None else None
        if lag is not None:
            metrics.record("trainer/policy_lag_versions", lag)
            self._progress["lag"] = lag
        self._progress |= means

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

    def _restore(self, directory: Path, state: dict[str, Any]) -> None:
        try:
            self.module.load_state_dict(state["module"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
            self.load_state_dict(state["own"])
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise BrayError(
                f"checkpoint: the newest in {directory} does not fit this trainer: {error}: "
                "choose another directory, or the module that it was made with"
            ) from error
        self.replays, self.steps = state["replays"], state["steps"]
        checkpoint.set_random_state(state["random"])
        logger.info("trainer: resumed from %s after %d replays", directory, self.replays)


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


def _check_kinds(module: object, buffer: object, model: object) -> None:
    for name, value, fits, expected in (
        ("module", module, isinstance(module, nn.Module), "a torch.nn.Module"),
        ("buffer", buffer, hasattr(buffer, "pop"), "a buffer with `pop`"),
        ("model", model, model is None or hasattr(model, "publish"), "a model with `publish`"),
    ):
        if not fits:
            raise ConfigError(f"{name}: expected {expected}, got {type(value).__name__}")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device: {name!r} is none of torch's: {error}") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device: got {name!r}, but torch finds {torch.cuda.device_count()} CUDA devices: "
            "choose 'cpu'"
        )
    return device
