"""The manifest of an export: its signature, version, actor, and the checksums of its files.

An export is a folder:

    model.onnx             the graph; its tensors are named by the leaf paths of the signature
    exchange.onnx          the same graph with its weights as inputs, where that is possible
    weights.safetensors    what model.onnx holds as weights, beside exchange.onnx
    manifest.json          this
    report.json            how far it differs from the torch module
    int8.onnx and others   what `bray quantize` added: the same graph in fewer bits

Everything in a manifest is checked when it is read, and nothing in it is evaluated or imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from bray_core.errors import ExportError, SpecError
from bray_core.nested import ArraySpec, Nested
from bray_model.config import Backend
from bray_model.export_files.confined_file import open_inside
from bray_model.export_files.graph_files import external_files
from bray_model.signature import Signature

FORMAT = 1
GRAPH = "model.onnx"
EXCHANGE = "exchange.onnx"
WEIGHTS = "weights.safetensors"
REPORT = "report.json"
MANIFEST = "manifest.json"
QUANTIZED = {kind: f"{kind}.onnx" for kind in ("int8", "int8-dynamic", "float16")}
"""Kind → file: graphs in fewer bits, with fixed weights, that an export may also hold."""

_MAX_BYTES = 1024 * 1024
_MAX_GRAPH_BYTES = 2**31
"""What Protocol Buffers can hold: larger networks keep their weights in files beside the graph."""
_MAX_FILE_BYTES = 2**36
_MAX_RECOMMENDED = 4096
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DTYPES = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
_KEYS = ("name", "version", "inputs", "outputs", "actor", "files")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeRecommendation:
    """What `bray bench` found best to serve an export with, on the machine where it ran."""

    num_threads: int
    max_batch_size: int
    backend: Backend = "auto"
    """Backend as in `ModelConfig`; a quantised one only if it decides like the float graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What an export says of itself."""

    name: str
    version: int
    signature: Signature
    actor: Mapping[str, Any] | None
    """`{"name": ..., "config": {...}}`: an installed entry point of `bray.actors`, or None."""
    files: Mapping[str, str]
    """File name → sha256."""
    recommended: ServeRecommendation | None = None
    """What to serve it with."""
    made_with: Mapping[str, str] = field(default_factory=dict)
    """What made it: the versions of torch, onnxruntime and others, `opset`, the type of the
    weights; empty for an export of an earlier bray-model."""

    def to_json(self) -> bytes:
        """Return the content of `manifest.json`."""
        content = {
            "format": FORMAT,
            "name": self.name,
            "version": self.version,
            "inputs": _spec_to_json(self.signature.inputs),
            "outputs": _spec_to_json(self.signature.outputs),
            "actor": self.actor,
            "files": {name: {"sha256": digest} for name, digest in self.files.items()},
        }
        if self.signature.state:
            content["state"] = dict(self.signature.state)
        if self.recommended is not None:
            content["recommended"] = asdict(self.recommended)
        if self.made_with:
            content["made_with"] = dict(self.made_with)
        return json.dumps(content, indent=2).encode() + b"\n"

    @classmethod
    def read(cls, export: Path) -> Manifest:
        """Read and check the manifest in the folder `export`; `read_file` checks the rest.

        Raises:
            ExportError: The manifest is absent, malformed or of another format version.
        """
        path = export / MANIFEST
        if not path.is_file():
            raise ExportError(f"{export}: not an export, it has no {MANIFEST}")
        if path.stat().st_size > _MAX_BYTES:
            raise ExportError(f"{path}: larger than {_MAX_BYTES} bytes: not a manifest")
        with open_inside(export, MANIFEST, _MAX_BYTES) as file:
            data = file.read(_MAX_BYTES)
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ExportError(f"{path}: not JSON ({error}): export again") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            got = content.get("format") if isinstance(content, dict) else content
            raise ExportError(
                f"{path}: expected format {FORMAT}, got {got!r}: export again with this "
                "bray-model, or open it with the one that wrote it"
            )
        try:
            return cls._from_json(content)
        except (ValueError, RecursionError) as error:
            raise ExportError(f"{path}: {error}") from error

    @classmethod
    def _from_json(cls, content: dict[str, Any]) -> Manifest:
        for key in _KEYS:
            if key not in content:
                raise ValueError(f"{key}: missing")
        name, version, actor = content["name"], content["version"], content["actor"]
        if not isinstance(name, str) or not name.isprintable():
            raise ValueError(f"name: expected printable text, got {name!r}")
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise ValueError(f"version: expected 0 or more, got {version!r}")
        inputs = _spec_from_json(content["inputs"], "inputs")
        if not isinstance(inputs, tuple):
            raise ValueError("inputs: expected a tuple, one entry per argument")
        outputs = _spec_from_json(content["outputs"], "outputs")
        return cls(
            name=name,
            version=version,
            signature=Signature(inputs, outputs, content.get("state", {})),
            actor=_checked_actor(actor),
            files=_checked_files(content["files"]),
            recommended=_checked_recommendation(content.get("recommended")),
            made_with=_checked_origin(content.get("made_with", {})),
        )

    def read_file(self, export: Path, name: str) -> bytes:
        """Read a file of the export and compare its checksum.

        Raises:
            ExportError: The manifest does not list the file, or it is absent, changed, no plain
                file or outside the folder.
        """
        with self._opened(export, name) as file:
            return file.read()

    def read_graph(self, export: Path, name: str) -> bytes:
        """Read a graph of the export, and compare the checksums of all files that it names.

        Raises:
            ExportError: `read_file` refuses a file, or the graph names one that the manifest
                does not list.
        """
        graph = self.read_file(export, name)
        for file in external_files(graph, str(export / name)):
            if file not in self.files:
                raise ExportError(
                    f"{export / name}: keeps data in {file[:200]!r}, which is no file that "
                    f"{MANIFEST} lists: a graph reads nothing but files of its export, whose "
                    "checksums are compared"
                )
            self.check_file(export, file)
        return graph

    def check_file(self, export: Path, name: str) -> None:
        """Compare the checksum of a file, however large; errors as for `read_file`."""
        with self._opened(export, name):
            pass

    @contextlib.contextmanager
    def _opened(self, export: Path, name: str) -> Iterator[BufferedReader]:
        """Open a file whose checksum is right, at its beginning."""
        if name not in self.files:
            raise ExportError(
                f"{export / MANIFEST}: files: expected {name}, got {list(self.files)}"
            )
        limit = _MAX_GRAPH_BYTES if name.endswith(".onnx") else _MAX_FILE_BYTES
        with open_inside(export, name, limit) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.files[name]:
                raise ExportError(
                    f"{export / name}: its {file.tell()} bytes do not have the checksum of "
                    f"{MANIFEST}: it is truncated or was changed; copy the export again"
                )
            file.seek(0)
            yield file


def file_sha256(path: Path) -> str:
    """Return the hexadecimal digest of a file, however large."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(data: bytes) -> str:
    """Return the hexadecimal digest."""
    return hashlib.sha256(data).hexdigest()


