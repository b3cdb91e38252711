"""Which tests run in one process, one after another, when several processes share the suite."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling

ON_RAY = frozenset(
    f"test_{name}.py"
    for name in (
        *("remote", "remote_ranks", "remote_worker", "workers", "experiment"),
        *("several_gamecores", "source_kinds", "run"),
    )
)
"""Files of the default tier that start Ray: together they start it once."""
APART = frozenset({"test_combinations.py", "test_matrix.py"})
"""Files of minutes whose tests share nothing: each test goes to whoever is free."""


class Together(LoadFileScheduling):
    """By file; in the default tier what is on Ray together, and long files test by test."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        self._shares_ray = "not long" in (config.getoption("markexpr") or "")

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        name = file.rpartition("/")[2]
        if name in APART:
            return nodeid
        return "ray" if self._shares_ray and name in ON_RAY else file
