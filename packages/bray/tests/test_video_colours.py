"""A GIF of drawn frames keeps their colours; one of photographs gets a choice of 256."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from bray.viewer import video


def frames_of(file: bytes) -> list[np.ndarray]:
    found = []
    with Image.open(io.BytesIO(file)) as image:
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            found.append(np.asarray(image.convert("RGB")))
    return found


def drawn(colours: int, number: int) -> Image.Image:
    rng = np.random.default_rng(number)
    palette = np.random.default_rng(7).integers(0, 256, (colours, 3)).astype(np.uint8)
    return Image.fromarray(palette[rng.integers(0, colours, (20, 30))])


def large(number: int) -> Image.Image:
    return drawn(3, number).resize((64, 64), Image.Resampling.NEAREST)


@pytest.mark.parametrize("colours", [1, 2, 200])
def test_few_colours_are_kept(colours: int) -> None:
    frames = [drawn(colours, number) for number in range(5)]
    found = frames_of(video.encode(frames, "gif", 20))
    if colours == 1:  # pillow joins frames that are alike
        assert len(found) == 1
    else:
        assert len(found) == 5
    for ours, theirs in zip(found, frames, strict=False):
        np.testing.assert_array_equal(ours, np.asarray(theirs))


def test_many_colours_are_brought_near() -> None:
    x, y = np.meshgrid(np.arange(64), np.arange(64))
    slope = np.stack([4 * x, 4 * y, 2 * (x + y)], -1).astype(np.uint8)
    frames = [
        large(1),
        Image.fromarray(slope),
        large(2),
    ]
    found = frames_of(video.encode(frames, "gif", 20))
    np.testing.assert_array_equal(found[0], np.asarray(frames[0]))
    assert np.abs(found[1].astype(int) - slope).mean() < 12
    assert np.abs(found[2].astype(int) - np.asarray(frames[2])).mean() < 12


def test_modes_without_three_colours_are_taken() -> None:
    grey = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    found = frames_of(video.encode([grey, grey.convert("RGBA")], "gif", 20))
    np.testing.assert_array_equal(found[0], np.asarray(grey.convert("RGB")))
