"""The record of a launch: what ran, where, from which code, and how it ended.

    launches/<time>/launch.json     this record
    launches/<time>/config.yaml     its settings
    launches/<time>/config.before.yaml  those of the trial before, where they were others
    launches/<time>/changes.diff    what git had not committed of the working directory

Nothing of the environment is recorded; in the command line the values of options that are named
as secrets are left out.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from bray_core.errors import CodecError
from bray_core.files.json_file import read_object
from bray_core.trials.git import git_state

Ending: TypeAlias = Literal["finished", "interrupted", "failed"]

RECORD = "launch.json"
CHANGES = "changes.diff"
_FORMAT = 1
_MAX_ERROR_CHARS = 2000
_SECRET = re.compile(r"(?i)[-\w.]*(?:token|secret|password|passwd|credential|api[-_]?key)s?")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_HIDDEN = "***"
_YEAR_9999_S = 2.5e11
_MAX_MESSAGE_CHARS = 1000
"""Longest message about a broken record, in characters."""
_INSTALLED = ".dist-info"
_BY_SIGNAL = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
"""Exit codes of a process that a signal ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRecord:
    """One launch of a trial; times are seconds since 1970."""

    began_s: float
    command: tuple[str, ...]
    """The command line."""
    folder: str
    """The working directory."""
    host: str
    pid: int
    seed: int | None
    """Seed in the settings, if they name one."""
    commit: str | None
    """Git commit of the working directory."""
    is_changed: bool
    """Whether tracked files differed from the commit; `changes.diff` then shows how."""
    python: str
    platform: str
    packages: dict[str, str]
    """Version of each installed distribution."""
    ended_s: float | None = None
    ending: Ending | None = None
    """How the launch ended; None while it runs, and where its process was killed."""
    error: str | None = None
    """Error that the launch failed with."""

    @classmethod
    def begin(cls, launch: Path, seed: int | None) -> LaunchRecord:
        """Return the record of this process's launch, the changes written into its folder."""
        folder = Path.cwd()
        git = git_state(folder, launch / CHANGES)
        return cls(
            began_s=time.time(),
            command=_without_secrets(sys.argv),
            folder=str(folder),
            host=socket.gethostname(),
            pid=os.getpid(),
            seed=seed,
            commit=git.commit if git else None,
            is_changed=git is not None and git.is_changed,
            python=platform.python_version(),
            platform=platform.platform(),
            packages=_packages(),
        )

    def ended(self, error: BaseException | None) -> LaunchRecord:
        """Return the record of a launch that ends now, by an error or without."""
        ending = ending_of(error)
        text = f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS] if ending == "failed" else None
        return replace(self, ended_s=time.time(), ending=ending, error=text)

    def to_json(self) -> bytes:
        """Return the content of `launch.json`."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1).encode()

    @classmethod
    def read(cls, launch: Path) -> LaunchRecord | None:
        """Read the record in a launch's folder; None where there is none.

        Raises:
            CodecError: The file is no record.
        """
        path = launch / RECORD
        try:
            content = read_object(path)
            if content is None:
                return None
            if content.pop("format") != _FORMAT:
                raise ValueError("another format: it was written by another version of bray-core")
            known = {field.name for field in fields(cls)}
            made = msgspec.convert({n: v for n, v in content.items() if n in known}, cls)
            for at_s in (made.began_s, made.ended_s or 0.0):
                if not 0 <= at_s < _YEAR_9999_S:
                    raise ValueError(f"expected seconds since 1970, got {at_s}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CodecError(
                f"{path}: not the record of a launch: {error!r}"[:_MAX_MESSAGE_CHARS]
            ) from error
        return made


def ending_of(error: BaseException | None) -> Ending:
    """Return in a word how a launch ended that this error ended; None: it has finished."""
    code = error.code if isinstance(error, SystemExit) else None
    if isinstance(error, KeyboardInterrupt) or code in _BY_SIGNAL:
        return "interrupted"
    if error is None or (isinstance(error, SystemExit) and code in (None, 0)):
        return "finished"
    return "failed"


def _without_secrets(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without the values of options that are named as secrets."""
    shown: list[str] = []
    hides_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        is_secret = _SECRET.fullmatch(name) is not None
        if hides_next:
            shown.append(_HIDDEN)
        elif is_secret and equals:
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(_LOGIN.sub(_HIDDEN, word))
        hides_next = is_secret and not equals and name.startswith("-")
    return tuple(shown)


@functools.cache
def _packages() -> dict[str, str]:
    """Return the installed distributions, read from folder names: opening each takes long."""
    found: dict[str, str] = {}
    for place in sys.path:
        for folder in Path(place).glob(f"*{_INSTALLED}"):
            name, _, version = folder.name.removesuffix(_INSTALLED).partition("-")
            found.setdefault(name.replace("_", "-").lower(), version)
    return dict(sorted(found.items()))