def check_files(export: Path) -> Manifest:
    """Read a manifest and compare every file that it lists; return it."""
    manifest = Manifest.read(export)
    for name in manifest.files:
        if name.endswith(".onnx"):
            manifest.read_graph(export, name)
        else:
            manifest.check_file(export, name)
    return manifest


def _checked_actor(actor: Any) -> Mapping[str, Any] | None:
    if actor is None:
        return None
    if (
        not isinstance(actor, dict)
        or set(actor) != {"name", "config"}
        or not isinstance(actor["name"], str)
        or not isinstance(actor["config"], dict)
    ):
        raise ValueError(
            f'actor: expected null or {{"name": text, "config": {{...}}}}, got {actor!r}'
        )
    return actor


def _checked_recommendation(given: Any) -> ServeRecommendation | None:
    if given is None:
        return None
    names = ["num_threads", "max_batch_size"]
    if not isinstance(given, dict) or set(given) - {"backend"} != set(names):
        raise ValueError(f"recommended: expected {names} and perhaps 'backend', got {given!r}")
    if given.get("backend", "auto") not in ("auto", *QUANTIZED):
        raise ValueError(
            f"recommended/backend: expected auto, {', '.join(QUANTIZED)}, got {given['backend']!r}"
        )
    for name in names:
        number = given[name]
        if type(number) is not int or not 1 <= number <= _MAX_RECOMMENDED:
            raise ValueError(
                f"recommended/{name}: expected 1 to {_MAX_RECOMMENDED}, got {number!r}"
            )
    return ServeRecommendation(**given)


def _checked_origin(given: Any) -> Mapping[str, str]:
    if not isinstance(given, dict) or not all(
        isinstance(text, str) and text.isprintable() for text in given.values()
    ):
        raise ValueError(f"made_with: expected name → printable text, got {given!r}")
    return given


def _checked_files(files: Any) -> Mapping[str, str]:
    """Only plain file names: a manifest must not lead out of its folder."""
    if not isinstance(files, dict):
        raise ValueError(f"files: expected name → sha256, got {files!r}")
    for name, entry in files.items():
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"files: expected a plain file name, got {name!r}")
        if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
            raise ValueError(f'files/{name}: expected {{"sha256": text}}, got {entry!r}')
    return {name: entry["sha256"] for name, entry in files.items()}


def _spec_to_json(node: Nested) -> Any:
    """A node is `{"dict": {...}}`, `{"list": [...]}`, `{"tuple": [...]}` or a leaf."""
    if isinstance(node, ArraySpec):
        return {"dtype": node.dtype.name, "shape": list(node.shape)}
    if isinstance(node, dict):
        return {"dict": {key: _spec_to_json(child) for key, child in node.items()}}
    kind = "list" if isinstance(node, list) else "tuple"
    return {kind: [_spec_to_json(child) for child in node]}


def _spec_from_json(node: Any, path: str) -> Nested:
    match node:
        case {"dtype": str(dtype), "shape": list(shape)} if dtype in _DTYPES:
            if not all(type(size) is int and size >= 0 for size in shape):
                raise SpecError(f"{path}: expected a shape of sizes, got {shape}")
            return ArraySpec(np.dtype(dtype), tuple(shape))
        case {"dict": dict(children)} if len(node) == 1:
            return {k: _spec_from_json(child, f"{path}/{k}") for k, child in children.items()}
        case {"list": list(children)} if len(node) == 1:
            return [_spec_from_json(c, f"{path}[{i}]") for i, c in enumerate(children)]
        case {"tuple": list(children)} if len(node) == 1:
            return tuple(_spec_from_json(c, f"{path}[{i}]") for i, c in enumerate(children))
    raise SpecError(
        f'{path}: expected "dtype" and "shape", or "dict", "list" or "tuple", got {node!r}'
    )
