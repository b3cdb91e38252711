"""The `bray` command: it grows with what is installed.

Each package adds subcommands through the entry-point group `bray.commands`; an entry loads a
`Command`. The modules that hold them import nothing heavy, so that `bray --help` is quick.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version
from types import FrameType
from typing import NoReturn

from bray_core.errors import BrayError
from bray_core.printable import printable_lines

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
_CLEAN_UP_S = 20.0
"""After Ctrl-C a command has so long to clean up; then its process ends, its children with it. (A
trainer finishes its replay, which takes seconds with convolutions; shared memory is left else.)"""


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand.

    One that adds a positional argument `overrides` gets all words `key=value` in it, wherever they
    stand in the command line.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Does the work and returns the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code.

    A `BrayError` becomes one line on standard error and exit code 2 (`BRAY_DEBUG=1` shows where
    it came from); Ctrl-C and SIGTERM end with 130 after the command has cleaned up.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    if arguments and arguments[0].startswith("-") and arguments[0] not in _options(parser):
        _refuse_options(parser, arguments[0])
    options, unknown = parser.parse_known_args(arguments)
    # argparse takes `key=value` only before the first option: gather the rest here.
    if hasattr(options, "overrides"):
        options.overrides += [word for word in unknown if _is_override(word)]
        unknown = [word for word in unknown if not _is_override(word)]
    if unknown:
        _refuse_options(options.parser, unknown[0])
    _catch_signals()
    try:
        code: int = options.command.run(options)
    except BrayError as error:
        if os.environ.get("BRAY_DEBUG"):
            raise
        sys.stderr.write(f"error: {printable_lines(str(error))}\n")
        return EXIT_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.stdout.flush()
        sys.stderr.flush()
        # The command has cleaned up; a C++ library that was interrupted half-way through its
        # start (Ray, torch) may crash or hang while the interpreter is taken down.
        os._exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of our output is gone, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    return code


def _is_override(word: str) -> bool:
    return "=" in word and not word.startswith("-")


_interrupted = threading.Event()


def _catch_signals() -> None:
    """Let Ctrl-C and SIGTERM interrupt the command; a signal that is ignored stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    if not _interrupted.is_set():
        _interrupted.set()
        watchdog = threading.Timer(_CLEAN_UP_S, _give_up)
        watchdog.daemon = True
        watchdog.start()
    raise KeyboardInterrupt


def _give_up() -> None:
    os.write(2, b"stopped by force: cleaning up took too long\n")
    os._exit(EXIT_INTERRUPTED)


def check_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C came but got lost, as in a destructor; for long loops."""
    if _interrupted.is_set():
        raise KeyboardInterrupt


def _commands() -> list[Command]:
    loaded = [_load(entry) for entry in entry_points(group="bray.commands")]
    return sorted(filter(None, loaded), key=lambda command: command.name)


def _load(entry: EntryPoint) -> Command | None:
    try:
        command: Command = entry.load()
    except Exception as error:  # one broken plugin must not take the others along
        if os.environ.get("BRAY_DEBUG"):
            raise
        sys.stderr.write(f"warning: command {entry.name!r} ({entry.value}) is broken: {error}\n")
        return None
    return command


class _Parser(argparse.ArgumentParser):
    """Names the closest choice where a subcommand is unknown."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_ERROR, f"error: {message}\ntry: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            from bray_core.choice import closest

            choices = [str(choice) for choice in action.choices]
            what = action.metavar or action.dest
            raise argparse.ArgumentError(
                None,
                f"{what}: unknown {value!r}{closest(str(value), choices)}; "
                f"known: {', '.join(choices)}",
            )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bray",
        description="Train reinforcement-learning agents and put them in production.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bray-core {version('bray-core')}")
    subparsers = parser.add_subparsers(metavar="command", required=True, title="commands")
    for command in _commands():
        sub = subparsers.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            allow_abbrev=False,
            formatter_class=_Help,
        )
        command.add_arguments(sub)
        sub.set_defaults(command=command, parser=sub)
    return parser


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that there are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def _refuse_options(parser: argparse.ArgumentParser, unknown: str) -> NoReturn:
    from bray_core.choice import closest

    near = closest(unknown.split("=")[0], _options(parser))
    parser.error(f"unknown argument {unknown!r}{near}")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions for name in action.option_strings]


if __name__ == "__main__":
    # The module that commands import, not this second copy: `check_interrupted` looks there.
    from bray_core import cli

    sys.exit(cli.main())
