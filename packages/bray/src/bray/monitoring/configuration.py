"""Configuration of Prometheus and Grafana for runs and servers: `bray monitoring` writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from bray_core.errors import AlreadyExistsError, ConfigError
from bray_server.wire.address import Address

FILES = ("prometheus.yml", "dashboard.json")
TARGETS = ("127.0.0.1:9464", "127.0.0.1:7380")
"""Addresses of a run of `bray train --metrics-port 9464`, and of `bray serve`."""

_TARGET = re.compile(r"[A-Za-z0-9.:_\[\]-]+:[0-9]{1,5}")


def write_configuration(folder: Path, targets: Sequence[str] = TARGETS) -> list[Path]:
    """Write the configuration of Prometheus and the dashboard of Grafana; return their paths.

    Args:
        folder: folder of the files, made if it is absent.
        targets: address `host:port` of each run and server.

    Raises:
        ConfigError: a target is no `host:port`, or the folder cannot be written.
        AlreadyExistsError: one of the files is there already.
    """
    for target in targets:
        if not _is_address(target):
            raise ConfigError(
                "target: expected host:port, such as 127.0.0.1:7380 or [::1]:7380, with a port of "
                f"1 to 65535, got {target[:200]!r}"
            )
    texts = [files("bray.monitoring").joinpath(name).read_text() for name in FILES]
    texts[0] = texts[0].replace("TARGETS", ", ".join(f'"{target}"' for target in targets))
    paths = [folder / name for name in FILES]
    for path in paths:  # all are looked at before one is written
        if path.exists():
            raise AlreadyExistsError(f"folder: {path} exists already: choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
    except OSError as error:
        raise ConfigError(f"folder: {folder} cannot be written: {error.strerror}") from error
    return paths


def _is_address(target: str) -> bool:
    try:
        Address.parse(f"http://{target}")
    except ConfigError:
        return False
    return bool(_TARGET.fullmatch(target))
