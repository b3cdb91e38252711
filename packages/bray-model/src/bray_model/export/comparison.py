"""An export beside the module that it was made from, on the same inputs."""

from __future__ import annotations

from bray_core import nested
from bray_core.errors import ExportError
from bray_core.nested import Nested
from bray_model.engines.definition import NetworkDefinition
from bray_model.engines.engine import Engine
from bray_model.engines.torch_engine import TorchEngine
from bray_model.export.export_report import OutputError, join, output_error
from bray_model.export.row_check import check_rows
from bray_model.export.trial_inputs import trial_inputs
from bray_model.signature import resize

BATCH_SIZES = (1, 2, 7, 64)
_NEAR_ZERO = 0.1
"""Below it errors are absolute: `atol = rtol * 0.1`."""


class ExportComparison:
    """Runs an export and its module on the same inputs.

    Args:
        definition: Network that is exported.
        rtol: relative error that an output may have.
        random_outputs: names of outputs that are not compared.
    """

    def __init__(
        self, definition: NetworkDefinition, rtol: float, random_outputs: tuple[str, ...]
    ) -> None:
        assert isinstance(definition.engine, TorchEngine)
        assert definition.example is not None
        self.definition = definition
        self.module = definition.engine
        self.rtol, self.atol = rtol, rtol * _NEAR_ZERO
        self.random_outputs = random_outputs
        self.inputs = trial_inputs(self.module.run, definition.example, max(BATCH_SIZES))

    def errors(self, exported: Engine) -> tuple[OutputError, ...]:
        """Return how far each output is from the module's, but for those drawn at random.

        Raises:
            ExportError: one of them fails.
        """
        paths = self.definition.signature.output_tree.paths
        found = []
        for rows in BATCH_SIZES:
            for inputs in (resize(self.definition.example, rows), _first(self.inputs, rows)):
                want = nested.flatten(_run_module(self.module, inputs, rows))
                got = nested.flatten(_run_graph(exported, inputs, rows))
                pairs = zip(paths, got.values(), want.values(), strict=True)
                found.append(
                    [
                        output_error(path, a, b, self.rtol, self.atol)
                        for path, a, b in pairs
                        if path not in self.random_outputs
                    ]
                )
        return join(found)

    def check_rows(self) -> None:
        """Raise ExportError if the module's rows depend on each other."""
        compared = [
            path
            for path in self.definition.signature.output_tree.paths
            if path not in self.random_outputs
        ]
        check_rows(self.module.run, self.inputs, compared, self.rtol, self.atol)


def _run_module(module: Engine, inputs: tuple[Nested, ...], rows: int) -> Nested:
    try:
        return module.run(inputs)
    except Exception as error:  # the user's code raises anything
        raise ExportError(
            f"the module fails with {rows} row{'s' * (rows > 1)} ({type(error).__name__}: "
            f"{error}): an export is asked for any number of rows, one too"
        ) from error


def _first(tree: tuple[Nested, ...], rows: int) -> tuple[Nested, ...]:
    first: tuple[Nested, ...] = nested.map(lambda leaf: leaf[:rows], tree)
    return first


def _run_graph(exported: Engine, inputs: tuple[Nested, ...], rows: int) -> Nested:
    try:
        return exported.run(inputs)
    except Exception as error:  # onnxruntime's errors share no other base
        raise ExportError(
            f"the graph fails with {rows} row{'s' * (rows > 1)}: {error}: where the module asks "
            "for the size of its batch by len(x), it was fixed while tracing: write x.shape[0]"
        ) from error
