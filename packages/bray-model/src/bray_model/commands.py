"""The commands `bray export`, `bray validate`, `bray bench` and `bray quantize`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bray_core.cli import Command
from bray_core.errors import ConfigError

if TYPE_CHECKING:
    from bray_model.export_files.manifest import ServeRecommendation

_KINDS = ("int8", "int8-dynamic", "float16")


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="TRIAL", type=Path, help="a trial: its newest export; or an export"
    )
    parser.add_argument("--output", metavar="FOLDER", type=Path, help="where to copy it")
    _add_tolerance(parser, "from its module, else it is refused; by default what it was made with")


def _add_tolerance(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument(
        "--tolerance",
        metavar="RELATIVE",
        type=float,
        help=f"largest relative error of an output {help}",
    )


def _export(options: argparse.Namespace) -> int:
    from bray_model.text.text_folder import copy_language_model, find_language_model

    language_model = find_language_model(options.path)
    if language_model is not None:
        _say(f"language model in {language_model}: transformers and vLLM open it as it is")
        if options.output is not None:
            copy_language_model(language_model, options.output)
            _say(f"copied to {options.output}; try: bray validate {options.output}")
        return 0
    from bray_model.export.export_folder import copy_export, find_export, read_report
    from bray_model.export_files.manifest import check_files

    export = find_export(options.path)
    manifest = check_files(export)
    _say(f"{manifest.name} version {manifest.version} in {export}: all checksums match")
    if manifest.made_with:
        _say("made with " + ", ".join(f"{k} {v}" for k, v in manifest.made_with.items()))
    report = read_report(export)
    _say(report.table())
    report.check(options.tolerance)
    if options.output is not None:
        copy_export(export, options.output)
        _say(f"copied to {options.output}; try: bray serve {options.output}")
    return 0


def _validate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="an export, a trial (its newest export), or what `bray pack` wrote",
    )
    _add_tolerance(parser, "between batch sizes; by default what the export was made with")


def _validate(options: argparse.Namespace) -> int:
    from bray_model.text.text_folder import find_language_model

    language_model = find_language_model(options.path)
    if language_model is not None:
        return _validate_language_model(language_model)
    from bray_model.export.export_folder import find_export, find_exports
    from bray_model.export_files.agent_file import unpacked

    with unpacked(options.path) as folder:
        is_packed = folder != options.path
        for export in find_exports(folder) if is_packed else [find_export(folder)]:
            _validate_export(export, options.path if is_packed else export, options.tolerance)
    _say("valid")
    return 0


def _validate_export(export: Path, place: Path, tolerance: float | None) -> None:
    """Compare an export with its checksums and itself, and say where it lies."""
    from bray_model.export.export_folder import read_report
    from bray_model.export.validate import validate
    from bray_model.export_files.manifest import check_files

    manifest = check_files(export)
    _say(f"{manifest.name} version {manifest.version} in {place}: all checksums match")
    _say(f"compared with its module when it was made:\n{read_report(export).table()}")
    for line in validate(export, manifest, tolerance):
        _say(line)


def _validate_language_model(folder: Path) -> int:
    from bray_core.errors import MissingExtraError

    try:
        from bray_model.text.validate_text import validate_text
    except ImportError as error:
        raise MissingExtraError("a language model", "bray-model", "llm") from error
    for line in validate_text(folder):
        _say(line)
    _say("valid")
    return 0


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", type=Path, help="an export, or a trial: its newest export"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument(
        "--dry-run", action="store_true", help="leave the manifest of the export as it is"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _bench(options: argparse.Namespace) -> int:
    from bray_core.files.output_file import check_output_folder
    from bray_core.files.saved_file import write_atomic
    from bray_model.export.bench import measure_export, recommend, table
    from bray_model.export.export_folder import find_export, read_report
    from bray_model.export_files.manifest import MANIFEST, Manifest

    if not 0 < options.seconds < math.inf:
        raise ConfigError(f"--seconds: expected more than 0, got {options.seconds}")
    export = find_export(options.path)
    manifest = Manifest.read(export)
    if not options.dry_run:
        check_output_folder("PATH (--dry-run writes nothing)", export)
    agreement = read_report(export).agreement()
    answering, published = measure_export(export, manifest, options.seconds)
    found = recommend(answering, agreement)
    if options.json:
        document = {
            "measured": [asdict(one) for one in answering + published],
            "recommended": asdict(found),
        }
        _say(json.dumps(document, indent=1))
    else:
        _say_bench(table(answering + published, agreement), found)
    if not options.dry_run:
        write_atomic(export / MANIFEST, replace(manifest, recommended=found).to_json())
        if not options.json:
            _say(f"`bray serve {options.path}` takes it from now on")
    return 0


def _say_bench(table: str, found: ServeRecommendation) -> None:
    _say(table)
    _say(
        f"recommended here: --backend {found.backend} --threads {found.num_threads} "
        f"--max-batch-size {found.max_batch_size}"
    )
    if found.backend != "auto":
        _say("its weights are fixed: to publish to the server, serve it with --backend auto")


def _quantize_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="EXPORT", type=Path, help="an export, or a trial: its newest export"
    )
    parser.add_argument(
        "--kind",
        required=True,
        choices=_KINDS,
        help="int8: weights and activations; int8-dynamic: weights, activations while it runs; "
        "float16: for GPUs",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE.npz",
        type=Path,
        help="inputs as the model will see them, [N, ...] by name, such as inputs[0]/units; "
        "int8 needs it",
    )


def _quantize(options: argparse.Namespace) -> int:
    from bray_model.export.export_folder import find_export
    from bray_model.export.quantize import quantize
    from bray_model.export.trial_inputs import read_calibration
    from bray_model.export_files.manifest import QUANTIZED, Manifest

    export = find_export(options.path)
    calibration = None
    if options.calibration is not None:
        calibration = read_calibration(options.calibration, Manifest.read(export).signature)
    report = quantize(export, options.kind, calibration)
    _say(f"added {export / QUANTIZED[options.kind]}\n{report.table()}")
    _say(f"try: bray bench {options.path}")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


export = Command(
    "export",
    "check a trial's newest export, show how exact it is, and copy it with --output",
    _export_arguments,
    _export,
)
validate = Command(
    "validate",
    "check an export without torch, or a language model beside transformers",
    _validate_arguments,
    _validate,
)
bench = Command(
    "bench",
    "measure an export by threads and batch size, and note what to serve it with",
    _bench_arguments,
    _bench,
)
quantize = Command(
    "quantize",
    "add a graph in fewer bits to an export, and compare it",
    _quantize_arguments,
    _quantize,
)
