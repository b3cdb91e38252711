"""Losses and their gradients on a GPU as CUDA graphs: all kernels of a step are launched at once.

A small network takes the GPU less time than the CPU needs to launch its kernels one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from bray_core import nested
from bray_trainer.frame_stacks import as_tensors

logger = logging.getLogger(__name__)

Found = tuple[dict[str, Tensor], Mapping[str, Tensor | float]]
"""Losses, and terms to report."""
Backward = Callable[[Any], Found]
"""Adds a batch's gradients to those of the parameters; returns its losses and terms."""
_WARM_UP = 3
"""Batches of a shape before one is captured: libraries choose their kernels in the first."""
_MOST = 4
"""Shapes of batches that are captured; each has memory of its own."""


class StepGraphs:
    """A graph for each of some shapes of batches, captured when that shape came a few times.

    It is replayed where it gives the gradients that the loss itself gave for the same batch. A loss
    that draws at random, or that waits for the GPU (`.item()`, a choice by a value), goes on as it
    is. What its Python code reads besides its batch is as it was when it was captured.

    Args:
        backward: Adds a batch's gradients to those of the parameters, which have none before;
            returns the losses and terms, scalars.
        parameters: What is trained.
    """

    def __init__(self, backward: Backward, parameters: Sequence[Parameter]) -> None:
        self._backward = backward
        self._parameters = parameters
        self._came: dict[Any, int] = {}
        self._graphs: dict[Any, _Graph] = {}
        self._is_refused = False

    def run(self, batch: Any) -> Found | None:
        """Set the gradients; return the losses and terms, or None where no graph gives them.

        What is returned holds until the next call.
        """
        if self._is_refused:
            return None
        # Streams are those of the current device.
        with torch.cuda.device_of(self._parameters[0]):  # type: ignore[no-untyped-call]
            return self._run(as_tensors(batch))

    def _run(self, batch: Any) -> Found | None:
        if not all(isinstance(leaf, Tensor) for _, leaf in nested.items(batch)):
            return None
        shape = self._shape(batch)
        if shape not in self._graphs:
            came = self._came[shape] = self._came.get(shape, 0) + 1
            if came <= _WARM_UP or len(self._graphs) == _MOST:
                return None
            graph = self._captured(batch)
            if graph is None:  # nor would there be one for other shapes
                self._is_refused = True
                return None
            self._graphs[shape] = graph
        return self._graphs[shape].run(batch)

    def _shape(self, batch: Any) -> Any:
        """Return what two batches agree in that one graph is for, and where the weights are."""
        leaves = ((name, leaf.shape, leaf.dtype) for name, leaf in nested.items(batch))
        return tuple(leaves), tuple(parameter.data_ptr() for parameter in self._parameters)

    def _captured(self, batch: Any) -> _Graph | None:
        try:
            self._backward(batch)
            wanted = _taken(self._parameters)
            graph = _Graph(self._backward, self._parameters, batch)
            graph.blank()
            graph.run(batch)
            if all(map(_are_close, wanted, _taken(self._parameters))):
                return graph
            reason = "it gave other gradients"
        except Exception as error:  # noqa: BLE001 - whatever a loss cannot have in a graph
            _taken(self._parameters)
            reason = str(error)
        logger.info("trainer: its steps run without a CUDA graph: %s", reason)
        return None


class _Graph:
    """One captured step, with the memory that it reads and writes."""

    def __init__(self, backward: Backward, parameters: Sequence[Parameter], batch: Any) -> None:
        self._parameters = parameters
        self._batch = nested.map(torch.clone, batch)
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            backward(self._batch)
            _taken(parameters)  # so that the gradients are the graph's own memory
            stream.synchronize()
            # Other threads go on using the GPU meanwhile.
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                losses, terms = backward(self._batch)
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self._found = _detached(losses), _detached(terms)
        self._gradients = _taken(parameters)

    def blank(self) -> None:
        """Set the gradients to zero: what captured nothing leaves them so."""
        for gradient in self._gradients:
            if gradient is not None:
                gradient.zero_()

    def run(self, batch: Any) -> Found:
        """Replay it on another batch."""
        for (_, given), (_, leaf) in zip(
            nested.items(self._batch), nested.items(batch), strict=True
        ):
            given.copy_(leaf, non_blocking=True)
        self._graph.replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return self._found


def _taken(parameters: Sequence[Parameter]) -> list[Tensor | None]:
    """Return the gradients, which the parameters then have no more."""
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def _detached(terms: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: term.detach() if isinstance(term, Tensor) else term for name, term in terms.items()
    }


def _are_close(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether gradients agree but for what kernels round."""
    if one is None or other is None:
        return one is other
    # Relative to the largest: near zero, what is added in another order is all there is.
    return bool((one - other).abs().max() <= 0.02 * one.abs().max() + 1e-7)
