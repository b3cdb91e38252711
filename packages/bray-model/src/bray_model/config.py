"""How a model batches, queues and keeps its versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from bray_core.errors import ConfigError
from bray_core.settings.ranges import NonNegativeInt, PositiveInt, Range, check_fields
from bray_model.versions.retention import Retention

Backend: TypeAlias = Literal["auto", "int8", "int8-dynamic", "float16", "tensorrt"]
Device: TypeAlias = Literal["cpu", "cuda"]
Precision: TypeAlias = Literal["fp32", "bf16"]
Seconds: TypeAlias = Annotated[float, Range(above=0, allow_infinity=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Settings of a `Model`.

    Raises:
        ConfigError: A value is out of range; names the field.
    """

    max_batch_size: PositiveInt = 64
    """Largest number of rows of one forward; a batch that is full runs at once. Too small wastes
    the processor, too large lets the first row wait for the last. Typical: 8 to 512."""
    max_wait_us: NonNegativeInt = 0
    """How long the first row waits for company, in microseconds. 0 joins what arrives within one
    turn of the event loop. Event loops keep time in milliseconds: 1 to 999 round up to 1 ms. Longer
    waits fill batches where few callers ask, and delay every answer. Typical: 0 to 2000."""
    pad_to: tuple[int, ...] = ()
    """Batch sizes, ascending: a batch is padded to the next of them, so that oneDNN prepares its
    convolutions for these alone. Empty: not padded for size."""
    max_queue_rows: PositiveInt = 16_384
    """Rows that may wait; beyond it a request is refused with `CapacityError`."""
    num_threads: PositiveInt = 1
    """Threads of one forward of an export; more than one only pays for large networks. For a torch
    module `torch.set_num_threads` counts."""
    backend: Backend = "auto"
    """What computes. `auto`: torch for a module, onnxruntime for an export. The others are for
    exports: `int8`, `int8-dynamic` and `float16` once `bray quantize` has added that graph, with
    fixed weights; `tensorrt` on a GPU."""
    device: Device = "cpu"
    """Where it computes. `cuda`: the first NVIDIA GPU; an error if there is none."""
    precision: Precision = "fp32"
    """Precision of a torch module's forward. `bf16`: by autocast; about half the time for
    convolutions where the CPU (AVX-512 BF16, AMX) or GPU has it. Outputs are what the module makes
    of them."""
    compile: bool = False
    """Whether a torch module runs through `torch.compile`: seconds at the start, then quicker."""
    cuda_graphs: bool = False
    """Whether a GPU replays a torch module's forwards of the sizes in `pad_to` as CUDA graphs: all
    kernels are launched at once, several times as fast for few rows. A forward that draws at random
    or waits for the GPU runs as it is. No other thread of the process may draw random numbers on
    the GPU in the moment in which one is captured: torch refuses that to it."""
    inline_below_us: NonNegativeInt = 300
    """A batch runs on the event loop if those before it took less than this many microseconds, else
    in a thread of its own, which lets the loop go on: handing a batch over costs about 20 us, and
    up to 5 ms where the loop is busy. 0 never runs one on the loop."""
    timeout_s: Seconds | None = None
    """How long a request may wait for its answer, in seconds; None: as long as it takes."""
    reject_non_finite: bool = False
    """Whether a request fails whose outputs hold NaN or inf, instead of being answered with
    them."""
    retention: Retention = field(default_factory=Retention)
    """Which versions `checkpoint` leaves on disk."""
    cache_bytes: NonNegativeInt = 1024**3
    """Weights in the engines of all clones together, besides the model's own; the least recently
    used are loaded again when they are asked for. At least one version is held. Typical: 20 to
    200 versions."""
    max_sessions: PositiveInt = 10_000
    """Sessions whose recurrent state is kept; beyond it a new one is refused with
    `CapacityError`."""
    session_idle_s: Seconds = 600.0
    """Idle time in seconds after which a session may be dropped; it then begins anew."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.backend == "tensorrt" and self.device != "cuda":
            raise ConfigError("backend='tensorrt' runs on a GPU only: set device='cuda' too")
        for name in ("compile", "cuda_graphs", "reject_non_finite"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}: expected true or false, got {getattr(self, name)!r}")
        if not isinstance(self.retention, Retention):
            raise ConfigError(f"retention: expected a Retention, got {self.retention!r}")
        self._check_pad_to()

    def _check_pad_to(self) -> None:
        sizes = self.pad_to
        if not isinstance(sizes, tuple | list) or not all(map(_is_size, sizes)):
            raise ConfigError(f"pad_to: expected batch sizes such as (8, 64), got {sizes!r}")
        object.__setattr__(self, "pad_to", tuple(sizes))  # YAML has lists
        if list(sizes) != sorted(set(sizes)):
            raise ConfigError(f"pad_to: expected ascending sizes, got {self.pad_to}")
        if sizes and sizes[-1] > self.max_batch_size:
            raise ConfigError(
                f"pad_to={self.pad_to} exceeds max_batch_size={self.max_batch_size}: "
                "lower the one or raise the other"
            )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
