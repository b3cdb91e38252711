"""`bray serve` with a language model: the endpoint, and its weights as its folder changes."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from bray_core.errors import BrayError, ConfigError, NotFoundError
from bray_core.protocols import Weights
from bray_model.chat.config import ChatConfig
from bray_model.chat.endpoint import ChatEndpoint
from bray_model.serving import serve_options
from bray_model.serving.admin_port import admin_port
from bray_model.text.config import TextModelConfig
from bray_model.text.text_folder import model_name
from bray_model.text.text_model import TextModel

logger = logging.getLogger(__name__)

Stamp: TypeAlias = tuple[tuple[str, int, int], ...]
"""Name, time and size of each file of weights."""
_LOOK_S = 1.0
_STOP_S = 10.0
_NOT_OFFERED = {
    "workers": 1,
    "record_share": 0.0,
    "backend": None,
    "max_wait_us": 0,
}
"""Options that mean nothing to a language model, and their defaults."""


def serve_text(options: argparse.Namespace, folder: Path) -> None:
    """Serve a language model until a signal.

    Args:
        options: Options of the command, checked.
        folder: Folder of the model.

    Raises:
        BrayError: The model cannot be opened, or an option does not go with it.
    """
    from bray_core.process.memory import freeze_loaded_objects
    from bray_server import ServerThread
    from bray_server.hosting.server_thread import until_signal

    for name, default in _NOT_OFFERED.items():
        if getattr(options, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: expected to be left out: a language model has none")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers' own on stderr
    if options.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)  # torch is not loaded yet
    security = serve_options.server_security(options)
    name = options.model or model_name(folder)
    servers: list[ServerThread] = []

    def start() -> Callable[[], None]:
        with contextlib.ExitStack() as started:
            if sys.stderr.isatty():  # a large model takes minutes
                sys.stderr.write(f"loading {name} from {folder}\n")
            loaded = weights_stamp(folder)  # before: what is written meanwhile counts as new
            model = TextModel.load(folder, _model_config(options), name=name)
            started.callback(model.close)
            endpoint = ChatEndpoint(model, _chat_config(options))
            started.callback(endpoint.close)
            server = ServerThread(
                endpoint.actor,
                host=options.host,
                tcp_port=options.tcp_port,
                http_port=options.http_port,
                pages=endpoint,
                limits=serve_options.server_limits(options),
                **security,
            )
            servers.append(server)
            started.callback(server.close, options.drain_s)
            follower = FolderFollower(folder, model, loaded)
            started.callback(follower.close)

            def publish(asked: str, weights: Weights) -> int:
                if asked != name:
                    raise NotFoundError(f"model {asked!r}: not served; served: {name}")
                return model.publish(weights)

            admin = started.enter_context(admin_port(options, publish, security))
            _say(f"serving {name} from {folder}")
            _say(f"listening on {' and '.join([*server.addresses, *admin])}")
            _say(f"try: {_example(options, server.addresses[-1], model)}")
            freeze_loaded_objects()
            return started.pop_all().close

    with serve_options.ports_named(options):
        until_signal(start, lambda: servers[0].lame_duck(min(options.lame_duck_s, options.drain_s)))
    _say("stopped")


def weights_stamp(folder: Path) -> Stamp:
    """Return what differs where the weights in a folder were written since."""
    found = []
    for file in sorted(folder.glob("*.safetensors")):
        with contextlib.suppress(OSError):
            about = file.stat()
            found.append((file.name, about.st_mtime_ns, about.st_size))
    return tuple(found)


class FolderFollower:
    """Publishes the weights of a folder when they are written anew, for instance by a trial.

    A change is read once the files have rested between two looks. Weights that cannot be read or
    do not fit are told once, and the old ones stay.

    Args:
        folder: Folder of the model.
        model: The model that serves.
        loaded: Stamp of the weights that it was loaded from.
    """

    def __init__(self, folder: Path, model: TextModel, loaded: Stamp) -> None:
        self._folder = folder
        self._model = model
        self._published = loaded
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="text-folder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join(_STOP_S)

    def _follow(self) -> None:
        seen = self._published
        while not self._stop.wait(_LOOK_S):
            now = weights_stamp(self._folder)
            if now and now == seen != self._published:
                self._published = now
                self._publish()
            seen = now

    def _publish(self) -> None:
        try:
            with TextModel.load(self._folder) as fresh:
                version = self._model.publish(fresh.weights())
        except (BrayError, OSError) as error:
            logger.error("%s: its new weights are not served: %s", self._folder, error)
        else:
            logger.info("%s: serving its new weights as version %d", self._folder, version)


def _model_config(options: argparse.Namespace) -> TextModelConfig:
    given = {
        "max_rows": options.max_batch_size,
        "cache_bytes": options.cache_bytes,
        "context_length": options.context_length,
        "precision": options.precision,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return TextModelConfig(device=options.device, max_queue=options.max_queue_rows, **chosen)


def _chat_config(options: argparse.Namespace) -> ChatConfig:
    return ChatConfig(
        max_sessions=options.max_sessions,
        session_idle_s=options.sequence_idle_s,
        max_body_bytes=options.max_body_bytes,
    )


def _example(options: argparse.Namespace, address: str, model: TextModel) -> str:
    """Return a line for a shell that asks the server once."""
    has_chat = bool(model.tokenizer.chat_template)
    page = "chat/completions" if has_chat else "completions"
    body = '{"messages": [{"role": "user", "content": "Hello"}]}'
    body = body if has_chat else '{"prompt": "Hello"}'
    token = f' -H "Authorization: Bearer ${options.token_env}"' if options.token_env else ""
    trusted = f" --cacert '{options.tls_certificate}'" if options.tls_certificate else ""
    return f"curl{trusted}{token} {address}/v1/{page} -d '{body}'"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
