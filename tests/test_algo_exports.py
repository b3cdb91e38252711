"""What bray-algo's networks hold travels with a model: statistics are published like weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bray_algo.networks.normalisation import RunningNorm
from bray_algo.networks.recurrent import Recurrent
from bray_model import Model


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.memory = RunningNorm([3]), Recurrent("lstm", 3, 4)

    def forward(self, observation: Tensor, state: Tensor, begins: Tensor) -> dict[str, Tensor]:
        features, after = self.memory(self.norm(observation)[None], state, begins[None])
        return {"features": features[0], "state": after}


def test_an_export_follows_statistics_that_are_published(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    network = Policy()
    network.norm.update(torch.randn(40, 3) * 3 + 1)
    row = (np.full(3, 2, np.float32), np.ones(8, np.float32), np.array(False))
    with Model(network, tuple(leaf[None] for leaf in row)) as model:
        model.export(tmp_path / "export")
        with Model(tmp_path / "export") as exported:
            before = exported(*row)
            network.norm.update(torch.randn(40, 3) * 9 - 5)
            weights = {name: value.numpy() for name, value in network.state_dict().items()}
            model.publish(weights)
            exported.publish(weights)
            got, want = exported(*row), model(*row)
    for name in ("features", "state"):
        assert np.allclose(got[name], want[name], atol=1e-5)
        assert not np.allclose(got[name], before[name], atol=1e-3)
