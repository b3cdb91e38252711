"""What can be told of an export without the module that it came from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bray_core import nested
from bray_core.errors import ExportError
from bray_core.nested import Nested
from bray_model.bench import random_inputs
from bray_model.definition import open_definition
from bray_model.manifest import Manifest

_BATCH_SIZES = (1, 2, 7, 64)
_RTOL, _ATOL = 1e-3, 1e-4


def validate(export: Path, manifest: Manifest) -> Iterator[str]:
    """Run an export on random inputs in several batch sizes; yield what was found to hold.

    Raises:
        ExportError: an output has another shape or dtype than the manifest says, a row's result
            depends on the other rows, or the graph that takes its weights as inputs differs.
    """
    signature = manifest.signature
    engine = open_definition(export, None).engine
    largest = random_inputs(signature, max(_BATCH_SIZES))
    whole = engine.run(largest)
    for rows in _BATCH_SIZES:
        outputs = engine.run(_first(largest, rows))
        got = nested.map(lambda leaf: leaf.shape, outputs)
        want = nested.map(lambda spec, rows=rows: (rows, *spec.shape), signature.outputs)
        if got != want:
            raise ExportError(f"{export}: with {rows} rows expected the outputs {want}, got {got}")
        _compare(export, f"with {rows} rows", outputs, _first(whole, rows))
    yield f"batches of {', '.join(map(str, _BATCH_SIZES))} rows: the same result for each row"
    weights = engine.weights()
    if weights is None:
        yield "its weights are fixed"
        return
    engine.load(weights)
    _compare(export, "with its weights as inputs", engine.run(largest), whole)
    yield f"its {len(weights)} weights can be exchanged: the same result with them as inputs"


def _first(tree: Nested, rows: int) -> Nested:
    return nested.map(lambda leaf: leaf[:rows], tree)


def _compare(export: Path, when: str, got: Nested, want: Nested) -> None:
    wanted = nested.flatten(want)
    for path, leaf in nested.flatten(got).items():
        if not np.allclose(leaf, wanted[path], _RTOL, _ATOL, equal_nan=True):
            raise ExportError(f"{export}: outputs/{path}: another result {when}")
