from collections.abc import Callable, Iterator

import pytest

from bray_core import metrics


@pytest.fixture
def recorded() -> Iterator[Callable[[], dict[str, list[float]]]]:
    """What was recorded since the test began: name → [number of values, their sum]."""
    metrics.drain()
    yield lambda: {sample.name: [sample.count, sample.total] for sample in metrics.drain()}
    metrics.drain()
