"""A process group of torch.distributed: its life, and collectives that never hang."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from bray_core.errors import ConfigError, WorkerLostError

Backend = Literal["gloo", "nccl"]

_FAILED = "failed"
_ROLL_CALL_S = 2.0
"""Time in which the other ranks must answer after a collective failed."""


class ProcessGroup:
    """The ranks of one launch. A collective that fails ends the group: nothing of it is used again.

    Args:
        store: Store in which the ranks find each other, kept by rank 0.
        rank: Number of this process, from 0.
        size: Number of ranks.
        backend: `gloo`, or `nccl` for tensors on a GPU; None takes nccl where there is one.
        timeout_s: Longest time that a collective waits for the slowest rank.

    Raises:
        WorkerLostError: not all ranks came within `timeout_s`.
    """

    def __init__(
        self, store: Any, rank: int, size: int, *, backend: Backend | None, timeout_s: float
    ) -> None:
        self.rank = rank
        self.size = size
        self.is_lost = False
        self._store = PrefixStore("bray", store)
        self.is_open = True
        with self._guarded():
            dist.init_process_group(
                torch_backend(backend),
                store=PrefixStore("torch", store),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout_s),
            )

    def all_reduce(self, tensor: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
        """Reduce a tensor in place over all ranks, and return it."""
        self.finish(self.start_all_reduce(tensor, operation))
        return tensor

    def start_all_reduce(self, tensor: Tensor, operation: Any = dist.ReduceOp.SUM) -> Any:
        """Begin to reduce a tensor in place; `finish` what is returned."""
        with self._guarded():
            return dist.all_reduce(tensor, operation, async_op=True)

    def finish(self, work: Any) -> None:
        """Wait for what `start_all_reduce` began."""
        with self._guarded():
            work.wait()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensor of every rank; all have the same shape."""
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._guarded():
            dist.all_gather(gathered, tensor)
        return gathered

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrite a tensor with that of rank 0, and return it."""
        with self._guarded():
            dist.broadcast(tensor, 0)
        return tensor

    def fail(self, error: BaseException) -> None:
        """End the group and tell the others why; harmless where it has ended already."""
        if not self.is_open:
            return
        reason = f"rank {self.rank} failed: {type(error).__name__}: {error}"
        with suppress(RuntimeError):  # where rank 0 is gone nobody is left to be told
            self._store.set(_FAILED, reason)
        self.close()

    def close(self) -> None:
        """Leave the group; the others' collectives then fail at once. Again is harmless."""
        if self.is_open:
            self.is_open = False
            if dist.is_initialized():
                dist.destroy_process_group()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if not self.is_open:
            raise WorkerLostError("ranks: the group has ended: start the trainers again")
        try:
            yield
        except RuntimeError as error:
            self.is_lost = True
            self.close()  # so that whoever waits for this rank learns of it too
            raise WorkerLostError(f"ranks: {self._reason(error)}") from error

    def _reason(self, error: RuntimeError) -> str:
        """Return who failed or is missing, as far as the store knows."""
        try:
            self._store.set(f"present/{self.rank}", "")
            deadline = time.monotonic() + _ROLL_CALL_S
            while absent := self._absent():
                if self._store.check([_FAILED]):
                    return str(self._store.get(_FAILED).decode())
                if time.monotonic() > deadline:
                    return f"rank {', '.join(absent)} does not answer"
                time.sleep(0.02)  # the store's own wait complains on stderr
        except RuntimeError:
            return "rank 0, which keeps the store, is gone"
        return f"a collective failed: {str(error).strip().partition(chr(10))[0]}"

    def _absent(self) -> list[str]:
        return [str(r) for r in range(self.size) if not self._store.check([f"present/{r}"])]


def torch_backend(backend: Backend | None) -> str:
    """Return how torch calls a backend; small numbers travel by gloo in any case.

    Raises:
        ConfigError: the backend is unknown.
    """
    if backend not in (None, "gloo", "nccl"):
        raise ConfigError(f"backend: expected 'gloo' or 'nccl', got {backend!r}")
    has_nccl = backend == "nccl" or (backend is None and torch.cuda.is_available())
    return "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
