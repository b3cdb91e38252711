"""torch → ONNX: the graph with its weights in it, and the graph that takes them as inputs."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch

from bray_core import nested
from bray_core.errors import ExportError, MissingExtraError
from bray_core.nested import Nested
from bray_core.process.raised_words import place_of_others
from bray_model.engines.onnx_engine import WEIGHT_PREFIX
from bray_model.export.graph_writer import MAX_BYTES, skeleton, total_bytes, write_graph
from bray_model.signature import Signature, resize

GRAPH_DATA = "model.onnx.data"
"""What holds the weights of a graph that is too large for one file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenGraph:
    """A graph on disk."""

    exchange: bytes
    """The same graph with inputs `weights/<name>` in place of the weights that it holds."""
    files: tuple[str, ...]
    """What was written beside the graph: data that it names."""
    opset: int
    """The version of ONNX's operators that the graph is made of."""
    dtypes: frozenset[str]
    """The types that the module computes in, as ONNX calls them: `FLOAT`, `FLOAT16`, …"""


def write_torch_graph(
    path: Path,
    module: torch.nn.Module,
    signature: Signature,
    example: tuple[Nested, ...],
    *,
    takes_bf16: bool = False,
) -> WrittenGraph:
    """Write a module's graph to the file `path`, without a second copy of its weights.

    What computes in bfloat16 computes in float32 there, with the same weights: onnxruntime has few
    kernels for bfloat16 on a CPU.

    Args:
        path: File to write.
        module: Module in eval mode, on the CPU.
        signature: names the inputs and outputs.
        example: inputs `[B, ...]`.
        takes_bf16: Whether the module wants its floats as bfloat16.

    Raises:
        ExportError: torch cannot export the module.
    """
    check_exportable(module)
    flat = FlatModule(module, signature, takes_bf16).eval()
    example = resize(example, 2)  # torch would take a batch of 1 for a constant
    leaves = tuple(torch.from_numpy(leaf) for _, leaf in nested.items(example))
    program = _exported(flat, leaves, signature)
    exchange, dtypes = _with_weights_as_inputs(program.model, module), _dtypes(program.model)
    with quiet():
        program.optimize()
    files: tuple[str, ...] = ()
    if total_bytes(program.model) < MAX_BYTES:
        write_graph(path, program.model)
    else:
        program.save(path, external_data=True)
        files = (GRAPH_DATA,)
    opset = program.model.opset_imports[""]
    return WrittenGraph(exchange=exchange, files=files, opset=opset, dtypes=dtypes)


class FlatModule(torch.nn.Module):
    """A module with leaves as arguments and results, in the signature's order.

    Args:
        module: Module in eval mode.
        signature: says what its arguments are made of.
        takes_bf16: Whether the module wants its floats as bfloat16.
    """

    def __init__(self, module: torch.nn.Module, signature: Signature, takes_bf16: bool) -> None:
        super().__init__()
        self.module = module
        self._build = signature.input_tree.build
        self._takes_bf16 = takes_bf16

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the module's outputs, flat."""
        given = [leaf.bfloat16() if self._is_narrowed(leaf) else leaf for leaf in leaves]
        outputs = self.module(*self._build(given))
        # A tensor has one name: one that came in, or stands twice among the outputs, is copied.
        named = {id(leaf) for leaf in (*leaves, *given)}
        flat: list[torch.Tensor] = []
        for _, leaf in nested.items(outputs):
            leaf = leaf.float() if leaf.dtype == torch.bfloat16 else leaf
            flat.append(leaf.clone() if id(leaf) in named else leaf)
            named.add(id(leaf))
        return tuple(flat)

    def _is_narrowed(self, leaf: torch.Tensor) -> bool:
        return self._takes_bf16 and leaf.is_floating_point()


def check_exportable(module: torch.nn.Module) -> None:
    """Refuse modules that torch does not export.

    Raises:
        ExportError: a part of it is a script.
    """
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise ExportError(
                f"{name or 'module'}: torch exports no module of torch.jit.script or "
                "torch.jit.trace: give the Python module that it was made from"
            )


def _exported(
    flat: torch.nn.Module, leaves: tuple[torch.Tensor, ...], signature: Signature
) -> torch.onnx.ONNXProgram:
    batch = torch.export.Dim("batch")
    try:
        with quiet():
            program = torch.onnx.export(
                flat,
                leaves,
                dynamo=True,
                verbose=False,
                optimize=False,  # it would join equal weights, which then could not differ
                dynamic_shapes=(tuple({0: batch} for _ in leaves),),
                input_names=list(signature.input_tree.paths),
                output_names=list(signature.output_tree.paths),
            )
    except ImportError as error:
        raise MissingExtraError("an ONNX export", "bray-model", "torch") from error
    except Exception as error:  # the exporter runs user code and raises anything
        raise ExportError(f"torch cannot export the module: {_reason(error)}") from error
    assert program is not None
    return program


def _dtypes(model: Any) -> frozenset[str]:
    values = [*model.graph.initializers.values()]
    values += [value for node in model.graph for value in node.outputs]
    return frozenset(value.dtype.name for value in values if value.dtype is not None)


def _with_weights_as_inputs(model: Any, module: torch.nn.Module) -> bytes:
    """Return the model with inputs `weights/<name>` in place of the weights that it holds."""
    names = {f"module.{name}": f"{WEIGHT_PREFIX}{name}" for name in module.state_dict()}
    graph = model.graph
    held = {name: value for name, value in graph.initializers.items() if name in names}
    exchange = skeleton(model, tuple(held))
    for name, value in held.items():
        kind = onnx.TensorProto.FLOAT if value.dtype.name == "BFLOAT16" else value.dtype.value
        shape = [int(size) for size in value.const_value.shape]
        exchange.graph.input.append(onnx.helper.make_tensor_value_info(names[name], kind, shape))
    for node in exchange.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    del exchange.graph.value_info[:]  # some name weights; onnxruntime infers them anew
    exchanged: bytes = exchange.SerializeToString()
    return exchanged


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's advice about itself; its errors are raised, not logged.

    Where it fails it also prints all of the graph so far to standard error.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """Return the first line of the innermost cause, which the outer ones only pass on, and where
    the module's own code led to it."""
    place = place_of_others(error)
    while error.__cause__ is not None:
        error = error.__cause__
        place = place_of_others(error) or place
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return f"{reason} ({place})" if place else reason
