"""Settings of the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bray_core.config import closest
from bray_core.errors import ConfigError

Precision = Literal["fp32", "bf16", "fp16"]
WhenNotFinite = Literal["stop", "skip"]

_COUNTS = ("accumulate", "max_reuse", "publish_every", "checkpoint_every", "keep_checkpoints")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """How a trainer trains. A replay is one popped batch; a step is one optimiser step."""

    learning_rate: float = 3e-4
    """Of the default optimiser, Adam."""
    max_grad_norm: float | None = None
    """Gradients are scaled down to this norm; None leaves them as they are."""
    accumulate: int = 1
    """Batches whose gradients are averaged into one step."""
    precision: Precision = "fp32"
    """Of forward and loss, by autocast; fp16 scales the loss and skips steps that overflow."""
    when_not_finite: WhenNotFinite = "stop"
    """What a loss or gradient that is NaN or infinite does: end the run with an error before
    anything is published, or skip its step and count it."""
    max_reuse: int = 1
    """How often a replay is trained on at most; again only while no fresh one is ready."""
    publish_every: int = 1
    """Replays between two published versions."""
    checkpoint_every: int = 100
    """Replays between two checkpoints; one is also written at each stop and pause."""
    keep_checkpoints: int = 3
    """Checkpoints kept on disk."""
    pop_timeout_s: float = 900.0
    """How long the next replay may take; longer is an error, and a minute a warning."""
    device: str = "cpu"
    """Where the module trains, as torch names it: `cpu`, `cuda`, `cuda:1`."""
    seed: int | None = None
    """Of the global generators of python, numpy and torch, set at the first start; None leaves
    them alone."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if not isinstance(value, int):
                raise ConfigError(f"{name}: expected a whole number, got {value!r}")
            if value < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {value}")
        for name in ("learning_rate", "max_grad_norm", "pop_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name}: expected more than 0, got {value}")
        _check_choice("precision", self.precision, get_args(Precision))
        _check_choice("when_not_finite", self.when_not_finite, get_args(WhenNotFinite))
        if self.seed is not None and self.seed < 0:
            raise ConfigError(f"seed: expected 0 or more, got {self.seed}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        expected = " or ".join(map(repr, choices))
        raise ConfigError(f"{name}: expected {expected}, got {value!r}{closest(value, choices)}")
