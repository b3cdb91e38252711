"""The git commit of a folder, and what has changed since."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

MAX_DIFF_BYTES = 1024 * 1024
_TIMEOUT_S = 5.0
_DIFF = ("-c", "core.fsmonitor=false", "diff", "HEAD", "--no-ext-diff", "--no-textconv")


@dataclass(frozen=True, slots=True)
class GitState:
    """The git commit of a folder."""

    commit: str
    is_changed: bool
    """Whether files that git tracks differ from the commit."""


def git_state(folder: Path, diff: Path) -> GitState | None:
    """Return a folder's commit, and write what was changed since to the file `diff`.

    Files that git does not track are not in it: secrets are often kept in such. Of a diff longer
    than `MAX_DIFF_BYTES` the beginning is kept; none is written where nothing has changed.

    Returns:
        The state; None without git, outside a repository, before its first commit, or if git takes
        seconds.
    """
    try:
        commit = _git(folder, "rev-parse", "--verify", "HEAD", output=subprocess.PIPE)
        with diff.open("wb") as file:
            _git(folder, *_DIFF, output=file)
    except (OSError, subprocess.SubprocessError):
        diff.unlink(missing_ok=True)
        return None
    size = diff.stat().st_size
    if size > MAX_DIFF_BYTES:
        os.truncate(diff, MAX_DIFF_BYTES)
        with diff.open("ab") as file:
            file.write(b"\n[cut: %d bytes in all]\n" % size)
    if not size:
        diff.unlink()
    return GitState(commit.decode(errors="replace").strip(), is_changed=size > 0)


def _git(folder: Path, *arguments: str, output: object) -> bytes:
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # we only look
        stdin=subprocess.DEVNULL,
        stdout=output,  # type: ignore[call-overload]
        stderr=subprocess.DEVNULL,
        timeout=_TIMEOUT_S,
        check=True,
    )
    result: bytes = done.stdout or b""
    return result
