"""Handlers that take the log records of all packages of bray, at level INFO."""

from __future__ import annotations

import logging

_PACKAGES = (
    "bray", "bray_core", "bray_server", "bray_model", "bray_buffer", "bray_trainer", "bray_actor",
)  # fmt: skip
_attached: set[logging.Handler] = set()
_lowered: list[logging.Logger] = []


def attach_handler(handler: logging.Handler) -> None:
    """Give a handler the records of all loggers, and INFO records of bray's own loggers, too.

    A logger whose level somebody set keeps it.
    """
    logging.getLogger().addHandler(handler)
    _attached.add(handler)
    loggers = [logging.getLogger(package) for package in _PACKAGES]
    unset = [logger for logger in loggers if logger.level == logging.NOTSET]
    for logger in unset:
        logger.setLevel(logging.INFO)
    _lowered.extend(unset)


def has_other_handlers() -> bool:
    """Whether the program has set up logging by itself, so that it shows records as it wants."""
    return not _attached.issuperset(logging.getLogger().handlers)


def detach_handler(handler: logging.Handler) -> None:
    """Undo `attach_handler`; the levels go back with the last handler."""
    logging.getLogger().removeHandler(handler)
    _attached.discard(handler)
    while _lowered and not _attached:
        _lowered.pop().setLevel(logging.NOTSET)
