"""Images of odd sizes: read as shares of their range, by networks that stay small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bray.policies.config import NetworkConfig
from bray.policies.images import ImageEncoder
from bray.policies.networks import example_inputs, make_policy
from bray_actor.spaces import of_gymnasium
from bray_core.spaces import LeafSpace, parse
from bray_model import Model

gymnasium = pytest.importorskip("gymnasium")


def read(described: dict[str, object]) -> LeafSpace:
    """Return a leaf that is described as in a template."""
    leaf: LeafSpace = parse(described)
    return leaf


@pytest.mark.parametrize(
    ("shape", "dtype", "low", "high"),
    [
        ((8, 300), "uint8", 0, 255),
        ((300, 8, 3), "uint8", 0, 255),
        ((3, 8, 300), "uint8", 0, 255),
        ((20, 20), "uint8", 0, 3),
        ((64, 64, 3), "int64", 0, 255),
        ((24, 24, 1), "int16", -100, 100),
    ],
)
def test_whole_numbers_of_pixels_are_shares_of_their_range(
    shape: tuple[int, ...], dtype: str, low: int, high: int
) -> None:
    leaf = read({"shape": list(shape), "dtype": dtype, "low": low, "high": high})
    shares = read({"shape": list(shape), "dtype": "float32"})
    assert leaf.kind == "image"
    encoder = ImageEncoder(leaf, 8)
    pixels = np.random.default_rng(0).integers(low, high, (2, *shape), endpoint=True)
    # The same weights read shares of the range from numbers with fractions.
    plain = ImageEncoder(LeafSpace("image", "float32", shares.shape), 8)
    plain.load_state_dict(encoder.state_dict())
    wanted = plain(torch.tensor((pixels - low) / (high - low), dtype=torch.float32))
    found = encoder(torch.tensor(pixels.astype(dtype)))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_bytes_without_bounds_are_shares_of_255() -> None:
    encoder = ImageEncoder(read({"shape": [16, 16], "dtype": "uint8"}), 4)
    bounded = read({"shape": [16, 16], "dtype": "uint8", "low": 0, "high": 255})
    other = ImageEncoder(bounded, 4)
    other.load_state_dict(encoder.state_dict())
    pixels = torch.randint(0, 256, (2, 16, 16), dtype=torch.uint8)
    assert torch.equal(encoder(pixels), other(pixels))


def test_the_codes_of_a_small_grid_stay() -> None:
    leaf = read({"shape": [7, 7, 3], "dtype": "uint8", "low": 0, "high": 255})
    encoder = ImageEncoder(leaf, 4)
    plain = ImageEncoder(LeafSpace("image", "float32", leaf.shape), 4)
    plain.load_state_dict(encoder.state_dict())
    codes = torch.randint(0, 11, (2, 7, 7, 3), dtype=torch.uint8)
    assert torch.equal(encoder(codes), plain(codes.float()))


@pytest.mark.parametrize(
    "sides", [(8, 300), (5, 2000), (16, 1000), (40, 900), (15, 16), (5, 16), (96, 96), (300, 7)]
)
def test_a_thin_image_makes_no_large_network(sides: tuple[int, int]) -> None:
    encoder = ImageEncoder(read({"shape": list(sides), "dtype": "uint8"}), 256)
    assert sum(one.numel() for one in encoder.parameters()) < 2_000_000
    assert encoder(torch.zeros(2, *sides, dtype=torch.uint8)).shape == (2, 256)


@pytest.mark.long
@pytest.mark.parametrize("shape", [(8, 300), (7, 7, 3)])
def test_a_policy_of_thin_images_that_remembers_by_attention_exports(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    spaces = of_gymnasium("here", space, gymnasium.spaces.Discrete(3))
    config = NetworkConfig(hidden=(32,), memory="gtrxl", memory_size=16)
    policy = make_policy(spaces, config, 0)
    with Model(policy, example_inputs(spaces, policy.state_size)) as model:
        report = model.export(tmp_path / "export")
    assert max(one.max_rel_error for one in report.outputs) < report.rtol
