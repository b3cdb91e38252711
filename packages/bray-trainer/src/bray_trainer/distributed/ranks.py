"""Trainers that step together, one in each process, and what they ask of each other.

    factory ── Ranks.current() ──► Trainer.ranks ──► agree, average, sum, gather, normalize

Alone, a `Ranks` answers itself and torch.distributed is not touched. Several are connected by
`RemoteTrainer` on Ray, or by `from_environment` under `torchrun`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import rendezvous  # type: ignore[attr-defined]

from bray_core.errors import ClosedError, ConfigError
from bray_trainer.distributed.gradient_buckets import GradientBuckets
from bray_trainer.distributed.process_group import Backend, ProcessGroup
from bray_trainer.distributed.rank_messages import (
    check_same_tensors,
    decode_message,
    encode_message,
    tensor_kind,
)

TIMEOUT_S = 300.0
"""Longest time that one rank waits for another: longer than a checkpoint takes."""


class Ranks:
    """One of `size` trainers that take the same steps.

    Args:
        rank: Number of this trainer, from 0.
        size: Number of trainers.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        if not 0 <= rank < size:
            raise ConfigError(f"rank: expected 0 to {size - 1}, got {rank}")
        self.rank = rank
        self.size = size
        self._group: ProcessGroup | None = None
        self._buckets: dict[tuple[int, ...], GradientBuckets] = {}
        self._names: list[str] = []

    @property
    def is_first(self) -> bool:
        """Whether this one publishes and writes checkpoints."""
        return self.rank == 0

    @property
    def is_connected(self) -> bool:
        """Whether the others can be asked."""
        return self._group is not None and self._group.is_open

    @property
    def is_lost(self) -> bool:
        """Whether another rank was lost, so that this one cannot go on."""
        return self._group is not None and self._group.is_lost

    def connect(
        self, store: Any, backend: Backend | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Join the others in a process group; all ranks call it.

        Args:
            store: A `torch.distributed.Store` that rank 0's process keeps.
            backend: `gloo`, or `nccl` for tensors on a GPU; None takes nccl where there is one.
            timeout_s: Longest time that a rank waits for another.

        Raises:
            WorkerLostError: not all ranks came in time.
        """
        self._group = ProcessGroup(
            store, self.rank, self.size, backend=backend, timeout_s=timeout_s
        )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Return a context whose error ends all ranks: the others' message says what it was."""
        try:
            yield
        except BaseException as error:
            if self._group is not None:
                self._group.fail(error)
            raise

    def close(self) -> None:
        """Leave the group."""
        if self._group is not None:
            self._group.close()

    # What the loop decides together.

    def agree(self, state: int) -> int:
        """Return the smallest `state` of all ranks."""
        return self.smallest(state)[0]

    def smallest(self, *values: int) -> list[int]:
        """Return the smallest of all ranks for each of some numbers."""
        if self.size == 1:
            return list(values)
        agreed = self._joined().all_reduce(torch.tensor(values), dist.ReduceOp.MIN).tolist()
        return list(map(int, agreed))

    def any(self, flag: bool) -> bool:
        """Return whether any rank says so."""
        return self.agree(-int(flag)) < 0

    def gather(self, value: Any) -> list[Any]:
        """Return the value of each rank, in their order.

        Args:
            value: Tensors, numbers, strings, and dicts, lists and tuples of them.
        """
        if self.size == 1:
            return [value]
        raw = encode_message(value)
        sizes = [int(n) for n in self._joined().all_gather(torch.tensor([len(raw)]))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(raw)] = raw
        gathered = self._joined().all_gather(padded)
        return [decode_message(block[:n]) for block, n in zip(gathered, sizes, strict=True)]

    def first(self, value: Any) -> Any:
        """Return the value of rank 0, of the kinds that `gather` takes."""
        if self.size == 1:
            return value
        raw = encode_message(value) if self.is_first else torch.zeros(0, dtype=torch.uint8)
        size = int(self._joined().broadcast(torch.tensor([len(raw)])))
        block = raw if self.is_first else torch.empty(size, dtype=torch.uint8)
        self._joined().broadcast(block)
        return value if self.is_first else decode_message(block)

    # Numbers.

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the ranks."""
        return values if self.size == 1 else self._joined().all_reduce(values.detach().clone())

    def sum_by_name(self, values: Mapping[str, list[float]]) -> dict[str, list[float]]:
        """Return the sums over the ranks of two numbers of each name that any of them has."""
        if self.size == 1:
            return dict(values)
        while True:
            block = torch.zeros((1 + len(self._names), 2), dtype=torch.float64)
            for index, name in enumerate(self._names, 1):
                block[index] = torch.tensor(values.get(name, [0, 0]))
            block[0] = len(values.keys() - set(self._names))
            new, *sums = self.sum(block).tolist()
            if not new[0]:
                return dict(zip(self._names, sums, strict=True))
            # Rarely: names are few, and after the first replay known to all.
            everyones = [name for names in self.gather(list(values)) for name in names]
            self._names = list(dict.fromkeys([*self._names, *everyones]))

    def average(self, parameters: Iterable[Tensor], weight: float) -> float:
        """Replace the gradients by their weighted mean over the ranks; return the weights' sum.

        A gradient that is not finite on one rank is so on all of them afterwards: a scaler, and
        whoever looks at its norm, decides the same everywhere.

        Args:
            parameters: Parameters, the same on each rank and in the same order.
            weight: Number of samples in this rank's batches; 0 where it had none.

        Raises:
            SpecError: a gradient is sparse.
        """
        listed = list(parameters)
        if self.size == 1 or not listed:
            return weight
        key = tuple(map(id, listed))
        if key not in self._buckets:  # its buckets keep the parameters, hence the ids, alive
            self._buckets[key] = GradientBuckets(listed)
        return self._buckets[key].average(self._joined(), weight)

    def share(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite tensors, such as those of a module's `state_dict`, with those of rank 0.

        Raises:
            SpecError: a rank has tensors of other names, shapes or dtypes.
        """
        if self.size == 1:
            return
        own = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
        theirs = self.gather({name: tensor_kind(tensor) for name, tensor in own.items()})
        for rank, kinds in enumerate(theirs):
            check_same_tensors(kinds, theirs[0], rank)
        for tensor in own.values():
            block = tensor.detach().contiguous().reshape(-1).view(torch.uint8)  # any dtype
            if block.numel():
                self._joined().broadcast(block)
            if not tensor.is_contiguous():
                tensor.detach().copy_(block.view(tensor.dtype).view(tensor.shape))

    def normalize(self, values: Tensor, mask: Tensor | None = None, eps: float = 1e-8) -> Tensor:
        """Return `(values - mean) / (std + eps)`, mean and deviation over all ranks' values.

        All ranks call it equally often: once in `handle` is safe, in `loss` it is not where one
        rank has more batches than another.

        Args:
            values: Numbers `[…]`, of any length on each rank.
            mask: Flags of the same shape; where False, a value does not count and becomes 0.
            eps: Small number added to the deviation.
        """
        valid = values if mask is None else values[mask]
        if self.size == 1 and valid.numel() > 1:
            mean, std = valid.mean(), valid.std()
        else:
            mean, std = self._moments(valid.detach())
        scaled = (values - mean) / (std + eps)
        return scaled if mask is None else torch.where(mask, scaled, torch.zeros_like(scaled))

    def mean(self, values: Tensor, mask: Tensor | None = None) -> float:
        """Return the mean of all ranks' values `[…]`; NaN if there are none."""
        valid = values if mask is None else values[mask]
        return float(self._moments(valid.detach())[0])

    def _moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation (of N - 1; 0 for one value) over the ranks.

        Each rank's count, mean and sum of squared deviations are joined as in Chan, Golub and
        LeVeque 1979, equation 2.1.
        """
        wide = values.double()
        count = torch.tensor(float(wide.numel()), dtype=torch.float64, device=wide.device)
        mean = wide.mean() if wide.numel() else torch.zeros_like(count)
        # One exchange for all three; a sum of squares alone would lose digits.
        own = torch.stack([count, mean, (wide - mean).square().sum()])
        rows = torch.stack(self._joined().all_gather(own)) if self.size > 1 else own[None]
        counts, means, squares = rows.unbind(1)
        mean = (counts * means).sum() / counts.sum()
        total = squares.sum() + (counts * (means - mean).square()).sum()
        std = (total / (counts.sum() - 1).clamp(min=1)).sqrt()
        return mean.to(values.dtype), std.to(values.dtype)

    def _joined(self) -> ProcessGroup:
        if self._group is None:
            raise ClosedError(
                f"ranks: rank {self.rank} of {self.size} is not connected: start it by "
                "RemoteTrainer, or make the trainer after Ranks.from_environment()"
            )
        return self._group

    @staticmethod
    def current() -> Ranks:
        """Return the ranks of this process's trainer: a factory shards its data by them."""
        return _assigned or Ranks()

    @classmethod
    def from_environment(
        cls, backend: Backend | None = None, timeout_s: float = TIMEOUT_S
    ) -> Ranks:
        """Connect the processes that `torchrun` started, and make them `current`.

        Where there are GPUs, the device `cuda` is then that of `LOCAL_RANK`.

        Args:
            backend: Transport, see `connect`.
            timeout_s: Longest time that a rank waits for another.

        Raises:
            ConfigError: this process was not started by torchrun.
            WorkerLostError: not all ranks came in time.
        """
        missing = [n for n in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if n not in os.environ]
        if missing:
            raise ConfigError(
                f"{missing[0]}: expected in the environment, but not set: start the script by "
                "`torchrun --nproc-per-node=N script.py`"
            )
        ranks = cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        if ranks.size > 1:
            wait = timedelta(seconds=timeout_s)
            store, _, _ = next(rendezvous("env://", ranks.rank, ranks.size, timeout=wait))
            ranks.connect(store, backend, timeout_s)
        assign(ranks)
        return ranks


_assigned: Ranks | None = None


def assign(ranks: Ranks | None) -> None:
    """Make `ranks` those of the trainers that this process makes from now on."""
    global _assigned
    _assigned = ranks
