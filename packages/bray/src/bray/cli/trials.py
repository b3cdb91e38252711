"""`bray trials list|show|compare|report|note|rm|clone|prune`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bray_core.cli import EXIT_ERROR, Command
from bray_core.errors import AlreadyExistsError, ConfigError
from bray_core.files.escaping import escape_unprintable, escape_unprintable_lines
from bray_core.files.trial_folders import PROJECT, trial_path

if TYPE_CHECKING:
    from rich.table import Table

    from bray.retention import RetentionPolicy
    from bray_core.trials.trial import Trial

_UNBOUNDED = 10_000
"""Width of a line, in characters, in a file or a pipe: nothing is cut there."""


def _add_trials(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="verb", required=True, title="verbs")

    def verb(
        name: str, run: Callable[[argparse.Namespace], int], help: str
    ) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=help, description=help, allow_abbrev=False)
        sub.add_argument("--project", type=Path, default=PROJECT, help="folder of the trials")
        sub.set_defaults(verb=run, parser=sub)
        return sub

    yes = "delete; without it the command only says what it would delete"
    listing = verb("list", _list, "list all trials of a project: state, frames, returns")
    show = verb("show", _show, "show a trial: its figures, the sizes of its folders, its launches")
    show.add_argument("trial", help="name or folder of the trial")
    compare = verb("compare", _compare, "compare trials: the settings that differ, the figures")
    compare.add_argument(
        "trial",
        nargs="+",
        help="names or folders of two or more trials, or groups of seeds: walker of walker-1, …",
    )
    for one in (listing, show, compare):
        one.add_argument("--json", action="store_true", help="print one JSON document")
    report = verb(
        "report", _report, "write a report on trials: one HTML file, which needs no other"
    )
    report.add_argument(
        "trial",
        nargs="+",
        help="names or folders of trials of the project, or groups of seeds: walker of walker-1, …",
    )
    report.add_argument("--output", type=Path, default=Path("report.html"), help="the file")
    report.add_argument(
        "--metric", action="append", default=[], help="a metric that is drawn; may be repeated"
    )
    report.add_argument(
        "--seeds", default="iqm", help="what is drawn of seeds: each, median, mean, iqm"
    )
    note = verb("note", _note, "write tags and a note on a trial, or print them")
    note.add_argument("trial", help="name or folder of the trial")
    note.add_argument("--text", help="the note, in place of the one that it has")
    note.add_argument("--tag", action="append", default=[], help="a tag more; may be repeated")
    note.add_argument("--untag", action="append", default=[], help="a tag that goes")
    remove = verb("rm", _remove, "delete trials")
    remove.add_argument("trial", nargs="+", help="names or folders of the trials")
    remove.add_argument("--yes", action="store_true", help=yes)
    clone = verb("clone", _clone, "make a new trial with the settings of another")
    clone.add_argument("trial", help="name or folder of the trial whose settings are copied")
    clone.add_argument("name", help="name of the new trial, which is made beside that one")
    clone.add_argument(
        "--checkpoint",
        action="store_true",
        help="copy models and checkpoints too: the new trial goes on from there",
    )
    prune = verb("prune", _prune, "delete old checkpoints, versions of models and episodes")
    prune.add_argument(
        "trial", nargs="*", help="names or folders of the trials; default: all that are not running"
    )
    for name in ("checkpoints", "versions", "episodes"):
        words = f"number of the newest {name} that stay; default: as the trial's settings say"
        prune.add_argument(f"--{name}", type=int, help=words)
    prune.add_argument("--yes", action="store_true", help=yes)


def _trials(options: argparse.Namespace) -> int:
    code: int = options.verb(options)
    return code


def _find(options: argparse.Namespace, name: str) -> Trial:
    """Return a trial by its name in the project, or by its folder."""
    from bray_core.trials.trial import Trial

    return Trial(trial_path(name, options.project))


def _shown(trial: Trial) -> str:
    """Return a trial's folder on one line, whatever its name holds."""
    return escape_unprintable(str(trial.path))


