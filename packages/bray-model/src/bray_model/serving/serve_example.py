"""The line that `bray serve` prints for a user to try."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from bray_core.nested import ArraySpec, Nested
    from bray_model.export_files.manifest import Manifest

_HARMLESS = re.compile(r"[A-Za-z0-9_.*\[\](){},:/% '-]*")
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""A host that is listened on everywhere → where it is reached from here."""


def example(
    manifest: Manifest,
    address: str,
    *,
    token_env: str | None = None,
    certificate: str | Path | None = None,
    of_several: bool = False,
) -> str:
    """Return a line for a shell that asks a server once.

    Args:
        manifest: Manifest of the export, which tells what it takes.
        address: Address of the server; that of its HTTP port where `of_several` is set.
        token_env: Environment variable with the token that it wants.
        certificate: File of the server's certificate, with TLS.
        of_several: Whether the model must be named, because several are served.
    """
    address = _reachable(address)
    trusted = _quotable(str(certificate), "certificate.pem") if certificate is not None else ""
    token = _quotable(token_env, "TOKEN") if token_env is not None else ""
    if of_several:
        return _over_http(manifest, address, token, trusted)
    if manifest.actor is not None:
        token = f" --token-env {token}" if token else ""
        trusted = f"SSL_CERT_FILE='{trusted}' " if trusted else ""
        return f"{trusted}bray play ENVIRONMENT --address {address}{token}"
    inputs = ", ".join(_zeros(tree) for tree in manifest.signature.inputs)
    token = f", token=os.environ['{token}']" if token else ""
    trusted = f", certificate_authority='{trusted}'" if trusted else ""
    return (
        f'python -c "import {"os, " if token else ""}numpy as np; '
        "from bray_core.codec import decode, encode; "
        f"from bray_server import Client; print(decode(Client('{address}'{token}{trusted})"
        f'.call(encode([{_harmless(inputs, "inputs")}]))))"'
    )


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
