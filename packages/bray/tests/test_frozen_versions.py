"""Versions that stay: frozen under a name, and found again after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bray.games.frozen_versions import freeze_version, frozen_version
from bray_algo import PolicyValueMLP
from bray_algo.games import Boards
from bray_core.errors import NotFoundError
from bray_model import Model

GAME = Boards(3, 3, 3)
ROW = np.zeros(GAME.observation_size, np.float32)


def make_model(folder: Path, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    network = PolicyValueMLP(GAME.observation_size, GAME.num_actions, hidden=(8,))
    return Model(network, ROW[None], name="policy", directory=folder / "policy")


def publish_another(model: Model) -> None:
    weights = {name: array + np.float32(0.1) for name, array in model.weights()[1].items()}
    model.publish(weights)


def test_a_frozen_version_is_found_where_its_name_is_not(tmp_path: Path) -> None:
    """On Ray the names of clones do not outlive the cluster; the files do."""
    with make_model(tmp_path) as model:
        publish_another(model)
        version = freeze_version(model, "old")
        answer = model(ROW)["logits"]
        for _ in range(15):
            publish_another(model)
            model.checkpoint()
        with pytest.raises(NotFoundError):
            model.get_clone("other")
        assert (frozen_version(model, "other", version)(ROW)["logits"] == answer).all()


class Trained:
    """A model of which another process publishes, and drops, whenever one looks away."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.is_dropped = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def checkpoint(self) -> Path | None:
        path = self.model.checkpoint()
        publish_another(self.model)
        if self.is_dropped:
            self.is_dropped = False
            for _ in range(15):
                publish_another(self.model)
                self.model.checkpoint()
        return path


def test_a_version_is_frozen_while_newer_ones_come(tmp_path: Path) -> None:
    with make_model(tmp_path) as model:
        publish_another(model)
        version = freeze_version(Trained(model), "old")
        assert model.get_clone("old").version == version < model.version
        assert (frozen_version(model, "other", version).version) == version
