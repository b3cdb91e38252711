"""The training loop: take a replay, train on it, publish, checkpoint."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from bray_core import metrics
from bray_core.errors import ClosedError, DeadlineError
from bray_core.protocols import Buffer, Model
from bray_trainer import checkpoint, resume
from bray_trainer.arguments import as_buffers, as_device, as_mapping, as_module, check_kinds
from bray_trainer.background import Background
from bray_trainer.config import TrainerConfig
from bray_trainer.feed import Feed, Replay
from bray_trainer.figures import Terms, num_steps, policy_lag
from bray_trainer.overrides import Overrides
from bray_trainer.phases import Phases
from bray_trainer.publisher import Publisher
from bray_trainer.ranks import current
from bray_trainer.step import Stepper, groups

logger = logging.getLogger(__name__)

_SLICE_S = 0.2
"""How long a stop may go unnoticed while no replay is ready."""
_WARN_EVERY_S = 60.0
_STOP_TIMEOUT_S = 60.0
_CLOSED, _STOP, _NOT_YET, _READY = range(4)
"""What a rank says before each replay; the smallest is done."""


class Trainer(Overrides):
    """Trains a module on the replays of a buffer. Subclass it and write `loss`.

    Args:
        module: trained in place; several by name become an `nn.ModuleDict`.
        buffer: where replays are popped from; of several by name, one replay is popped from each.
        model: where weights are published to; of several modules a model by name, of those that
            are published. Its `publish` must copy what it is given. None publishes nowhere.
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
        module: nn.Module | Mapping[str, nn.Module],
        buffer: Buffer | Mapping[str, Buffer],
        *,
        model: Model | Mapping[str, Model] | None = None,
        config: TrainerConfig | None = None,
        directory: Path | None = None,
    ) -> None:
        check_kinds(module, buffer, model)
        self.config = config or TrainerConfig()
        self.ranks = current()
        self.device = as_device(self.config.device)
        self.module = as_module(module).to(self.device)
        self.buffer = buffer
        self.model = model
        self.directory = directory
        self.replays = 0
        self.steps = 0
        self.optimizer = self.make_optimizer()
        self.scheduler = self.make_scheduler()
        self.phases = Phases(self.device)
        self.stepper = Stepper(
            self.module,
            self.optimizer,
            lambda batch, step: self.loss(batch, step),
            lambda batch: self.batch_weight(batch),
            self.config,
            self.device,
            self.ranks,
            self.phases,
        )
        buffers = as_buffers(buffer, self.ranks)
        self._feed = Feed(buffers, self.config)
        modules = as_mapping(self.module if isinstance(module, nn.Module) else module)
        self._publisher = Publisher(modules, as_mapping(model), list(buffers.values()))
        self._progress: dict[str, float] = {}
        self._prepared = False
        self._ticked = 0.0
        self._stopping = threading.Event()
        self._is_pausing = False
        self._closed: ClosedError | None = None
        self._background = Background("trainer")

    def start(self) -> None:
        """Train in a background thread; the first start resumes from the newest checkpoint.

        Raises:
            BrayError: there are checkpoints, but none is readable, or it is of another module.
        """
        if not self._background.is_idle():
            return
        self._stopping.clear()
        self._is_pausing = False
        with self.ranks.together():
            self._prepare()
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
        self._stopping.clear()
        self._is_pausing = False
        with self.ranks.together():
            self._prepare()
            for _ in range(max_replays):
                replay = self._next_replay()
                if replay is None:  # stopped from another thread
                    break
                self._train_on(replay)
            self._checkpoint()

    def progress(self) -> dict[str, float]:
        """Return counters, shares of time and the figures of the last replay by name."""
        counters = {
            "replays": self.replays,
            "steps": self.steps,
            "version": self._publisher.version,
        }
        return {**counters, **self._progress}

    def summary(self) -> str:
        """Return in words what the time goes into, the largest part first."""
        return self.phases.summary()

    def _loop(self) -> None:
        with self.ranks.together():
            try:
                while (replay := self._next_replay()) is not None:
                    self._train_on(replay)
                    # Said before the next replay, so that all ranks pause at the same one.
                    self._is_pausing = self.ranks.is_first and self.should_pause()
            except ClosedError as error:
                logger.info("trainer: training ends: %s", error)
            self._checkpoint()

    def _next_replay(self) -> Replay | None:
        """Wait for a replay that every rank has one beside; None if any of them stops."""
        started = warned = time.monotonic()
        with self.phases.on_host("wait"):
            while True:
                left_s = started + self.config.pop_timeout_s - time.monotonic()
                state = self._state(min(_SLICE_S, max(0.0, left_s)))
                agreed, version = self.ranks.smallest(state, -self._publisher.version)
                self._publisher.follow(-version)
                if agreed == _READY:
                    return self._feed.take()
                if agreed == _STOP:
                    return None
                if agreed == _CLOSED:
                    self._end(has_one=state == _READY)
                if left_s <= 0 and state == _NOT_YET:
                    raise DeadlineError(
                        f"trainer: no replay in {self.config.pop_timeout_s:g} s: {self._feed.said}"
                    )
                if time.monotonic() - warned > _WARN_EVERY_S:
                    warned = time.monotonic()
                    logger.warning(
                        "trainer: waits for %.0f s now: %s", warned - started, self._feed.said
                    )

    def _state(self, timeout_s: float) -> int:
        if self._stopping.is_set() or self._is_pausing:
            return _STOP
        try:
            return _READY if self._feed.wait(timeout_s) else _NOT_YET
        except ClosedError as error:
            self._closed = error
            return _CLOSED

    def _end(self, has_one: bool) -> None:
        """Raise ClosedError: training ends when the first rank's buffer does."""
        if has_one and self._closed is None:
            metrics.record("trainer/unused_replays", 1, kind="count")
        raise self._closed or ClosedError("ranks: the buffer of another rank was closed")

    def _prepare(self) -> None:
        """Seed, or resume and publish what was restored: once."""
        self._ticked = time.perf_counter()
        if self._prepared:
            return
        if self.config.seed is not None:
            checkpoint.seed_all(self.config.seed + self.ranks.rank)
        if models := list(as_mapping(self.model).values()):
            self._publisher.version = models[0].version
        if self.directory is not None and resume.resume(self, self.directory):
            self._publish()
        else:
            self.ranks.share(self.module.state_dict())
        self._prepared = True

    # One replay.

    def _train_on(self, replay: Replay) -> None:
        started = time.perf_counter()
        before = self.steps
        terms = Terms()
        self.module.train()
        for batches in self._groups(replay):
            self.steps += self.stepper.step(batches, self.steps, terms)
        if self.steps:  # torch warns of a schedule without a step
            for scheduler in as_mapping(self.scheduler).values():
                scheduler.step()
        self.replays += 1
        terms.join(self.ranks)
        means = terms.means(self.replays)  # raises before what is not finite is published
        metrics.record("trainer/train_s", time.perf_counter() - started)
        self._report(replay, means, self.steps - before)
        if self.replays % self.config.publish_every == 0:
            self._publish()
        if self.replays % self.config.checkpoint_every == 0:
            self._checkpoint()
        self.phases.finish_replay()

    def _groups(self, replay: Replay) -> Iterator[list[Any]]:
        """Yield the batches of each step; none where only other ranks have some left."""
        for batches in groups(self.handle(replay), self.config.accumulate):
            self.ranks.any(True)
            yield batches
        while self.ranks.any(False):
            yield []

    def _report(self, replay: Replay, means: Mapping[str, float], steps: int) -> None:
        now = time.perf_counter()
        self._progress["steps_per_s"] = steps / (now - self._ticked)
        self._ticked = now
        metrics.record("trainer/steps", self.steps, kind="last")
        for name, value in means.items():
            metrics.record(f"trainer/{name}", value)
        frames = num_steps(replay)
        if frames is not None:
            metrics.record("trainer/frames", frames, kind="count")
        lag = policy_lag(replay, self._publisher.version) if self.model is not None else None
        if lag is not None:
            metrics.record("trainer/policy_lag_versions", lag)
            self._progress["lag"] = lag
        self._progress |= means

    def _publish(self) -> None:
        if self.model is not None and self.ranks.is_first:
            with self.phases.on_host("publish"):
                self._publisher.offer()

    def _checkpoint(self) -> None:
        self._publisher.flush()
        if self.directory is None:
            return
        with self.phases.on_host("checkpoint"):
            resume.write(self, self.directory)
            if self.ranks.is_first:
                for model in as_mapping(self.model).values():
                    model.checkpoint()
