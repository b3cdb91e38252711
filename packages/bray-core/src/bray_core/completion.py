"""`bray completion`: a shell's completion of all commands, derived from their argument parsers."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from bray_core.command import Command, make_parser

_EXAMPLES = """put it where your shell looks for it:
  bray completion bash > ~/.local/share/bash-completion/completions/bray
  bray completion zsh  > "${fpath[1]}/_bray"
  bray completion fish > ~/.config/fish/completions/bray.fish
"""


@dataclass(frozen=True, slots=True)
class CompletionPlace:
    """What may follow a command, or a verb of one."""

    name: str
    """The words so far, such as `bray trials list`."""
    verbs: tuple[str, ...]
    """Commands or verbs that may come next."""
    options: tuple[str, ...]
    """Options, such as `--seed`."""
    values: dict[str, tuple[str, ...]]
    """Option that takes a value → the values that are known; empty for any, such as a file."""


def places(parser: argparse.ArgumentParser, name: str = "bray") -> Iterator[CompletionPlace]:
    """Yield what may follow each command of a parser, its own place first."""
    verbs: dict[str, argparse.ArgumentParser] = {}
    options: list[str] = []
    values: dict[str, tuple[str, ...]] = {}
    words: list[str] = []
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        if isinstance(action, argparse._SubParsersAction):
            verbs |= action.choices
        elif not action.option_strings:
            words += choices
        elif action.help != argparse.SUPPRESS:
            options += action.option_strings
            if action.nargs != 0:
                values |= dict.fromkeys(action.option_strings, choices)
    yield CompletionPlace(name, (*verbs, *words), tuple(options), values)
    for verb, inner in verbs.items():
        yield from places(inner, f"{name} {verb}")


def bash(found: list[CompletionPlace]) -> str:
    """Return the script for bash."""
    return f"""# Completion of bray for bash, written by `bray completion bash`.
_bray() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" place=bray words="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$place ${{COMP_WORDS[i]}}" in
{_indented(_walk(found, "COMP_WORDS"), 12)}
        esac
    done
    COMPREPLY=()
    case "$place ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{_indented(_values(found, 'COMPREPLY=($(compgen -W "{}" -- "$current")); return', "return"), 8)}
    esac
    case "$current" in
        -*) case "$place" in
{_indented(_options(found, 'words="{}"'), 12)}
            esac ;;
        *) case "$place" in
{_indented(_verbs(found, 'words="{}"'), 12)}
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _bray bray
"""


def zsh(found: list[CompletionPlace]) -> str:
    """Return the script for zsh."""
    return f"""#compdef bray
# Completion of bray for zsh, written by `bray completion zsh`.
_bray() {{
    local place=bray i
    for ((i = 2; i < CURRENT; i++)); do
        case "$place ${{words[i]}}" in
{_indented(_walk(found, "words"), 12)}
        esac
    done
    case "$place ${{words[CURRENT - 1]}}" in
{_indented(_values(found, "compadd -- {}; return", "_files; return"), 8)}
    esac
    case "$PREFIX" in
        -*) case "$place" in
{_indented(_options(found, "compadd -- {}"), 12)}
            esac ;;
        *) case "$place" in
{_indented(_verbs(found, "compadd -- {}"), 12)}
            *) _files ;;
            esac ;;
    esac
}}
if [ "$funcstack[1]" = _bray ]; then _bray "$@"; else compdef _bray bray; fi
"""


def fish(found: list[CompletionPlace]) -> str:
    """Return the script for fish."""
    known = " ".join(shlex.quote(place.name) for place in found)
    lines = [
        "# Completion of bray for fish, written by `bray completion fish`.",
        "function __bray_at",
        "    set -l place bray",
        "    for word in (commandline -opc)[2..-1]",
        f'        if contains -- "$place $word" {known}',
        '            set place "$place $word"',
        "        end",
        "    end",
        '    test "$place" = "$argv[1]"',
        "end",
    ]
    for place in found:
        begin = f"complete -c bray -n '__bray_at \"{place.name}\"'"
        if place.verbs:
            lines.append(f"{begin} -f -a '{' '.join(place.verbs)}'")
        for option in place.options:
            kind = "-l" if option.startswith("--") else "-s"
            line = f"{begin} {kind} {option.lstrip('-')}"
            if option in place.values:
                choices = place.values[option]
                line += f" -x -a '{' '.join(choices)}'" if choices else " -r"
            lines.append(line)
    return "\n".join(lines) + "\n"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


def _walk(found: list[CompletionPlace], array: str) -> list[str]:
    names = "|".join(f'"{place.name}"' for place in found[1:])
    return [f'{names}) place="$place ${{{array}[i]}}" ;;'] if names else []


def _values(found: list[CompletionPlace], known: str, unknown: str) -> list[str]:
    """Return a line for each option that takes a value."""
    return [
        f'"{place.name} {option}") {known.format(" ".join(choices)) if choices else unknown} ;;'
        for place in found
        for option, choices in place.values.items()
    ]


def _options(found: list[CompletionPlace], line: str) -> list[str]:
    return [f'"{p.name}") {line.format(" ".join(p.options))} ;;' for p in found if p.options]


def _verbs(found: list[CompletionPlace], line: str) -> list[str]:
    return [f'"{p.name}") {line.format(" ".join(p.verbs))} ;;' for p in found if p.verbs]


def _indented(lines: list[str], spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in lines)


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("shell", choices=tuple(SHELLS), help="whose completion is written")


def _completion(options: argparse.Namespace) -> int:
    sys.stdout.write(SHELLS[options.shell](list(places(make_parser()))))
    return 0


completion = Command("completion", "write the completion of a shell", _add_completion, _completion)
