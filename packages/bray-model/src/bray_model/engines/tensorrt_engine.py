"""The TensorRT backend, on the first GPU. Needs no torch.

Not run so far: written against the bindings of TensorRT 11.4 without a GPU.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import tensorrt as trt

from bray_core.errors import ConfigError, ExportError, SpecError
from bray_core.nested import Nested
from bray_core.protocols import Weights
from bray_model.engines.cuda_memory import CudaBuffer, CudaStream, gpu_name
from bray_model.engines.tensorrt_plan import bake, cached_plan, plan_path
from bray_model.export_files.manifest import sha256
from bray_model.signature import Signature

logger = logging.getLogger(__name__)

_LOGGER = trt.Logger(trt.Logger.ERROR)


class TensorRTEngine:
    """Runs a plan made from an export's graph.

    The plan is kept in the user's cache by the graph's checksum, the largest batch, the version of
    TensorRT and the GPU's name. Where the export's weights can be exchanged it is made from
    `exchange.onnx`: every version of a network shares one plan, and weights are refitted into it.

    Args:
        graph: Serialised model.
        signature: Inputs and outputs of the graph.
        exchange: The same model with its weights as inputs; None: they are fixed.
        weights: Weights that the graph holds, for `exchange`.
        max_batch_size: Largest number of rows of a forward.

    Raises:
        ConfigError: there is no GPU.
        ExportError: TensorRT cannot run the graph.
    """

    def __init__(
        self,
        graph: bytes,
        signature: Signature,
        exchange: bytes | None,
        weights: Weights | None,
        max_batch_size: int,
    ) -> None:
        self._graph = graph
        self._signature = signature
        self._exchange = exchange
        self._weights = None if exchange is None else weights
        self._max_batch_size = max_batch_size
        self._runtime = trt.Runtime(_LOGGER)
        self._engine = self._deserialised()
        self._context = self._engine.create_execution_context()
        self._stream = CudaStream()
        self._buffers = self._allocated()
        if self._weights is not None:
            self.load(self._weights)  # a plan from the cache holds those of another version

    def run(self, inputs: tuple[Nested, ...]) -> Nested:
        """Compute outputs, leaves `[B, ...]`.

        Raises:
            SpecError: more rows than `max_batch_size`.
        """
        tree, outputs = self._signature.input_tree, self._signature.output_tree
        leaves, rows = tree.batch(inputs)
        if rows > self._max_batch_size:
            raise SpecError(f"inputs: expected {self._max_batch_size} rows at most, got {rows}")
        given = {
            path: np.ascontiguousarray(leaf)
            for path, leaf in zip(tree.paths, leaves, strict=True)
            if path in self._buffers
        }
        for path, array in given.items():
            self._context.set_input_shape(path, array.shape)
            self._buffers[path].fill(array, self._stream)
        if not self._context.execute_async_v3(self._stream.handle):
            raise RuntimeError("TensorRT: the forward failed: its messages are on standard error")
        found = [np.empty((rows, *spec.shape), spec.dtype) for spec in outputs.specs]
        for path, array in zip(outputs.paths, found, strict=True):
            self._buffers[path].read(array, self._stream)
        self._stream.wait()
        return outputs.build(found)

    def weights(self) -> Weights | None:
        """Return the weights by name; None: they are fixed."""
        return self._weights

    def load(self, weights: Weights) -> None:
        """Put other weights into the plan; it is not made anew.

        Raises:
            ConfigError: the weights are fixed.
            ExportError: TensorRT does not take the weights.
        """
        if self._exchange is None:
            raise ConfigError("the weights of this export are fixed: export again")
        refitter = trt.Refitter(self._engine, _LOGGER)
        parser = trt.OnnxParserRefitter(refitter, _LOGGER)
        graph = bake(self._exchange, weights)  # lives until the plan has taken them
        if not parser.refit_from_bytes(graph):
            raise ExportError(f"TensorRT does not take the weights: {_errors(parser)}")
        if not refitter.refit_cuda_engine():
            raise ExportError(f"TensorRT misses the weights {refitter.get_missing_weights()}")
        self._weights = weights

    def copy(self) -> TensorRTEngine:
        """Return a separate engine of the same definition and weights."""
        return TensorRTEngine(
            self._graph, self._signature, self._exchange, self._weights, self._max_batch_size
        )

    def _deserialised(self) -> Any:
        made_from = {
            "graph": sha256(self._exchange or self._graph),
            "max_batch_size": self._max_batch_size,
            "tensorrt": trt.__version__,
            "gpu": gpu_name(),
        }
        path = plan_path(made_from)
        engine = self._runtime.deserialize_cuda_engine(cached_plan(path, self._plan))
        if engine is None:
            raise ExportError(f"{path}: TensorRT does not take this plan: delete it")
        return engine

    def _plan(self) -> bytes:
        """Make the plan: TensorRT tries kernels for a batch of 1 to `max_batch_size`."""
        builder = trt.Builder(_LOGGER)
        network = builder.create_network()
        parser = trt.OnnxParser(network, _LOGGER)
        graph = self._graph
        if self._exchange is not None:
            assert self._weights is not None
            graph = bake(self._exchange, self._weights)
        if not parser.parse(graph):
            raise ExportError(f"TensorRT cannot read the graph: {_errors(parser)}")
        config, profile = builder.create_builder_config(), builder.create_optimization_profile()
        config.clear_flag(trt.BuilderFlag.TF32)  # as exact as the other backends
        if self._exchange is not None:
            config.set_flag(trt.BuilderFlag.REFIT)
        tree, most = self._signature.input_tree, self._max_batch_size
        for path, spec in zip(tree.paths, tree.specs, strict=True):
            profile.set_shape(path, (1, *spec.shape), (most, *spec.shape), (most, *spec.shape))
        config.add_optimization_profile(profile)
        logger.info("TensorRT makes a plan for batches of 1 to %d rows", most)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise ExportError("TensorRT makes no plan: its messages are on standard error")
        return bytes(plan)

    def _allocated(self) -> dict[str, CudaBuffer]:
        """Return a buffer per input and output, which the plan then reads and writes."""
        names = {self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)}
        buffers = {}
        for tree in (self._signature.input_tree, self._signature.output_tree):
            for path, spec in zip(tree.paths, tree.specs, strict=True):
                if path not in names and tree is self._signature.input_tree:
                    continue  # the network does not use it
                dtype = np.dtype(trt.nptype(self._engine.get_tensor_dtype(path)))
                if dtype != spec.dtype:
                    raise ExportError(f"{path}: expected {spec.dtype}, got {dtype} in TensorRT")
                size = self._max_batch_size * spec.dtype.itemsize * int(np.prod(spec.shape))
                buffers[path] = CudaBuffer(size)
                self._context.set_tensor_address(path, buffers[path].address)
        return buffers


def _errors(parser: Any) -> str:
    return "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
