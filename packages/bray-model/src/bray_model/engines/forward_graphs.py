"""Forwards on a GPU as CUDA graphs: all kernels of a batch size are launched at once.

A small network takes the GPU less time than the CPU needs to launch its kernels one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bray_core import nested
from bray_core.nested import Nested

logger = logging.getLogger(__name__)

Inputs = tuple[Nested, ...]
Compute = Callable[[Inputs], Nested]
_WARM_UP = 3
"""Forwards before one is captured: libraries choose their kernels in the first."""


class ForwardGraphs:
    """A graph for each of some batch sizes, captured when that size has been asked for a few times.

    A forward is replayed where a replay gives what the forward itself gives. One that draws at
    random, or that waits for the GPU (`.item()`, a choice by a value), goes on as it is. What its
    Python code reads besides its inputs' shapes is as it was when it was captured.

    Args:
        compute: Maps tensors on the GPU to the outputs there.
        sizes: Batch sizes to capture.
    """

    def __init__(self, compute: Compute, sizes: Collection[int]) -> None:
        self._compute = compute
        self._sizes = frozenset(sizes)
        self._asked: dict[int, int] = {}
        self._graphs: dict[int, _Graph | None] = {}

    def run(self, inputs: Inputs) -> Nested | None:
        """Return the outputs as arrays, or None where no graph gives them.

        Args:
            inputs: Arrays `[B, …]`, always of the same kinds and shapes but for B.
        """
        size = next((len(leaf) for _, leaf in nested.items(inputs) if leaf.ndim), 0)
        if size not in self._sizes:
            return None
        if size not in self._graphs:
            asked = self._asked[size] = self._asked.get(size, 0) + 1
            if asked <= _WARM_UP:
                return None
            self._graphs[size] = self._captured(inputs)
        graph = self._graphs[size]
        return None if graph is None else graph.run(inputs)

    def _captured(self, inputs: Inputs) -> _Graph | None:
        try:
            graph = _Graph(self._compute, inputs)
            is_same = _are_close(graph.run(inputs), graph.computed(inputs))
        except Exception as error:  # noqa: BLE001 - whatever a forward cannot have in a graph
            logger.info("model: its forward runs without a CUDA graph: %s", error)
            return None
        if not is_same:
            logger.info("model: its forward runs without a CUDA graph, as it draws at random")
            return None
        return graph


class _Graph:
    """One captured forward, with the memory that it reads and writes."""

    def __init__(self, compute: Compute, inputs: Inputs) -> None:
        self._compute = compute
        pinned = nested.map(_pinned_like, inputs)
        self._given = nested.map(lambda leaf: torch.empty_like(leaf, device="cuda"), pinned)
        places = zip(_leaves(pinned), _leaves(self._given), strict=True)
        self._places = [(leaf.numpy(), leaf, given) for leaf, given in places]
        self._put(inputs)
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            compute(self._given)
            stream.synchronize()
            # Other threads go on using the GPU meanwhile.
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                outputs = compute(self._given)
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self._answers = nested.map(_pinned_answer, outputs)
        self._results = list(zip(_leaves(self._answers), _leaves(outputs), strict=True))

    def run(self, inputs: Inputs) -> Nested:
        """Replay it on other inputs; return the outputs as arrays."""
        self._put(inputs)
        self._graph.replay()
        for answer, output in self._results:
            answer.copy_(output, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return nested.map(lambda leaf: leaf.numpy().copy(), self._answers)

    def computed(self, inputs: Inputs) -> Nested:
        """Return what the forward itself gives, as arrays."""
        self._put(inputs)
        return nested.map(lambda leaf: leaf.cpu().numpy(), self._compute(self._given))

    def _put(self, inputs: Inputs) -> None:
        for leaf, (array, pinned, given) in zip(_leaves(inputs), self._places, strict=True):
            array[...] = leaf
            given.copy_(pinned, non_blocking=True)


def _leaves(tree: Nested) -> list[Any]:
    return [leaf for _, leaf in nested.items(tree)]


def _pinned_answer(output: Tensor) -> Tensor:
    return torch.empty_like(output, device="cpu", pin_memory=True)


def _pinned_like(leaf: Any) -> Tensor:
    return torch.from_numpy(leaf.copy()).pin_memory()


def _are_close(one: Nested, other: Nested) -> bool:
    """Return whether arrays agree but for what kernels round."""
    return all(
        np.allclose(a, b, rtol=1e-2, atol=1e-3, equal_nan=True)
        for a, b in zip(_leaves(one), _leaves(other), strict=True)
    )
