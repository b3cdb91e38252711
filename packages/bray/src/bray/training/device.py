"""The setting of what a network is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bray_core.settings.ranges import check_fields
from bray_model import ModelConfig
from bray_model.config import Device


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceConfig:
    """What the network is trained on; an algorithm adds its own."""

    device: Device = "cpu"
    """Where the network is trained; in a local run also where it plays, but for evaluations. Small
    networks are quicker on the CPU, whose steps nobody has to wait for."""

    def __post_init__(self) -> None:
        check_fields(self)


def num_gpus(settings: Any) -> float:
    """Return the GPUs that the trainer of these settings asks Ray for."""
    return 1.0 if getattr(settings, "device", "cpu") == "cuda" else 0.0


def playing_device(settings: Any, *, is_local: bool) -> Device:
    """Return where a run plays: where it trains in one process, on Ray on the workers' CPUs."""
    device: Device = getattr(settings, "device", "cpu")
    return device if is_local else "cpu"


def batch_config(settings: Any, rows: int, *, is_local: bool) -> ModelConfig:
    """Return the settings of a model that is always asked for so many rows at once."""
    device = playing_device(settings, is_local=is_local)
    return ModelConfig(
        max_batch_size=rows, pad_to=(rows,), device=device, cuda_graphs=device == "cuda"
    )
