"""Starting the processes of a worker pool on Ray."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bray_core.errors import AlreadyExistsError
from bray_core.metrics import uplink
from bray_core.remote.load_balancing import nodes_of_workers
from bray_core.remote.restart_limit import RestartLimit
from bray_core.remote.worker_process import RemoteWorker

_INLINE_BYTES = 64 * 1024
"""Size up to which Ray keeps a factory with its worker's description (Ray's limit is 100 KB)."""


def start_workers(
    pool: str,
    factory: bytes,
    *,
    num_workers: int,
    num_cpus: float,
    num_gpus: float,
    max_concurrency: int,
    limit: RestartLimit | None,
    node: str | None,
    spread: bool,
) -> tuple[list[Any], list[Any]]:
    """Start workers; return their handles, and the references that have to be kept with them.

    Args:
        pool: Name of the pool.
        factory: Pickled factory with its arguments.
        num_workers: Number of processes.
        num_cpus: CPUs that each worker claims from Ray.
        num_gpus: GPUs that each worker claims from Ray.
        max_concurrency: Number of calls that one worker runs at a time.
        limit: How often a worker may die; None: a dead worker is not started again.
        node: Id of the node that all workers run on; None leaves it to Ray.
        spread: Whether the workers are shared out over the nodes in proportion to their CPUs.

    Raises:
        AlreadyExistsError: The namespace has a pool of that name.
    """
    options: dict[str, Any] = {
        "num_cpus": num_cpus,
        "max_concurrency": max_concurrency,
        "max_restarts": -1 if limit is not None else 0,
    }
    if num_gpus:
        options["num_gpus"] = num_gpus
    if node is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
    homes = nodes_of_workers(num_workers, _cpus_of_nodes()) if spread and node is None else []
    # A large factory is stored for as long as the pool lives: Ray drops large arguments once a
    # worker is made, and could then not make it again. The reference is in a list, so that Ray does
    # not fetch the object before the worker is there. (Ray warns of large arguments all the same.)
    stored = [ray.put(factory)] if len(factory) > _INLINE_BYTES else []
    workers: list[Any] = []
    try:
        for index in range(num_workers):
            if homes:
                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
                    homes[index], soft=True
                )
                options["memory"] = 1  # bytes: Ray places anywhere what claims nothing
            worker = RemoteWorker.options(name=f"{pool}/{index}", **options)
            workers.append(
                worker.remote(stored or factory, index, num_workers, pool, uplink.address(), limit)
            )
    except BaseException as error:  # also Ctrl-C: no half pool stays
        for worker in workers:
            ray.kill(worker, no_restart=True)
        if isinstance(error, ValueError):
            raise AlreadyExistsError(
                f"name: a pool named {pool!r} exists already; WorkerPool.get looks it up"
            ) from error
        raise
    return workers, stored


def _cpus_of_nodes() -> dict[str, float]:
    """Return the number of CPUs of each node that is alive."""
    return {
        node["NodeID"]: float(node["Resources"].get("CPU", 0))
        for node in ray.nodes()
        if node["Alive"]
    }
