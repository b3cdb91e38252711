"""The two policies that are measured, and exports of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bray_model import Model


class Scaled(torch.nn.Module):
    """Pixels to numbers up to one, channels first."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """`[B, 84, 84, 4]` uint8 → `[B, 4, 84, 84]`."""
        return pixels.permute(0, 3, 1, 2).float() / 255


def small() -> tuple[torch.nn.Module, np.ndarray]:
    """4→64→64→2, and a row `[1, 4]`."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 2),
    )
    return network, np.ones((1, 4), np.float32)


def cnn() -> tuple[torch.nn.Module, np.ndarray]:
    """The Atari network (Mnih et al. 2015) of 1.7 M parameters, and a row of pixels."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        Scaled(),
        torch.nn.Conv2d(4, 32, 8, 4),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 4, 2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(64, 64, 3, 1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(3136, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 6),
    )
    rng = np.random.default_rng(0)
    return network, rng.integers(0, 256, (1, 84, 84, 4), np.uint8)


NETWORKS = {"small": small, "cnn": cnn}


def exported(name: str, folder: Path) -> tuple[Path, np.ndarray]:
    """Export a network; return the export and a row `[1, ...]`."""
    module, rows = NETWORKS[name]()
    with Model(module, rows, name=name) as model:
        model.export(folder / name)
    return folder / name, rows
