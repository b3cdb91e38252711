"""The onnxruntime backend. Needs no torch."""

from __future__ import annotations

import copy
import os
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from bray_core.errors import ConfigError, ExportError, SpecError
from bray_core.nested import Nested
from bray_core.protocols import Weights
from bray_model.config import Device
from bray_model.export_files.graph_files import external_files
from bray_model.export_files.manifest import EXCHANGE, GRAPH
from bray_model.signature import Signature
from bray_model.tree_spec import Leaf, TreeSpec

WEIGHT_PREFIX = "weights/"
"""Prefix of an input that takes a weight; inputs of the signature begin with `inputs`."""
_ERROR_SEVERITY = 3
_FOLDER = "session.model_external_initializers_file_folder_path"
_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_TYPES = {"float32": "float", "float64": "double"}


class OnnxEngine:
    """Runs an ONNX graph whose tensors are named by the leaf paths of a signature.

    Args:
        graph: Serialised model, or the file of one that this process has just written:
            onnxruntime keeps no second copy of its weights then.
        signature: Inputs and outputs of the graph.
        exchange: The same model with its weights as inputs; None: they are fixed.
        weights: Weights that the graph holds, for `exchange`.
        num_threads: Threads of one forward; more than one only pays for large networks.
        device: Device that it runs on.
        file: Name of the graph's file, for messages.
        folder: Folder of the files that hold data of the graph, checked by the caller
            (`Manifest.read_graph`); None: the graph holds all its data.

    Raises:
        ConfigError: onnxruntime cannot use the device.
        ExportError: the graph names a file and there is no folder, onnxruntime refuses it, or it
            has other inputs or outputs.
    """

    def __init__(
        self,
        graph: bytes | Path,
        signature: Signature,
        exchange: bytes | None = None,
        weights: Weights | None = None,
        num_threads: int = 1,
        *,
        device: Device = "cpu",
        file: str = GRAPH,
        folder: Path | None = None,
    ) -> None:
        self._signature = signature
        self._inputs = signature.input_tree.paths
        self._outputs = list(signature.output_tree.paths)
        options = _Options(num_threads, device, folder)
        self._fixed = _session(graph, options, signature, file)
        self._exchange = None if exchange is None else _Exchange(exchange, signature, options)
        self._weights = None if exchange is None else weights
        self._feed: dict[str, Any] | None = None
        """Weights by the name of the graph's input; None: those that the graph holds."""

    def run(self, inputs: tuple[Nested, ...]) -> Nested:
        """Compute outputs, leaves `[B, ...]`.

        Raises:
            SpecError: The graph refuses what the inputs hold, such as an index beyond a table.
        """
        leaves, _ = self._signature.input_tree.batch(inputs)
        feed = dict(zip(self._inputs, leaves, strict=True))
        session = self._fixed
        if self._feed is not None:
            assert self._exchange is not None
            session = self._exchange.session
            feed.update(self._feed)
        try:
            outputs = session.run(self._outputs, feed)
        except InvalidArgument as error:
            said = " ".join(str(error).split())
            raise SpecError(f"the graph refuses the inputs: {said}") from error
        return self._signature.output_tree.build(outputs)

    def weights(self) -> Weights | None:
        """Return the weights by name; None: they are fixed."""
        return self._weights

    def load(self, weights: Weights) -> None:
        """Use other weights from the next run on; they are not copied.

        Raises:
            ConfigError: the weights are fixed.
        """
        if self._exchange is None:
            raise ConfigError("the weights of this export are fixed: export again")
        self._feed = self._exchange.feed(weights)
        self._weights = weights

    def copy(self) -> OnnxEngine:
        """Return an engine of the same sessions, which keep no state, with weights of its own."""
        return copy.copy(self)


class _Options(NamedTuple):
    """Where and how a session runs."""

    num_threads: int
    device: Device
    folder: Path | None


