"""How a model batches, queues and keeps its versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from bray_core.errors import ConfigError
from bray_core.settings.choice import check_choice
from bray_model.versions.retention import Retention

Backend: TypeAlias = Literal["auto", "int8", "int8-dynamic", "float16", "tensorrt"]
Device: TypeAlias = Literal["cpu", "cuda"]
Precision: TypeAlias = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Settings of a `Model`.

    Raises:
        ConfigError: a value is out of range; names the field.
    """

    max_batch_size: int = 64
    """Rows of one forward at most; a batch that is full runs at once. Typical: 8 to 512."""
    max_wait_us: int = 0
    """How long the first row waits for company, in microseconds. 0 joins what arrives within one
    turn of the event loop. Event loops keep time in milliseconds: 1 to 999 round up to 1 ms."""
    pad_to: tuple[int, ...] = ()
    """Batch sizes, ascending: a batch is padded to the next of them. Empty: not padded for size."""
    max_queue_rows: int = 16_384
    """Rows that may wait; beyond it a request is refused with `CapacityError`."""
    num_threads: int = 1
    """Threads of one forward of an export. For a torch module `torch.set_num_threads` counts."""
    backend: Backend = "auto"
    """What computes. `auto`: torch for a module, onnxruntime for an export. The others are for
    exports: `int8`, `int8-dynamic` and `float16` once `bray quantize` has added that graph, with
    fixed weights; `tensorrt` on a GPU."""
    device: Device = "cpu"
    """Where it computes. `cuda`: the first NVIDIA GPU; an error if there is none."""
    precision: Precision = "fp32"
    """Of a torch module's forward. `bf16`: by autocast; about half the time for convolutions where
    the CPU (AVX-512 BF16, AMX) or GPU has it. Outputs are what the module makes of them."""
    compile: bool = False
    """Whether a torch module runs through `torch.compile`: seconds at the start, then quicker."""
    inline_below_us: int = 300
    """A batch runs on the event loop if those before it took less than so many microseconds, else
    in a thread of its own, so that the loop goes on: handing a batch over costs about 20 us, and up
    to 5 ms where the loop is busy. 0 never runs one on the loop."""
    timeout_s: float | None = None
    """How long a request may wait for its answer, in seconds; None: as long as it takes."""
    reject_non_finite: bool = False
    """Whether a request whose outputs hold NaN or inf fails, instead of being answered so."""
    retention: Retention = field(default_factory=Retention)
    """Which versions `checkpoint` leaves on disk."""
    cache_bytes: int = 1024**3
    """Weights in the engines of all clones together, besides the model's own; the least recently
    used are loaded again when they are asked for. At least one version is held. Typical: 20 to
    200 versions."""
    max_sessions: int = 10_000
    """Sessions whose recurrent state is kept; beyond it a new one is refused with
    `CapacityError`."""
    session_idle_s: float = 600.0
    """A session that asks nothing for so many seconds may be dropped; it then begins anew."""

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_queue_rows", "num_threads", "max_sessions"):
            _check_int(name, getattr(self, name), 1)
        for name in ("max_wait_us", "inline_below_us", "cache_bytes"):
            _check_int(name, getattr(self, name), 0)
        idle_s = self.session_idle_s
        if isinstance(idle_s, bool) or not isinstance(idle_s, int | float) or not idle_s > 0:
            raise ConfigError(f"session_idle_s: expected more than 0, got {idle_s!r}")
        check_choice("backend", self.backend, get_args(Backend))
        check_choice("device", self.device, get_args(Device))
        if self.backend == "tensorrt" and self.device != "cuda":
            raise ConfigError("backend='tensorrt' runs on a GPU only: set device='cuda' too")
        check_choice("precision", self.precision, get_args(Precision))
        _check_bool("compile", self.compile)
        timeout_s = self.timeout_s
        if timeout_s is not None and (isinstance(timeout_s, bool) or not timeout_s > 0):
            raise ConfigError(f"timeout_s: expected more than 0 or None, got {timeout_s!r}")
        _check_bool("reject_non_finite", self.reject_non_finite)
        if not isinstance(self.retention, Retention):
            raise ConfigError(f"retention: expected a Retention, got {self.retention!r}")
        if not isinstance(self.pad_to, tuple | list):
            raise ConfigError(f"pad_to: expected batch sizes such as (8, 64), got {self.pad_to!r}")
        object.__setattr__(self, "pad_to", tuple(self.pad_to))
        for size in self.pad_to:
            _check_int("pad_to", size, 1)
        if list(self.pad_to) != sorted(set(self.pad_to)):
            raise ConfigError(f"pad_to: expected ascending sizes, got {self.pad_to}")
        if self.pad_to and self.pad_to[-1] > self.max_batch_size:
            raise ConfigError(
                f"pad_to={self.pad_to} exceeds max_batch_size={self.max_batch_size}: "
                "lower the one or raise the other"
            )


def _check_int(field: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{field}: expected an integer of {least} or more, got {value!r}")


def _check_bool(field: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{field}: expected true or false, got {value!r}")
