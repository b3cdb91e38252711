"""Which versions stay on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bray_core.errors import ConfigError
from bray_core.settings.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt, check_fields

_GEOMETRIC_SPAN = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Rules that keep versions; one that any rule keeps stays, as do pinned ones.

    A version that was dropped would not have been kept by a later decision either, so the rules do
    not depend on how often they are applied.

    Raises:
        ConfigError: a value is out of range; names the field.
    """

    keep_last: PositiveInt = 10
    """Number of newest versions that stay. Typical: 5 to 50."""
    keep_every: NonNegativeInt = 0
    """Versions whose number is a multiple of this stay; 0 keeps none by this rule."""
    keep_every_minutes: NonNegativeFloat = 0.0
    """The first version of each span of this many minutes stays; 0 keeps none by this rule."""
    keep_geometric: bool = False
    """Whether ever fewer stay with age: of versions n steps old about one in n/4. The number of
    versions then grows with the logarithm of the newest."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.keep_geometric, bool):
            raise ConfigError(
                f"keep_geometric: expected true or false, got {self.keep_geometric!r}"
            )

    def kept(self, saved_s: Mapping[int, float], pinned: Iterable[int]) -> list[int]:
        """Return which versions stay, ascending.

        Args:
            saved_s: Version → when it was saved, seconds since 1970.
            pinned: Versions that stay in any case.
        """
        versions = sorted(saved_s)
        kept = {*versions[-self.keep_last :], *pinned} & set(versions)
        if self.keep_every:
            kept |= {v for v in versions if v % self.keep_every == 0}
        if self.keep_every_minutes:
            first: dict[int, int] = {}
            for version in sorted(versions, key=lambda v: (saved_s[v], v)):
                first.setdefault(int(saved_s[version] // (60 * self.keep_every_minutes)), version)
            kept |= set(first.values())
        if self.keep_geometric and versions:
            newest = versions[-1]
            # The largest power of two that divides a number says how long it is of use.
            kept |= {v for v in versions if v == 0 or newest - v < _GEOMETRIC_SPAN * (v & -v)}
        return sorted(kept)
