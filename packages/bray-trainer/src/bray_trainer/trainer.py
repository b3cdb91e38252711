"""The training loop: take a replay, train on it, publish, checkpoint."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from bray_core import metrics
from bray_core.errors import ClosedError, ConfigError, DeadlineError, SpecError
from bray_core.process import memory
from bray_core.protocols import BufferProtocol, ModelProtocol
from bray_trainer.arguments import (
    as_buffers,
    as_device,
    as_mapping,
    as_module,
    check_kinds,
    check_optimizers,
    set_training,
)
from bray_trainer.background_thread import BackgroundThread
from bray_trainer.checkpoints.random_state import seed_all
from bray_trainer.checkpoints.trainer_checkpoints import TrainerCheckpoints
from bray_trainer.config import TrainerConfig
from bray_trainer.distributed import sharding
from bray_trainer.distributed.ranks import Ranks
from bray_trainer.evaluation import Evaluation
from bray_trainer.hooks import TrainerHooks
from bray_trainer.prefetcher import Prefetcher, Replay
from bray_trainer.publisher import Publisher
from bray_trainer.replay_agreement import ReplayAgreement
from bray_trainer.reporting.loop_timer import LoopTimer
from bray_trainer.reporting.loss_means import LossMeans
from bray_trainer.reporting.replay_metrics import ReplayMetrics
from bray_trainer.stepper import Stepper, group_batches
from bray_trainer.transfer import DeviceTransfer

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 900.0
"""Longest time that a stop waits for the replay at hand: it may be one of a large network."""


class Trainer(TrainerHooks):
    """Trains a module on the replays of a buffer. Subclass it and write `loss`.

    Args:
        module: Module that is trained in place; several by name become an `nn.ModuleDict`.
        buffer: Buffer that replays are popped from; with several by name, one from each.
        model: Model that weights are published to; with several modules, models by name for those
            that are published. Its `publish` must copy what it is given. None publishes nowhere.
        config: Settings of the loop; None takes the defaults.
        directory: Folder of the checkpoints; the first start resumes from the newest (a subclass's
            constructor is done by then). None writes none.
        eval_buffer: Buffer of replays for `eval`: one every `eval_every` replays.

    Raises:
        ConfigError: an argument is of the wrong kind, or the device is absent.

    Examples:
        >>> class Regression(Trainer):
        ...     def loss(self, batch, step):
        ...         error = (self.module(batch["x"])[..., 0] - batch["y"]).square().mean()
        ...         return error, {}
    """

    def __init__(
        self,
        module: nn.Module | Mapping[str, nn.Module],
        buffer: BufferProtocol | Mapping[str, BufferProtocol],
        *,
        model: ModelProtocol | Mapping[str, ModelProtocol] | None = None,
        config: TrainerConfig | None = None,
        directory: str | Path | None = None,
        eval_buffer: BufferProtocol | None = None,
    ) -> None:
        check_kinds(module, buffer, model)
        self.config = config or TrainerConfig()
        self.ranks = Ranks.current()
        self.device = as_device(self.config.device)
        self.module = as_module(module).to(self.device)
        if self.config.shard:
            sharding.shard(self.module, self.ranks)
        self.is_sharded = sharding.is_sharded(self.module)
        self.buffer = buffer
        self.model = model
        self.directory = None if directory is None else Path(directory)
        self.replays = 0
        self.steps = 0
        self.optimizer = self.make_optimizer()
        check_optimizers(self.optimizer, self.module)
        self.scheduler = self.make_scheduler()
        self._timer = LoopTimer(self.device)
        self._stepper = Stepper(
            self.module,
            self.optimizer,
            self.loss,
            self.gradients,
            self.is_repeatable,
            self.batch_weight,
            self.config,
            self.device,
            self.ranks,
            self._timer,
        )
        self._buffers = as_buffers(buffer, self.ranks, self.config)
        transfer = DeviceTransfer(self.device, self._timer)
        self._prefetcher = Prefetcher(self._buffers, transfer.start, self.config)
        self._checkpoints = TrainerCheckpoints(self, self._stepper, self._prefetcher, self._buffers)
        modules = as_mapping(self.module if isinstance(module, nn.Module) else module)
        self._publisher = Publisher(
            modules, as_mapping(model), self._buffers.values(), self.config, self.device
        )
        self._evaluation = eval_buffer is not None and Evaluation(
            eval_buffer, self.handle_eval, self.eval
        )
        if self.config.compile:
            for part in modules.values():
                part.compile()
        self._metrics = ReplayMetrics()
        self._offered_steps = 0
        self._prepared = False
        self._owes_version = False
        self._anew: Mapping[str, npt.NDArray[Any]] | None = None
        self._has_unsaved_anew = False
        self._stopping = threading.Event()
        self._agreement = ReplayAgreement(
            self._prefetcher,
            self.ranks,
            self._publisher,
            self._stopping,
            self.config.pop_timeout_s,
            self._is_checkpoint_late,
            lambda: self._anew is not None,
        )
        self._written_s = time.monotonic()
        """When a checkpoint was written last."""
        self._thread = BackgroundThread("trainer")

    def start(self) -> None:
        """Train in a background thread; the first start resumes from the newest checkpoint.

        Raises:
            BrayError: there are checkpoints, but none is readable, or it is of another module.
        """
        if not self._thread.is_idle():
            return
        self._agreement.begin()
        with self.ranks.together():
            self._prepare()
        self._thread.start(self._loop)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the loop pauses or fails; return whether it did.

        It also ends where its buffer is closed.

        Raises:
            Exception: what the loop failed with.
        """
        return self._thread.wait(timeout_s)

    def stop(self) -> None:
        """Finish the replay at hand, publish, write a checkpoint and stop; again is harmless.

        Raises:
            DeadlineError: the replay at hand takes longer than a quarter of an hour.
            Exception: what the loop failed with, if `wait` has not raised it.
        """
        self._stopping.set()
        if not self._thread.is_idle(STOP_TIMEOUT_S):
            raise DeadlineError(f"trainer: still busy with a replay after {STOP_TIMEOUT_S:g} s")
        self._thread.raise_unseen()

    def run(self, max_replays: int, *, checkpoint: bool = True) -> None:
        """Train on so many fresh replays in the caller's thread: for scripts and debuggers.

        Args:
            max_replays: Number of replays; 0 only writes the checkpoint.
            checkpoint: Whether a checkpoint is written at the end, beside those of
                `checkpoint_every`.

        Raises:
            DeadlineError: the next replay took longer than `pop_timeout_s`.
            ClosedError: the buffer was closed.
        """
        self._set_threads()
        self._agreement.begin()
        with self.ranks.together():
            self._prepare()
            with self._open(max_replays):
                for _ in range(max_replays):
                    if not self._train_on_next():  # stopped from another thread
                        break
                self._finish(checkpoint)

    def owe_version(self) -> None:
        """Publish with the first start, also where there is no checkpoint to resume from.

        For a trainer in the place of a lost one: who played the replay that was lost with it may
        wait for the version that it would have made.
        """
        self._owes_version = True

    def begin_anew(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from other weights with the next replay, and forget what the optimiser knows.

        Several ranks do so together, before the first replay for which all were told; a checkpoint
        follows that replay. For learners that are set back, such as the exploiters of a league. May
        be called from another thread.

        Args:
            weights: Arrays by the names of the module's parameters and buffers.

        Raises:
            ConfigError: the names are not the module's.
        """
        names = self.module.state_dict().keys()
        if weights.keys() != names:
            other = sorted(weights.keys() ^ names)[:3]
            raise ConfigError(
                f"weights: expected those of the trainer's module, but {', '.join(other)} are not "
                "in both"
            )
        self._anew = dict(weights)

    @property
    def owes_anew(self) -> bool:
        """Whether it was told to begin anew, and would have forgotten so if it died now."""
        return self._anew is not None or self._has_unsaved_anew

    def _take_anew(self) -> None:
        if not self._agreement.begins_anew:
            return
        self._has_unsaved_anew = True
        weights, self._anew = self._anew, None
        assert weights is not None, "the agreement has asked"
        sharding.load(self.module, {n: torch.from_numpy(w.copy()) for n, w in weights.items()})
        for optimizer in as_mapping(self.optimizer).values():
            optimizer.state.clear()

    def progress(self) -> dict[str, float]:
        """Return counters, shares of time and the figures of the last replay by name."""
        counters = {
            "replays": self.replays,
            "steps": self.steps,
            "version": self._publisher.version,
        }
        return {**counters, **self._metrics.figures, **self._timer.shares()}

    @property
    def policy_version(self) -> int | None:
        """The version that the weights, as they are now, were published as.

        None where they were not, or not yet, and on ranks that do not publish.
        """
        is_offered = self.model is not None and self.ranks.is_first
        if not is_offered or self.steps != self._offered_steps or not self._publisher.is_settled:
            return None
        return self._publisher.version

    def summary(self) -> str:
        """Return in words what the time goes into, the largest part first."""
        return self._timer.summary()

    def _set_threads(self) -> None:
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        if self.device.type == "cpu":
            memory.keep_freed()
        torch.get_num_threads()  # a thread keeps to `set_num_threads` only once it has asked

    def _loop(self) -> None:
        self._set_threads()
        with self.ranks.together(), self._open():
            try:
                while self._train_on_next():
                    # Said before the next replay, so that all ranks pause at the same one.
                    self._agreement.is_pausing = self.ranks.is_first and self.should_pause()
            except ClosedError as error:
                logger.info("trainer: training ends: %s", error)
            self._publish_rest()
            self._finish()

    @contextmanager
    def _open(self, max_replays: int | None = None) -> Iterator[None]:
        """Run the threads that pop and publish."""
        self._prefetcher.open(max_replays)
        # In turns with the caller the same seed is the same run, numbers of versions included.
        self._publisher.open(leave_out=max_replays is None)
        try:
            yield
        finally:
            self._publisher.close()
            self._prefetcher.close()

    def _finish(self, checkpoint: bool = True) -> None:
        self._prefetcher.close()  # what it popped after the checkpoint would be lost
        if checkpoint:
            self._checkpoint()
        else:
            self._flush()

    def _train_on_next(self) -> bool:
        """Train on one replay; False if there is none, because a rank stops."""
        with self._timer.on_host("wait"):
            replay = self._agreement.next()
        if replay is not None:
            self._train_on(replay)
        return replay is not None

    def _prepare(self) -> None:
        """Seed, or resume and publish what was restored: once."""
        self._metrics.begin()
        if self._prepared:
            return
        if self.config.seed is not None:
            seed_all(self.config.seed + self.ranks.rank)
        set_training(self.module, True)
        self._publisher.begin()
        is_resumed = self.directory is not None and self._checkpoints.resume(self.directory)
        if not is_resumed and not self.is_sharded:  # else the first rank's weights were split
            self.ranks.share(self.module.state_dict())
        if is_resumed or self._owes_version:
            self._publish()
        self._prepared = True

    # One replay.

    def _train_on(self, replay: Replay) -> None:
        started = time.perf_counter()
        self._take_anew()
        taken = skipped = 0
        terms = LossMeans()
        if not self.module.training:  # the call takes as long as a small step
            set_training(self.module, True)
        self.begin_replay()
        for batches in self._batches(replay):
            is_taken = self._stepper.step(batches, self.steps, terms)
            self.steps += is_taken
            taken += is_taken
            skipped += not is_taken
        if self.steps:  # torch warns of a schedule without a step
            for scheduler in as_mapping(self.scheduler).values():
                scheduler.step()
        self.replays += 1
        terms.add_ranks(self.ranks)
        means = terms.means(self.replays)  # raises before what is not finite is published
        self.finish_replay()
        metrics.record("trainer/train_s", time.perf_counter() - started)
        metrics.record("trainer/steps", self.steps, kind="last")
        self._metrics.add_replay(replay, means, taken)
        if self.model is not None:
            self._metrics.add_lag(replay, self._publisher.version)
        if skipped and self.ranks.is_first:  # all ranks have skipped the same
            self._metrics.add_skipped(skipped)
        self._act_if_due()
        self._timer.finish_replay()

    def _batches(self, replay: Replay) -> Iterator[list[Any]]:
        """Yield the batches of each step; the time of making them is one phase."""
        found: object = self.handle(replay)
        if not isinstance(found, Iterable):
            raise SpecError(
                f"{type(self).__name__}.handle: expected an iterable of batches, got "
                f"{found!r:.100}: yield each batch, or return a list of them"
            )
        steps = iter(group_batches(found, self.config.accumulate))
        while True:
            with self._timer.on_host("handle"):
                batches = next(steps, None)
            if not self.ranks.any(batches is not None):
                return
            yield batches or []  # none where only other ranks have some left

    def _act_if_due(self) -> None:
        """Publish, evaluate and write a checkpoint, each when its time has come."""
        is_due = self._publisher.is_due(self.replays)
        if self.ranks.any(is_due) if self.is_sharded else is_due:
            self._publish()
        if self._evaluation and self.replays % self.config.eval_every == 0:
            self._evaluate(self._evaluation)
        is_due = self.replays % self.config.checkpoint_every == 0 or self._has_unsaved_anew
        if is_due or self._agreement.wants_checkpoint:
            self._checkpoint()

    def _evaluate(self, evaluation: Evaluation) -> None:
        with self._timer.on_host("eval"):
            found = evaluation.run()
        self._metrics.add_evaluation(found)

    def _publish(self) -> None:
        if self.is_sharded and not self.ranks.first(self.model is not None):
            return
        if self.ranks.is_first and self.model is not None:
            with self._timer.on_host("publish"):
                self._publisher.offer()
            self._offered_steps = self.steps
        elif self.is_sharded:  # this rank's part of what the first one publishes
            sharding.whole(self.module.state_dict())

    def _publish_rest(self) -> None:
        """Publish what was trained since the newest version: it is what others evaluate."""
        is_newer = self.steps != self._offered_steps
        if self.ranks.first(is_newer) if self.is_sharded else is_newer:
            self._publish()

    def _flush(self) -> None:
        with self._timer.on_host("publish"):
            self._publisher.flush()

    def _is_checkpoint_late(self) -> bool:
        interval_s = self.config.checkpoint_interval_s
        return interval_s is not None and time.monotonic() - self._written_s >= interval_s

    def _checkpoint(self) -> None:
        self._flush()
        self._written_s = time.monotonic()
        if self.directory is not None:
            with self._timer.on_host("checkpoint"):
                self._checkpoints.write(self.directory)
                if self.ranks.is_first:
                    for model in as_mapping(self.model).values():
                        model.checkpoint()
        self._has_unsaved_anew = False
