"""What computes: the settings that algorithms share, and what is chosen where nothing was said."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bray.sources.config import FrameSourceConfig
from bray.training.algorithm import Parts
from bray.training.reward_scale import RewardScaleConfig
from bray_core.errors import ConfigError
from bray_core.process.machine import num_cores
from bray_core.settings.ranges import PositiveInt
from bray_model.config import Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeConfig(RewardScaleConfig):
    """What the network computes on, and whether rewards are scaled; an algorithm adds its own."""

    trainer_threads: PositiveInt | None = None
    """CPU threads of the network. None: 1 for perceptrons, whose threads would only wait for each
    other; for images all cores in a local run, and on Ray half of them."""
    precision: Precision = "fp32"
    """Numbers of the network, where it plays and where it is trained. `bf16` is about twice as
    fast for images where the CPU or GPU has it, and rounds to three digits."""


def decided(parts: Parts, *, is_image: bool, is_local: bool, num_ranks: int = 1) -> Parts:
    """Return a run's settings with the threads of environments and network decided.

    Args:
        parts: settings whose `trainer` is a `ComputeConfig`.
        is_image: whether a convolutional network computes.
        is_local: whether one process does all.
        num_ranks: processes of a machine that train at once.

    Raises:
        ConfigError: device is `cuda` and there is no GPU; on Ray the trainer's node decides.
    """
    if parts.trainer.device == "cuda" and is_local and not torch.cuda.is_available():
        raise ConfigError("device: 'cuda' needs an NVIDIA GPU that torch can use, found none")
    cores = num_cores()
    threads = 1
    if is_image:
        threads = cores if is_local else max(1, cores // 2 // num_ranks)
    source = parts.source
    if isinstance(source, FrameSourceConfig):
        source = replace(source, env_threads=source.env_threads or cores)
    return replace(
        parts,
        source=source,
        trainer=replace(parts.trainer, trainer_threads=parts.trainer.trainer_threads or threads),
    )


def described(parts: Parts, *, is_local: bool, num_ranks: int = 1) -> str:
    """Return what plays and trains in words, with the names of the settings that change it."""
    source, trainer = parts.source, parts.trainer
    ranks = f" in each of {num_ranks} ranks (num_ranks)" if num_ranks > 1 else ""
    workers = 1 if is_local else parts.actor.num_workers
    players = f"{source.num_envs} environments (num_envs)"
    if workers > 1:
        players = f"{workers} workers (num_workers) of {players}"
    return (
        f"{num_cores()} cores: {players} on {source.env_threads} threads (env_threads); network "
        f"in {trainer.precision} (precision) on {trainer.device} (device), "
        f"{trainer.trainer_threads} threads (trainer_threads){ranks}"
    )
