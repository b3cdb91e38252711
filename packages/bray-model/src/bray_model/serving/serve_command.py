"""The command `bray serve`: answers with exports, in one process or in several."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bray_core.cli import Command
from bray_core.files.trial_folders import trial_of
from bray_model.serving import serve_options
from bray_model.serving.admin_port import admin_port
from bray_model.serving.text_folders import find_text_folder

if TYPE_CHECKING:
    from bray_core.protocols import Weights
    from bray_model.export_files.manifest import Manifest
    from bray_model.serving.repository import ExportRepository

_STOP_S = 5.0
"""What ending the workers may take beyond the drain."""


def _serve(options: argparse.Namespace) -> int:
    from bray_model.export_files.agent_file import unpacked

    if options.path.suffix in (".yaml", ".yml"):
        options.path = trial_of(options.path)
    text = find_text_folder(options.path, options.model)
    serve_options.fill_limits(options, {} if text is None else serve_options.TEXT_DEFAULTS)
    serve_options.check_options(options)
    if text is not None:
        from bray_model.serving.text_serving import serve_text

        serve_text(options, text)
        return 0
    serve_options.check_no_language_options(options)
    named = options.path
    with unpacked(named) as options.path:
        options.packed = None if options.path == named else named
        if options.workers > 1:
            _serve_by_workers(options)
        else:
            _serve_here(options)
    return 0


def _serve_here(options: argparse.Namespace) -> None:
    """Serve in this process, which may be one of several."""
    from bray_core.process.memory import freeze_loaded_objects
    from bray_model.serving.open_inference_pages import OpenInferencePages
    from bray_model.serving.repository import ExportRepository
    from bray_model.serving.service import service_of
    from bray_model.serving.serving_processes import say_ready
    from bray_model.serving.session_recording import record_share
    from bray_model.serving.shared_publishing import SharedFollower
    from bray_server import ServerThread
    from bray_server.hosting.server_thread import until_signal

    security = serve_options.server_security(options)
    servers: list[ServerThread] = []

    def start() -> Callable[[], None]:
        with contextlib.ExitStack() as started:
            repository = ExportRepository(
                options.path, partial(serve_options.model_config, options)
            )
            started.callback(repository.close)
            if options.group is not None:
                started.callback(SharedFollower(repository, options.group).close)
            service, end_recording = record_share(
                service_of(repository, options.model),
                share=options.record_share,
                folder=options.record_folder,
                max_files=options.record_files,
            )
            started.callback(end_recording)
            server = ServerThread(
                service,
                host=options.host,
                tcp_port=options.tcp_port,
                http_port=options.http_port,
                pages=OpenInferencePages(repository, options.max_reply_bytes),
                limits=serve_options.server_limits(options),
                group=options.group,
                **security,
            )
            servers.append(server)
            started.callback(server.close, options.drain_s)
            repository.follow()
            if options.group is not None:
                say_ready(server.addresses)
            else:
                publish = partial(_publish, repository)
                admin = started.enter_context(admin_port(options, publish, security))
                _introduce(options, repository.exports(), server.addresses, admin)
            freeze_loaded_objects()
            return started.pop_all().close

    with serve_options.ports_named(options):
        until_signal(start, lambda: servers[0].lame_duck(min(options.lame_duck_s, options.drain_s)))
    if options.group is None:
        _say("stopped")


def _serve_by_workers(options: argparse.Namespace) -> None:
    """Start several processes on the same ports and watch over them."""
    from bray_model.export.export_folder import find_exports
    from bray_model.export_files.manifest import Manifest
    from bray_model.serving.serving_processes import ServingProcesses
    from bray_model.serving.shared_publishing import SharedPublisher
    from bray_server.hosting.reserved_port import reserved_port
    from bray_server.hosting.server_thread import until_signal

    security = serve_options.server_security(options)
    exports = {export: Manifest.read(export) for export in find_exports(options.path)}

    def start() -> Callable[[], None]:
        with contextlib.ExitStack() as started:
            folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="bray-serve-")))
            ports = {
                name: started.enter_context(
                    reserved_port(options.host, name.replace("_", " "), getattr(options, name))
                )
                for name in ("tcp_port", "http_port")
            }
            arguments = serve_options.worker_arguments({**vars(options), **ports, "group": folder})
            workers = ServingProcesses(arguments, options.workers)
            started.callback(workers.close, options.drain_s + _STOP_S)
            publisher = SharedPublisher(
                options.path, folder, partial(serve_options.model_config, options)
            )
            started.callback(publisher.close)
            admin = started.enter_context(admin_port(options, publisher.publish, security))
            _introduce(options, exports, workers.addresses, admin)
            return started.pop_all().close

    with serve_options.ports_named(options):
        until_signal(start)
    _say("stopped")


def _publish(repository: ExportRepository, name: str, weights: Weights) -> int:
    return repository.get(name).publish(weights)


def _introduce(
    options: argparse.Namespace,
    exports: Mapping[Path, Manifest],
    addresses: Sequence[str],
    admin: Sequence[str],
) -> None:
    from bray_model.serving.serve_example import example, played_by

    for export, manifest in exports.items():
        source = options.packed or export  # what was unpacked lies in a folder that goes again
        _say(f"serving {manifest.name} version {manifest.version} from {source}")
    _say(f"listening on {' and '.join([*addresses, *admin])}")
    names = sorted({manifest.name for manifest in exports.values()})
    name = options.model or names[0]
    versions = [manifest for manifest in exports.values() if manifest.name == name]
    of_several = options.model is None and len(names) > 1
    line = example(
        max(versions, key=lambda manifest: manifest.version),
        addresses[-1 if of_several else 0],
        token_env=options.token_env,
        certificate=options.tls_certificate,
        of_several=of_several,
        played=played_by(options.packed or options.path),
    )
    _say(f"try: {line}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


serve = Command(
    "serve",
    "answer requests with exported policies, without torch",
    serve_options.add_arguments,
    _serve,
)
