"""Pink noise: each number is standard normal, and their power falls with 1 / frequency."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from bray_actor.policy.batch_decoder import BatchDiagonalGaussian
from bray_actor.policy.decoder import check_outputs, decoder_for
from bray_actor.policy.pink_noise import NUM_OCTAVES, PinkNoise
from bray_core.errors import SpecError

STEPS = 1024


def drawn(rows: int) -> np.ndarray:
    """Return noise `[rows, STEPS]`."""
    noise, rng = PinkNoise(), np.random.default_rng(0)
    return np.stack([noise.draw(rng.standard_normal((rows, NUM_OCTAVES))) for _ in range(STEPS)], 1)


def outputs(*lead: int, pink: bool = True) -> dict[str, Any]:
    """Return a policy's outputs with mean 1 and deviation 2 of two reals."""
    made = {"mean": np.ones((*lead, 2)), "log_std": np.full((*lead, 2), math.log(2))}
    made |= {"pink": np.zeros(lead)} if pink else {}
    return {name: leaf.astype(np.float32) for name, leaf in made.items()}


def test_numbers_are_standard_normal_and_every_octave_has_the_same_power() -> None:
    noise = drawn(400)
    np.testing.assert_allclose(noise[:, [0, 10, -1]].std(0), 1.0, atol=0.12)
    power = np.square(np.abs(np.fft.rfft(noise))).mean(0)
    octaves = [power[2**k : 2 ** (k + 1)].sum() for k in range(2, 9)]
    assert max(octaves) < 1.3 * min(octaves)  # of white noise 64 times
    early, late = noise[:, 0], noise[:, 1]
    kept = np.exp(-1 / 2.0 ** np.arange(-1, NUM_OCTAVES - 1)).mean()
    assert np.mean(early * late) == pytest.approx(kept, abs=0.15)


def test_batches_draw_it_where_the_outputs_say_so() -> None:
    decoder, rng = BatchDiagonalGaussian(300, 2), np.random.default_rng(1)
    steps = [decoder.sample(outputs(300), rng) for _ in range(2)]
    first, second = (((action - 1) / 2).ravel() for action, _ in steps)
    assert np.mean(first * second) > 0.5
    white = [decoder.sample(outputs(300, pink=False), rng)[0] for _ in range(2)]
    first, second = (((action - 1) / 2).ravel() for action in white)
    assert abs(np.mean(first * second)) < 0.2
    action, log_prob = steps[1]  # the density is that of the number by itself
    density = -0.5 * np.square((action - 1) / 2) - math.log(2) - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(log_prob, density.sum(1), rtol=1e-5)


def test_an_episode_draws_it_row_by_row() -> None:
    row = outputs()
    check_outputs(row)
    decoder, rng = decoder_for(row), random.Random(0)
    steps = np.stack([decoder.sample(row, rng).action for _ in range(200)])
    decoder, rng = decoder_for(row), random.Random(0)
    again = np.stack([decoder.sample(row, rng).action for _ in range(200)])
    assert (steps == again).all(), "drawn from the session's generator alone"
    noise, fresh = PinkNoise(), random.Random(0)
    for step in steps[:5]:
        numbers = [fresh.gauss(0.0, 1.0) for _ in range(2 * NUM_OCTAVES)]
        wanted = 1 + 2 * noise.draw(np.array(numbers).reshape(2, NUM_OCTAVES))
        np.testing.assert_allclose(step, wanted, rtol=1e-5)
    assert decoder.mode(row).action.tolist() == [1.0, 1.0]


def test_what_it_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(SpecError, match=r"model output pink: expected float32 \(\), got nothing"):
        check_outputs({**outputs(), "pink": None})
