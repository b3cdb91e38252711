"""Sessions of `bray serve` on disk: a data set that training goes on from."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from bray_core.errors import ConfigError, NotFoundError
from bray_core.files.output_file import check_output_folder
from bray_server.sessions.services import Service, sort_service

_GROUP = "bray.recorders"
_NAME = "episodes"
_MAX_WAITING = 16
"""Episodes in memory that wait for the disk; further ones are lost, and no answer waits."""


def record_share(
    service: Service, *, share: float, folder: Path, max_files: int
) -> tuple[Service, Callable[[], None]]:
    """Return the same service, some of whose sessions are recorded, and what ends the recording.

    Args:
        service: What answers sessions.
        share: Share of the sessions that is recorded, 0 to 1; with 0 nothing is.
        folder: Folder of the files, one for each session.
        max_files: Number of files beyond which the oldest is deleted.

    Raises:
        ConfigError: the service has no sessions, or nothing can be written into the folder.
        NotFoundError: no installed package brings a recorder.
    """
    if not share:
        return service, _nothing
    sessions, _ = sort_service(service)
    if sessions is None:
        raise ConfigError(
            "--record-share: expected a served policy whose actor answers sessions, got a bare "
            "model: leave the option out, or name one with --model"
        )
    check_output_folder("--record-folder", folder)
    recorder = _recorder_class()(folder, share=share, max_files=max_files, max_waiting=_MAX_WAITING)
    recorded: Service = recorder.record(sessions)
    return recorded, recorder.close


def _recorder_class() -> Any:
    for found in entry_points(group=_GROUP, name=_NAME):
        return found.load()
    raise NotFoundError(
        "--record-share: no installed package brings a recorder: install bray-actor"
    )


def _nothing() -> None:
    """Do nothing."""
