"""Settings of a `TextModel`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from bray_core.settings.ranges import PositiveInt, Range, check_fields

InFlight: TypeAlias = Literal["continue", "restart", "finish"]
TextPrecision: TypeAlias = Literal["fp32", "bf16", "fp16"]
MemoryBytes: TypeAlias = Annotated[int, Range(minimum=65_536)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextModelConfig:
    """Settings of a `TextModel`.

    Raises:
        ConfigError: A value is out of range; names the field.
    """

    max_rows: PositiveInt = 32
    """Largest number of requests that are decoded at once; the others wait. More rows give more
    tokens a second and a longer time for each token. Typical: 8 to 64 on a CPU, to 512 on a
    GPU."""
    cache_bytes: MemoryBytes = 1024**3
    """Largest memory of the keys and values of all rows. Where they would outgrow it, the youngest
    rows give theirs up and are computed again later."""
    max_queue: PositiveInt = 16_384
    """Requests that may wait; beyond it one is refused with `CapacityError`."""
    prefill_tokens: PositiveInt = 1024
    """Prompt tokens that are computed at once. Larger is quicker for prompts, and lets the rows
    that are being decoded wait longer for their next token."""
    context_length: int | None = None
    """Largest number of tokens of prompt and completion together; None: what the model was made
    for."""
    in_flight: InFlight = "continue"
    """What new weights do to completions that are under way. `continue`: the next token is
    computed with the new weights, on the keys and values that the old ones left. `restart`: they
    begin anew, except those that are streamed, which continue. `finish`: they end with the old
    weights, and nothing new begins until then."""
    device: str = "cpu"
    """Where it computes: `cpu`, `cuda`, `cuda:1`."""
    precision: TextPrecision = "fp32"
    """Precision of weights and keys and values. On a GPU `bf16` is the usual choice; on a
    CPU it is quicker where the processor has AMX, and not elsewhere. Log-probabilities then agree
    with the trainer's to two digits only."""
    seed: int = 0
    """Seed of the requests that bring none."""

    def __post_init__(self) -> None:
        check_fields(self)
