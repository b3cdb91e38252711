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
    """Chooses among `size` workers; knows only the calls that were made through it.

    Args:
        size: number of workers.
        near: returns the indices of those on this node, for `local_first`.
    """

    def __init__(self, size: int, near: Callable[[], Sequence[int]] | None = None) -> None:
        self._size = size
        self._near = near
        self._turn = itertools.count()
        self.in_flight: Counter[int] = Counter()
        """Calls under way, by worker."""

    def choose(self, strategy: Strategy, key: str | None = None) -> int:
        """Return the index of a worker.

        Args:
            strategy: `round_robin`; `least_loaded` (of two different workers drawn at random,
                the one with fewer calls under way: Mitzenmacher 2001, "The power of two choices
                in randomized load balancing"); `hash` (of `key`: the same key, the same
                worker); `local_first` (those of this node by turns; all if there is none).
            key: for `hash`.

        Raises:
            ConfigError: an unknown strategy, or `hash` without a key.
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
    """Return a node for each worker, so that the workers of a node are in proportion to its CPUs.

    Each worker in turn goes where most CPUs are left for it (D'Hondt's method); of equals to the
    first by name. Nodes without CPUs get none, unless there is no other.

    Args:
        num_workers: how many.
        cpus: node → its CPUs; at least one node.
    """
    workers = {node: 0 for node in sorted(cpus) if cpus[node] > 0} or dict.fromkeys(cpus, 0)
    homes = []
    for _ in range(num_workers):
        home = max(workers, key=lambda node: cpus[node] / (workers[node] + 1))
        workers[home] += 1
        homes.append(home)
    return homes
