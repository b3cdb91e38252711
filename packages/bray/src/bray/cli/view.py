"""`bray view`: shows a project's trials in the browser."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from bray_core.cli import Command
from bray_core.files.trial_folders import PROJECT


def _add_view(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "project",
        nargs="?",
        type=Path,
        default=PROJECT,
        help="folder of the trials, or of one trial, such as trials/cartpole",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at")
    parser.add_argument(
        "--port", type=int, default=7360, help="port to listen at; 0 takes any free one"
    )
    parser.add_argument(
        "--token-env",
        metavar="VARIABLE",
        help="environment variable with the token that visitors must enter",
    )
    parser.add_argument(
        "--render",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="function that draws a step of a recorded episode; may be given several times",
    )
    parser.add_argument(
        "--import-renders",
        action="store_true",
        help="also import the render.function of a trial's own settings, which runs its code",
    )
    parser.add_argument(
        "--builder",
        type=Path,
        metavar="FOLDER",
        help="folder whose YAML files the page may write, and start and stop local runs of",
    )


def _view(options: argparse.Namespace) -> int:
    from bray.viewer.server import Viewer
    from bray_core.errors import ConfigError
    from bray_server.hosting.server_thread import until_signal

    token = None
    if options.token_env is not None and not (token := os.environ.get(options.token_env)):
        raise ConfigError(f"--token-env: variable {options.token_env} is not set, or empty")
    is_trial = (options.project / "launches").is_dir()
    trial = options.project.resolve()

    def start() -> Callable[[], None]:
        viewer = Viewer(
            trial.parent if is_trial else options.project,
            host=options.host,
            port=options.port,
            token=token,
            renders=options.render,
            imports_renders=options.import_renders,
            builder=options.builder,
        )
        page = f"#/loop/{quote(trial.name, safe='')}" if is_trial else ""
        sys.stdout.write(f"open {viewer.address}/{page} in a browser; Ctrl-C ends it\n")
        sys.stdout.flush()
        return viewer.close

    until_signal(start)
    return 0


view = Command("view", "show the trials of a project in the browser", _add_view, _view)
