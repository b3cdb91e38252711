"""Where and how `bray train` and `bray recipe` run: the options that both have."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bray_core.errors import ConfigError

if TYPE_CHECKING:
    from bray.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One launch of a trial."""

    project: Path
    trial: str
    runtime: Literal["local", "ray"] = "local"
    address: str | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        if self.address and self.runtime != "ray":
            raise ConfigError(
                "--address: is for --runtime ray, got --runtime local: add --runtime ray"
            )
        if self.seed < 0:
            raise ConfigError(f"--seed: expected 0 or more, got {self.seed}")

    @classmethod
    def of(cls, options: argparse.Namespace, trial: str) -> Launch:
        """Return that of a command line, with the trial's name where it has none."""
        return cls(
            project=options.project,
            trial=options.trial or trial,
            runtime=options.runtime,
            address=options.address,
            seed=options.seed,
        )

    def open(self, config: Mapping[str, Any]) -> Run:
        """Open the trial, with what is written to its `config.yaml`, and start the runtime."""
        from bray.run import init  # `bray --help` is to be quick

        return init(self.project, self.trial, self.runtime, self.address, config)


def add_arguments(parser: argparse.ArgumentParser, trial: str) -> None:
    """Add the options; `trial` says in words how the trial is named by default."""
    parser.add_argument("--project", type=Path, default=Path("trials"), help="folder of the trials")
    parser.add_argument("--trial", help=f"name of the trial's folder; by default {trial}")
    parser.add_argument(
        "--runtime",
        choices=("local", "ray"),
        default="local",
        help="local: one process; ray: workers on a Ray cluster",
    )
    parser.add_argument("--address", help="of a running Ray cluster; by default one started here")
    parser.add_argument("--seed", type=int, default=1, help="of everything random")
