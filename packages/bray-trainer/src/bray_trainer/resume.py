"""What of a trainer goes into a checkpoint, and back."""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from bray_core.errors import BrayError, FormatError
from bray_trainer import checkpoint
from bray_trainer.arguments import as_mapping

if TYPE_CHECKING:
    from bray_trainer.trainer import Trainer

logger = logging.getLogger(__name__)

_UNFIT = (BrayError, RuntimeError, ValueError, LookupError, TypeError, AttributeError)


def write(trainer: Trainer, directory: Path) -> None:
    """Write a checkpoint of a trainer between two replays; every rank calls it."""
    content = None
    if trainer.config.checkpoint_buffers:
        token = trainer.ranks.first(uuid.uuid4().hex[:8])
        content = checkpoint.content_folder(directory, trainer.replays, token)
    with trainer._feed.held():
        own = _of_rank(trainer)
        if content is not None:
            _save_buffers(trainer, content)
    owns = trainer.ranks.gather(own)  # by then every rank's buffers are on disk
    if trainer.ranks.is_first:
        state = {**_shared(trainer), "ranks": owns, "content": content and content.name}
        checkpoint.save(directory, trainer.replays, state, trainer.config.keep_checkpoints)


def _shared(trainer: Trainer) -> dict[str, Any]:
    """Return what all ranks have alike."""
    scaler = trainer._stepper.scaler
    schedulers = as_mapping(trainer.scheduler)
    return {
        "replays": trainer.replays,
        "steps": trainer.steps,
        "module": trainer.module.state_dict(),
        "optimizer": {name: o.state_dict() for name, o in trainer._stepper.optimizers.items()},
        "scheduler": {name: s.state_dict() for name, s in schedulers.items()},
        "scaler": scaler.state_dict() if scaler else None,
    }


def _of_rank(trainer: Trainer) -> dict[str, Any]:
    """Return what each rank has of its own."""
    cursors = {
        name: json.dumps(buffer.state_dict(), default=lambda value: value.tolist())
        for name, buffer in trainer._buffers.items()
        if hasattr(buffer, "state_dict")
    }
    return {
        "random": checkpoint.random_state(),
        "own": trainer.state_dict(),
        "feed": trainer._feed.state_dict(),
        "cursors": cursors,
    }


def _save_buffers(trainer: Trainer, content: Path) -> None:
    content.mkdir(parents=True, exist_ok=True)
    for name, buffer in trainer._buffers.items():
        buffer.save(_content_file(trainer, content, name))


def _content_file(trainer: Trainer, content: Path, name: str) -> Path:
    return content / f"{name or 'buffer'}-{trainer.ranks.rank}"


def resume(trainer: Trainer, directory: Path) -> bool:
    """Restore the newest readable checkpoint; return whether there was one.

    Raises:
        FormatError: a newer version of bray wrote the newest one.
        BrayError: there are some, but none is readable, or it is of another trainer.
    """
    first = trainer.ranks.is_first
    found = checkpoint.readable(directory) if first else iter(())
    # Read by one rank for all: the others may be on nodes that do not have the file.
    while (state := trainer.ranks.first(next(found, None))) is not None:
        is_loaded = _load_buffers(trainer, directory, state)
        if trainer.ranks.agree(int(is_loaded)):
            _restore(trainer, directory, state)
            logger.info("trainer: resumed from %s after %d replays", directory, trainer.replays)
            return True
    if first and (number := checkpoint.count(directory)):
        raise BrayError(
            f"checkpoint: none of the {number} in {directory} can be read: "
            "move them away to start afresh"
        )
    return False


def _load_buffers(trainer: Trainer, directory: Path, state: dict[str, Any]) -> bool:
    """Load the content of buffers that have none; False where it cannot be read.

    One that has some is in another process, which has outlived the trainer's.

    Raises:
        FormatError: a newer version of bray wrote it.
        BrayError: it can be read in part only, and that part is in the buffer now.
    """
    if state.get("content") is None or not trainer.config.checkpoint_buffers:
        return True
    for name, buffer in trainer._buffers.items():
        file = _content_file(trainer, directory / state["content"], name)
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
            logger.warning("checkpoint %s cannot be read, trying the one before: %s", file, error)
            return False
    return True


def _has_content(buffer: Any) -> bool:
    """Return whether anything is queued; a mixture tells it of each of its buffers."""
    return any(value for key, value in buffer.stats().items() if key.split("/")[-1] == "queued")


def _restore(trainer: Trainer, directory: Path, state: dict[str, Any]) -> None:
    try:
        _restore_shared(trainer, state)
        _restore_rank(trainer, state["ranks"])
    except _UNFIT as error:
        raise BrayError(
            f"checkpoint: the newest in {directory} does not fit this trainer: {error}: "
            "choose another directory, or the module that it was made with"
        ) from error


def _restore_shared(trainer: Trainer, state: dict[str, Any]) -> None:
    trainer.module.load_state_dict(state["module"])
    schedulers, saved = as_mapping(trainer.scheduler), state["scheduler"]
    known = [name for name in schedulers if name in saved]
    for name, optimizer in trainer._stepper.optimizers.items():
        _restore_optimizer(optimizer, state["optimizer"][name], keeps_settings=not known)
    for name in known:
        schedulers[name].load_state_dict(saved[name])
    if len(known) < len(schedulers):
        logger.warning("trainer: the checkpoint has no schedule of the learning rate: it begins")
    if trainer._stepper.scaler is not None and state["scaler"] is not None:
        trainer._stepper.scaler.load_state_dict(state["scaler"])
    trainer.replays, trainer.steps = state["replays"], state["steps"]


def _restore_optimizer(
    optimizer: Optimizer, state: dict[str, Any], *, keeps_settings: bool
) -> None:
    """Restore what an optimiser has gathered.

    Its settings, such as the learning rate, stay those that this launch gave it, unless a schedule
    has changed them.
    """
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    optimizer.load_state_dict(state)
    if keeps_settings:
        for group, given in zip(optimizer.param_groups, settings, strict=True):
            group.update(given)


def _restore_rank(trainer: Trainer, ranks: list[dict[str, Any]]) -> None:
    """Restore what this rank had of its own; a rank that is new has the rest of rank 0's."""
    rank, size = trainer.ranks.rank, trainer.ranks.size
    if len(ranks) != size and trainer.ranks.is_first:
        logger.warning("trainer: the checkpoint is of %d ranks, now there are %d", len(ranks), size)
    if rank >= len(ranks):
        trainer.load_state_dict(ranks[0]["own"])
        checkpoint.seed_all((trainer.config.seed or 0) + 1_000_003 * trainer.replays + rank)
        return
    own = ranks[rank]
    trainer.load_state_dict(own["own"])
    trainer._feed.load_state_dict(own["feed"])
    for name, cursor in own["cursors"].items() if len(ranks) == size else ():
        trainer._buffers[name].load_state_dict(json.loads(cursor))
    checkpoint.set_random_state(own["random"])
