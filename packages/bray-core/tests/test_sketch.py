from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_core.errors import ConfigError
from bray_core.metrics import sketch
from bray_core.metrics.sample import Sample

RANDOM = np.random.default_rng(3)
DISTRIBUTIONS = {
    "uniform": RANDOM.uniform(5, 6, 10_000),
    "latencies": RANDOM.lognormal(-7, 2, 10_000),
    "both signs": RANDOM.normal(0, 30, 10_000),
    "heavy tail": RANDOM.pareto(0.5, 10_000),
    "few values": RANDOM.integers(-3, 4, 999).astype(float),
    "one value": np.array([0.125]),
}


def of(values: npt.NDArray[np.float64]) -> Sample:
    sample = Sample("a")
    for part in np.array_split(values, min(len(values), 7)):
        sample.add_values(part.tolist())
    return sample


@pytest.mark.parametrize("values", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
@pytest.mark.parametrize("q", [0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0])
def test_quantiles_are_within_the_stated_error(values: npt.NDArray[np.float64], q: float) -> None:
    exact = float(np.quantile(values, q, method="lower"))
    assert of(values).quantile(q) == pytest.approx(exact, rel=sketch.RELATIVE_ERROR * 1.0001)


finite = st.floats(-1e15, 1e15).filter(lambda x: x == 0 or abs(x) > 1e-12)


@given(st.lists(finite, min_size=1, max_size=60), st.floats(0, 1))
def test_any_quantile_of_any_values(values: list[float], q: float) -> None:
    exact = sorted(values)[math.floor(q * (len(values) - 1))]
    found = of(np.array(values)).quantile(q)
    assert found == pytest.approx(exact, rel=sketch.RELATIVE_ERROR * 1.0001, abs=0)


@given(st.lists(st.lists(finite, max_size=20), max_size=6), st.randoms())
def test_merging_in_any_order_is_the_sketch_of_all(
    parts: list[list[float]], random: object
) -> None:
    whole: dict[int, int] = {}
    for part in parts:
        sketch.merge(whole, sketch.bins(np.array(part)))
    together = np.array([value for part in parts for value in part])
    assert whole == sketch.bins(together)
    random.shuffle(parts)  # type: ignore[attr-defined]
    shuffled: dict[int, int] = {}
    for part in parts:
        sketch.merge(shuffled, sketch.bins(np.array(part)))
    assert shuffled == whole


def test_the_bins_are_bounded_and_what_is_no_number_falls_into_none() -> None:
    extremes = np.array([1e-300, -1e-300, 0.0, 1e300, math.inf, -math.inf, math.nan])
    assert sketch.bins(extremes) == {0: 3, sketch.MAX_BIN: 2, -sketch.MAX_BIN: 1}
    wide = np.geomspace(1e-13, 1e19, 100_000)
    assert len(sketch.bins(np.concatenate([wide, -wide]))) <= 2 * sketch.MAX_BIN + 1


def test_the_bounds_of_bins_touch() -> None:
    for lower, upper in pairwise(range(-sketch.MAX_BIN, sketch.MAX_BIN + 1)):
        assert sketch.upper(lower) <= sketch.middle(upper) or upper == 0
        assert sketch.middle(upper) <= sketch.upper(upper)


def test_no_values_have_no_quantile() -> None:
    assert math.isnan(Sample("a").quantile(0.5))
    assert math.isnan(Sample("a").mean)


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_a_share_that_is_none_is_refused(q: float) -> None:
    with pytest.raises(ConfigError, match="q: expected 0 to 1, got"):
        Sample("a").quantile(q)
