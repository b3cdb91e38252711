"""Every error that bray raises on purpose, in one tree.

    BrayError
    ├── ConfigError(ValueError)          a setting is unknown, of the wrong type or out of range
    │   └── SettingsError                all mistakes in a file of settings
    ├── SpecError(ValueError)            an array does not fit the structure, dtype or shape
    ├── CodecError(ValueError)           bytes are not a valid encoding, or exceed a bound
    │   └── FormatError                  a file was saved by a newer version of bray
    ├── ExportError                      an export is broken, or differs from its model
    ├── MissingExtraError(ImportError)   an optional dependency is absent; names the extra
    ├── AlreadyExistsError               a name is taken
    ├── NotFoundError(LookupError)       a name is unknown
    │   └── VersionNotFoundError         a model version is unknown
    ├── CapacityError                    a bounded queue, pool or session table is full
    ├── ClosedError                      the component was closed while it was used
    ├── DeadlineError(TimeoutError)      a wait took longer than its deadline
    ├── PortInUseError(OSError)          a port could not be bound
    ├── RefusedFileError(OSError)        a file is no regular one, too long, or lies elsewhere
    ├── ServiceError                     a server answered with an error: `code` and `message`
    └── WorkerLostError                  a worker process died

A message says what is wrong, what came, what was expected, and the cure.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


class BrayError(Exception):
    """The root of all errors that bray raises on purpose."""


class ConfigError(BrayError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in settings."""

    place: str
    """Place where the setting was written: `file:line:column`, or the command line."""
    key: str
    """Dotted name of the setting; empty where the mistake concerns several."""
    text: str
    """The setting's name, what was expected and what came."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class SettingsError(ConfigError):
    """All mistakes in settings, one line each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[SettingsError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class SpecError(BrayError, ValueError):
    """An array does not fit the expected structure, dtype or shape; names the leaf's path."""


class CodecError(BrayError, ValueError):
    """Bytes are not a valid encoding, or exceed a bound."""


class FormatError(CodecError):
    """A file was saved by a newer version of bray, in a format that this one does not know."""


class ExportError(BrayError):
    """An export is broken, or differs from the model that it came from."""


class MissingExtraError(BrayError, ImportError):
    """An optional dependency is absent; `name` is the module's, where its import was tried."""

    def __init__(self, what: str, distribution: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: install {distribution}[{extra}]")
        tried = sys.exception()
        self.name = tried.name if isinstance(tried, ImportError) else None
        self._arguments = (what, distribution, extra)

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return type(self), self._arguments


class AlreadyExistsError(BrayError):
    """A name is already taken."""


class NotFoundError(BrayError, LookupError):
    """A name is unknown."""


class VersionNotFoundError(NotFoundError):
    """A model version is unknown."""


class CapacityError(BrayError):
    """A bounded queue, pool or session table is full."""


class ClosedError(BrayError):
    """The component was closed while it was used."""


class DeadlineError(BrayError, TimeoutError):
    """A wait took longer than its deadline."""


class PortInUseError(BrayError, OSError):
    """A port could not be bound."""

    def __init__(self, host: str, port: int, cure: str) -> None:
        super().__init__(f"port {port} on {host} is already in use: {cure}")
        self.port = port
        self._arguments = (host, port, cure)

    def __reduce__(self) -> tuple[type[PortInUseError], tuple[str, int, str]]:
        return type(self), self._arguments


class RefusedFileError(BrayError, OSError):
    """A file is no regular one, longer than its reader takes, or lies outside the allowed folders.

    `strerror` is the reason without the file's name.
    """


class ServiceError(BrayError):
    """A server answered a request with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[ServiceError], tuple[str, str]]:
        return type(self), (self.code, self.message)


class WorkerLostError(BrayError):
    """A worker process died."""
