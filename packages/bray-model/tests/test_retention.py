import itertools
import math

import pytest

from bray_core.errors import ConfigError
from bray_model import Retention


def run(retention, versions, minutes=1.0, pinned=()):
    """Save one version after the other, applying the rules each time."""
    saved = {}
    for version in versions:
        saved[version] = 1_000_000_000.0 + 60.0 * minutes * version
        kept = retention.kept(saved, pinned)
        saved = {v: t for v, t in saved.items() if v in kept}
    return sorted(saved)


def test_the_newest_and_the_pinned_stay():
    assert run(Retention(keep_last=3), range(10)) == [7, 8, 9]
    assert run(Retention(keep_last=2), range(10), pinned=[1, 4, 99]) == [1, 4, 8, 9]


def test_every_nth_stays():
    assert run(Retention(keep_last=1, keep_every=4), range(11)) == [0, 4, 8, 10]


def test_the_first_of_each_interval_stays():
    kept = run(Retention(keep_last=1, keep_every_minutes=10), range(35))
    # 1,000,000,000 s are 40 s into a minute and 6 minutes into an interval of ten.
    assert kept == [0, 4, 14, 24, 34]


def test_geometric_keeps_about_the_logarithm_and_thins_out_with_age():
    newest = 5000
    kept = run(Retention(keep_last=1, keep_geometric=True), range(1, newest + 1))
    assert len(kept) <= 4 * math.log2(newest)
    ages = [newest - version for version in kept][::-1]
    assert ages[0] == 0
    for age, older in itertools.pairwise(ages[2:]):
        assert older - age <= max(2 * age, 2), "no gap is larger than the age asks for"
    assert ages[-1] >= newest / 4, "old ones are among them"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep_last": 0}, "keep_last: expected 1 or more, got 0"),
        ({"keep_every": -1}, "keep_every: expected 0 or more, got -1"),
        ({"keep_every_minutes": -1}, "keep_every_minutes: expected 0 or more, got -1"),
        ({"keep_geometric": 1}, "keep_geometric: expected true or false, got 1"),
    ],
)
def test_nonsense_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Retention(**settings)
