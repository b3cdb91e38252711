"""The torch backend: a module in eval and inference mode, as it is or compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch

from bray_core import nested
from bray_core.errors import ConfigError, SpecError
from bray_core.nested import Nested
from bray_core.process import memory
from bray_core.protocols import Weights
from bray_model.config import Device, Precision
from bray_model.engines.forward_graphs import ForwardGraphs


class TorchEngine:
    """Runs a deep copy of a module, so that the trainer's own stays apart.

    Args:
        module: Called with the inputs as positional arguments; returns nested tensors.
        device: Device that it runs on.
        precision: Precision of the forward; bf16 by autocast.
        compile: Whether it runs through `torch.compile`: once for one row and once for more,
            whatever their number; new weights and copies of the engine run the same code.
        takes_bf16: Whether the module wants its floats as bfloat16, which numpy has not: they
            come as float32 and are rounded. Weights in bfloat16, and the outputs of a module that
            has some, leave as float32.

    Raises:
        ConfigError: torch has no such device.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device: Device = "cpu",
        compile: bool = False,
        precision: Precision = "fp32",
        takes_bf16: bool = False,
        replayed: Collection[int] = (),
    ) -> None:
        _check_device(device)
        if device == "cpu":
            memory.keep_freed()
        self.module = copy.deepcopy(module).to(device).eval()
        for parameter in self.module.parameters():
            if parameter.is_leaf:  # those of a copied ScriptModule may be none
                parameter.requires_grad_(False)
        self.takes_bf16 = takes_bf16
        self._device = device
        self._compile = compile
        self._precision = precision
        self._forward: Callable[..., Any] = torch.compile(self.module) if compile else self.module
        self._state = {
            name: value
            for name, value in self.module.state_dict(keep_vars=True).items()
            if isinstance(value, torch.Tensor)
        }

        self._widens = torch.bfloat16 in self.dtypes
        self._replayed = () if compile or device == "cpu" else tuple(replayed)
        self._graphs = ForwardGraphs(self._computed, self._replayed)

    def run(self, inputs: tuple[Nested, ...]) -> Nested:
        """Compute outputs, leaves `[B, ...]`.

        Raises:
            SpecError: an output is no tensor, or has a dtype that numpy has not.
        """
        torch.get_num_threads()  # a thread keeps to `set_num_threads` only once it has asked
        is_half = self._precision == "bf16"
        with torch.inference_mode(), torch.autocast(self._device, torch.bfloat16, is_half):
            if self._replayed and (found := self._graphs.run(inputs)) is not None:
                return found
            outputs = self._computed(tuple(_to_tensors(tree, self._device) for tree in inputs))
        try:
            return _to_arrays(outputs)
        except (TypeError, AttributeError):
            _explain(outputs)
            raise

    def _computed(self, given: tuple[Nested, ...]) -> Nested:
        """Return the outputs of tensors on the device."""
        if self.takes_bf16:
            given = tuple(_narrowed(tree) for tree in given)
        outputs = self._forward(*given)
        return _widened(outputs) if self._widens else outputs

    def weights(self) -> Weights:
        """Return copies of parameters and buffers by name."""
        return {name: np.array(view, order="C") for name, view in self.views().items()}

    def views(self) -> Weights:
        """Return the weights by name, those that numpy can hold without a copy of them."""
        return {name: _as_numpy(tensor) for name, tensor in self._state.items()}

    def scale(self, factor: float) -> None:
        """Multiply all weights that are floats, in place."""
        with torch.no_grad():
            for tensor in self._state.values():
                if tensor.is_floating_point():
                    tensor.mul_(factor)

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The types of the weights that are floats."""
        return {tensor.dtype for tensor in self._state.values() if tensor.is_floating_point()}

    def load(self, weights: Weights) -> None:
        """Copy weights in, in place."""
        with torch.no_grad():
            for name, tensor in self._state.items():
                tensor.copy_(torch.from_numpy(weights[name]))

    def copy(self) -> TorchEngine:
        """Return a separate engine of the same definition and weights."""
        return TorchEngine(
            self.module,
            self._device,
            self._compile,
            self._precision,
            self.takes_bf16,
            self._replayed,
        )

    def plain(self, weights: Weights | None) -> TorchEngine:
        """Return a separate engine that runs on the CPU as the module is written.

        Args:
            weights: Weights in place of this engine's; None: the same.
        """
        engine = TorchEngine(self.module, takes_bf16=self.takes_bf16)
        if weights is not None:
            engine.load(weights)
        return engine


def as_arrays(tree: Nested) -> Nested:
    """Replace tensors among the leaves by arrays."""
    return nested.map(lambda x: _to_array(_wide(x)) if isinstance(x, torch.Tensor) else x, tree)


def _check_device(device: Device) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device='cuda': torch {torch.__version__} finds no GPU that it can use: install a "
            "torch for CUDA and the NVIDIA driver, or leave device at 'cpu'"
        )


def _to_tensors(node: Nested, device: Device) -> Nested:
    if isinstance(node, np.ndarray):
        tensor = torch.from_numpy(node if node.flags.writeable else node.copy())
        return tensor if device == "cpu" else tensor.to(device)
    if isinstance(node, dict):
        return {key: _to_tensors(child, device) for key, child in node.items()}
    return nested.unflatten(node, [_to_tensors(leaf, device) for _, leaf in nested.items(node)])


def _to_arrays(node: Nested) -> Nested:
    if isinstance(node, dict):
        return {key: _to_arrays(child) for key, child in node.items()}
    if isinstance(node, list | tuple):
        return nested.unflatten(node, [_to_array(leaf) for _, leaf in nested.items(node)])
    return _to_array(node)


def _to_array(tensor: Any) -> Any:
    # A copy, because a module may return its input or a view of its weights.
    return np.array(tensor.detach().cpu().numpy(), order="C")


def _as_numpy(tensor: torch.Tensor) -> Any:
    """Return an array of the same memory, or of bfloat16 one in float32."""
    return _wide(tensor.detach().cpu()).numpy()


def _wide(leaf: Any) -> Any:
    is_bf16 = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16
    return leaf.float() if is_bf16 else leaf


def _widened(tree: Nested) -> Nested:
    return nested.map(_wide, tree)


def _narrowed(tree: Nested) -> Nested:
    """Round the floats among tensors to bfloat16."""
    return nested.map(lambda x: x.bfloat16() if x.is_floating_point() else x, tree)


def _explain(outputs: Nested) -> None:
    for path, leaf in nested.items(outputs, "outputs"):
        if not isinstance(leaf, torch.Tensor):
            raise SpecError(f"{path}: expected a tensor, got {type(leaf).__name__}")
        try:
            _to_array(leaf)
        except TypeError:
            raise SpecError(f"{path}: {leaf.dtype} has no numpy form: return x.float()") from None
