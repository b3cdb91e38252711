"""The onnxruntime backend, on the CPU. Needs no torch."""

from __future__ import annotations

from typing import Any

import onnxruntime

from bray_core.errors import ConfigError, ExportError
from bray_core.nested import Nested
from bray_core.protocols import Weights
from bray_model.signature import Signature
from bray_model.tree_spec import TreeSpec

_ERROR_SEVERITY = 3
_TYPES = {"float32": "float", "float64": "double"}


class OnnxEngine:
    """Runs an ONNX graph whose tensors are named by the leaf paths of a signature.

    Args:
        graph: the serialised model. Bytes, not a path, so that it cannot name further files.
        signature: what it takes and gives.
        num_threads: threads of one forward; more than one only pays for large networks.

    Raises:
        ExportError: onnxruntime refuses the graph, or it has other inputs or outputs.
    """

    row_multiple = 1  # onnxruntime's kernels treat all rows alike: measured, and held by a test

    def __init__(self, graph: bytes, signature: Signature, num_threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERROR_SEVERITY
        try:
            self._session = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's errors share no other base
            raise ExportError(f"model.onnx: onnxruntime refuses it: {error}") from error
        self._graph = graph
        self._signature = signature
        self._num_threads = num_threads
        self._inputs = signature.input_tree.paths
        self._outputs = list(signature.output_tree.paths)
        _check("inputs", self._session.get_inputs(), signature.input_tree)
        _check("outputs", self._session.get_outputs(), signature.output_tree)

    def run(self, inputs: tuple[Nested, ...]) -> Nested:
        """Compute outputs, leaves `[B, ...]`."""
        leaves, _ = self._signature.input_tree.batch(inputs)
        outputs = self._session.run(self._outputs, dict(zip(self._inputs, leaves, strict=True)))
        return self._signature.output_tree.build(outputs)

    def weights(self) -> None:
        """None: the weights of an export are fixed."""

    def load(self, weights: Weights) -> None:
        """Refuse.

        Raises:
            ConfigError: always, so far.
        """
        raise ConfigError("the weights of an export are fixed: export again, or use the module")

    def copy(self) -> OnnxEngine:
        """Return a separate session of the same graph."""
        return OnnxEngine(self._graph, self._signature, self._num_threads)


def _check(what: str, tensors: list[Any], tree: TreeSpec) -> None:
    """Compare a graph's inputs or outputs with the manifest's."""
    shapes = {tensor.name: (tensor.type, tensor.shape[1:]) for tensor in tensors}
    if sorted(shapes) != sorted(tree.paths):
        raise ExportError(
            f"model.onnx: expected the {what} {sorted(tree.paths)}, got {sorted(shapes)}"
        )
    for path, spec in zip(tree.paths, tree.specs, strict=True):
        kind, shape = shapes[path]
        if kind != f"tensor({_TYPES.get(spec.dtype.name, spec.dtype.name)})" or (
            list(spec.shape) != [size if isinstance(size, int) else -1 for size in shape]
        ):
            raise ExportError(f"model.onnx: {path}: expected {spec}, got {kind} {shape} a row")
