"""Weights that are not finite are refused wherever they come in; the old ones go on answering."""

from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
import torch

from bray_core.errors import ExportError, SpecError
from bray_model import Manifest, Model, ModelConfig
from bray_model.export_files.manifest import sha256
from bray_model.serving.repository import ExportRepository
from bray_model.serving.shared_publishing import SharedPublisher
from bray_model.versions.retention import Retention
from bray_model.versions.version_store import VersionStore

ROW = np.ones(4, np.float32)
NAN = r"weights/weight: expected finite numbers, got NaN or infinity in 2 of 8"


class Masked(torch.nn.Module):
    """Attention-like: a buffer holds -inf on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 2)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, x):
        return torch.softmax(self.head(x) + self.mask, -1)


def linear(**options):
    return Model(torch.nn.Linear(4, 2), np.zeros((1, 4), np.float32), **options)


def broken(weights, value=np.nan):
    """The same, two numbers of one leaf apart."""
    array = weights["weight"].copy()
    array[0, :2] = value
    return {**weights, "weight": array}


BAD = {
    "nan": (broken, NAN),
    "inf": (lambda w: broken(w, np.inf), NAN),
    "shape": (lambda w: {**w, "bias": np.zeros(3, np.float32)}, "weights/bias: expected float32"),
    "dtype": (lambda w: {**w, "bias": np.zeros(2)}, r"weights/bias: .* got float64"),
    "extra": (lambda w: {**w, "more": np.zeros(2, np.float32)}, "weights/more: unexpected"),
    "missing": (lambda w: {"bias": w["bias"]}, "weights/weight: missing"),
    "none": (lambda w: None, "weights: expected name → array, got NoneType"),
}


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("how", ["publish", "adopt"])
def test_a_bad_publish_leaves_the_old_version_answering(fault, how):
    spoil, message = BAD[fault]
    with linear() as model:
        before = model(ROW)
        weights = spoil(model.weights()[1])
        with pytest.raises(SpecError, match=message):
            model.publish(weights) if how == "publish" else model.adopt(weights, 7)
        assert model.version == 0
        np.testing.assert_array_equal(model(ROW), before)
        assert model.publish(model.weights()[1]) == 1, "no number was used up"


def test_what_is_not_finite_on_disk_is_not_loaded(tmp_path):
    with linear(directory=tmp_path) as model:
        model.checkpoint()
        VersionStore(tmp_path / "versions", Retention()).save(1, broken(model.weights()[1]))
        before = model(ROW)
        with pytest.raises(SpecError, match=f"version 1 in .*: {NAN}.*load another version"):
            model.load(1)
        assert (model.version, model(ROW).tolist()) == (0, before.tolist())


def test_an_infinity_that_the_network_was_made_with_may_stay():
    with Model(Masked(), np.zeros((1, 4), np.float32)) as model:
        weights = dict(model.weights()[1])
        assert model.publish(weights) == 1
        assert model(ROW).tolist() == [1.0, 0.0]
        for mask in ([-np.inf, -np.inf], [0.0, np.inf], [0.0, np.nan]):
            with pytest.raises(SpecError, match=r"weights/mask: .* in 1 of 2"):
                model.publish({**weights, "mask": np.float32(mask)})
        assert model.publish({**weights, "mask": np.zeros(2, np.float32)}) == 2


def test_large_and_half_numbers_are_finite():
    """Their sum is not: only single numbers count."""
    module = torch.nn.Linear(4, 2).half()
    with Model(module, np.zeros((1, 4), np.float16)) as model:
        weights = {n: np.full_like(a, 60_000) for n, a in model.weights()[1].items()}
        assert model.publish(weights) == 1
    with linear() as model:
        weights = {n: np.full_like(a, 3e38) for n, a in model.weights()[1].items()}
        assert model.publish(weights) == 1


@pytest.fixture(scope="module")
def exported_linear(tmp_path_factory):
    folder = tmp_path_factory.mktemp("linear") / "export"
    with linear(name="linear") as model:
        model.export(folder)
    return folder


def test_serving_processes_get_none_either(exported_linear, tmp_path):
    publisher = SharedPublisher(exported_linear, tmp_path, lambda manifest: ModelConfig())
    weights = safetensors.numpy.load_file(exported_linear / "weights.safetensors")
    try:
        for spoil, message in BAD.values():
            with pytest.raises(SpecError, match=message):
                publisher.publish("linear", spoil(weights))
        assert publisher.publish("linear", weights) == 1
    finally:
        publisher.close()


def test_an_export_with_nan_is_not_taken_up(exported_linear, tmp_path):
    folder = tmp_path / "export"
    folder.mkdir()
    for file in exported_linear.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    repository = ExportRepository(folder, lambda manifest: ModelConfig())
    before = repository.get("linear").model(ROW)
    weights = broken(safetensors.numpy.load_file(folder / "weights.safetensors"))
    replace_file(folder, "weights.safetensors", safetensors.numpy.save(weights))
    repository.scan()
    np.testing.assert_array_equal(repository.get("linear").model(ROW), before)
    with pytest.raises(ExportError, match=r"weights/weight: expected numbers, got NaN in 2 of 8"):
        Model(folder)
    repository.close()


def replace_file(folder, name, data):
    """Change a file of an export and the checksum in its manifest."""
    (folder / name).write_bytes(data)
    manifest = Manifest.read(folder)
    changed = replace(manifest, files={**manifest.files, name: sha256(data)})
    (folder / "manifest.json").write_bytes(changed.to_json())
