"""`bray quantize`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bray_core.cli import Command
from bray_core.errors import ConfigError

if TYPE_CHECKING:
    from bray_core.nested import Nested
    from bray_model.signature import Signature

_KINDS = ("int8", "int8-dynamic", "float16")
_BATCH_ROWS = 64


def _arguments(parser: argparse.ArgumentParser) -> None:
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


def _run(options: argparse.Namespace) -> int:
    from bray_model.export.export_folder import find_export
    from bray_model.export.manifest import QUANTIZED, Manifest
    from bray_model.export.quantize import quantize

    export = find_export(options.path)
    calibration = None
    if options.calibration is not None:
        calibration = read_calibration(options.calibration, Manifest.read(export).signature)
    report = quantize(export, options.kind, calibration)
    sys.stdout.write(
        f"added {export / QUANTIZED[options.kind]}\n{report.table()}\n"
        f"try: bray bench {options.path}\n"
    )
    return 0


def read_calibration(file: Path, signature: Signature) -> list[tuple[Nested, ...]]:
    """Read a model's inputs from an npz of arrays `[N, ...]` by leaf path, in batches.

    Raises:
        ConfigError: it is no npz of plain arrays, or has other names or numbers of rows; names
            what is missing. Dtypes and shapes are left to `quantize`.
    """
    import numpy as np

    tree = signature.input_tree
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = dict(content)
    except (OSError, ValueError, TypeError, AttributeError, EOFError) as error:
        raise ConfigError(f"--calibration: {file}: not an npz of arrays ({error})") from error
    if sorted(arrays) != sorted(tree.paths):
        raise ConfigError(
            f"--calibration: {file}: expected the arrays {sorted(tree.paths)}, got {sorted(arrays)}"
        )
    rows = {path: array.shape[0] if array.ndim else 0 for path, array in arrays.items()}
    if len(set(rows.values())) > 1 or not all(rows.values()):
        raise ConfigError(f"--calibration: {file}: expected N rows in every array, got {rows}")
    return [
        tree.build([arrays[path][start : start + _BATCH_ROWS] for path in tree.paths])
        for start in range(0, rows[tree.paths[0]], _BATCH_ROWS)
    ]


quantize = Command(
    "quantize", "add a graph in fewer bits to an export, and compare it", _arguments, _run
)
