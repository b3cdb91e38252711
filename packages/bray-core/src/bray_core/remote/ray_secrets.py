"""Protects a Ray cluster that bray starts from the other users of its machine.

Whoever has Ray's token, or can put a socket of their own in the place of one of Ray's, runs code as
the user. Ray makes the token's file readable for all and its session folders writable for all; so
bray makes the file first, and puts the sessions into a folder that is the user's alone.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import tempfile
from pathlib import Path

from bray_core.errors import ConfigError

logger = logging.getLogger(__name__)

_GIVEN = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_MAX_FOLDER_CHARS = 35
"""Longest folder name: a Unix socket's path has 107 characters, of which Ray appends 70."""


def token_file() -> Path:
    """Return the path of the file in which Ray looks for the user's token."""
    return Path.home() / ".ray" / "auth_token"


def secure_token(*, create: bool) -> None:
    """Let no other user read the token file. A file of another owner stays as it is.

    Args:
        create: Whether to make a missing file, where Ray is to have one.

    Raises:
        ConfigError: The file cannot be made; names the variable that may hold the token instead.
    """
    path = token_file()
    if create and _wants_file() and _is_empty(path):
        try:
            _make(path)
        except OSError as error:
            raise ConfigError(
                f"ray: cannot write its token to {path}: {error.strerror or error}: make the "
                "folder writable, or set RAY_AUTH_TOKEN"
            ) from error
    for place in (path.parent, path):
        _close_to_others(place)


def _wants_file() -> bool:
    mode = os.environ.get("RAY_AUTH_MODE", "token").lower()
    return mode == "token" and not any(os.environ.get(name) for name in _GIVEN)


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except (FileNotFoundError, NotADirectoryError):
        return True


def _make(path: Path) -> None:
    """Write a token whole, for the owner alone; of several processes that do so one wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32))
        try:
            os.link(temporary, path)
        except FileExistsError:
            if _is_empty(path):  # such as Ray leaves when it is killed as it writes
                Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _close_to_others(place: Path) -> None:
    """Take all rights of group and others from a file or folder of this user."""
    try:
        status = place.stat()
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o077:
            place.chmod(stat.S_IMODE(status.st_mode) & 0o700)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:  # such as a secret that is mounted read-only
        logger.warning("ray: %s: others may read it: %s", place, error)


def session_folder() -> str | None:
    """Return a folder for Ray's sessions, below one that this user alone may enter.

    None where no such folder can be had: the sessions then lie where Ray puts them.
    """
    base = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    for place in (base, Path("/tmp")):
        folder = place / f"ray-{os.geteuid()}"
        if len(str(folder)) <= _MAX_FOLDER_CHARS and _is_own(folder):
            return str(folder / "ray")  # Ray opens this one to all, but none gets to it
    logger.warning("ray: %s: no folder there is this user's alone: others may reach Ray's", base)
    return None


def _is_own(folder: Path) -> bool:
    """Make a folder that only this user may enter; return whether it is one now."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()  # not what another user's link points at
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        folder.chmod(0o700)
    except OSError:
        return False
    return True
