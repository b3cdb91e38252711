"""Settings of the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bray_core.errors import ConfigError
from bray_core.settings.ranges import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    check_fields,
)

Precision = Literal["fp32", "bf16", "fp16"]
WhenNotFinite = Literal["stop", "skip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """How a trainer trains. A replay is one popped batch; a step is one optimiser step."""

    learning_rate: PositiveFloat = 3e-4
    """Step size of the default optimiser, Adam. Too large: the loss jumps, returns collapse and
    may not come back; too small: training is slow. Usual: 1e-5 to 1e-3."""
    max_grad_norm: PositiveFloat | None = None
    """Largest norm of the gradients; larger ones are scaled down to it. It keeps one unlucky batch
    from undoing a policy; too small, every step is cut. Usual: 0.5 to 40. None cuts nothing."""
    accumulate: PositiveInt = 1
    """Number of batches whose gradients are averaged into one step: a larger batch than memory
    holds, for fewer steps."""
    precision: Precision = "fp32"
    """Number format of forward and loss, by autocast; fp16 scales the loss and skips steps that
    overflow."""
    when_not_finite: WhenNotFinite = "stop"
    """What happens when a loss or gradient is NaN or infinite: end the run with an error before
    anything is published, or skip the step and count it."""
    max_reuse: PositiveInt = 1
    """How often a replay is trained on at most; again only while no fresh one is ready. More uses
    a slow source better, but the data grow stale. Usual: 1 to 4."""
    prefetch: NonNegativeInt = 1
    """Number of replays that are popped, and with a GPU transferred, while the loop trains on the
    one before; they are older by as many versions. 0 pops in the loop itself."""
    publish_every: PositiveInt | None = 1
    """Replays between two published versions; None publishes by the clock alone. In a background
    thread what is left is published at each stop and pause, too."""
    publish_interval_s: PositiveFloat | None = None
    """Seconds after which a version is published although `publish_every` is not reached."""
    eval_every: PositiveInt = 100
    """Replays between two evaluations, where there is a buffer for them."""
    checkpoint_every: PositiveInt = 100
    """Replays between two checkpoints; one is also written at each stop and pause."""
    checkpoint_interval_s: PositiveFloat | None = 600.0
    """Seconds after which a checkpoint is written although `checkpoint_every` is not reached: what
    a crash costs at most where replays take long. None counts replays alone."""
    keep_checkpoints: PositiveInt = 3
    """Number of checkpoints kept on disk."""
    checkpoint_buffers: bool = False
    """Whether a checkpoint holds the buffers' content, by their `save`; such a buffer lives in
    the trainer's process."""
    compile: bool = False
    """Whether `torch.compile` compiles the modules' `forward`."""
    shard: bool = False
    """Whether parameters, gradients and the optimiser's state are split over the ranks (FSDP2), for
    a module that does not fit on each; slower where it does. All ranks then take equally many
    batches. Alone, it changes nothing."""
    pop_timeout_s: PositiveFloat = 900.0
    """Longest time that the next replay may take; longer is an error, and a minute a warning."""
    device: str = "cpu"
    """Where the module trains, as torch names it: `cpu`, `cuda`, `cuda:1`."""
    threads: PositiveInt | None = None
    """CPU threads of torch in the trainer's process (`torch.set_num_threads`), set whenever it
    begins to train; None leaves them alone."""
    seed: Seed | None = None
    """Seed of the global generators of python, numpy and torch, set at the first start; None
    leaves them alone."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.publish_every is None and self.publish_interval_s is None:
            raise ConfigError("publish_every: None needs a publish_interval_s, which is None too")
        if self.shard and (self.precision == "fp16" or self.compile):
            raise ConfigError(
                "shard: expected precision fp32 or bf16 and compile false beside it, got "
                f"precision={self.precision} compile={self.compile}: not built"
            )
