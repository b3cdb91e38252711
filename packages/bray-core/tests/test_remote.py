from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from bray_core import metrics
from bray_core.errors import (
    AlreadyExistsError,
    ClosedError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    PortInUseError,
    WorkerLostError,
)
from bray_core.metrics.hub import Hub
from bray_core.trials.trial_log import TrialLog

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


class Adder:
    def __init__(self, start: int) -> None:
        if start < 0:
            raise ConfigError(f"start: expected 0 or more, got {start}")
        self.total = start

    def add(self, number: int) -> int:
        self.total += number
        metrics.record("adder/calls", 1, kind="count")
        return self.total

    def index(self) -> int:
        from bray_core.remote.worker_process import worker_index

        return worker_index()

    def fail(self) -> None:
        raise ConfigError("not like this")

    def bind(self) -> None:
        raise PortInUseError("127.0.0.1", 80, "choose another")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def calls(self) -> float:
        logging.getLogger("adder").warning("counts")
        return metrics.query("adder/calls", 60).total


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    from bray_core.remote.pool import WorkerPool

    made = WorkerPool("adders", Adder, args=(10,), num_workers=2)
    yield made
    made.close()


def test_each_worker_has_an_instance_of_its_own(pool: Any) -> None:
    assert pool.call("add", 1, worker=0) == 11
    assert pool.call("add", 0, worker=1) == 10
    assert pool.call_all("add", 0) == [11, 10]
    assert len(set(pool.pids())) == 2
    assert pool.call_all("index") == [0, 1]


def test_exceptions_are_raised_as_themselves(pool: Any) -> None:
    with pytest.raises(ConfigError, match="not like this"):
        pool.call("fail")
    with pytest.raises(ConfigError, match="not like this"):
        pool.call_all("fail")
    with pytest.raises(PortInUseError, match=r"port 80 on .* choose another"):
        pool.call("bind")
    with pytest.raises(AttributeError, match="no attribute 'subtract'"):
        pool.call("subtract")


def test_a_deadline_is_kept(pool: Any) -> None:
    with pytest.raises(DeadlineError, match=r"adders.*sleep.*within 0\.2 s"):
        pool.call("sleep", 1.0, worker=0, timeout_s=0.2)
    start = time.monotonic()
    with pytest.raises(DeadlineError, match=r"adders, sleep: no answer within 0\.2 s"):
        pool.call_all("sleep", 1.0, timeout_s=0.2)
    assert time.monotonic() - start < 0.9, "one deadline for all, not one for each"
    pool.call_all("add", 0)  # the sleepers are through: the next test finds idle workers


def test_names_are_unique_and_can_be_looked_up(pool: Any) -> None:
    from bray_core.remote.pool import WorkerPool

    with pytest.raises(AlreadyExistsError, match=r"'adders' exists already"):
        WorkerPool("adders", Adder, args=(0,))
    found = WorkerPool.get("adders")
    assert found.size == 2
    assert found.pids() == pool.pids()
    assert pickle.loads(pickle.dumps(pool)).pids() == pool.pids()
    with pytest.raises(NotFoundError, match="no pool named 'nobody'"):
        WorkerPool.get("nobody")


def test_workers_report_to_the_hub(tmp_path: Path) -> None:
    from bray_core.remote.pool import WorkerPool

    log = TrialLog(tmp_path / "bray.log")
    hub = Hub(metrics.Registry(), write_line=log.write_line, every_s=1e6)
    made = WorkerPool("told", Adder, args=(0,), num_workers=2)
    try:
        made.call_all("add", 1)
        made.call_all("calls")  # there and back: both have joined
        assert hub.gather()["adder/calls"] == 2
        assert made.call_all("calls") == [2, 2], "any of them knows of all"
        pending = made.submit("sleep", 60, worker=0)
        os.kill(made.pids()[0], signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            made.result(pending)
        made.wait_ready(60)
        made.call_all("add", 1)
        made.call_all("calls")  # there and back: the new one has joined
        values = hub.gather()
        assert (values["adder/calls"], values["worker/restarts"]) == (4, 1)
        lines = (tmp_path / "bray.log").read_text().splitlines()
        said = sorted(line.split(" ", 3)[3] for line in lines if "adder:" in line)
        assert said == 3 * ["told/0 adder: counts"] + 3 * ["told/1 adder: counts"]
    finally:
        made.close()
        hub.close()
        log.close()


def test_strategies_keep_their_promise(pool: Any) -> None:
    turns = Counter(pool.choose("round_robin") for _ in range(100))
    assert turns == {0: 50, 1: 50}
    assert len({pool.choose("hash", key="a") for _ in range(10)}) == 1
    keys = Counter(pool.choose("hash", key=str(i)) for i in range(1000))
    assert 400 < keys[0] < 600  # binomial: 6 standard deviations
    assert {pool.choose("local_first") for _ in range(4)} == {0, 1}
    pool._balance.in_flight[0] = 5
    loads = Counter(pool.choose("least_loaded") for _ in range(1000))
    pool._balance.in_flight[0] = 0
    assert loads == {1: 1000}, "of two workers the free one"
    with pytest.raises(ConfigError, match="strategy: expected one of round_robin"):
        pool.choose("best")
    with pytest.raises(ConfigError, match="key: strategy 'hash' needs one"):
        pool.choose("hash")


def test_a_killed_worker_is_replaced() -> None:
    from bray_core.remote.pool import WorkerPool

    made = WorkerPool("mortal", Adder, args=(0,))
    try:
        (pid,) = made.pids()
        pending = made.submit("sleep", 60)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="died"):
            made.result(pending)
        made.wait_ready(60)
        assert made.pids() != [pid]
        assert made.call("add", 1) == 1
        (pid,) = made.pids()
        made.restart(0)
        pids = [pid]
        while pids == [pid]:  # until it is gone, it may answer yet
            made.wait_ready(60)
            with contextlib.suppress(WorkerLostError):  # it goes between the two
                pids = made.pids()
        assert made.call("add", 1) == 1
        os.kill(made.pids()[0], signal.SIGKILL)
        assert made.call_all("add", 1, again=True) == [1]
        os.kill(made.pids()[0], signal.SIGKILL)
        assert made.call("add", 1, again=True) == 1
        with pytest.raises(ConfigError, match="not like this"):
            made.call("fail", again=True)
    finally:
        made.close()


def test_nonsense_is_refused() -> None:
    from bray_core.remote.pool import WorkerPool

    with pytest.raises(ConfigError, match="num_workers: expected 1 or more, got 0"):
        WorkerPool("none", Adder, num_workers=0)
    with pytest.raises(ConfigError, match="max_concurrency: expected 1 or more, got 0"):
        WorkerPool("none", Adder, max_concurrency=0)
    with pytest.raises(ConfigError, match="num_cpus: expected 0 or more, got -1"):
        WorkerPool("none", Adder, num_cpus=-1)
    with pytest.raises(ConfigError, match=r"num_gpus: expected 0 or more, got -0\.5"):
        WorkerPool("none", Adder, num_gpus=-0.5)
    with pytest.raises(ConfigError, match="name: expected at least one character"):
        WorkerPool("", Adder)


@pytest.mark.parametrize("index", [2, -1])
def test_a_worker_that_is_not_there(pool: Any, index: int) -> None:
    for start in (pool.call, pool.submit):
        with pytest.raises(ConfigError, match=f"worker: expected 0 to 1, got {index}"):
            start("add", 1, worker=index)


def test_a_factory_that_fails_is_quoted_and_leaves_the_name_free() -> None:
    from bray_core.remote.pool import WorkerPool

    with pytest.raises(WorkerLostError, match="ConfigError: start: expected 0 or more, got -1"):
        WorkerPool("failing", Adder, args=(-1,), num_workers=2)
    WorkerPool("failing", Adder, args=(1,), num_workers=2).close()


def test_a_closed_pool_says_so() -> None:
    from bray_core.remote.pool import WorkerPool

    made = WorkerPool("brief", Adder, args=(0,))
    handle = WorkerPool.get("brief")
    made.close()
    made.close()
    for method in (made.call, made.submit, made.call_all):
        with pytest.raises(ClosedError, match="pool brief: already closed"):
            method("add", 1)
    for use in (made.pids, made.wait_ready, lambda: made.choose("round_robin")):
        with pytest.raises(ClosedError, match="pool brief: already closed"):
            use()
    with pytest.raises(WorkerLostError, match="died"):
        handle.call("add", 1, timeout_s=30)


def test_a_pool_is_placed_on_a_node_that_exists() -> None:
    import ray

    from bray_core.remote.pool import WorkerPool

    here = ray.get_runtime_context().get_node_id()
    placed = WorkerPool("placed", Adder, args=(1,), node=here)
    assert placed.near() == [0]
    placed.close()
    with pytest.raises(WorkerLostError, match="pool nowhere: the worker died"):
        WorkerPool("nowhere", Adder, args=(1,), node="0" * len(here))
    with pytest.raises(NotFoundError):
        WorkerPool.get("nowhere")


class Large:
    """Holds what a factory was given, such as a network."""

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = weights

    def change(self) -> float:
        self.weights[0] += 1.0
        return float(self.weights.sum())


@pytest.mark.long
def test_a_worker_made_of_much_is_replaced_again_and_again() -> None:
    """Ray keeps large arguments in its object store, and drops them once the worker is there."""
    from bray_core.remote.pool import WorkerPool

    pool = WorkerPool("large", Large, args=(np.zeros(1_000_000),))
    try:
        for _ in range(3):
            assert pool.call("change", again=True) == 1.0, "made anew, of its own array"
            time.sleep(1.0)  # in which Ray drops what nobody holds
            os.kill(pool.pids()[0], signal.SIGKILL)
        assert pool.call("change", again=True) == 1.0
    finally:
        pool.close()


@pytest.mark.long
def test_without_restart_a_dead_worker_stays_dead() -> None:
    from bray_core.remote.pool import WorkerPool

    made = WorkerPool("frail", Adder, args=(0,), restart=False)
    try:
        os.kill(made.pids()[0], signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="the worker died"):  # at once, not in an hour
            until_it_raises(lambda: made.wait_ready(3600))
    finally:
        made.close()


def until_it_raises(look: Callable[[], None]) -> None:
    while True:
        look()


class Mortal:
    """Dies while it is made, except for the first time."""

    def __init__(self, mark: Path) -> None:
        if mark.exists():
            self.die()
        mark.touch()

    def die(self) -> None:
        print("no memory is left on the device", file=sys.stderr, flush=True)
        os._exit(1)


@pytest.mark.long
def test_a_worker_that_dies_again_and_again_ends_the_run(tmp_path: Path) -> None:
    """Whatever the program does meanwhile: it may wait for another pool's worker."""
    from bray_core.remote.health import check_workers, explain_lost_workers
    from bray_core.remote.pool import WorkerPool
    from bray_core.remote.restart_limit import RestartLimit

    limit = RestartLimit(max_restarts=2)
    made = WorkerPool("mortals", Mortal, args=(tmp_path / "mark",), limit=limit)
    why = (
        r"pool mortals, worker 0: the worker died: 3 times within 300 s, so it is not started "
        r"again; its last words: .*no memory is left on the device$"
    )
    try:
        check_workers(5.0)
        with pytest.raises(WorkerLostError):
            made.call("die")
        with pytest.raises(WorkerLostError, match=why):
            until_it_raises(lambda: check_workers(1.0))
        with pytest.raises(WorkerLostError, match=why), explain_lost_workers():
            raise ClosedError("model: closed")  # what follows from it
        with pytest.raises(WorkerLostError, match="3 times within 300 s"):
            made.wait_ready(3600)
        with pytest.raises(WorkerLostError, match="3 times within 300 s"):
            made.call("die", again=True, timeout_s=3600)
    finally:
        made.close()
    check_workers(1.0)  # it is closed: no longer anybody's


@pytest.mark.long
def test_workers_that_are_killed_now_and_then_are_no_crash_loop(pool: Any) -> None:
    from bray_core.remote.health import check_workers

    os.kill(pool.pids()[1], signal.SIGKILL)
    pool.wait_ready(60)
    check_workers(1.0)