class _Exchange:
    """A graph that takes its weights as inputs; a session is made when one is needed."""

    def __init__(self, graph: bytes, signature: Signature, options: _Options) -> None:
        self._graph = graph
        self._signature = signature
        self._options = options

    @cached_property
    def session(self) -> Any:
        """The session that answers with weights that are given to it."""
        return _session(self._graph, self._options, self._signature, EXCHANGE)

    def feed(self, weights: Weights) -> dict[str, Any]:
        """Return what the graph needs of the weights; it may leave some out, such as counters.

        Raises:
            ExportError: The graph needs a weight that is not among them.
        """
        feed = {}
        for tensor in self.session.get_inputs():
            if not tensor.name.startswith(WEIGHT_PREFIX):
                continue
            name = tensor.name.removeprefix(WEIGHT_PREFIX)
            if name not in weights:
                raise ExportError(f"{EXCHANGE}: expected the weight {name!r}, got none")
            feed[tensor.name] = self._placed(weights[name])
        return feed

    def _placed(self, weight: Leaf) -> Any:
        """Copy a weight to the GPU once, where it would otherwise travel with every forward."""
        if self._options.device == "cpu":
            return weight
        return onnxruntime.OrtValue.ortvalue_from_numpy(weight, self._options.device, 0)


def _session(graph: bytes | Path, where: _Options, signature: Signature, file: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = where.num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERROR_SEVERITY
    if isinstance(graph, bytes):
        _tell_folder(options, graph, where.folder, file)
    providers = _providers(where.device)
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=providers)
    except Exception as error:  # onnxruntime's errors share no other base
        raise ExportError(f"{file}: onnxruntime refuses it: {error}") from error
    _check_provider(session.get_providers(), providers[0])
    inputs = session.get_inputs()
    if file == EXCHANGE:
        inputs = [tensor for tensor in inputs if not tensor.name.startswith(WEIGHT_PREFIX)]
    _check(file, "inputs", inputs, signature.input_tree)
    _check(file, "outputs", session.get_outputs(), signature.output_tree)
    return session


def _tell_folder(options: Any, graph: bytes, folder: Path | None, file: str) -> None:
    """Say where the graph's data lie; else onnxruntime would look in the working directory."""
    if folder is not None:
        options.add_session_config_entry(_FOLDER, os.path.realpath(folder))
    elif named := external_files(graph, file):
        raise ExportError(f"{file}: expected a graph that holds all its data, got one in {named}")


def _providers(device: Device) -> list[str]:
    if device == "cpu":
        return [_CPU]
    _check_provider(onnxruntime.get_available_providers(), _CUDA)
    return [_CUDA, _CPU]  # what CUDA has no kernel for


def _check_provider(got: list[str], wanted: str) -> None:
    """Without a GPU, or the libraries for it, onnxruntime would take the CPU without a word."""
    if wanted not in got:
        raise ConfigError(
            f"device='cuda': onnxruntime {onnxruntime.__version__} here has {', '.join(got)}: "
            "install onnxruntime-gpu, the CUDA libraries that it was built for and the NVIDIA "
            "driver, or leave device at 'cpu'"
        )


def _check(file: str, what: str, tensors: list[Any], tree: TreeSpec) -> None:
    """Compare a graph's inputs or outputs with the manifest's."""
    shapes = {tensor.name: (tensor.type, tensor.shape[1:]) for tensor in tensors}
    if sorted(shapes) != sorted(tree.paths):
        raise ExportError(f"{file}: expected the {what} {sorted(tree.paths)}, got {sorted(shapes)}")
    for path, spec in zip(tree.paths, tree.specs, strict=True):
        kind, shape = shapes[path]
        if kind != f"tensor({_TYPES.get(spec.dtype.name, spec.dtype.name)})" or (
            list(spec.shape) != [size if isinstance(size, int) else -1 for size in shape]
        ):
            raise ExportError(f"{file}: {path}: expected {spec}, got {kind} {shape} a row")
