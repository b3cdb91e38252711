from pathlib import Path

import numpy as np
import pytest
import torch

from bray_model import Model


class Policy(torch.nn.Module):
    """Nested inputs and outputs, a buffer, an output that is a view of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.logits = torch.nn.Linear(16, 3)
        self.value = torch.nn.Linear(16, 1)
        self.log_std = torch.nn.Parameter(torch.zeros(2))

    def forward(self, observation, extras):
        h = torch.tanh(self.norm(self.body(observation["units"]))) + extras[0][:, None]
        h = h * torch.where(observation["alive"][:, None], 1.0, 0.5)
        logits = self.logits(h)
        return {
            "logits": logits,
            "heads": [self.value(h)[:, 0], self.log_std.expand(h.shape[0], -1)],
            "best": (logits.argmax(-1),),
        }


def observation(rows: int, seed: int = 0) -> tuple:
    rng = np.random.default_rng(seed)
    return (
        {
            "units": rng.standard_normal((rows, 4)).astype(np.float32),
            "alive": rng.integers(0, 2, rows).astype(bool),
        },
        (rng.standard_normal(rows).astype(np.float32),),
    )


def row_of(tree: tuple, i: int) -> tuple:
    first, (second,) = tree
    return {k: v[i] for k, v in first.items()}, (second[i, ...],)


@pytest.fixture
def policy() -> torch.nn.Module:
    torch.manual_seed(0)
    return Policy()


@pytest.fixture(scope="session")
def observations():
    """rows, seed → inputs of `policy`."""
    return observation


@pytest.fixture(scope="session")
def row():
    return row_of


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory):
    """An export of `policy`, made once: (folder, report, the model it came from)."""
    torch.manual_seed(0)
    model = Model(Policy(), observation(1), name="policy")
    folder = tmp_path_factory.mktemp("export") / "policy"
    report = model.export(folder)
    return folder, report, model


@pytest.fixture
def export_copy(exported, tmp_path: Path) -> Path:
    """A copy of the export, to be broken."""
    folder = tmp_path / "export"
    folder.mkdir()
    for file in exported[0].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder
