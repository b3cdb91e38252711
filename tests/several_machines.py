"""Run by test_several_machines.py: a run on three raylets, each with an address of its own.

`addresses`: of 127.0.0.0/8, which is all this machine: what binds 127.0.0.1, or tells others of it,
is not reached at the address of its node. `namespaces`: each raylet but the first in a network
namespace, so that its 127.0.0.1 is another one, and all goes over a bridge.

The nodes share /dev/shm, so that it is asserted who connects to whom.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from ray.cluster_utils import Cluster

import bray
from bray.algorithms import ppo
from bray.goal import Goal
from bray_core import metrics
from bray_core.remote import orphans
from bray_core.remote.pool import WorkerPool
from bray_server import Client
from bray_server.remote import RemoteServer

HOSTS = {
    "addresses": ["127.0.0.2", "127.0.0.3", "127.0.0.4"],
    "namespaces": ["10.77.0.1", "10.77.0.2", "10.77.0.3"],
}
BRIDGE = "bray-bridge"
CLONE_NEWNET = 0x40000000
NUM_WORKERS = 3
FRAMES = 9_600
CONFIG = {
    "num_workers": NUM_WORKERS,
    "num_envs": 4,
    "steps_per_replay": 480,
    "epochs": 2,
    "hidden": (16,),
}
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


def ip(words):
    """Call iproute2."""
    subprocess.run(["ip", *words.split()], check=True)


@contextlib.contextmanager
def bridged(hosts):
    """A bridge with the first address, and a network namespace with each of the others."""
    names = {host: f"bray-{host.rpartition('.')[2]}" for host in hosts[1:]}
    try:
        ip(f"link add {BRIDGE} type bridge")
        ip(f"addr add {hosts[0]}/24 dev {BRIDGE}")
        ip(f"link set {BRIDGE} up")
        for host, name in names.items():
            ip(f"netns add {name}")
            ip(f"link add {name} type veth peer name eth0 netns {name}")
            ip(f"link set {name} master {BRIDGE} up")
            ip(f"-n {name} addr add {host}/24 dev eth0")
            ip(f"-n {name} link set eth0 up")
            ip(f"-n {name} link set lo up")
        yield names
    finally:
        for words in [f"netns del {name}" for name in names.values()] + [f"link del {BRIDGE}"]:
            subprocess.run(["ip", *words.split()], check=False)


@contextlib.contextmanager
def inside(name):
    """What is started meanwhile is in this namespace; None: where we are."""
    if name is None:
        yield
        return
    setns = ctypes.CDLL(None, use_errno=True).setns
    with open("/proc/self/ns/net") as ours, open(f"/run/netns/{name}") as theirs:
        assert setns(theirs.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert setns(ours.fileno(), CLONE_NEWNET) == 0


class Echo:
    """A service."""

    async def tick(self, body):
        """Answer with what came."""
        return body


def homes(pool):
    """Return the node of each worker of a pool."""
    return [node for _, _, node in WorkerPool.get(pool)._describe(60.0)]


def connections(port):
    """Return how many connections to a port of this machine are established."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    ends = [(int(line.split()[1].split(":")[1], 16), line.split()[3]) for line in lines]
    return ends.count((port, "01"))


def told(run, name):
    """Return the total of a metric of all processes, those of other nodes too."""
    run.metrics()
    return metrics.query(name, 600).total


def until(condition, what):
    """Wait for it."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what


class Watcher:
    """Looks at the run, loses a node in the middle of it, and looks again."""

    def __init__(self, run, cluster, lost):
        self.run, self.cluster, self.lost = run, cluster, lost
        self.host = cluster.head_node.node_ip_address
        self.head = cluster.head_node.node_id
        self.lost_at = 0.0

    def __call__(self, figures, save):
        if not self.lost_at and figures["frames"] >= FRAMES / 4:
            self.look()
            print("killing", figures["frames"], flush=True)
            self.cluster.remove_node(self.lost, allow_graceful=False)
            self.lost_at = figures["frames"]

    def look(self):
        """Assert where everything is before the loss."""
        players = Counter(homes("rollouts"))
        assert sorted(players.values()) == [1, 1, 1], players
        for pool in ("experience", "trainer", "model/policy"):
            assert homes(pool) == [self.head], pool
        host, port = WorkerPool.get("experience").call("listen")
        assert host == self.host
        assert connections(port) == NUM_WORKERS - 1, "through sockets from other nodes alone"
        hub = self.run._runtime.hub
        assert hub.address.startswith(f"{self.host}:")
        joined = {("rollouts", rank) for rank in range(NUM_WORKERS)} | {("trainer", 0)}
        assert joined <= set(hub.processes), hub.processes
        print("done: looked", flush=True)


def main():
    orphans.adopt_orphans()  # of raylets that are killed
    hosts = HOSTS[sys.argv[1]]
    with bridged(hosts) if sys.argv[1] == "namespaces" else contextlib.nullcontext({}) as names:
        spread(hosts, names)


def spread(hosts, names):
    """Train on them, lose one, and look at what is where."""
    arguments = {"include_dashboard": False, "_system_config": QUICK}
    cluster = Cluster(True, head_node_args=dict(arguments, num_cpus=1, node_ip_address=hosts[0]))
    others = []
    for host in hosts[1:]:
        with inside(names.get(host)):
            others.append(cluster.add_node(num_cpus=1, node_ip_address=host))
    project = tempfile.mkdtemp()
    os.chdir(project)
    with bray.init("trials", "cartpole", "ray", cluster.address, config={"seed": 1}) as run:
        server = run.close_with(RemoteServer("echo", Echo, num_workers=2))
        with Client(server.addresses[0]) as client:
            assert client.call(b"hello") == b"hello"
        assert set(homes("echo")) == {cluster.head_node.node_id}, "they share a port of one host"
        watcher = Watcher(run, cluster, others[0])
        run.listen(watcher)
        goal = Goal(episode_return=1e9, evaluate_at=1e9, max_frames=FRAMES)
        outcome = ppo.PPO.of("CartPole-v1", **CONFIG).train(run, goal=goal)
        assert outcome.frames >= FRAMES
        players = Counter(homes("rollouts"))
        assert others[0].node_id not in players, players
        assert players.total() == NUM_WORKERS, players
        assert told(run, "actor/rollouts_lost") >= 1
        until(lambda: told(run, "actor/steps") >= outcome.frames, "players of all nodes tell")
        assert told(run, "trainer/frames") >= FRAMES / 2
        assert told(run, "worker/restarts") >= 1
        print("done: a node lost", flush=True)
    trial = Path(project, "trials", "cartpole")
    assert list(trial.glob("checkpoints/*")), "of a worker, in the driver's folder"
    log = (trial / "bray.log").read_text()
    assert "rollouts: worker" in log
    print(log, file=sys.stderr)
    cluster.shutdown()
    orphans.end_children(lambda command: command.startswith("ray::"))
    print("done: closed", flush=True)


if __name__ == "__main__":
    main()
