"""Which worker takes the next call, and which node takes which worker."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from bray_core.errors import ConfigError

Strategy: TypeAlias = Literal["round_robin", "least_loaded", "hash", "local_first"]

STRATEGIES = ("round_robin", "least_loaded", "hash", "local_first")


class LoadBalancer:
    """Chooses among workers; it knows only the calls that were made through it.

    Args:
        size: Number of workers.
        near: Returns the indices of the workers on this node, for `local_first`.
    """

    def __init__(self, size: int, near: Callable[[], Sequence[int]] | None = None) -> None:
        self._size = size
        self._near = near
        self._turn = itertools.count()
        self.in_flight: Counter[int] = Counter()
        """Number of calls under way at each worker."""

    def choose(self, strategy: Strategy, key: str | None = None) -> int:
        """Return the index of a worker.

        Args:
            strategy: `round_robin`; `least_loaded` (the less busy of two workers drawn at random:
                Mitzenmacher 2001, "The power of two choices in randomized load balancing");
                `hash` (the same worker for the same `key`); `local_first` (workers of this node
                in turn; all where there are none).
            key: Key for the strategy `hash`.

        Raises:
            ConfigError: An unknown strategy, or `hash` without a key.
        """
        if strategy == "round_robin":
            return next(self._turn) % self._size
        if strategy == "least_loaded":
            if self._size == 1:
                return 0
            one, other = random.sample(range(self._size), 2)
            return min(one, other, key=lambda index: self.in_flight[index])
        if strategy == "hash":
            if key is None:
                raise ConfigError("key: strategy 'hash' needs one, got None")
            digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
            return int.from_bytes(digest, "little") % self._size
        if strategy == "local_first":
            near = self._near() if self._near is not None else ()
            return near[next(self._turn) % len(near)] if near else self.choose("round_robin")
        raise ConfigError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {strategy!r}")


def nodes_of_workers(num_workers: int, cpus: Mapping[str, float]) -> list[str]:
    """Return a node for each worker: nodes get workers in proportion to their CPUs.

    Each worker in turn goes where most CPUs are left for it (D'Hondt's method); of equal nodes the
    first by name. A node without CPUs gets none, unless there is no other.

    Args:
        num_workers: Number of workers.
        cpus: Number of CPUs of each node; at least one node.
    """
    workers = {node: 0 for node in sorted(cpus) if cpus[node] > 0} or dict.fromkeys(cpus, 0)
    homes = []
    for _ in range(num_workers):
        home = max(workers, key=lambda node: cpus[node] / (workers[node] + 1))
        workers[home] += 1
        homes.append(home)
    return homes