def _list(options: argparse.Namespace) -> int:
    from bray.cli.trial_documents import listed_document
    from bray.cli.trial_tables import listed
    from bray_core.trials.trial import trials

    found = trials(options.project)
    if options.json:
        return _print_json(listed_document(found))
    if found:
        _print(listed(found))
    else:
        _print(f"no trials in {options.project}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from bray.cli.trial_documents import shown_document
    from bray.cli.trial_tables import contents, launches, state_of

    trial = _find(options, options.trial)
    if options.json:
        return _print_json(shown_document(trial))
    _print(f"{_shown(trial)}: {state_of(trial)}")
    _print(contents(trial))
    _print(launches(trial))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from bray.cli.trial_documents import compared_document
    from bray.cli.trial_tables import compared, seed_groups

    names = [member for name in options.trial for member in _members(options, name)]
    if len(names) < 2:
        raise ConfigError(f"trial: expected two trials or more, got {options.trial[0]!r} alone")
    found = [_find(options, name) for name in names]
    if options.json:
        return _print_json(compared_document(found))
    _print(compared(found))
    if (table := seed_groups(found)) is not None:
        _print(table)
    return 0


def _report(options: argparse.Namespace) -> int:
    from bray.viewer.project import Project
    from bray.viewer.report.document import report

    names = [
        _name_in_project(options, member)
        for name in options.trial
        for member in _members(options, name)
    ]
    text = report(
        Project(options.project), names, metrics=tuple(options.metric), seeds=options.seeds
    )
    try:
        options.output.write_text(text, errors="replace")
    except OSError as error:
        raise ConfigError(f"--output: cannot write {options.output}: {error.strerror}") from error
    _print(f"wrote {options.output}")
    return 0


def _note(options: argparse.Namespace) -> int:
    from bray_core.trials.trial_notes import TrialNotes

    trial = _find(options, options.trial)
    before = TrialNotes.read(trial.path)
    kept = [tag for tag in (*before.tags, *options.tag) if tag not in options.untag]
    text = before.text if options.text is None else options.text
    notes = TrialNotes(tags=tuple(dict.fromkeys(kept)), text=text)
    if notes != before:
        notes.write(trial.path, before)
    _print(f"{_shown(trial)}: {', '.join(notes.tags) or 'no tags'}")
    if notes.text:
        _print(notes.text)
    return 0


def _members(options: argparse.Namespace, name: str) -> list[str]:
    """Return the trials of a group of seeds, where a name is that of no trial but of a group."""
    from bray_core.trials.seed_group import groups
    from bray_core.trials.trial import trials

    if os.sep in name or (options.project / name).exists() or not options.project.is_dir():
        return [name]
    return groups([trial.name for trial in trials(options.project)]).get(name, [name])


def _name_in_project(options: argparse.Namespace, trial: str) -> str:
    """Return the name of a trial that is named, or whose folder is given."""
    path = trial_path(trial, options.project)
    if path.parent.resolve() != options.project.resolve():
        raise ConfigError(
            f"trial: expected trials of {options.project}, got {path}: a report is of one project: "
            "--project names its folder"
        )
    return path.name


def _remove(options: argparse.Namespace) -> int:
    from bray.cli.trial_tables import in_bytes, size_of
    from bray_core.trials.trial import remove
    from bray_core.trials.trial_lock import is_running

    found = [_find(options, name) for name in options.trial]
    for trial in found:
        if is_running(trial.path):
            raise AlreadyExistsError(f"trial {trial.path}: is running: stop it first")
    if not options.yes:
        names = ", ".join(map(_shown, found))
        count, size = size_of(trial.path for trial in found)
        raise ConfigError(
            f"--yes: missing: this deletes {names}: {count:,} files, {in_bytes(size)}"
        )
    for trial in found:
        remove(trial)
        _print(f"deleted {_shown(trial)}")
    return 0


def _clone(options: argparse.Namespace) -> int:
    from bray_core.trials.trial import clone

    made = clone(_find(options, options.trial), options.name, checkpoint=options.checkpoint)
    _print(f"made {made.path}; try: bray train {made.path}")
    return 0


def _prune(options: argparse.Namespace) -> int:
    from bray_core.errors import BrayError
    from bray_core.trials.trial import trials
    from bray_core.trials.trial_lock import is_running

    if options.trial:
        found = [_find(options, name) for name in options.trial]
    else:
        found = [trial for trial in trials(options.project) if not is_running(trial.path)]
    code = num_files = 0
    for trial in found:
        try:
            num_files += _prune_or_say(options, trial)
        except (
            BrayError,
            OSError,
        ) as error:  # a broken trial must not keep the others from being pruned
            sys.stderr.write(f"error: {escape_unprintable_lines(str(error))}\n")
            code = EXIT_ERROR
    if not num_files and not code:
        _print("nothing to delete")
    return code


def _prune_or_say(options: argparse.Namespace, trial: Trial) -> int:
    """Prune a trial or say what that would delete, and return the number of files."""
    from bray.cli.trial_tables import in_bytes, size_of
    from bray.retention import surplus

    keep = _keep(options, trial)
    count, size = size_of(surplus(trial.path, keep))
    if count:
        if options.yes:
            _prune_one(trial, keep)
        what = "deleted" if options.yes else "to delete: add --yes"
        _print(f"{_shown(trial)}: {count:,} files, {in_bytes(size)} {what}")
    return count


def _prune_one(trial: Trial, keep: RetentionPolicy) -> None:
    from bray.retention import prune
    from bray_core.errors import BrayError
    from bray_core.trials.trial_lock import lock_trial

    handle = lock_trial(trial.path)  # a launch that begins meanwhile is refused
    try:
        prune(trial.path, keep)
    except OSError as error:
        raise BrayError(f"trial {trial.path}: cannot be pruned: {error}") from error
    finally:
        os.close(handle)


def _keep(options: argparse.Namespace, trial: Trial) -> RetentionPolicy:
    """Return the trial's own retention, changed by the options of the command line."""
    from bray.retention import RetentionPolicy
    from bray_core.config import from_mapping

    settings = trial.config().get("keep") or {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{trial.path}: keep: expected settings by name, got {settings!r:.100}")
    for name in ("checkpoints", "versions", "episodes"):
        number = getattr(options, name)
        if number is not None:
            settings[name] = number
    return from_mapping(settings, RetentionPolicy, str(trial.path))


def _print_json(document: object) -> int:
    from bray.cli.trial_documents import as_json

    sys.stdout.write(as_json(document) + "\n")
    return 0


def _print(what: str | Table) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _UNBOUNDED)
    try:
        console.print(what, markup=False, highlight=False, soft_wrap=isinstance(what, str))
    except SystemExit:  # rich ends the process where nobody reads its output
        raise BrokenPipeError from None


trials = Command(
    "trials",
    "list, show, compare, report, note, delete, clone and prune trials",
    _add_trials,
    _trials,
)
