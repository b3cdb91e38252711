"""The subcommands `new`, `config` and `monitoring`. Heavy imports wait until one is run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bray_core.command import Command


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", type=Path, help="the folder to make, such as walker")
    parser.add_argument(
        "--template", default="reinforcement", help="what to start from: a template's name"
    )


def _new(options: argparse.Namespace) -> int:
    from bray.cli.project import make_project

    made = make_project(options.name, options.template)
    _say(f"wrote {', '.join(sorted(path.name for path in made.parent.iterdir()))} in {made.parent}")
    _say(f"try: cd {made.parent} && bray train {made.name}")
    return 0


def _add_monitoring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="where the two files are written")
    parser.add_argument(
        "targets", nargs="*", metavar="HOST:PORT", help="of runs and servers; default: this machine"
    )


def _monitoring(options: argparse.Namespace) -> int:
    from bray.monitoring.configuration import TARGETS, write_configuration

    configuration, dashboard = write_configuration(options.folder, options.targets or TARGETS)
    _say(f"wrote {configuration}: prometheus --config.file={configuration}")
    _say(f"wrote {dashboard}: import it in Grafana (Dashboards, New, Import)")
    return 0


def _add_config(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="verb", required=True, title="verbs")
    words = "say what is wrong with a template: file, line, column, key"
    check = verbs.add_parser("check", help=words, description=words, allow_abbrev=False)
    check.add_argument("template", help="a YAML file, a trial, or a template's name")
    check.add_argument("overrides", nargs="*", metavar="key=value", help="as for `bray train`")
    check.set_defaults(verb=_check, parser=check)
    words = "show every setting of an algorithm or a template: its part, value and meaning"
    explain = verbs.add_parser("explain", help=words, description=words, allow_abbrev=False)
    explain.add_argument(
        "what", help="an algorithm (ppo), a template's name (cartpole), a YAML file, or a trial"
    )
    explain.add_argument(
        "task", nargs="?", default="", help="after an algorithm: a task with defaults of its own"
    )
    explain.add_argument("--json", action="store_true", help="print one JSON document")
    explain.set_defaults(verb=_explain, parser=explain)
    words = "write the JSON Schema of templates, for editors"
    schema = verbs.add_parser("schema", help=words, description=words, allow_abbrev=False)
    schema.add_argument(
        "templates",
        nargs="*",
        help="templates whose algorithms and sources of your own the schema knows, too",
    )
    schema.set_defaults(verb=_schema, parser=schema)


def _explain(options: argparse.Namespace) -> int:
    from bray.templates.explanation import explained

    found = explained(options.what, options.task)
    _say(json.dumps(found.to_json(), indent=1) if options.json else found.table())
    return 0


def _check(options: argparse.Namespace) -> int:
    from bray.templates.loading import load, path_of

    loaded = load(options.template, options.overrides)
    title = f"{loaded.algorithm} on {loaded.environment}"
    if loaded.composition is not None:
        title = loaded.composition.title
    _say(f"{path_of(options.template)}: {title}: valid")
    return 0


def _schema(options: argparse.Namespace) -> int:
    from bray.templates.json_schemas import OwnCode, json_schema_of_all

    _say(json.dumps(json_schema_of_all(OwnCode.named_in(options.templates)), indent=1))
    return 0


def _config(options: argparse.Namespace) -> int:
    code: int = options.verb(options)
    return code


monitoring = Command(
    "monitoring",
    "write Prometheus' configuration and a Grafana dashboard",
    _add_monitoring,
    _monitoring,
)
new = Command("new", "make a project from a template, with tests of its own", _add_new, _new)
config = Command("config", "check a template, write the JSON Schema", _add_config, _config)
