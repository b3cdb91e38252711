"""What tests of matches share: models without learning, seats, results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bray_actor import PolicyConfig
from bray_actor.multi_agent.seat import GameResult, Seat
from bray_model import Model

SIDES = {"left": ("left",), "right": ("right",)}


def make_model(folder: Path, name: str = "main") -> Model:
    """Return a model `[B, 1]` → logits `[B, 3]` with a folder for its versions."""
    torch.manual_seed(0)
    example = np.zeros((1, 1), np.float32)
    return Model(torch.nn.Linear(1, 3), example, name=name, directory=folder / name)


def publish(model: Model) -> int:
    """Publish other weights, and return their version."""
    weights = {name: array + np.float32(0.1) for name, array in model.weights()[1].items()}
    return model.publish(weights)


class ToyBuffer:
    """Stands for a buffer where nothing is recorded."""


def learner_seat(model: Any, name: str = "main") -> Seat:
    """Return the seat of a learner."""
    buffer: Any = ToyBuffer()
    return Seat(name=name, model=model, config=PolicyConfig(), buffer=buffer)


def result(left: str, right: str, won: float) -> GameResult:
    """Return a game that brought the left side so much, and the right side as much less."""
    return GameResult(
        {"left": left, "right": right}, {"left": won, "right": -won}, {"left": 1, "right": 1}
    )
