"""What a checkpoint holds of a trainer, and how a trainer resumes from it."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch.optim import Optimizer

from bray_core.errors import BrayError, FormatError
from bray_trainer.arguments import as_mapping
from bray_trainer.checkpoints import checkpoint
from bray_trainer.checkpoints.random_state import random_state, seed_all, set_random_state
from bray_trainer.config import TrainerConfig
from bray_trainer.distributed import sharding
from bray_trainer.distributed.ranks import Ranks
from bray_trainer.prefetcher import Prefetcher
from bray_trainer.stepper import Stepper

logger = logging.getLogger(__name__)

_UNFIT = (BrayError, RuntimeError, ValueError, LookupError, TypeError, AttributeError)


class Resumable(Protocol):
    """What checkpoints ask of a trainer itself; a subclass may replace each of these."""

    config: TrainerConfig
    ranks: Ranks
    module: Any
    scheduler: Any
    replays: int
    steps: int

    def state_dict(self) -> dict[str, Any]:
        """Return the subclass's own state."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...


class TrainerCheckpoints:
    """Writes a trainer's checkpoints and resumes from them; every rank calls both.

    Args:
        trainer: The trainer: its module, counters and own state.
        stepper: Its optimisers and loss scaler.
        prefetcher: Its replays that are popped and not yet trained on.
        buffers: Its buffers by name.
    """

    def __init__(
        self,
        trainer: Resumable,
        stepper: Stepper,
        prefetcher: Prefetcher,
        buffers: Mapping[str, Any],
    ) -> None:
        self._trainer = trainer
        self._stepper = stepper
        self._prefetcher = prefetcher
        self._buffers = buffers

    def write(self, directory: Path) -> None:
        """Write a checkpoint between two replays."""
        trainer, content = self._trainer, None
        if trainer.config.checkpoint_buffers:
            token = trainer.ranks.first(uuid.uuid4().hex[:8])
            content = checkpoint.content_folder(directory, trainer.replays, token)
        with self._prefetcher.held():
            own = self._rank_state()
            if content is not None:
                self._save_buffers(content)
        owns = trainer.ranks.gather(own)  # by then every rank's buffers are on disk
        # Where parameters are split, every rank gives its part to the state of all.
        if trainer.ranks.is_first or sharding.is_sharded(trainer.module):
            shared = self._shared_state()
        if trainer.ranks.is_first:
            state = {**shared, "ranks": owns, "content": content and content.name}
            checkpoint.save(directory, trainer.replays, state, trainer.config.keep_checkpoints)

    def _shared_state(self) -> dict[str, Any]:
        """Return what all ranks have alike."""
        trainer, scaler = self._trainer, self._stepper.scaler
        schedulers = as_mapping(trainer.scheduler)
        return {
            "replays": trainer.replays,
            "steps": trainer.steps,
            "module": sharding.whole(trainer.module.state_dict()),
            "optimizer": {
                name: sharding.optimizer_state(o) for name, o in self._stepper.optimizers.items()
            },
            "scheduler": {name: s.state_dict() for name, s in schedulers.items()},
            "scaler": scaler.state_dict() if scaler else None,
        }

    def _rank_state(self) -> dict[str, Any]:
        """Return what each rank has of its own."""
        buffer_states = {
            name: json.dumps(buffer.state_dict(), default=lambda value: value.tolist())
            for name, buffer in self._buffers.items()
            if hasattr(buffer, "state_dict")
        }
        # The words of the format: checkpoints of earlier versions have the same.
        return {
            "random": random_state(),
            "own": self._trainer.state_dict(),
            "feed": self._prefetcher.state_dict(),
            "cursors": buffer_states,
        }

    def _save_buffers(self, content: Path) -> None:
        content.mkdir(parents=True, exist_ok=True)
        for name, buffer in self._buffers.items():
            buffer.save(self._content_file(content, name))

    def _content_file(self, content: Path, name: str) -> Path:
        return content / f"{name or 'buffer'}-{self._trainer.ranks.rank}"

    # Resuming.

    def resume(self, directory: Path) -> bool:
        """Restore the newest readable checkpoint; return whether there was one.

        Raises:
            FormatError: a newer version of bray wrote the newest one.
            BrayError: there are some, but none is readable, or it is of another trainer.
        """
        ranks = self._trainer.ranks
        found = checkpoint.readable(directory) if ranks.is_first else iter(())
        # Read by one rank for all: the others may be on nodes that do not have the file.
        while (state := ranks.first(next(found, None))) is not None:
            is_loaded = self._load_buffers(directory, state)
            if ranks.agree(int(is_loaded)):
                self._restore(directory, state)
                count = self._trainer.replays
                logger.info("trainer: resumed from %s after %d replays", directory, count)
                return True
        if ranks.is_first and (number := checkpoint.count(directory)):
            raise BrayError(
                f"checkpoint: none of the {number} in {directory} can be read: "
                "move them away to start afresh"
            )
        return False

    def _load_buffers(self, directory: Path, state: dict[str, Any]) -> bool:
        """Load the content of buffers that are empty; False where it cannot be read.

        A buffer that is not empty is in another process, which has outlived the trainer's.

        Raises:
            FormatError: a newer version of bray wrote it.
            BrayError: it can be read in part only, and that part is in the buffer now.
        """
        if state.get("content") is None or not self._trainer.config.checkpoint_buffers:
            return True
        for name, buffer in self._buffers.items():
            file = self._content_file(directory / state["content"], name)
            try:
                if not _has_content(buffer):
                    buffer.load(file)
            except FormatError:
                raise  # the checkpoint before is no way out: what was trained since would be lost
            except (BrayError, OSError) as error:
                if _has_content(buffer):
                    raise BrayError(
                        f"checkpoint: {file} is damaged: {error}: delete the checkpoint of "
                        f"{state['replays']} replays to resume from the one before"
                    ) from error
                logger.warning(
                    "checkpoint %s cannot be read, trying the one before: %s", file, error
                )
                return False
        return True

    def _restore(self, directory: Path, state: dict[str, Any]) -> None:
        try:
            self._restore_shared(state)
            self._restore_rank(state["ranks"])
        except _UNFIT as error:
            raise BrayError(
                f"checkpoint: the newest in {directory} does not fit this trainer: {error}: "
                "choose another directory, or the module that it was made with"
            ) from error

    def _restore_shared(self, state: dict[str, Any]) -> None:
        trainer, stepper = self._trainer, self._stepper
        sharding.load(trainer.module, state["module"])
        schedulers, saved = as_mapping(trainer.scheduler), state["scheduler"]
        known = [name for name in schedulers if name in saved]
        for name, optimizer in stepper.optimizers.items():
            _restore_optimizer(optimizer, state["optimizer"][name], keeps_settings=not known)
        for name in known:
            schedulers[name].load_state_dict(saved[name])
        if len(known) < len(schedulers):
            logger.warning(
                "trainer: the checkpoint has no schedule of the learning rate: it begins"
            )
        if stepper.scaler is not None and state["scaler"] is not None:
            stepper.scaler.load_state_dict(state["scaler"])
        trainer.replays, trainer.steps = state["replays"], state["steps"]

    def _restore_rank(self, states: list[dict[str, Any]]) -> None:
        """Restore what this rank had of its own; a rank that is new has the rest of rank 0's."""
        trainer = self._trainer
        rank, size = trainer.ranks.rank, trainer.ranks.size
        if len(states) != size and trainer.ranks.is_first:
            logger.warning(
                "trainer: the checkpoint is of %d ranks, now there are %d", len(states), size
            )
        if rank >= len(states):
            trainer.load_state_dict(states[0]["own"])
            # Another seed than that of any rank at its start, and of the ranks beside it.
            seed_all((trainer.config.seed or 0) + 1_000_003 * trainer.replays + rank)
            return
        own = states[rank]
        trainer.load_state_dict(own["own"])
        self._prefetcher.load_state_dict(own["feed"])
        for name, buffer_state in own["cursors"].items() if len(states) == size else ():
            self._buffers[name].load_state_dict(json.loads(buffer_state))
        set_random_state(own["random"])


def _has_content(buffer: Any) -> bool:
    """Return whether anything is queued; a mixture tells it of each of its buffers."""
    return any(value for key, value in buffer.stats().items() if key.split("/")[-1] == "queued")


def _restore_optimizer(
    optimizer: Optimizer, state: dict[str, Any], *, keeps_settings: bool
) -> None:
    """Restore what an optimiser has gathered.

    Its settings, such as the learning rate, stay those that this launch gave it, unless a schedule
    has changed them.
    """
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    optimizer.load_state_dict(sharding.split_optimizer_state(optimizer, state))
    if keeps_settings:
        for group, given in zip(optimizer.param_groups, settings, strict=True):
            group.update(given)
