"""What computes: the settings that recipes share, and what is chosen where nothing was said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

import torch

from bray.checks import positive
from bray_core.errors import ConfigError
from bray_core.process.machine import num_cores
from bray_core.settings.choice import check_choice
from bray_model.config import Device, Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeConfig:
    """Of who plays and of who trains."""

    env_threads: int | None = None
    """Threads of each worker that step Atari games; None: one a core. Other environments are
    stepped by the worker itself."""
    trainer_threads: int | None = None
    """CPU threads of the network. None: 1 for perceptrons; for images all cores in a local run,
    and on Ray half of them."""
    precision: Precision = "fp32"
    """Of the network, where it plays and where it is trained. `bf16`: for images, where the CPU
    or GPU has it."""
    device: Device = "cpu"
    """Where the network is trained; in a local run also where it plays."""

    def __post_init__(self) -> None:
        for name in ("env_threads", "trainer_threads"):
            if getattr(self, name) is not None:
                positive(**{name: getattr(self, name)})
        for name, choices in (("precision", get_args(Precision)), ("device", get_args(Device))):
            check_choice(name, getattr(self, name), choices)


def chosen(settings: Any, *, is_image: bool, is_local: bool, num_ranks: int = 1) -> Any:
    """Return a recipe's settings with all of `ComputeConfig` decided.

    Args:
        settings: the recipe's.
        is_image: whether a convolutional network computes.
        is_local: whether one process does all.
        num_ranks: processes of a machine that train at once.

    Raises:
        ConfigError: device is `cuda` and there is no GPU; on Ray the trainer's node decides.
    """
    if settings.device == "cuda" and is_local and not torch.cuda.is_available():
        raise ConfigError("device: 'cuda' needs an NVIDIA GPU that torch can use, found none")
    cores = num_cores()
    threads = 1
    if is_image:
        threads = cores if is_local else max(1, cores // 2 // num_ranks)
    return replace(
        settings,
        env_threads=settings.env_threads or cores,
        trainer_threads=settings.trainer_threads or threads,
    )


def described(settings: Any, *, is_local: bool, num_ranks: int = 1) -> str:
    """Return what plays and trains in words, with the names of the settings that change it."""
    ranks = f" in each of {num_ranks} ranks (num_ranks)" if num_ranks > 1 else ""
    workers = 1 if is_local else settings.num_workers
    players = f"{settings.num_envs} environments (num_envs)"
    if workers > 1:
        players = f"{workers} workers (num_workers) of {players}"
    return (
        f"{num_cores()} cores: {players} on {settings.env_threads} threads (env_threads); network "
        f"in {settings.precision} (precision) on {settings.device} (device), "
        f"{settings.trainer_threads} threads (trainer_threads){ranks}"
    )
