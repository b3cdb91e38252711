"""Which node each worker of a pool goes to."""

from __future__ import annotations

from collections.abc import Mapping


def share_out(num_workers: int, cpus: Mapping[str, float]) -> list[str]:
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
