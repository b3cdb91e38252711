"""A network as TensorBoard's graph: torch's own calls in one forward, grouped by module."""

from __future__ import annotations

import copy
import logging
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves

from bray_core import nested
from bray_core.metrics.sinks import Sinks
from bray_core.metrics.tensorboard import Node
from bray_core.nested import Nested

_MAX_NODES = 2000

logger = logging.getLogger(__name__)


def graph(name: str, module: nn.Module, example_inputs: Nested) -> list[Node]:
    """Run one forward of a copy and return its operations.

    Args:
        name: prefix of each node's name.
        module: the network; it stays as it is, and so do torch's random numbers.
        example_inputs: nested arrays; a tuple of several arguments.

    Raises:
        Exception: the forward failed.
    """
    # A copy in evaluation mode: hooks, dropout and running means leave the original alone.
    copied = copy.deepcopy(module).eval()
    device = next((p.device for p in copied.parameters()), torch.device("cpu"))
    arguments = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    tensors = nested.map(lambda leaf: torch.from_numpy(np.array(leaf)).to(device), arguments)
    trace = _Trace(name)
    for index, leaf in enumerate(tree_leaves(tensors)):
        trace.name(leaf, f"{name}/input/{index}", "Placeholder", ())
    for parameter, tensor in copied.named_parameters():
        trace.name(tensor, f"{name}/{parameter.replace('.', '/')}", "Parameter", ())
    for path, part in copied.named_modules():
        scope = f"{name}/{path.replace('.', '/')}".rstrip("/")
        part.register_forward_pre_hook(partial(trace.enter, scope))
        part.register_forward_hook(trace.leave)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), trace:
        copied(*tensors)
    return trace.nodes


def draw_graph(sinks: Sinks, name: str, module: nn.Module, example_inputs: Nested) -> None:
    """Let TensorBoard show what a model computes; a network that cannot be drawn is logged.

    Args:
        sinks: where the launch's metrics are written.
        name: name of the model.
        module: the network.
        example_inputs: nested arrays with a batch dimension; a tuple of several arguments.
    """
    try:
        nodes = graph(name, module, example_inputs)
    except Exception as error:  # noqa: BLE001  the model itself will say what is wrong with it
        logger.info("model %s: its graph cannot be drawn: %s", name, error)
    else:
        sinks.graph(nodes)


class _Trace(TorchFunctionMode):
    """Notes each call of torch, and which calls made the tensors that it was given."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self._scopes = [name]
        self._made: dict[int, str] = {}
        self._kept: list[Tensor] = []
        """Tensors kept alive, because a dead tensor's id may become another's."""

    def enter(self, scope: str, *_: Any) -> None:
        """A module's forward begins."""
        self._scopes.append(scope)

    def leave(self, *_: Any) -> None:
        """A module's forward ends."""
        self._scopes.pop()

    def name(self, tensor: Tensor, name: str, operation: str, inputs: tuple[str, ...]) -> None:
        """Add a node, the operation that made a tensor."""
        self._made[id(tensor)] = name
        self._kept.append(tensor)
        self.nodes.append(Node(name, operation, inputs))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if not outputs or id(outputs[0]) in self._made or len(self.nodes) >= _MAX_NODES:
            return result
        given = [id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        inputs = tuple(dict.fromkeys(self._made[one] for one in given if one in self._made))
        operation = (resolve_name(func) or func.__name__).rpartition(".")[2]
        name = f"{self._scopes[-1]}/{operation}_{len(self.nodes)}"
        self.name(outputs[0], name, operation, inputs)
        for output in outputs[1:]:  # such as the two of an LSTM: one node made them all
            self._made[id(output)] = name
            self._kept.append(output)
        return result
