"""Weights for several serving processes: one publishes, the others follow, in shared memory.

What is published belongs to an export: a folder that the processes share has a link by the digest
of its manifest, to the file of its weights. So no process gives an export the weights of another.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from bray_core.errors import BrayError, ConfigError, NotFoundError
from bray_core.layout import Layout
from bray_core.protocols import Weights
from bray_model.config import ModelConfig
from bray_model.distributed.shared_weights import WeightsReader, WeightsWriter
from bray_model.engines.definition import read_weights
from bray_model.export.export_folder import find_exports
from bray_model.export_files.manifest import EXCHANGE, QUANTIZED, Manifest
from bray_model.serving.repository import ExportRepository
from bray_model.versions.weights import WeightsCheck, WeightsStamp, weights_spec

logger = logging.getLogger(__name__)

_LOOK_S = 0.005


class SharedPublisher:
    """Publishes new weights to the serving processes that follow.

    Args:
        path: Export, trial or folder that they serve.
        folder: Folder shared with them.
        config: Returns how they run an export.
    """

    def __init__(self, path: Path, folder: Path, config: Callable[[Manifest], ModelConfig]) -> None:
        self._path = path
        self._folder = folder
        self._config = config
        self._lock = threading.Lock()
        self._open: dict[str, tuple[WeightsWriter, WeightsCheck, Layout]] = {}
        """Digest of an export → its file, and what its weights are like."""

    def publish(self, name: str, weights: Weights) -> int:
        """Make a copy of `weights` current in all processes, soon, and return its version.

        Raises:
            NotFoundError: no model of that name is served.
            ConfigError: The weights of the export are fixed.
            SpecError: a name, shape or dtype differs, or a number is not finite; names the
                parameter.
        """
        with self._lock:
            export, manifest = self._newest(name)
            backend = self._config(manifest).backend
            if EXCHANGE not in manifest.files or backend in QUANTIZED:
                raise ConfigError(
                    f"model {name!r}: the weights of this export are fixed (backend {backend}): "
                    "serve it with --backend auto, or export the module again"
                )
            key = _digest(manifest)
            if key not in self._open:
                check = WeightsCheck(read_weights(export, manifest))
                layout = Layout(check.spec)
                self._open[key] = WeightsWriter(layout.nbytes), check, layout
            writer, check, layout = self._open[key]
            check(weights)
            version = max(manifest.version, writer.version) + 1
            writer.publish(WeightsStamp.of(version), layout.pack(dict(weights)))
            with contextlib.suppress(FileExistsError):
                (self._folder / key).symlink_to(writer.path)
        return version

    def _newest(self, name: str) -> tuple[Path, Manifest]:
        manifests = [(export, Manifest.read(export)) for export in find_exports(self._path)]
        mine = [found for found in manifests if found[1].name == name]
        if not mine:
            served = sorted({manifest.name for _, manifest in manifests})
            raise NotFoundError(f"model {name[:100]!r}: not served; served: {served}")
        return max(mine, key=lambda found: self._version(found[1]))

    def _version(self, manifest: Manifest) -> tuple[int, bool]:
        """Return what an export answers with, and whether that was published.

        Of two with one number the other is not served: see `ExportRepository`.
        """
        found = self._open.get(_digest(manifest))
        published = -1 if found is None else found[0].version
        return max(manifest.version, published), published >= 0

    def close(self) -> None:
        """Remove the files."""
        for writer, _, _ in self._open.values():
            writer.close()


class SharedFollower:
    """Takes weights that are published for the models of a repository: at once, then in a thread.

    Args:
        repository: Models that follow.
        folder: Folder of the publisher.
    """

    def __init__(self, repository: ExportRepository, folder: Path) -> None:
        self._repository = repository
        self._folder = folder
        self._readers: dict[str, tuple[WeightsReader, Layout]] = {}
        self._digests: dict[str, tuple[Manifest, str]] = {}
        self._stopped = threading.Event()
        self._look_at_all()
        self._thread = threading.Thread(target=self._follow, name="bray-follower", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            self._look_at_all()

    def _look_at_all(self) -> None:
        for name in self._repository.names:
            try:
                self._look(name)
            except (BrayError, OSError) as error:
                logger.warning("model %s: what was published was not taken: %s", name, error)
        self._drop_gone()

    def _drop_gone(self) -> None:
        """Close what was published for exports that are served no longer."""
        for name in set(self._digests).difference(self._repository.names):
            del self._digests[name]
        served = {digest for _, digest in self._digests.values()}
        for digest in set(self._readers) - served:
            self._readers.pop(digest)[0].close()

    def _look(self, name: str) -> None:
        model, manifest = self._repository.get(name).current
        if self._digests.get(name, (None, ""))[0] is not manifest:
            self._digests[name] = manifest, _digest(manifest)
        key = self._digests[name][1]
        if key not in self._readers:
            link = self._folder / key
            if not link.is_symlink():
                return
            layout = Layout(weights_spec(model.weights()[1]))
            self._readers[key] = WeightsReader(os.readlink(link)), layout
        reader, layout = self._readers[key]
        if reader.version > model.version:
            stamp, block = reader.read()
            model.publish(layout.views(block), version=stamp.version)

    def close(self) -> None:
        """Stop."""
        self._stopped.set()
        self._thread.join()
        for reader, _ in self._readers.values():
            reader.close()


def _digest(manifest: Manifest) -> str:
    return hashlib.blake2b(manifest.to_json(), digest_size=16).hexdigest()