def run(script: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Run a script in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LIFE = """
import os, sys
from pathlib import Path

def marked():
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and sys.argv[1].encode() in (entry / "environ").read_bytes():
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                found |= {int(entry.name)} if state not in "ZX" else set()
        except OSError:
            pass
    return found - {os.getpid()}

from bray_core.remote.cluster import init_ray, shutdown_ray
from bray_core.remote.pool import WorkerPool
from bray_core.errors import ClosedError
import ray

init_ray()
assert os.environ["RAY_AUTH_MODE"] == "token", "Ray's token authentication is on"
pool = WorkerPool("p", dict)
assert pool.pids()[0] in marked()
assert ray.cluster_resources()["object_store_memory"] < 300e6
shutdown_ray()
shutdown_ray()
assert not marked(), marked()

pool.close()  # none of these may start a cluster of Ray's own accord
for use in (lambda: WorkerPool("q", dict), lambda: WorkerPool.get("q")):
    try:
        use()
    except ClosedError as error:
        assert "not running" in str(error)
    else:
        raise AssertionError("expected ClosedError")
assert not ray.is_initialized()
assert not marked(), marked()
print("done")
"""


@pytest.mark.long
def test_a_cluster_of_ours_has_a_token_and_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_AUTH_MODE"}
    mark = str(uuid4())
    done = run(LIFE, mark, environment={**environment, "BRAY_MARK": mark, "HOME": str(tmp_path)})
    assert done.strip() == "done"


@pytest.mark.long
def test_every_listener_of_a_cluster_of_ours_is_on_loopback(pool: Any) -> None:
    """Daemons, workers and the driver; of all protocols."""
    pool.pids()  # its workers are up
    found = listeners(family_of(os.getpid()))
    assert len(found) >= 6, found  # Ray's daemons, this process, two workers
    assert not {name: address for name, address in found if not address.is_loopback}


def family_of(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                found += family_of(int(child))
    return found


def listeners(
    pids: list[int],
) -> list[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """Return who listens where."""
    owners = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    owners[os.readlink(descriptor)] = f"{pid} {name[:200]}"
    found = []
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            fields = line.split()
            owner = owners.get(f"socket:[{fields[9]}]")
            is_open = fields[3] == "0A" or protocol.startswith("udp")
            if owner is not None and is_open:
                found.append((f"{owner} {protocol}", _address(fields[1].partition(":")[0])))
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Read an address as Linux writes it: words of four bytes, each backwards."""
    raw = bytes.fromhex(text)
    words = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
    address = ipaddress.ip_address(words)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@pytest.mark.long
def test_a_cluster_on_loopback_is_joined_by_its_address() -> None:
    """Ray itself takes 127.0.0.1 for the address at which other machines reach this one."""
    import ray

    script = """
import os, sys
from bray_core.remote.cluster import init_ray, shutdown_ray
from bray_core.remote.pool import WorkerPool
init_ray(sys.argv[1])
pool = WorkerPool("joined", dict)
assert pool.pids()
pool.close()
shutdown_ray()
assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ
print("alive")
"""
    address = ray.get_runtime_context().gcs_address
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("RAY_ENABLE_WIN")
    }
    assert run(script, address, environment=environment).strip() == "alive"


@pytest.mark.long
def test_launches_on_one_cluster_have_parts_of_the_same_names(tmp_path: Path) -> None:
    import ray

    script = """
import sys
from bray_core import runtime
from bray_core.remote.pool import WorkerPool
with runtime.init(sys.argv[1], "beside", "ray", sys.argv[2]):
    WorkerPool("trainer", dict)
    print(len(WorkerPool.get("trainer").pids()))
"""
    from bray_core.remote.pool import WorkerPool

    pool = WorkerPool("trainer", dict)
    pids = pool.pids()
    address = ray.get_runtime_context().gcs_address
    assert run(script, str(tmp_path), address).strip() == "1"
    assert pool.pids() == pids, "the end of the one is not that of the other"
    pool.close()


@pytest.mark.long
def test_a_cluster_that_wants_another_token_is_told_as_such() -> None:
    import ray

    script = """
import sys
from bray_core import errors
from bray_core.remote.cluster import init_ray
try:
    init_ray(sys.argv[1])
except errors.NotFoundError as error:
    print(error)
"""
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 64 * "a"}
    address = ray.get_runtime_context().gcs_address
    printed = run(script, address, environment=environment)
    assert f"answers at '{address}', or its token is another than that of RAY_AUTH_TOK" in printed


def test_workers_that_find_no_cpu_are_told_what_they_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    from bray_core.remote import pool

    monkeypatch.setattr(pool, "_START_TIMEOUT_S", 0.5)
    with pytest.raises(DeadlineError, match=r"started within 0\.5 s: each claims 4096 CPUs and"):
        pool.WorkerPool("greedy", dict, num_cpus=4096)


@pytest.mark.parametrize(("version", "is_new"), [("2.58.3", False), ("2.59.0", True)])
def test_a_ray_without_tokens_is_refused(version: str, is_new: bool) -> None:
    from bray_core.remote.cluster import _check_version

    if is_new:
        _check_version(version)
    else:
        with pytest.raises(ConfigError, match=r"ray: expected version 2\.59 or later.*got 2\.58"):
            _check_version(version)


TERMINATED = """
import sys
from bray_core import runtime
with runtime.init(sys.argv[1], "trial", "ray"):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.long
def test_sigterm_interrupts_a_launch_on_ray(tmp_path: Path) -> None:
    """Ray's own handler would drain its node for half a minute, then exit with 1: a failure."""
    from bray_core.trials.launch_record import LaunchRecord

    with subprocess.Popen(
        [sys.executable, "-c", TERMINATED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (128 + signal.SIGTERM, b"")
    (launch,) = (tmp_path / "trial" / "launches").iterdir()
    record = LaunchRecord.read(launch)
    assert record is not None
    assert (record.ending, record.error) == ("interrupted", None)


def test_a_programs_own_handler_of_sigterm_stays() -> None:
    script = """
import signal
import ray
from ray._private import utils as ray_utils
from bray_core.errors import DeadlineError
from bray_core.remote.cluster import init_ray
seen = []
handler = lambda number, frame: seen.append(number)
signal.signal(signal.SIGTERM, handler)
def start(**options):
    ray_utils.set_sigterm_handler(lambda number, frame: None)  # as Ray does
    signal.raise_signal(signal.SIGTERM)
    raise Exception("too busy")
ray.init = start
try:
    init_ray()
except DeadlineError:
    pass
print(seen == [signal.SIGTERM], signal.getsignal(signal.SIGTERM) is handler)
"""
    assert run(script).strip() == "True True"


@pytest.mark.long
def test_a_cluster_of_the_users_is_used_and_left_alone() -> None:
    import ray

    script = """
import sys
from bray_core.remote.cluster import init_ray, shutdown_ray
from bray_core.remote.pool import WorkerPool
import ray
ray.init(address=sys.argv[1], log_to_driver=False, namespace="mine")
init_ray()
pool = WorkerPool("users", dict)
pool.close()
shutdown_ray()
assert ray.is_initialized()
print(ray.get(ray.put("alive")))
ray.shutdown()
"""
    address = ray.get_runtime_context().gcs_address
    assert run(script, address).strip() == "alive"


@pytest.mark.long
def test_a_cluster_that_does_not_start_is_named() -> None:
    script = """
from bray_core import errors
import ray
from bray_core.remote.cluster import init_ray
def fail(**options):
    raise Exception("The current node timed out during startup.")
ray.init = fail
try:
    init_ray()
except errors.DeadlineError as error:
    print(error)
"""
    assert run(script).strip() == (
        "ray: no cluster started on this machine, it may be too busy: "
        "The current node timed out during startup."
    )


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("127.0.0.1:1", "NotFoundError", "nothing listens at '127.0.0.1:1'"),
        ("nonsense", "ConfigError", "expected host:port or auto, got 'nonsense'"),
    ],
)
def test_an_address_where_no_cluster_is(address: str, error: str, message: str) -> None:
    script = """
import sys
from bray_core import errors
from bray_core.remote.cluster import init_ray
try:
    init_ray(sys.argv[1])
except errors.BrayError as error:
    print(type(error).__name__, error)
"""
    printed = run(script, address)
    assert printed.startswith(f"{error} address: {message}")


def test_a_cluster_started_here_reports_nothing_to_rays_makers() -> None:
    usage = pytest.importorskip("ray._common.usage.usage_lib")
    assert not usage.usage_stats_enabled()
