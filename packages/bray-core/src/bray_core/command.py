"""The command line of `bray`: subcommands of all installed packages.

Each package adds subcommands through the entry-point group `bray.commands`; an entry loads a
`Command`. The modules that hold them import nothing heavy, so that `bray --help` is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

EXIT_ERROR = 2
_Action = TypeVar("_Action", bound=argparse.Action)
_MISSING = "the following arguments are required: "


def whole_number(text: str) -> int:
    """Return a whole number that may be written as `1e6`.

    Raises:
        ValueError: it is none.
    """
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


_NUMBERS: dict[object, str] = {
    int: "a whole number",
    whole_number: "a whole number",
    float: "a number",
}


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand of `bray`.

    If it adds a positional argument `overrides`, that receives all words `key=value`, wherever they
    stand in the command line.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Function that runs the subcommand and returns its exit code."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; their `command` is the subcommand.

    A mistake in the command line ends the process with exit code 2.
    """
    parser = make_parser()
    if arguments and arguments[0].startswith("-") and arguments[0] not in _options(parser):
        _refuse_options(parser, arguments[0])
    options, unknown = parser.parse_known_args(arguments)
    # argparse takes `key=value` only before the first option: gather the rest here.
    if hasattr(options, "overrides"):
        gathered = [word for word in unknown if is_setting(word)]
        options.overrides = [*options.overrides, *gathered]
        unknown = [word for word in unknown if not is_setting(word)]
        if nameless := [word for word in options.overrides if not word.partition("=")[0].strip()]:
            options.parser.error(f"{nameless[0]!r}: expected key=value, got no key")
    if unknown:
        _refuse_options(options.parser, unknown[0])
    return options


def is_setting(word: str) -> bool:
    """Return whether a word is `key=value`; a game such as `kuhn_poker(players=3)` is none."""
    return "=" in word.partition("(")[0] and not word.startswith(("-", "="))


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
    """An argument parser that says what is wrong in plain words, with the closest subcommand."""

    def _add_action(self, action: _Action) -> _Action:
        if not action.option_strings and action.nargs == argparse.ZERO_OR_MORE:
            action.required = False  # else a message calls it missing beside what really is
        return super()._add_action(action)

    def error(self, message: str) -> NoReturn:
        if message.startswith(_MISSING):
            message = self._missing(message.removeprefix(_MISSING).split(", "))
        message = message.removeprefix("argument ").replace("expected one argument", "no value")
        self.exit(EXIT_ERROR, f"error: {message}\ntry: {self.prog} --help\n")

    def _missing(self, names: list[str]) -> str:
        """Say which arguments are missing, and what they may be where there is a choice."""
        meant = (one for one in self._actions if names == [one.metavar or one.dest] and one.choices)
        choices = ", ".join(str(choice) for one in meant for choice in one.choices or ())
        return f"{' and '.join(names)}: missing" + (
            f": expected one of {choices}" if choices else ""
        )

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if action.type is Path and not arg_string:
            name = action.option_strings[-1] if action.option_strings else action.dest
            raise argparse.ArgumentError(None, f"{name}: expected a path, got ''")
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            if action.type not in _NUMBERS:
                raise
        name = action.option_strings[-1] if action.option_strings else action.dest
        raise argparse.ArgumentError(
            None, f"{name}: expected {_NUMBERS[action.type]}, got {arg_string!r}"
        )

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            from bray_core.settings.choice import closest

            choices = [str(choice) for choice in action.choices]
            what = action.metavar or action.dest
            raise argparse.ArgumentError(
                None,
                f"{what}: unknown {value!r}{closest(str(value), choices)}; "
                f"known: {', '.join(choices)}",
            )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command, with all installed subcommands."""
    parser = _Parser(
        prog="bray",
        description="Train reinforcement-learning agents and put them in production.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version())
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


def _version() -> str:
    """Return the version of bray, or of its core where that is installed alone."""
    for name in ("bray", "bray-core"):
        with contextlib.suppress(PackageNotFoundError):
            return f"{name} {version(name)}"
    return "bray, of an unknown version"  # copied, not installed


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help texts that show defaults, but not `None`."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def _refuse_options(parser: argparse.ArgumentParser, unknown: str) -> NoReturn:
    from bray_core.settings.choice import closest

    near = closest(unknown.split("=")[0], _options(parser))
    parser.error(f"unknown argument {unknown!r}{near}")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions for name in action.option_strings]
