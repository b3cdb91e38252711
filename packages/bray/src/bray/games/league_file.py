"""The file of a league, `league.json` of a trial."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bray_core.errors import ConfigError, FormatError
from bray_core.files.saved_file import check_format, write_atomic

FORMAT = 2
"""Format number; the league files of `selfplay` and of matrix games have 1 and 0."""


def write_league(path: Path, state: Mapping[str, Any]) -> None:
    """Write a league's state: the whole file or nothing.

    Args:
        path: Path of the file.
        state: State as JSON takes it; the viewer reads `payoff` and `league.learners`.
    """
    write_atomic(path, json.dumps({"format": FORMAT, **state}).encode())


@contextmanager
def read_league(path: Path) -> Iterator[dict[str, Any]]:
    """Give what `write_league` wrote to a block that reads it.

    Raises:
        ConfigError: the file is no league's, or what the block finds in it is wrong.
        FormatError: a newer version of bray wrote it.
    """
    try:
        state = dict(json.loads(path.read_bytes()))
        check_format(path, state, FORMAT)
        if state.get("format") != FORMAT:
            raise ValueError(f"format {state.get('format', 0)}")
        yield state
    except FormatError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ConfigError(
            f"path: expected the file of a league of these learners at {path}, got {error}: move "
            "it away"
        ) from error
