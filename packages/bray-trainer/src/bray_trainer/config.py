"""Settings of the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bray_core.errors import ConfigError
from bray_core.settings.choice import check_choice

Precision = Literal["fp32", "bf16", "fp16"]
WhenNotFinite = Literal["stop", "skip"]

_COUNTS = (
    "accumulate",
    "max_reuse",
    "publish_every",
    "eval_every",
    "checkpoint_every",
    "keep_checkpoints",
)
_POSITIVE = ("learning_rate", "max_grad_norm", "publish_interval_s", "pop_timeout_s")


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
    prefetch: int = 1
    """Replays popped, and with a GPU transferred, while the loop trains on the one before; they
    are older by as many versions. 0 pops in the loop itself."""
    publish_every: int | None = 1
    """Replays between two published versions; None publishes by the clock alone."""
    publish_interval_s: float | None = None
    """Seconds after which a version is published although `publish_every` is not reached."""
    eval_every: int = 100
    """Replays between two evaluations, where there is a buffer for them."""
    checkpoint_every: int = 100
    """Replays between two checkpoints; one is also written at each stop and pause."""
    keep_checkpoints: int = 3
    """Checkpoints kept on disk."""
    checkpoint_buffers: bool = False
    """Whether a checkpoint holds the buffers' content, by their `save`; such a buffer lives in
    the trainer's process."""
    compile: bool = False
    """Whether `torch.compile` compiles the modules' `forward`."""
    pop_timeout_s: float = 900.0
    """How long the next replay may take; longer is an error, and a minute a warning."""
    device: str = "cpu"
    """Where the module trains, as torch names it: `cpu`, `cuda`, `cuda:1`."""
    threads: int | None = None
    """CPU threads of torch in the trainer's process (`torch.set_num_threads`), set whenever it
    begins to train; None leaves them alone."""
    seed: int | None = None
    """Of the global generators of python, numpy and torch, set at the first start; None leaves
    them alone."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _check_count(name, getattr(self, name), 1)
        _check_count("prefetch", self.prefetch, 0)
        if self.threads is not None:
            _check_count("threads", self.threads, 1)
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name}: expected more than 0, got {value}")
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("when_not_finite", self.when_not_finite, get_args(WhenNotFinite))
        if self.publish_every is None and self.publish_interval_s is None:
            raise ConfigError("publish_every: None needs a publish_interval_s, which is None too")
        if self.seed is not None and self.seed < 0:
            raise ConfigError(f"seed: expected 0 or more, got {self.seed}")


def _check_count(name: str, value: object, least: int) -> None:
    if value is None and name == "publish_every":
        return
    if not isinstance(value, int):
        raise ConfigError(f"{name}: expected a whole number, got {value!r}")
    if value < least:
        raise ConfigError(f"{name}: expected {least} or more, got {value}")
