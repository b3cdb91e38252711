"""`bray serve`, `bray export`, `bray validate` and `bray bench`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bray_core.cli import Command
from bray_core.errors import ConfigError, PortInUseError

if TYPE_CHECKING:
    from bray_core.nested import ArraySpec, Nested
    from bray_model.manifest import Manifest
    from bray_server import ServerThread
    from bray_server.sessions import Service

TCP_PORT = 7300
HTTP_PORT = 7380

_DRAIN_S = 3.0
_HARMLESS = re.compile(r"[A-Za-z0-9_.\[\](){},: '-]*")


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", type=Path, help="an export, or a trial: its newest export"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--tcp-port", type=int, default=TCP_PORT, help="0 takes any free port")
    parser.add_argument("--http-port", type=int, default=HTTP_PORT, help="0 takes any free port")
    parser.add_argument(
        "--token-env", metavar="NAME", help="environment variable with the token to ask for"
    )
    parser.add_argument(
        "--max-batch-size",
        type=int,
        help="rows of one forward; by default what `bray bench` recommended, else 64",
    )
    parser.add_argument(
        "--threads",
        type=int,
        help="threads of one forward; by default what `bray bench` recommended, else 1",
    )
    parser.add_argument(
        "--max-wait-us", type=int, default=0, help="how long a row waits for company"
    )


def _serve(options: argparse.Namespace) -> int:
    from bray_model.config import ModelConfig
    from bray_model.export_folder import find_export
    from bray_model.manifest import Manifest
    from bray_model.model import Model
    from bray_model.service import make_service

    tokens = _tokens(options.token_env)
    export = find_export(options.path)
    manifest = Manifest.read(export)
    found = manifest.recommended
    size, threads = options.max_batch_size, options.threads
    if size is None:
        size = found.max_batch_size if found else 64
    if threads is None:
        threads = found.num_threads if found else 1
    config = ModelConfig(max_batch_size=size, max_wait_us=options.max_wait_us, num_threads=threads)

    def say(server: ServerThread) -> None:
        _say(f"serving {manifest.name} version {manifest.version} from {export}")
        _say(f"listening on {' and '.join(server.addresses)}")
        _say(f"try: {_example(manifest, server.addresses[0])}")

    with Model(export, name=manifest.name, config=config) as model:
        _host(make_service(model, manifest.actor), options, tokens, say)
    _say("stopped")
    return 0


def _host(
    service: Service,
    options: argparse.Namespace,
    tokens: list[str],
    on_start: Callable[[ServerThread], None],
) -> None:
    """Serve until a signal; a port that does not fit is named by its option."""
    from bray_server import serve as host

    for option in ("tcp_port", "http_port"):
        if not 0 <= getattr(options, option) <= 65535:
            name = option.replace("_", "-")
            raise ConfigError(f"--{name}: expected 0 to 65535, got {getattr(options, option)}")
    try:
        host(
            service,
            drain_s=_DRAIN_S,
            on_start=on_start,
            host=options.host,
            tcp_port=options.tcp_port,
            http_port=options.http_port,
            tokens=tokens,
        )
    except PortInUseError as error:
        http = "http port" in str(error)
        name, port = (
            ("--http-port", options.http_port) if http else ("--tcp-port", options.tcp_port)
        )
        cure = f"choose another with {name}, or 0 for any free one"
        raise PortInUseError(options.host, port, cure) from error


def _tokens(variable: str | None) -> list[str]:
    if variable is None:
        return []
    token = os.environ.get(variable, "")
    if not token:
        raise ConfigError(f"--token-env: environment variable {variable} is not set, or empty")
    return [token]


def _example(manifest: Manifest, address: str) -> str:
    if manifest.actor is not None:
        return f"bray play ENVIRONMENT --address {address}"
    inputs = ", ".join(_zeros(tree) for tree in manifest.signature.inputs)
    if not _HARMLESS.fullmatch(inputs):  # names from a file, and users paste what they read
        inputs = "inputs"
    return (
        'python -c "import numpy as np; from bray_core.codec import decode, encode; '
        f"from bray_server import Client; print(decode(Client('{address}')"
        f'.call(encode([{inputs}]))))"'
    )


def _zeros(tree: Nested) -> str:
    """Return a Python expression of zeros of a spec."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {_zeros(child)}" for key, child in tree.items()) + "}"
    if isinstance(tree, list | tuple):
        return "[" + ", ".join(_zeros(child) for child in tree) + "]"
    leaf: ArraySpec = tree
    return f"np.zeros({leaf.shape}, {leaf.dtype.name!r})"


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="TRIAL", type=Path, help="a trial: its newest export; or an export"
    )
    parser.add_argument("--output", metavar="FOLDER", type=Path, help="where to copy it")


def _export(options: argparse.Namespace) -> int:
    from bray_model.export_folder import copy_export, find_export, read_report
    from bray_model.manifest import check_files

    export = find_export(options.path)
    manifest = check_files(export)
    _say(f"{manifest.name} version {manifest.version} in {export}: all checksums match")
    _say(read_report(export).table())
    if options.output is not None:
        copy_export(export, options.output)
        _say(f"copied to {options.output}; try: bray serve {options.output}")
    return 0


def _validate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", type=Path, help="an export, or a trial: its newest export"
    )


def _validate(options: argparse.Namespace) -> int:
    from bray_model.export_folder import find_export, read_report
    from bray_model.manifest import check_files
    from bray_model.validate import validate

    export = find_export(options.path)
    manifest = check_files(export)
    _say(f"{manifest.name} version {manifest.version} in {export}: all checksums match")
    _say(f"compared with its module when it was made:\n{read_report(export).table()}")
    for line in validate(export, manifest):
        _say(line)
    _say("valid")
    return 0


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", type=Path, help="an export, or a trial: its newest export"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument(
        "--dry-run", action="store_true", help="leave the manifest of the export as it is"
    )


def _bench(options: argparse.Namespace) -> int:
    from bray_core.experiment import write_atomic
    from bray_model.bench import measure_export, recommend
    from bray_model.export_folder import find_export, read_report
    from bray_model.manifest import MANIFEST, Manifest
    from bray_model.measurement import table

    if not options.seconds > 0:
        raise ConfigError(f"--seconds: expected more than 0, got {options.seconds}")
    export = find_export(options.path)
    manifest = Manifest.read(export)
    agreement = read_report(export).agreement()
    answering, published = measure_export(export, manifest, options.seconds)
    _say(table(answering + published, agreement))
    found = recommend(answering, agreement)
    _say(
        f"recommended here: --backend {found.backend} --threads {found.num_threads} "
        f"--max-batch-size {found.max_batch_size}"
    )
    if found.backend != "auto":
        _say("its weights are fixed: to publish to the server, serve it with --backend auto")
    if not options.dry_run:
        write_atomic(export / MANIFEST, replace(manifest, recommended=found).to_json())
        _say(f"`bray serve {options.path}` takes it from now on")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


serve = Command(
    "serve", "answer requests with an exported policy, without torch", _serve_arguments, _serve
)
export = Command(
    "export",
    "check a trial's newest ONNX export, show how exact it is, and copy it with --output",
    _export_arguments,
    _export,
)
validate = Command(
    "validate",
    "check an export without torch: checksums, shapes, batch sizes, exchanged weights",
    _validate_arguments,
    _validate,
)
bench = Command(
    "bench",
    "measure an export by threads and batch size, and note what to serve it with",
    _bench_arguments,
    _bench,
)
