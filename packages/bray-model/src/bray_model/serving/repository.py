"""The exports that a server serves, followed as they change on disk."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from bray_core.errors import (
    BrayError,
    ConfigError,
    ExportError,
    NotFoundError,
    VersionNotFoundError,
)
from bray_core.nested import Nested
from bray_core.process import memory
from bray_core.protocols import Answer, Weights
from bray_model.config import ModelConfig
from bray_model.export.export_folder import find_exports
from bray_model.export.trial_inputs import random_inputs
from bray_model.export_files.manifest import MANIFEST, Manifest
from bray_model.model import Model
from bray_model.signature import Signature

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_STOP_S = 5.0
_TRIMS = 2
"""Scans that give memory back after a model went: the second finds what calls still held."""

FileStamp: TypeAlias = tuple[int, int, int]


class ServedModel:
    """Stands for the newest model of a name: each call goes to the model that is current then.

    A call that runs while the model is replaced is answered by the old one, which lives as long as
    somebody waits for it.
    """

    def __init__(self, model: Model, manifest: Manifest) -> None:
        self.current = model, manifest
        """Assign to replace both, by those of an export with the same signature."""

    @property
    def model(self) -> Model:
        """The model that answers now."""
        return self.current[0]

    @property
    def manifest(self) -> Manifest:
        """Manifest of its export."""
        return self.current[1]

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.manifest.name

    @property
    def version(self) -> int:
        """The version that the next batch will be answered with."""
        return self.model.version

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the model."""
        return self.model.signature

    async def infer(
        self,
        *inputs: Nested,
        batch: bool = False,
        session: str | None = None,
        must_exist: bool = False,
    ) -> Answer:
        """Answer like `Model.infer`; a session's state does not outlive the model that kept it."""
        model = self.model
        return await model.infer(*inputs, batch=batch, session=session, must_exist=must_exist)

    def end_session(self, session: str) -> None:
        """Drop the state of a session; see `Model.end_session`."""
        self.model.end_session(session)

    async def forward(self, *inputs: Nested, batch: bool = False) -> Nested:
        """Answer without the version; see `Model.forward`."""
        return (await self.infer(*inputs, batch=batch)).outputs

    def publish(self, weights: Weights) -> int:
        """Make new weights current; see `Model.publish`."""
        return self.model.publish(weights)

    def checkpoint(self) -> Path | None:
        """Return None: an export has no folder for checkpoints."""
        return self.model.checkpoint()

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """Wait for a version; see `Model.wait_version`."""
        return await self.model.wait_version(version, timeout_s)


class _Entry(NamedTuple):
    stamp: FileStamp
    manifest: Manifest
    model: Model


