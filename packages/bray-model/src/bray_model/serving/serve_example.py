"""The line that `bray serve` prints for a user to try."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bray_core.errors import ConfigError, ExportError
from bray_core.files.trial_folders import CONFIG
from bray_core.trials.played_source import played_source
from bray_model.export_files.agent_file import read_index

if TYPE_CHECKING:
    from bray_core.nested import ArraySpec, Nested
    from bray_model.export_files.manifest import Manifest

_HARMLESS = re.compile(r"[A-Za-z0-9_.*\[\](){},:/% '-]*")
_UNKNOWN = "ENVIRONMENT"
"""Word for users to fill in, where nothing tells what an agent plays."""
_MOST_ABOVE = 4
"""Folders between a trial and an export of it: `models/NAME/onnx/VERSION`."""
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""A host that is listened on everywhere → where it is reached from here."""


def example(
    manifest: Manifest,
    address: str,
    *,
    token_env: str | None = None,
    certificate: str | Path | None = None,
    of_several: bool = False,
    played: str = _UNKNOWN,
) -> str:
    """Return a line for a shell that asks a server once.

    Args:
        manifest: Manifest of the export, which tells what it takes.
        address: Address of the server; that of its HTTP port where `of_several` is set.
        token_env: Environment variable with the token that it wants.
        certificate: File of the server's certificate, with TLS.
        of_several: Whether the model must be named, because several are served.
        played: What `bray play` is given, see `played_by`.
    """
    address = _reachable(address)
    trusted = _quotable(str(certificate), "certificate.pem") if certificate is not None else ""
    token = _quotable(token_env, "TOKEN") if token_env is not None else ""
    if of_several:
        return _over_http(manifest, address, token, trusted)
    if manifest.actor is not None:
        token = f" --token-env {token}" if token else ""
        trusted = f"SSL_CERT_FILE='{trusted}' " if trusted else ""
        return f"{trusted}bray play {played} --address {address}{token}"
    inputs = ", ".join(_zeros(tree) for tree in manifest.signature.inputs)
    token = f", token=os.environ['{token}']" if token else ""
    trusted = f", certificate_authority='{trusted}'" if trusted else ""
    return (
        f'python -c "import {"os, " if token else ""}numpy as np; '
        "from bray_core.codec import decode, encode; "
        f"from bray_server import Client; print(decode(Client('{address}'{token}{trusted})"
        f'.call(encode([{_harmless(inputs, "inputs")}]))))"'
    )


def played_by(path: Path) -> str:
    """Return what `bray play` is given to play what an agent was trained in, quoted for a shell.

    Args:
        path: An agent file, a trial, or a folder of exports within one.

    Returns:
        The environment with its settings, or the trial, which says them; `ENVIRONMENT` where
        neither is known.
    """
    with contextlib.suppress(ConfigError, ExportError):
        if path.is_file():
            return _written(read_index(path).environment or {})
        for trial in (path, *list(path.absolute().parents)[:_MOST_ABOVE]):
            if (trial / CONFIG).is_file():
                shown = shlex.quote(_relative(trial))
                return shown if played_source(trial) and shown.isprintable() else _UNKNOWN
    return _UNKNOWN


def _written(environment: Mapping[str, Any]) -> str:
    """Return an environment and its settings as the command line takes them."""
    settings = {**environment}
    name = settings.pop("environment", None)
    kwargs = settings.pop("kwargs", {})
    if not isinstance(name, str) or not isinstance(kwargs, dict):
        return _UNKNOWN
    settings |= {f"kwargs.{key}": value for key, value in kwargs.items()}
    words = [name, *(f"{key}={json.dumps(value)}" for key, value in settings.items())]
    line = " ".join(map(shlex.quote, words))
    return line if line.isprintable() else _UNKNOWN


def _relative(folder: Path) -> str:
    """Return a folder as a user would write it, which has a slash, as `bray play` wants it."""
    here = Path.cwd()
    if not folder.is_absolute():
        folder = here / folder
    shown = str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
    return shown if "/" in shown else f"./{shown}"


def _over_http(manifest: Manifest, address: str, token: str, trusted: str) -> str:
    tree = manifest.signature.input_tree
    inputs = ", ".join(_tensor(p, s) for p, s in zip(tree.paths, tree.specs, strict=True))
    name = quote(manifest.name, safe="")
    url = f"{address}/v2/models/{_harmless(name, 'NAME')}/infer"
    headers = f", {{'Authorization': 'Bearer ' + os.environ['{token}']}}" if token else ""
    context = ", context=context" if trusted else ""
    made = f"context = ssl.create_default_context(cafile='{trusted}'); " if trusted else ""
    made += "context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN; " if trusted else ""
    modules = ["json", *["os"] * bool(token), *["ssl"] * bool(trusted), "urllib.request as web"]
    return (
        f'python -c "import {", ".join(modules)}; {made}'
        f"body = json.dumps({{'inputs': [{_harmless(inputs, 'inputs')}]}}).encode(); "
        f"print(web.urlopen(web.Request('{url}', body{headers}){context}).read().decode())\""
    )


def _tensor(path: str, spec: ArraySpec) -> str:
    from bray_model.serving.model_description import datatype

    count, zero = math.prod(spec.shape), "False" if spec.dtype.kind == "b" else "0"
    return (
        f"{{'name': {path!r}, 'datatype': '{datatype(spec.dtype)}', "
        f"'shape': {[1, *spec.shape]}, 'data': [{zero}]{f' * {count}' if count != 1 else ''}}}"
    )


def _reachable(address: str) -> str:
    for host, here in _ANY_HOST.items():
        address = address.replace(f"//{host}:", f"//{here}:")
    return address


def _harmless(text: str, instead: str) -> str:
    """Return a text that users may paste into a shell: names come from files."""
    return text if _HARMLESS.fullmatch(text) else instead


def _quotable(text: str, instead: str) -> str:
    """Return a text that may also stand between single quotes."""
    return instead if "'" in text else _harmless(text, instead)


def _zeros(tree: Nested) -> str:
    """Return a Python expression of zeros of a spec."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {_zeros(child)}" for key, child in tree.items()) + "}"
    if isinstance(tree, list | tuple):
        return "[" + ", ".join(_zeros(child) for child in tree) + "]"
    leaf: ArraySpec = tree
    return f"np.zeros({leaf.shape}, {leaf.dtype.name!r})"
