"""What a hero thinks with: itself, its friend and the ogre, each read by the same layer."""

from dataclasses import dataclass

import torch
from torch import nn


class HeroNet(nn.Module):
    """A trunk for the heroes: what is seen are three bodies of two numbers."""

    @dataclass
    class Config:
        """The network's settings."""

        width: int = 32

    def __init__(self, spaces, config):
        super().__init__()
        self.feature_size = 3 * config.width
        self.body = nn.Sequential(nn.Linear(2, config.width), nn.Tanh())
        self.all = nn.Sequential(nn.Linear(self.feature_size, self.feature_size), nn.Tanh())

    def forward(self, seen):
        """Map `[B, 6]` to features `[B, feature_size]`."""
        bodies = self.body(torch.unflatten(seen, -1, (3, 2)))
        return self.all(torch.flatten(bodies, -2))
