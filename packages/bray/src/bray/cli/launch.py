"""Where and how `bray train` runs: the options that say so."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bray_core.errors import ConfigError
from bray_core.files.trial_folders import NAME_OR_FOLDER, PROJECT, trial_path
from bray_core.remote.restart_limit import RestartLimit

if TYPE_CHECKING:
    from bray.retention import RetentionPolicy
    from bray.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One launch of a trial."""

    project: Path
    trial: str
    runtime: Literal["local", "ray"] = "local"
    address: str | None = None
    max_restarts: int | None = None
    """How often within five minutes a worker on Ray may die; None: the default."""
    metrics_port: int | None = None
    """Where Prometheus is answered, on loopback; None: nowhere."""

    def __post_init__(self) -> None:
        if self.address and self.runtime != "ray":
            raise ConfigError(
                "--address: is for --runtime ray, got --runtime local: add --runtime ray"
            )
        if self.max_restarts is not None and self.max_restarts < 0:
            raise ConfigError(f"--max-restarts: expected 0 or more, got {self.max_restarts}")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise ConfigError(f"--metrics-port: expected 0 to 65535, got {self.metrics_port}")

    @classmethod
    def of(cls, options: argparse.Namespace, trial: str, project: Path = PROJECT) -> Launch:
        """Return that of a command line, with the trial's name and project where it has none.

        Raises:
            ConfigError: the trial is a folder, and a project is given, too.
        """
        folder = trial_path(options.trial or trial, options.project or project)
        if options.project is not None and folder.parent != options.project:
            raise ConfigError(
                f"--project: expected none beside the folder of a trial, --trial {options.trial}, "
                f"got {options.project}: name the trial alone, or leave --project out"
            )
        return cls(
            project=folder.parent,
            trial=folder.name,
            runtime=options.runtime,
            address=options.address,
            max_restarts=options.max_restarts,
            metrics_port=options.metrics_port,
        )

    def open(self, config: Mapping[str, Any], keep: RetentionPolicy) -> Run:
        """Open the trial, with what is written to its `config.yaml`, and start the runtime."""
        from bray.run import init  # `bray --help` is to be quick

        most = self.max_restarts
        limit = None if most is None else RestartLimit(max_restarts=most)
        run = init(
            self.project,
            self.trial,
            self.runtime,
            self.address,
            config,
            keep,
            limit,
            sinks=config.get("sinks", ()),
        )
        if self.metrics_port is not None:
            try:
                sys.stderr.write(f"metrics at {run.serve_metrics(self.metrics_port)}\n")
            except BaseException as error:
                run.close(error)
                raise
        return run


def add_arguments(parser: argparse.ArgumentParser, trial: str) -> None:
    """Add the options; `trial` says in words how the trial is named by default."""
    parser.add_argument("--project", type=Path, help=f"folder of the trials; by default {PROJECT}")
    parser.add_argument("--trial", help=f"{NAME_OR_FOLDER}; by default {trial}")
    parser.add_argument(
        "--runtime",
        choices=("local", "ray"),
        default="local",
        help="local: one process; ray: workers on a Ray cluster",
    )
    parser.add_argument("--address", help="of a running Ray cluster; by default one started here")
    parser.add_argument(
        "--max-restarts",
        type=int,
        help="a worker on Ray that dies more often within five minutes ends the run; "
        f"by default {RestartLimit().max_restarts}",
    )
    parser.add_argument(
        "--seed", type=int, help="of everything random; by default 1, or what the template says"
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        help="answer Prometheus there, on loopback; 0 takes any free one",
    )
