"""From packed blocks to tensors."""

import numpy as np
import pytest
import torch

from bray_core import nested
from bray_core.layout import Layout, Packed
from bray_trainer import to_torch


def test_a_read_only_block_is_copied():
    layout = Layout(nested.spec({"x": np.zeros(2, np.float32)}))
    block = layout.pack({"x": np.ones((3, 2), np.float32)})
    block.flags.writeable = False  # as what comes from Ray or a file is
    tensors = to_torch(Packed(layout, block))
    tensors["x"].add_(1)
    assert layout.views(block)["x"].tolist() == [[1, 1]] * 3
    assert tensors["x"].tolist() == [[2, 2]] * 3


@pytest.mark.parametrize("lead", [(), (5,), (2, 5)])
def test_any_leading_dimensions_and_empty_leaves(lead):
    tree = {
        "empty": np.zeros((*lead, 0, 3), np.float32),
        "flag": np.ones(lead, bool),
        "nest": [{"half": np.full((*lead, 3), 7, np.float16)}, (np.full(lead, 2, np.uint16),)],
    }
    layout = Layout(
        nested.map(lambda leaf: nested.ArraySpec(leaf.dtype, leaf.shape[len(lead) :]), tree)
    )
    tensors = to_torch(Packed(layout, layout.pack(tree)))
    assert tensors["empty"].shape == (*lead, 0, 3)
    assert tensors["flag"].dtype == torch.bool
    assert torch.equal(tensors["nest"][0]["half"], torch.full((*lead, 3), 7, dtype=torch.float16))
    assert isinstance(tensors["nest"][1], tuple)
    assert tensors["nest"][1][0].dtype == torch.uint16


@pytest.mark.gpu
def test_on_a_gpu_the_values_are_the_same():
    tree = {"x": np.random.default_rng(0).random((4, 3)), "flag": np.array([True, False] * 2)}
    layout = Layout(nested.spec({name: leaf[0] for name, leaf in tree.items()}))
    tensors = to_torch(Packed(layout, layout.pack(tree)), "cuda")
    assert tensors["x"].device.type == "cuda"
    for name, leaf in tree.items():
        assert np.array_equal(tensors[name].cpu().numpy(), leaf)
