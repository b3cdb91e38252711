"""What bray-algo's networks hold travels with a model: statistics are published like weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bray_algo.networks.batch_renorm import BatchRenorm
from bray_algo.networks.heads import DuellingHead
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


class Values(nn.Module):
    """What the default networks of values and of bounded actions are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 4), BatchRenorm(4), nn.ReLU())
        self.head = DuellingHead(4, 2)
        self.register_buffer("high", torch.ones(2))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        q = self.head(self.trunk(observation))
        return {"q": q, "high": self.high.expand(observation.shape[0], -1)}


def test_networks_without_memory_are_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks of shapes and sizes that are the same for all rows must not look like branches."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the exporter that takes seconds was asked")

    monkeypatch.setattr("bray_model.export.exporter.write_torch_graph", refuse)
    row = np.full(3, 2, np.float32)
    with Model(Values().eval(), row[None]) as model:
        model.export(tmp_path / "export")
        with Model(tmp_path / "export") as exported:
            for name, got in exported(row).items():
                assert np.allclose(got, model(row)[name], atol=1e-5)
