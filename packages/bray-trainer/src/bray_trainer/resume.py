"""What of a trainer goes into a checkpoint, and back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bray_core.errors import BrayError
from bray_trainer import checkpoint
from bray_trainer.arguments import as_mapping

if TYPE_CHECKING:
    from bray_trainer.trainer import Trainer

logger = logging.getLogger(__name__)


def write(trainer: Trainer, directory: Path) -> None:
    """Write a checkpoint of a trainer that stands still; every rank calls it."""
    own = trainer.ranks.gather(_of_rank(trainer))
    if not trainer.ranks.is_first:
        return
    scaler = trainer.stepper.scaler
    state = {
        "replays": trainer.replays,
        "steps": trainer.steps,
        "module": trainer.module.state_dict(),
        "optimizer": {name: o.state_dict() for name, o in trainer.stepper.optimizers.items()},
        "scheduler": {n: s.state_dict() for n, s in as_mapping(trainer.scheduler).items()},
        "scaler": scaler.state_dict() if scaler else None,
        "ranks": own,
    }
    checkpoint.save(directory, trainer.replays, state, trainer.config.keep_checkpoints)


def _of_rank(trainer: Trainer) -> dict[str, Any]:
    """Return what each rank has of its own."""
    return {"random": checkpoint.random_state(), "own": trainer.state_dict()}


def resume(trainer: Trainer, directory: Path) -> bool:
    """Restore the newest readable checkpoint; return whether there was one.

    Raises:
        BrayError: there are some, but none is readable, or it is of another trainer.
    """
    # Read by one rank for all: the others may be on nodes that do not have the file.
    state = trainer.ranks.first(_newest(directory) if trainer.ranks.is_first else None)
    if state is None:
        return False
    try:
        _restore(trainer, state)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BrayError(
            f"checkpoint: the newest in {directory} does not fit this trainer: {error}: "
            "choose another directory, or the module that it was made with"
        ) from error
    logger.info("trainer: resumed from %s after %d replays", directory, trainer.replays)
    return True


def _newest(directory: Path) -> dict[str, Any] | None:
    state = checkpoint.load_newest(directory)
    if state is None and (number := checkpoint.count(directory)):
        raise BrayError(
            f"checkpoint: none of the {number} in {directory} can be read: "
            "move them away to start afresh"
        )
    return state


def _restore(trainer: Trainer, state: dict[str, Any]) -> None:
    trainer.module.load_state_dict(state["module"])
    for name, optimizer in trainer.stepper.optimizers.items():
        optimizer.load_state_dict(state["optimizer"][name])
    for name, scheduler in as_mapping(trainer.scheduler).items():
        scheduler.load_state_dict(state["scheduler"][name])
    if trainer.stepper.scaler is not None:
        trainer.stepper.scaler.load_state_dict(state["scaler"])
    trainer.replays, trainer.steps = state["replays"], state["steps"]
    _restore_rank(trainer, state["ranks"])


def _restore_rank(trainer: Trainer, ranks: list[dict[str, Any]]) -> None:
    """Restore what this rank had of its own; a rank that is new has the rest of rank 0's."""
    rank = trainer.ranks.rank
    if len(ranks) != trainer.ranks.size and trainer.ranks.is_first:
        logger.warning(
            "trainer: the checkpoint is of %d ranks, now there are %d",
            len(ranks),
            trainer.ranks.size,
        )
    own = ranks[rank] if rank < len(ranks) else ranks[0]
    trainer.load_state_dict(own["own"])
    if rank < len(ranks):
        checkpoint.set_random_state(own["random"])
    else:
        checkpoint.seed_all((trainer.config.seed or 0) + 1_000_003 * trainer.replays + rank)
