"""Settings of who plays the other sides of matches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bray_core.errors import ConfigError
from bray_core.settings.choice import check_choice
from bray_core.settings.ranges import Fraction, PositiveInt, check_fields

OpponentRule: TypeAlias = Literal["latest", "past", "pfsp", "champion", "league"]
OPPONENTS = ("random", "search")
"""Opponents that bray brings: by chance, and by a search in its own board games."""
_VERSION = re.compile(r"([^:]+:)?v\d+")
ROLES = ("main", "main_exploiter", "league_exploiter")
"""What a learner may be in a league."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpponentsConfig:
    """Who plays the other sides of matches: copies of the learners, new and old."""

    rule: OpponentRule = "pfsp"
    """Who is met. `latest`: the policy as it is now, which learns fast and may run in circles.
    `past`: a frozen version, drawn evenly. `pfsp`: a frozen version, drawn more often the harder it
    is to beat. `champion`: the frozen version with the best record. `league`: by the roles of
    several learners, of which exploiters look for the weaknesses of the others."""
    latest_share: Fraction = 0.5
    """Share of the games against the policy as it is now, whatever the rule; the rest is against
    frozen versions. 0.2 to 0.8: without any, play is against what was overcome long ago."""
    freeze_every: PositiveInt = 200_000
    """Environment steps of a learner between two frozen versions. Few make a crowd of near copies,
    many leave weaknesses that nobody reminds of. 100,000 to 5,000,000."""
    versions: PositiveInt = 20
    """Frozen versions that are kept as opponents; one that is beaten easily goes first."""
    roles: Mapping[str, Any] = field(default_factory=dict)
    """Role of each learner in a league, by the name of its agent: `main`, `main_exploiter` or
    `league_exploiter`."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, role in self.roles.items():
            check_choice(f"roles.{name}", role, ROLES)
        if (self.rule == "league") != bool(self.roles):
            got = f"got rule={self.rule} and {'roles' if self.roles else 'no roles'}"
            raise ConfigError(f"roles: expected those of all learners for rule=league alone, {got}")
        if self.roles and "main" not in self.roles.values():
            raise ConfigError(f"roles: expected one `main` or more, got {dict(self.roles)}")

    def check_unlike_sides(self) -> None:
        """Refuse rules that compare players of one side where each side has its own.

        Raises:
            ConfigError: it is such a rule; names those that are not.
        """
        if self.rule in ("league", "champion"):
            why = {
                "league": "its roles are for learners who play all sides",
                "champion": "a champion is who beats the one before, and those of a side never "
                "meet",
            }[self.rule]
            raise ConfigError(
                f"opponents.rule: expected pfsp, past or latest where each side has a policy of "
                f"its own, got {self.rule}: {why}"
            )


def is_version_name(name: str) -> bool:
    """Return whether a name is that of a frozen version, such as `v12` or `main:v12`."""
    return _VERSION.fullmatch(name) is not None


def is_opponent_name(name: str) -> bool:
    """Return whether a name is one of an opponent that is no agent, but for scripts of one's own.

    Args:
        name: `random`, `search`, a frozen version, or the folder of an export or a trial.
    """
    return name in OPPONENTS or is_version_name(name) or _is_folder(name)


def _is_folder(name: str) -> bool:
    try:
        return name != "" and Path(name).is_dir()
    except (OSError, ValueError):  # longer than a path may be, or with a zero byte
        return False
