"""Checkpoints: one file each, whole or absent, the newest readable one wins."""

from __future__ import annotations

import logging
import pickle
import random
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

logger = logging.getLogger(__name__)

_NAME = re.compile(r"replay-(\d{9})\.pt")


def save(directory: Path, replays: int, state: Mapping[str, Any], keep: int) -> Path:
    """Write a checkpoint, then delete all but the newest `keep`.

    Args:
        directory: made if it is absent.
        replays: trained on so far; orders the checkpoints.
        state: tensors, numbers, strings, and dicts and lists of them.
        keep: how many stay.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"replay-{replays:09d}.pt"
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".", delete=False) as file:
        try:
            torch.save(dict(state), file)
            file.flush()
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    Path(file.name).replace(path)
    for old in _newest_first(directory)[keep:]:
        old.unlink(missing_ok=True)
    return path


def load_newest(directory: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint that can be read, or None; broken ones are logged."""
    for path in _newest_first(directory):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, OSError, EOFError, KeyError, pickle.UnpicklingError) as error:
            logger.warning("checkpoint %s cannot be read, trying the one before: %s", path, error)
            continue
        return state
    return None


def _newest_first(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted((p for p in directory.iterdir() if _NAME.fullmatch(p.name)), reverse=True)


def random_state() -> dict[str, Any]:
    """Return the state of the global generators of python, numpy and torch."""
    version, numbers, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "numpy": {**legacy, "state": {**legacy["state"], "key": legacy["state"]["key"].tolist()}},
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore what `random_state` returned."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    legacy = state["numpy"]
    key = np.array(legacy["state"]["key"], np.uint32)
    np.random.set_state({**legacy, "state": {**legacy["state"], "key": key}})
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
