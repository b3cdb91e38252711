"""Versions of a model that stay under a name, on disk and across restarts, in either runtime."""

from __future__ import annotations

from typing import Any

from bray_core.errors import NotFoundError


def freeze(model: Any, name: str) -> int:
    """Keep what a model answers with now under a name for ever, and return its version.

    Args:
        model: a `Model` or `RemoteModel` with a directory.
        name: new among its clones; `frozen` finds it.

    Raises:
        AlreadyExistsError: it has a clone of that name.
        CheckpointError: the version cannot be written.
    """
    model.checkpoint()
    version = int(model.version)
    model.pin(version)  # for those who open it after a restart
    model.clone(version, name)
    return version


def frozen(model: Any, name: str, version: int) -> Any:
    """Return the model of a frozen version.

    Raises:
        VersionNotFoundError: it is not in the model's directory any more.
    """
    try:
        return model.get_clone(name)
    except NotFoundError:  # on Ray, after a restart: the file is there, its name is not
        return model.clone(version, name)
