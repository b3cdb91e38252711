from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bray
from bray.monitoring.graph import graph
from bray_core.metrics.tensorboard import Node


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x)
        return {"logits": self.head(hidden), "value": (hidden + hidden).sum(-1)}


def test_calls_are_joined_by_their_tensors() -> None:
    nodes = graph("net", Net(), np.zeros((5, 4), np.float32))
    by_operation: dict[str, list[Node]] = {}
    for node in nodes:
        by_operation.setdefault(node.operation, []).append(node)
    assert [n.name for n in by_operation["Parameter"]] == [
        "net/body/0/weight", "net/body/0/bias", "net/head/weight", "net/head/bias",
    ]  # fmt: skip
    first, second = by_operation["linear"]
    (tanh,), (add,), (total,) = (by_operation[name] for name in ("tanh", "add", "sum"))
    assert first.inputs == ("net/input/0", "net/body/0/weight", "net/body/0/bias")
    assert first.name.startswith("net/body/0/linear")
    assert tanh.inputs == (first.name,)
    assert second.inputs == (tanh.name, "net/head/weight", "net/head/bias")
    assert add.inputs == (tanh.name,)
    assert total.inputs == (add.name,)
    assert len({node.name for node in nodes}) == len(nodes)


def test_nothing_is_left_of_it() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    torch.manual_seed(1)
    following = torch.rand(3)
    torch.manual_seed(1)
    assert graph("net", net, np.ones((5, 4), np.float32))
    assert torch.equal(torch.rand(3), following)
    assert net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    with pytest.raises(RuntimeError):
        graph("net", net, np.zeros((5, 3), np.float32))


def test_a_run_writes_the_graphs_of_its_models(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with bray.init(tmp_path, "trial", config={"seed": 3}) as run:
        run.model("policy", Net(), np.zeros((1, 4), np.float32))
        launch = run.experiment.launch
    events = EventAccumulator(str(launch))
    events.Reload()
    assert "policy/head/weight" in {node.name for node in events.Graph().node}
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")
