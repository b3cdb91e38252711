"""The options of `bray serve`: their defaults, their checks, and what they come to."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bray_core.errors import ConfigError, PortInUseError

if TYPE_CHECKING:
    from bray_model.config import ModelConfig
    from bray_model.export_files.manifest import Manifest
    from bray_server import Limits

TCP_PORT = 7300
HTTP_PORT = 7380

_PORTS = ("tcp_port", "http_port", "admin_port")
_BATCH_SIZE = 64
SERVER_LIMITS: Mapping[str, tuple[float, str]] = {
    "max_body_bytes": (16 * 1024**2, "of one request's body"),
    "max_header_bytes": (16 * 1024, "of an HTTP request's line and headers"),
    "max_session_bytes": (256, "of a session's id"),
    "max_bytes_in_flight": (256 * 1024**2, "of all large requests and replies at a time"),
    "max_requests": (10_000, "requests under way at a time"),
    "max_requests_per_connection": (1_024, "of them on one connection, which then is not read"),
    "max_connections": (10_000, "connections open at a time"),
    "max_sessions": (10_000, "sessions open at a time, and sequences of each model"),
    "max_delta_sessions": (1_000, "of them with delta encoding"),
    "max_stream_bytes": (64 * 1024**2, "of one page that is sent in pieces"),
    "max_client_share": (
        0.9,
        "part of places and bytes that one address may have; 1 behind a proxy",
    ),
    "tick_timeout_s": (60.0, "the deadline: how long one request may take"),
    "stream_timeout_s": (3600.0, "from the first to the last piece of a page sent in pieces"),
    "idle_timeout_s": (60.0, "a session or HTTP connection at rest for so long is ended"),
    "receive_timeout_s": (20.0, "from a request's first byte to its last"),
    "send_timeout_s": (20.0, "a client that reads no reply for so long is cut off"),
}
"""The fields of `bray_server.Limits`, all of which are options: default, help."""
OTHER_LIMITS: Mapping[str, tuple[float, str]] = {
    "max_queue_rows": (16_384, "rows that wait for one model, and rows of one request"),
    "max_reply_bytes": (64 * 1024**2, "of one reply of the Open Inference Protocol"),
    "sequence_idle_s": (600.0, "a sequence at rest for so long is ended"),
}
TEXT_DEFAULTS: Mapping[str, float] = {"max_body_bytes": 4 * 1024**2, "tick_timeout_s": 600.0}
"""Defaults that differ for a language model: its requests are short, and an answer takes time."""
_RECORDING: Mapping[str, Any] = {"record_folder": Path("recorded"), "record_files": 10_000}
"""Options that mean nothing where nothing is recorded, and their defaults."""
_LANGUAGE_OPTIONS = ("context_length", "cache_bytes", "precision")
_FORWARDED = (
    "host", "tcp_port", "http_port", "model", "token_env", "tls_certificate", "tls_key", "drain_s",
    "lame_duck_s", "record_share", "record_folder", "record_files",
    "max_batch_size", "threads", "backend", "device", "max_wait_us", "group",
    *SERVER_LIMITS, *OTHER_LIMITS,
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add(
        "path",
        metavar="PATH",
        type=Path,
        help="an export, a trial (its newest export), the YAML file that `bray train` made a trial "
        "of, a folder of exports, a file that `bray pack` wrote, or the folder of a language model "
        "as transformers writes it",
    )
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--tcp-port", type=int, default=TCP_PORT, help="0 takes any free port")
    add("--http-port", type=int, default=HTTP_PORT, help="0 takes any free port")
    add("--admin-port", type=int, help="HTTP port that takes new weights; by default there is none")
    add(
        "--model",
        metavar="NAME",
        help="which of several models answers the sessions; of a language model its name for "
        "clients",
    )
    add("--workers", type=int, default=1, help="processes that share the ports")
    add("--token-env", metavar="NAME", help="environment variable with the token to ask for")
    add(
        "--without-token",
        action="store_true",
        help="listen beyond this machine although nobody is asked for a token",
    )
    add("--tls-certificate", metavar="FILE", help="PEM file: turns all ports to TLS")
    add("--tls-key", metavar="FILE", help="PEM file of its private key")
    add("--drain-s", type=float, default=3.0, help="how long sessions may go on after a signal")
    add(
        "--lame-duck-s",
        type=float,
        default=2.0,
        help="how long, of --drain-s, at least all but new sessions is answered after SIGTERM, "
        "while /ready says no and new connections are taken",
    )
    add(
        "--record-share",
        type=float,
        default=0.0,
        metavar="X",
        help="share of the sessions, 0 to 1, that is written to --record-folder, whole, for `bc`, "
        "`iql` and the like to learn from; drawn by a hash of each session's id",
    )
    add(
        "--record-folder",
        type=Path,
        default=_RECORDING["record_folder"],
        metavar="FOLDER",
        help="folder of the recorded sessions, a file each",
    )
    add(
        "--record-files",
        type=int,
        default=_RECORDING["record_files"],
        metavar="N",
        help="newest recorded sessions that stay",
    )
    add(
        "--max-batch-size",
        type=int,
        help=f"rows of one forward; by default what `bray bench` recommended, else {_BATCH_SIZE}",
    )
    add(
        "--threads",
        type=int,
        help="threads of one forward; by default what `bray bench` recommended, else 1",
    )
    add(
        "--backend",
        help="auto, int8, int8-dynamic, float16 or tensorrt; by default what `bray bench` "
        "recommended, else auto",
    )
    add("--device", default="cpu", help="cpu or cuda")
    add("--max-wait-us", type=int, default=0, help="how long a row waits for company")
    language = parser.add_argument_group(
        "language models", "served at /v1, for clients of OpenAI's API"
    )
    language.add_argument(
        "--context-length",
        type=int,
        metavar="N",
        help="tokens of prompt and answer together; by default what the model was made for",
    )
    language.add_argument(
        "--cache-bytes",
        type=int,
        metavar="N",
        help="memory of keys and values of all answers under way (default: 1 GiB)",
    )
    language.add_argument("--precision", help="fp32, bf16 or fp16 (default: fp32)")
    limits = parser.add_argument_group("limits", "bounds of what clients may use")
    limits.add_argument(
        "--limits",
        metavar="FILE",
        type=Path,
        help="YAML file that sets any of those below by name, such as max_sessions: 500; "
        "what the command line says goes before it",
    )
    for name, (default, text) in {**SERVER_LIMITS, **OTHER_LIMITS}.items():
        limits.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(default),
            metavar="N" if isinstance(default, int) else "X",
            help=f"{text} (default: {default})",
        )
    add("--group", type=Path, help=argparse.SUPPRESS)  # says to a worker where the others are


def fill_limits(options: argparse.Namespace, defaults: Mapping[str, float] | None = None) -> None:
    """Set the limits that the command line left open: by the file, or as they are by default.

    Args:
        options: The options, which are changed.
        defaults: Other defaults than usual, by name.
    """
    from bray_core.config import load_yaml

    every = {**SERVER_LIMITS, **OTHER_LIMITS}
    known = {name: default for name, (default, _) in every.items()} | dict(defaults or {})
    fields = [(name, type(default), default) for name, default in known.items()]
    schema = make_dataclass("ServeLimits", fields, frozen=True, kw_only=True)
    limits = schema() if options.limits is None else load_yaml(options.limits, schema)
    for name in every:
        if getattr(options, name) is None:
            setattr(options, name, getattr(limits, name))


def check_options(options: argparse.Namespace) -> None:
    """Refuse options out of range, or that do not go together. Raises ConfigError."""
    for option in _PORTS:
        port = getattr(options, option)
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError(f"--{option.replace('_', '-')}: expected 0 to 65535, got {port}")
    if options.workers < 1:
        raise ConfigError(f"--workers: expected 1 or more, got {options.workers}")
    if not 0 <= options.record_share <= 1:
        raise ConfigError(f"--record-share: expected 0 to 1, got {options.record_share}")
    if options.record_files < 1:
        raise ConfigError(f"--record-files: expected 1 or more, got {options.record_files}")
    for name, default in _RECORDING.items():
        if not options.record_share and getattr(options, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: expected --record-share, too: it says how many sessions")
    for name in ("drain_s", "lame_duck_s"):
        if not getattr(options, name) >= 0:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: expected 0 or more, got {getattr(options, name)}")
    if (options.tls_certificate is None) != (options.tls_key is None):
        raise ConfigError("--tls-certificate and --tls-key: expected both or none")
    for name in (*SERVER_LIMITS, *OTHER_LIMITS):
        if not getattr(options, name) > 0:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: expected more than 0, got {getattr(options, name)}")
    server_limits(options)
    _check_host(options)


def check_no_language_options(options: argparse.Namespace) -> None:
    """Refuse what only a language model has, where none is served. Raises ConfigError."""
    for name in _LANGUAGE_OPTIONS:
        if getattr(options, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option}: expected to be left out: {options.path} is no language model"
            )


def _check_host(options: argparse.Namespace) -> None:
    from bray_server.limits.access import check_bind, is_loopback

    if options.group is not None:
        return  # the process that started this one has checked it
    check_bind(
        options.host,
        has_token=options.token_env is not None,
        asked_for=options.without_token,
        cure="add --token-env NAME, listen at 127.0.0.1, or say --without-token",
    )
    if options.token_env is None and not is_loopback(options.host):
        what = "ask" if options.admin_port is None else "ask, and replace the weights"
        sys.stderr.write(f"warning: without a token whoever reaches {options.host} may {what}\n")


def worker_arguments(values: Mapping[str, Any]) -> list[str]:
    """Return the command line of a worker."""
    given = [name for name in _FORWARDED if values[name] is not None]
    options = [f"--{name.replace('_', '-')}={values[name]}" for name in given]
    return ["serve", *options, "--", str(values["path"])]


def model_config(options: argparse.Namespace, manifest: Manifest) -> ModelConfig:
    """Return how an export is run: by the options, else as `bray bench` recommended."""
    from bray_model.config import ModelConfig
    from bray_model.export_files.manifest import ServeRecommendation

    found = manifest.recommended or ServeRecommendation(num_threads=1, max_batch_size=_BATCH_SIZE)
    size, threads, backend = options.max_batch_size, options.threads, options.backend
    return ModelConfig(
        max_batch_size=found.max_batch_size if size is None else size,
        max_wait_us=options.max_wait_us,
        num_threads=found.num_threads if threads is None else threads,
        backend=found.backend if backend is None else backend,
        device=options.device,
        max_queue_rows=options.max_queue_rows,
        max_sessions=options.max_sessions,
        session_idle_s=options.sequence_idle_s,
    )


def server_limits(options: argparse.Namespace) -> Limits:
    """Return the limits of the server."""
    from bray_server import Limits

    return Limits(**{name: getattr(options, name) for name in SERVER_LIMITS})


def server_security(options: argparse.Namespace) -> dict[str, Any]:
    """Return what all ports ask for, as options of a server."""
    from bray_server import Tls

    security: dict[str, Any] = {"tokens": _tokens(options.token_env)}
    if options.tls_certificate is not None:
        tls = Tls(certificate=options.tls_certificate, key=options.tls_key)
        tls.context()  # what is wrong with the files is told before anything starts
        security["tls"] = tls
    return security


def _tokens(variable: str | None) -> list[str]:
    if variable is None:
        return []
    token = os.environ.get(variable, "")
    if not token:
        raise ConfigError(f"--token-env: environment variable {variable} is not set, or empty")
    return [token]


@contextlib.contextmanager
def ports_named(options: argparse.Namespace) -> Iterator[None]:
    """Let an error say which option chose a port that is in use."""
    try:
        yield
    except PortInUseError as error:
        option = next((o for o in _PORTS if getattr(options, o) == error.port), "tcp_port")
        cure = f"choose another with --{option.replace('_', '-')}, or 0 for any free one"
        raise PortInUseError(options.host, error.port, cure) from error
