"""Settings of the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bray_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """How a trainer trains. A replay is one popped batch; a step is one optimiser step."""

    learning_rate: float = 3e-4
    """Of the default optimiser, Adam."""
    max_grad_norm: float | None = None
    """Gradients are scaled down to this norm; None leaves them as they are."""
    accumulate: int = 1
    """Batches whose gradients are averaged into one step."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of forward and loss; bf16 by autocast."""
    max_reuse: int = 1
    """How often a replay is trained on at most; again only while no fresh one is ready."""
    publish_every: int = 1
    """Replays between two published versions."""
    checkpoint_every: int = 100
    """Replays between two checkpoints; one is also written at each stop."""
    keep_checkpoints: int = 3
    """Checkpoints kept on disk."""
    device: str = "cpu"
    """Where the module trains."""
    seed: int | None = None
    """Of torch's global generator, set at the first start; None leaves it alone."""

    def __post_init__(self) -> None:
        for name in (
            "accumulate",
            "max_reuse",
            "publish_every",
            "checkpoint_every",
            "keep_checkpoints",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        if self.learning_rate <= 0:
            raise ConfigError(f"learning_rate: expected more than 0, got {self.learning_rate}")
        if self.max_grad_norm is not None and self.max_grad_norm <= 0:
            raise ConfigError(f"max_grad_norm: expected more than 0, got {self.max_grad_norm}")
        if self.precision not in ("fp32", "bf16"):
            raise ConfigError(f"precision: expected 'fp32' or 'bf16', got {self.precision!r}")