class ExportRepository:
    """Opens the exports below a path; `scan` takes up what was added, replaced or removed.

    An export that cannot be opened, such as one that is still being copied, changes nothing: what
    was served goes on. It is tried again at the next scan. So does one whose name and version
    another one answers with already. A removed export is no longer served,
    unless it was the last one of its name.

    Args:
        path: Export, trial, or folder of exports; see `find_exports`.
        config: Returns how to run an export.

    Raises:
        NotFoundError: there is no export.
        ExportError: an export is broken.
        ConfigError: two exports have the same name and version.
    """

    def __init__(self, path: Path, config: Callable[[Manifest], ModelConfig]) -> None:
        self._path = path
        self._config = config
        self._entries: Mapping[Path, _Entry] = {}
        self._missed: set[Path] = set()
        self._failed: dict[Path, str] = {}
        self._served: dict[str, ServedModel] = {}
        self._trims = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._take({export: self._open(export) for export in find_exports(path)})

    @property
    def names(self) -> list[str]:
        """Names of the models, sorted."""
        return sorted(self._served)

    def exports(self) -> dict[Path, Manifest]:
        """Return what is served, and from where."""
        return {export: entry.manifest for export, entry in self._entries.items()}

    def get(self, name: str) -> ServedModel:
        """Return the newest of a name; it is replaced when a newer one comes.

        Raises:
            NotFoundError: No model of that name is served.
        """
        served = self._served.get(name)
        if served is None:
            raise NotFoundError(f"model {name[:100]!r}: not served; served: {self.names}")
        return served

    def version(self, name: str, version: str) -> Model:
        """Return the model that answers with a version now.

        Raises:
            NotFoundError: the name is unknown.
            VersionNotFoundError: nobody answers with that version; names those that are.
        """
        models = self.models(name)
        for model in models:
            if str(model.version) == version:
                return model
        raise VersionNotFoundError(
            f"model {name!r}: version {version[:20]!r} is not served; "
            f"served: {[model.version for model in models]}"
        )

    def models(self, name: str) -> list[Model]:
        """Return all versions of a name, oldest first. Raises NotFoundError."""
        self.get(name)
        entries = [entry for entry in self._entries.values() if entry.manifest.name == name]
        return [entry.model for entry in sorted(entries, key=_age)]

    def follow(self) -> None:
        """Scan every second, in a thread, until `close`."""
        self._thread = threading.Thread(target=self._follow, name="bray-repository", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            try:
                self.scan()
            except Exception:  # the thread's boundary: it must go on
                logger.exception("looking for exports below %s failed", self._path)

    def scan(self) -> None:
        """Take up what changed since, and give back the memory of models that went."""
        before = self._stamps()
        self._look()
        if before - self._stamps():
            self._trims = _TRIMS
        if self._trims:
            self._trims -= 1
            memory.give_back()

    def _stamps(self) -> set[tuple[Path, FileStamp]]:
        return {(export, entry.stamp) for export, entry in self._entries.items()}

    def _look(self) -> None:
        entries: dict[Path, _Entry] = {}
        for export in _found(self._path):
            held = self._entries.get(export)
            others = {**self._entries, **entries}
            entry = self._opened(export, held, others)
            if entry is not None:
                entries[export] = entry
        self._failed = {path: why for path, why in self._failed.items() if path.exists()}
        self._keep_missed(entries)
        if entries != self._entries:
            try:
                self._take(entries)
            except BrayError as error:
                self._note_failure(self._path, error)

    def _opened(
        self, export: Path, held: _Entry | None, others: Mapping[Path, _Entry]
    ) -> _Entry | None:
        """Return the export of now, or the one before where it cannot be opened."""
        try:
            if held is not None and _stamp(export) == held.stamp:
                return held
            _check_version(export, others)  # a model that nobody could ask is not opened
            entry = self._open(export)
        except (BrayError, OSError) as error:
            self._note_failure(export, error)
            return held
        self._failed.pop(export, None)
        logger.info("%s version %d from %s", entry.manifest.name, entry.manifest.version, export)
        return entry

    def _note_failure(self, path: Path, error: Exception) -> None:
        if self._failed.get(path) != str(error):
            self._failed[path] = str(error)
            logger.warning("not taken up: %s", error)

    def _keep_missed(self, entries: dict[Path, _Entry]) -> None:
        """Keep what was there at the last scan: a folder that is replaced is away for a moment.

        And keep the newest of a name of which nothing is left.
        """
        gone = [export for export in self._entries if export not in entries]
        names = {entry.manifest.name for entry in entries.values()}
        versions = {(entry.manifest.name, _age(entry)) for entry in entries.values()}
        for export in sorted(gone, key=lambda export: _age(self._entries[export]), reverse=True):
            held = self._entries[export]
            if (held.manifest.name, _age(held)) in versions:
                continue  # it was moved
            if export not in self._missed or held.manifest.name not in names:
                entries[export] = held
                names.add(held.manifest.name)
        self._missed = set(gone)

    def _open(self, export: Path) -> _Entry:
        stamp = _stamp(export)
        manifest = Manifest.read(export)
        model = Model(export, name=manifest.name, config=self._config(manifest))
        try:
            model(*random_inputs(model.signature, 1), batch=True)  # allocates
        except Exception as error:  # the boundary to a graph that others made
            model.close()
            raise ExportError(f"{export}: it does not run: {error}") from error
        return _Entry(stamp, manifest, model)

    def _take(self, entries: Mapping[Path, _Entry]) -> None:
        newest: dict[str, _Entry] = {}
        seen: dict[tuple[str, int], Path] = {}
        for export, entry in entries.items():
            key = entry.manifest.name, _age(entry)
            if key in seen:
                raise _same_version(export, *key, seen[key])
            seen[key] = export
            held = newest.get(key[0])
            newest[key[0]] = entry if held is None else max(held, entry, key=_age)
        self._entries = entries
        self._served = {name: self._serve(entry) for name, entry in newest.items()}

    def _serve(self, entry: _Entry) -> ServedModel:
        """Let sessions go on with the new model, if they can."""
        served = self._served.get(entry.manifest.name)
        if served is None or _kind(served.manifest) != _kind(entry.manifest):
            return ServedModel(entry.model, entry.manifest)
        served.current = entry.model, entry.manifest
        return served

    def close(self) -> None:
        """Stop looking, and close the models."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)  # one that opens a large export may take longer
        for entry in self._entries.values():
            entry.model.close()


class NewestModel:
    """Stands for the newest model of a name, whatever its inputs: no session holds on to it.

    Args:
        repository: Holds the models.
        name: Name of the model.
    """

    def __init__(self, repository: ExportRepository, name: str) -> None:
        self._repository = repository
        self._name = name

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the model that answers now."""
        return self._repository.get(self._name).signature

    async def infer(self, *inputs: Nested, batch: bool = False) -> Answer:
        """Answer like `Model.infer`."""
        return await self._repository.get(self._name).infer(*inputs, batch=batch)


def _age(entry: _Entry) -> int:
    """Return the version that an export answers with: weights may have been published since."""
    return entry.model.version


def _check_version(export: Path, others: Mapping[Path, _Entry]) -> None:
    """Refuse an export whose version another one answers with. Raises ConfigError."""
    manifest = Manifest.read(export)
    for other, entry in others.items():
        taken = entry.manifest.name, _age(entry)
        if other == export or taken != (manifest.name, manifest.version):
            continue
        with contextlib.suppress(OSError):  # it is gone
            if _stamp(other) == entry.stamp:
                raise _same_version(export, *taken, other)


def _same_version(export: Path, name: str, version: int, other: Path) -> ConfigError:
    return ConfigError(
        f"{export}: is {name} version {version}, as is {other}: remove one, or give the newer one "
        "a higher number"
    )


def _kind(manifest: Manifest) -> tuple[Any, ...]:
    """What must be equal for a session to go on with another model."""
    return manifest.signature, manifest.actor


def _stamp(export: Path) -> FileStamp:
    status = (export / MANIFEST).stat()
    return status.st_mtime_ns, status.st_ino, status.st_size


def _found(path: Path) -> list[Path]:
    try:
        return find_exports(path)
    except NotFoundError:
        return []
