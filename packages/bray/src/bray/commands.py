"""The subcommands `bray train` and `bray new`. Heavy imports wait for `run`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bray_core.cli import Command


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("template", help="a template's name (cartpole) or a YAML file")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="such as trainer.learning_rate=3e-4"
    )
    parser.add_argument("--project", type=Path, default=Path("trials"), help="folder of the trials")
    parser.add_argument("--trial", help="name of the trial's folder; default: the template's name")
    parser.add_argument(
        "--runtime",
        choices=("local", "ray"),
        default="local",
        help="local: one process; ray: workers on a Ray cluster (default: local)",
    )
    parser.add_argument("--address", help="of a running Ray cluster; default: one started here")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default: 1)")


def _train(options: argparse.Namespace) -> int:
    from bray import template
    from bray_core.errors import ConfigError

    if options.address and options.runtime != "ray":
        raise ConfigError("--address: is for --runtime ray, got --runtime local: add --runtime ray")
    if options.seed < 0:
        raise ConfigError(f"--seed: expected 0 or more, got {options.seed}")
    loaded = template.load(options.template, options.overrides)  # before anything slow
    from bray.train import Options, train

    launch = Options(
        project=options.project,
        trial=options.trial or Path(options.template).stem,
        runtime=options.runtime,
        address=options.address,
        seed=options.seed,
    )
    return train(loaded, launch)


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", type=Path, help="the file to write, such as mine.yaml")
    parser.add_argument("--template", default="cartpole", help="what to start from")


def _new(options: argparse.Namespace) -> int:
    from bray.template import path_of
    from bray_core.errors import AlreadyExistsError

    target = options.name if options.name.suffix else options.name.with_suffix(".yaml")
    text = path_of(options.template).read_text()
    try:
        with target.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise AlreadyExistsError(f"name: {target} exists already: choose another") from None
    _say(f"wrote {target}: edit it, then `bray train {target}`")
    return 0


train = Command("train", "train a template until it reaches its goal", _add_train, _train)
new = Command("new", "write a template's YAML for you to change", _add_new, _new)
