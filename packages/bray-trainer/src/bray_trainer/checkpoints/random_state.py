"""The state of the global generators of random numbers, as a checkpoint holds it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed the global generators of python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


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
