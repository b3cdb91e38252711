from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.networks.encoders import Embeddings, binary, one_hot, sinusoidal
from bray_algo.validation import validating


def test_one_hot_rows() -> None:
    got = one_hot(torch.tensor([[0, 2], [1, 1]]), 3)
    assert got.tolist() == [[[1, 0, 0], [0, 0, 1]], [[0, 1, 0], [0, 1, 0]]]
    assert got.dtype == torch.float32
    assert one_hot(torch.tensor([255], dtype=torch.uint8), 256)[0, 255] == 1
    assert one_hot(torch.zeros(0, dtype=torch.int64), 3).shape == (0, 3)


@given(st.lists(st.integers(0, 2**62 - 1), min_size=1))
def test_bits_are_those_of_python(numbers: list[int]) -> None:
    got = binary(torch.tensor(numbers), 62)
    assert got.tolist() == [[number >> bit & 1 for bit in range(62)] for number in numbers]


def test_sines_and_cosines() -> None:
    got = sinusoidal(torch.tensor([[0.0, 3.0]]), 4, longest=100.0)
    angles = [3.0, 3.0 / 100**0.5]
    want = [*map(math.sin, angles), *map(math.cos, angles)]
    assert got.shape == (1, 2, 4)
    assert got[0, 1].tolist() == pytest.approx(want)
    assert got[0, 0].tolist() == [0, 0, 1, 1]


def test_embeddings_stand_side_by_side() -> None:
    network = Embeddings([3, 2], size=4)
    got = network(torch.tensor([[[2, 1]], [[0, 0]]], dtype=torch.int32))
    assert got.shape == (2, 1, 8)
    first, second = (table.weight for table in network.tables)
    assert torch.equal(got[0, 0], torch.cat([first[2], second[1]]))


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="index: expected 0 to 2, got -1 to 3"):
        one_hot(torch.tensor([-1, 3]), 3)
    with validating(False):
        assert one_hot(torch.tensor([-1, 3]), 3).tolist() == [[0, 0, 0], [0, 0, 0]]
    with pytest.raises(ValueError, match=r"index: expected integers, got torch.float32"):
        one_hot(torch.zeros(2), 3)
    with pytest.raises(ValueError, match="num_classes: expected a positive number, got 0"):
        one_hot(torch.tensor([0]), 0)
    with pytest.raises(ValueError, match="number: expected 0 to 7, got 8 to 8"):
        binary(torch.tensor([8]), 3)
    with pytest.raises(ValueError, match="num_bits: expected 1 to 62, got 63"):
        binary(torch.tensor([8]), 63)
    with pytest.raises(ValueError, match="size: expected an even positive number, got 3"):
        sinusoidal(torch.zeros(2), 3)
    with pytest.raises(ValueError, match=r"index: expected \[..., 2\], got \(2, 3\)"):
        Embeddings([3, 2], 4)(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"num_classes, size: expected positive numbers, got \[\]"):
        Embeddings([], 4)
