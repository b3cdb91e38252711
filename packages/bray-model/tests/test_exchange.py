"""Weights of an export are exchanged without another export and without another session."""

import logging

import numpy as np
import onnxruntime
import pytest
import safetensors.numpy
import torch

from bray_core import nested
from bray_core.errors import ExportError, SpecError
from bray_model import Model


class Recurrent(torch.nn.Module):
    """State goes in and out."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.cell = getattr(torch.nn, cell)(4, 8, batch_first=True)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x, state):
        # Layers come first for torch, the batch for everybody else.
        before = tuple(leaf.transpose(0, 1).contiguous() for leaf in state)
        given = before if isinstance(self.cell, torch.nn.LSTM) else before[0]
        out, after = self.cell(x[:, None], given)
        after = after if isinstance(after, tuple) else (after,)
        return {"logits": self.head(out[:, 0]), "state": [leaf.transpose(0, 1) for leaf in after]}


class Tied(torch.nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Images(torch.nn.Module):
    """Convolutions, a normalisation with running figures, zero biases that look alike."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(4, 8, 8, 4),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(8 * 20 * 20, 6),
        )
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.zeros_(parameter)

    def forward(self, x):
        return {"logits": self.net(x.float() / 255.0), "same": x}


def zeros(*shape):
    return np.zeros((1, *shape), np.float32)


MODULES = {
    "images": lambda: (Images(), np.zeros((1, 4, 84, 84), np.uint8)),
    "lstm": lambda: (Recurrent("LSTM"), (zeros(4), (zeros(1, 8), zeros(1, 8)))),
    "gru": lambda: (Recurrent("GRU"), (zeros(4), (zeros(1, 8),))),
    "tied": lambda: (Tied(), zeros(4)),
}


def changed(weights, factor):
    """Other weights, the same for equal ones."""
    return {
        name: (array * factor + 0.01 * factor).astype(array.dtype)
        if array.dtype.kind == "f"
        else array + 3
        for name, array in weights.items()
    }


def some_inputs(signature, rows, seed):
    rng = np.random.default_rng(seed)

    def draw(spec):
        if spec.dtype.kind == "f":
            return rng.standard_normal((rows, *spec.shape)).astype(spec.dtype)
        return rng.integers(0, 255, (rows, *spec.shape)).astype(spec.dtype)

    return nested.map(draw, signature.inputs)


@pytest.mark.parametrize("name", MODULES)
def test_an_export_follows_what_is_published(name, tmp_path, monkeypatch, caplog):
    torch.manual_seed(0)
    module, example = MODULES[name]()
    folder = tmp_path / "export"
    with Model(module, example, name=name) as origin:
        origin.export(folder)
        assert not [
            r for r in caplog.records if r.levelno >= logging.WARNING and r.name != "asyncio"
        ]
        sessions = []
        made = onnxruntime.InferenceSession
        monkeypatch.setattr(
            onnxruntime,
            "InferenceSession",
            lambda *args, **kwargs: sessions.append(1) or made(*args, **kwargs),
        )
        with Model(folder, directory=tmp_path / "versions") as model:
            for factor in (0.5, -1.0, 2.0):
                weights = changed(origin.weights()[1], factor)
                assert model.publish(weights) == origin.publish(weights)
                for rows in (1, 3, 16):
                    inputs = some_inputs(origin.signature, rows, rows)
                    got, want = model(*inputs, batch=True), origin(*inputs, batch=True)
                    nested.map(
                        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
                        got,
                        want,
                    )
            assert len(sessions) == 2, "as exported, and with its weights as inputs"
            model.checkpoint()
        with Model(folder, directory=tmp_path / "versions") as again:
            assert again.version == 3
            inputs = some_inputs(origin.signature, 4, 9)
            got, want = again(*inputs, batch=True), origin(*inputs, batch=True)
            nested.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), got, want
            )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "export"
    with Model(torch.nn.Linear(4, 2), zeros(4)) as origin:
        origin.export(folder)
        yield folder, origin


def test_clones_share_no_weights(small):
    folder, _ = small
    row = np.ones(4, np.float32)
    with Model(folder) as model:
        first = model.weights()[1]
        ones = {name: np.ones_like(array) for name, array in first.items()}
        before = model(row)
        with model.clone() as clone:
            clone.publish(ones)
            assert clone(row).tolist() == [5.0, 5.0]
            np.testing.assert_array_equal(model(row), before)


def test_weights_that_do_not_fit_are_named(small):
    with Model(small[0]) as model:
        weights = dict(model.weights()[1])
        with pytest.raises(SpecError, match=r"weights/weight: expected float32 \(2, 4\)"):
            model.publish({**weights, "weight": zeros(4)})
        with pytest.raises(SpecError, match="weights/bias: missing"):
            model.publish({"weight": weights["weight"]})


def test_plain_onnxruntime_runs_it_with_any_weights(small):
    folder, origin = small
    weights = changed(safetensors.numpy.load_file(folder / "weights.safetensors"), 0.5)
    session = onnxruntime.InferenceSession(folder / "exchange.onnx")
    rows = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    feed = {f"weights/{name}": array for name, array in weights.items()}
    (got,) = session.run(None, {"inputs[0]": rows, **feed})
    with origin.clone() as clone:
        clone.publish(weights)
        np.testing.assert_allclose(got, clone(rows, batch=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["weights.safetensors", "exchange.onnx"])
def test_a_truncated_file_is_named(small, tmp_path, name):
    for file in small[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ExportError, match=f"{name}: .*checksum"):
        Model(tmp_path)
