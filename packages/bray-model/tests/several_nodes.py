"""Run by test_several_nodes.py: a model on four raylets of this machine, which count as nodes."""

import asyncio
import os
import signal
import sys
import time

import numpy as np
import torch
from ray.cluster_utils import Cluster

from bray_core.errors import BrayError
from bray_core.process.event_loop import EventLoopThread
from bray_core.remote import orphans
from bray_core.remote.cluster import init_ray, shutdown_ray
from bray_core.remote.pool import WorkerPool
from bray_model import remote

SIZE = 500
ROW = np.ones(SIZE, np.float32)
NUM_VERSIONS = 10
WIDTH = 2


class Player:
    """A replica on some node."""

    def __init__(self, model):
        self.model = model
        self.loop = EventLoopThread("player")
        self.loop.run(model.infer(ROW), 60)

    def reach(self, version):
        """Return what differs from `version` once it is here."""
        got = self.loop.run(self.model.wait_version(version, 60.0))
        held, weights = self.model.weights()
        outputs = self.model(ROW)
        whole = (weights["weight"] == held).all() and (outputs == SIZE * held).all()
        return (got, held, bool(whole), self.model._attached().replica().shares)


def weights(version):
    return {"weight": np.full((SIZE, SIZE), version, np.float32)}


def publish(model, pools, version):
    """Publish and wait until every replica has it whole, from shared memory of its node."""
    assert model.publish(weights(version)) == version
    for pool in pools:
        wanted = [(version, version, True, True)] * pool.size
        assert (got := pool.call_all("reach", version)) == wanted, (pool.name, got)


def relays(model, nodes):
    """Return node → the pool of its relay."""
    found = {}
    for node in nodes:
        location = model._pool.call("locate", node)
        found[node] = WorkerPool.get(location.relay)
    return found


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_parent(model, nodes, node):
    pools = relays(model, nodes)
    return any(pool.call("parent") == pools[node].name for pool in pools.values())


def main():
    orphans.adopt_orphans()  # of a raylet that is killed
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False}
    )
    added = [cluster.add_node(num_cpus=4) for _ in range(3)]
    init_ray(cluster.address)
    nodes = [node.node_id for node in added]
    remote.WIDTH = WIDTH
    module = torch.nn.Linear(SIZE, SIZE, bias=False)
    torch.nn.init.zeros_(module.weight)
    model = remote.RemoteModel("demo", module, ROW[None])
    pools = [
        WorkerPool(f"players-{i}", Player, args=(model,), num_workers=2 if i else 1, node=node)
        for i, node in enumerate(nodes)
    ]
    stats = model._pool.call("stats")
    assert stats["relays"] == 3, stats
    before, sent = relays(model, nodes), stats["blocks_sent"]
    received = [pool.call("stats")["blocks_received"] for pool in before.values()]
    for version in range(1, NUM_VERSIONS + 1):
        publish(model, pools, version)
    sent = model._pool.call("stats")["blocks_sent"] - sent
    assert sent == WIDTH * NUM_VERSIONS, "the store sends each version to two relays"
    for pool, first in zip(before.values(), received, strict=True):
        assert pool.call("stats")["blocks_received"] - first == NUM_VERSIONS, "once a node"
    print("done: once per node", flush=True)

    parent = next(i for i, node in enumerate(nodes) if is_parent(model, nodes, node))
    os.kill(before[nodes[parent]].pids()[0], signal.SIGKILL)
    publish(model, pools, NUM_VERSIONS + 1)
    after = relays(model, nodes)
    assert after[nodes[parent]].name != before[nodes[parent]].name
    print("done: a relay replaced", flush=True)

    parent = next(i for i, node in enumerate(nodes) if is_parent(model, nodes, node))
    cluster.remove_node(added[parent], allow_graceful=False)
    pools.pop(parent)
    publish(model, pools, NUM_VERSIONS + 2)
    print("done: a node lost", flush=True)

    os.kill(model._pool.pids()[0], signal.SIGKILL)
    publish(model, pools, NUM_VERSIONS + 3)
    print("done: the store lost", flush=True)
    asyncio.run(model.infer(ROW))
    for pool in pools:
        pool.close()
    model.close()
    try:
        remote.RemoteModel.get("demo")
    except BrayError:
        print("done: closed", flush=True)
    shutdown_ray()
    cluster.shutdown()
    orphans.end_children(lambda command: command.startswith("ray::"))


if __name__ == "__main__":
    sys.exit(main())
