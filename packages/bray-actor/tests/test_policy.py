"""Policy actors answered over real sockets, by gamecores that are real processes."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray_actor import GamecoreFleet, PolicyActor, PolicyConfig, Runner, StepBudget, segment_spec
from bray_actor.gamecores.gamecore import play
from bray_core import codec, metrics, nested
from bray_core.errors import (
    BrayError,
    ConfigError,
    DeadlineError,
    ServiceError,
    SpecError,
    WorkerLostError,
)
from bray_core.json_body import JsonBody
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer
from bray_server import Client, Limits, ServerThread

T = 8
OBSERVATION = ArraySpec(np.dtype("f4"), (4,))
ACTION = ArraySpec(np.dtype("i8"), ())
LAYOUT = Layout(segment_spec(OBSERVATION, ACTION, T))


class Balance:
    """A hand-written CartPole policy: pushes towards where the pole falls. Solves it.

    With `lanes` it answers only when so many rows wait, as a batcher in lock-step does, or after
    `wait_s`, as after the loss of a lane.
    """

    def __init__(self, lanes: int = 1, wait_s: float = 30.0) -> None:
        self._wait_s = wait_s
        self.version = 0
        self._lanes = lanes
        self._waiting: list[tuple[np.ndarray, asyncio.Future[Answer]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._published: list[asyncio.Event] = []
        self._timer: asyncio.TimerHandle | None = None

    def outputs(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        lean = rows @ np.array([0.1, 0.5, 1.0, 1.0], np.float32)
        logits = np.stack([-lean, lean], -1) * 20
        return {"logits": logits.astype(np.float32), "value": lean.astype(np.float32)}

    async def infer(self, observation: np.ndarray, batch: bool = False) -> Answer:
        if batch:
            return Answer(self.outputs(observation), self.version)
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.append((observation, future))
        if len(self._waiting) >= self._lanes:
            self._answer()
        elif len(self._waiting) == 1:
            self._timer = self._loop.call_later(self._wait_s, self._answer)
        try:
            return await future
        finally:
            self._waiting = [(row, waiter) for row, waiter in self._waiting if not waiter.done()]

    def _answer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, []
        for row, waiter in waiting:
            if not waiter.done():
                waiter.set_result(Answer(self.outputs(row), self.version))

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._published.append(event)
        while self.version < version:
            await event.wait()
            event.clear()
        return self.version

    def publish(self) -> None:
        """Count one version up, from another thread."""

        def change() -> None:
            self.version += 1
            for event in self._published:
                event.set()

        assert self._loop is not None
        self._loop.call_soon_threadsafe(change)


class Collector:
    """A buffer that keeps all segments."""

    layout = LAYOUT

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.changed = threading.Condition()

    def push(self, *segments: Packed, wait: bool = False, timeout_s: float | None = None) -> int:
        with self.changed:
            for segment in segments:
                self.rows += list(segment.block.reshape(-1, LAYOUT.nbytes))
            self.changed.notify_all()
        return len(segments)

    def steps(self) -> int:
        return sum(int(LAYOUT.views(row)["length"]) for row in self.rows)

    def wait_steps(self, steps: int, timeout_s: float) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.steps() >= steps, timeout_s), self.steps()


def serve(model: Any, buffer: Any = None, budget: Any = None, **config: Any) -> ServerThread:
    factory = PolicyActor.factory(model, PolicyConfig(**config), buffer=buffer, budget=budget)
    return ServerThread(factory, http_port=0, limits=Limits(tick_timeout_s=30))


@pytest.fixture
def server() -> Iterator[ServerThread]:
    thread = serve(Balance(), deterministic=True)
    yield thread
    thread.close()


def test_a_gamecore_process_plays_cartpole(server: ServerThread) -> None:
    command = [sys.executable, "-m", "bray_actor.gamecores.gamecore", "--env", "cartpole", "--json"]
    command += ["--address", server.addresses[0], "--episodes", "3", "--num-envs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == '{"returns": [500.0, 500.0, 500.0]}\n'


def test_http_gives_the_same_as_tcp(server: ServerThread) -> None:
    returns = [play("cartpole", a, episodes=2, num_envs=2, seed=3) for a in server.addresses]
    assert returns[0] == returns[1] == [500.0, 500.0]


def test_segments_hold_what_happened() -> None:
    buffer = Collector()
    thread = serve(Balance(), buffer, seed=1)
    metrics.snapshot()
    before = metrics.snapshot()
    seen: list[float] = []
    returns = play("cartpole", thread.addresses[0], episodes=4, num_envs=2, on_episode=seen.append)
    thread.close()
    assert sorted(seen) == sorted(returns)
    trees = [LAYOUT.views(row) for row in buffer.rows]
    assert buffer.steps() == sum(returns)
    ends = [tree for tree in trees if not np.isnan(tree["episode_return"])]
    assert sorted(float(tree["episode_return"]) for tree in ends) == sorted(returns)
    for tree in trees:
        length = int(tree["length"])
        lean = Balance().outputs(tree["observation"][:length])
        assert np.allclose(tree["value"][:length], lean["value"], atol=1e-5)
        log_p = lean["logits"] - np.log(np.exp(lean["logits"]).sum(-1, keepdims=True))
        taken = log_p[np.arange(length), tree["action"][:length]]
        assert np.allclose(tree["log_prob"][:length], taken, atol=1e-3)
        assert (tree["reward"][:length] == 1).all()
        assert bool(tree["terminated"][length - 1]) == (not tree["final_observation"].any())
    after = metrics.snapshot()
    assert after["actor/episodes"] - before.get("actor/episodes", 0) == 4
    assert after["actor/steps"] - before.get("actor/steps", 0) == sum(returns)


def run_lockstep(budget_steps: int, versions: int, kill: bool = False) -> list[bytes]:
    """Collect `versions` replays from two processes with four lanes each."""
    model, buffer = Balance(lanes=8, wait_s=0.2 if kill else 30.0), Collector()
    made: list[StepBudget] = []

    def make(session: str) -> PolicyActor:
        if not made:
            made.append(StepBudget(budget_steps, model))  # type: ignore[arg-type]
        config = PolicyConfig(seed=5)
        return PolicyActor(session, model, config, buffer, made[0])  # type: ignore[arg-type]

    thread = ServerThread(make, limits=Limits(tick_timeout_s=60))
    fleet = GamecoreFleet(
        "CartPole-v1", thread.addresses, num_processes=2, envs_per_process=4, seed=2
    )
    fleet.start()
    try:
        for version in range(versions):
            if kill and version == 1:
                os.kill(fleet.pids[0], signal.SIGKILL)
            deadline = time.monotonic() + 30
            while True:
                fleet.check()
                try:
                    buffer.wait_steps((version + 1) * budget_steps, 0.2)
                    break
                except AssertionError:
                    assert time.monotonic() < deadline
            assert buffer.steps() == (version + 1) * budget_steps
            if version + 1 < versions:  # or they would begin another replay while they are stopped
                model.publish()
    finally:
        fleet.stop()
        thread.close()
    counts = Counter[int]()
    for row in buffer.rows:
        tree = LAYOUT.views(row)
        counts.update(tree["policy_version"][: int(tree["length"])].tolist())
    assert [counts[version] for version in range(versions)] == [budget_steps] * versions
    return sorted(row.tobytes() for row in buffer.rows)


def test_lockstep_runs_are_the_same_to_the_byte() -> None:
    first = run_lockstep(budget_steps=64, versions=6)
    assert first == run_lockstep(budget_steps=64, versions=6)


def test_a_killed_gamecore_does_not_stop_the_run() -> None:
    run_lockstep(budget_steps=64, versions=4, kill=True)


def test_bad_bodies_are_answered(server: ServerThread) -> None:
    with Client(server.addresses[0]) as client:
        client.start("s", codec.encode({}))
        observation = np.zeros(4, np.float32)
        for body, message in (
            (b"\xc1", "CodecError"),
            (codec.encode([1]), "expected a dict in bray's codec, got list"),
            (codec.encode({}), "expected the key 'observation'"),
        ):
            with pytest.raises(ServiceError, match=f"bad_request: .*{message}"):
                client.tick("s", body)
        client.tick("s", codec.encode({"observation": observation}))
        with pytest.raises(ServiceError, match="reward: expected a number, got NoneType"):
            client.tick("s", codec.encode({"observation": observation}))
        with pytest.raises(ServiceError, match=r"reward: .* within ±3.4e\+38 \(float32\)"):
            client.tick("s", codec.encode({"observation": observation, "reward": 1e39}))
        with pytest.raises(ServiceError, match="reward: expected a finite number, got inf"):
            client.tick("s", codec.encode({"observation": observation, "reward": math.inf}))
        with pytest.raises(ServiceError, match=r"bad_request: .*expected the key 'observation'"):
            client.end("s", codec.encode({"reward": 1.0}))
        client.start("s")
        with pytest.raises(ServiceError, match=r"bad_request: .*expected the key 'observation'"):
            client.end("s")  # nothing is an empty dict


@pytest.mark.parametrize(
    ("kind", "message", "text"),
    [
        ("start", [1], "expected a dict"),
        ("tick", {"observation": np.zeros(5, np.float32), "reward": 1.0}, "observation"),
        ("tick", {"observation": ["a" * 1000, "b"], "reward": 1.0}, "observation"),
        (
            "tick",
            {"observation": np.full(4, np.nan, np.float32), "reward": 1.0},
            "observation: expected finite numbers",
        ),
        ("tick", {f"key {n}": n for n in range(5000)}, "expected the key 'observation'"),
        ("end", {"terminated": np.zeros(2, bool)}, "terminated: expected true or false, got nda"),
        ("end", {"terminated": "yes"}, "terminated: expected true or false, got str"),
        (
            "end",
            {"observation": np.zeros(4, np.float32), "reward": 1.0, "done": True},
            r"expected terminated \(by the rules\) or truncated .*, got \['done'\]",
        ),
        ("end", {"observation": np.zeros(5), "reward": 1.0, "truncated": True}, "observation"),
        (
            "end",
            {"observation": np.full(4, np.nan, np.float32), "reward": 1.0, "truncated": True},
            "observation: expected finite numbers",
        ),
        (
            "end",
            {"observation": np.full(4, 1e39), "reward": 1.0, "truncated": True},
            "observation: expected finite numbers",
        ),
    ],
)
def test_what_a_client_got_wrong_is_a_bad_request(kind: str, message: Any, text: str) -> None:
    """Its own fault, with a name: never `service_error`, which is ours."""

    class Picky(Balance):
        async def infer(self, observation: Any, batch: bool = False) -> Answer:
            nested.check(observation, ArraySpec(np.dtype(np.float32), (4,)), (), "observation")
            return await super().infer(observation, batch)

    factory = PolicyActor.factory(Picky(), PolicyConfig(), buffer=Collector())
    thread = ServerThread(factory, http_port=0)
    try:
        for address in thread.addresses:
            with Client(address) as client:
                if kind != "start":
                    client.start("s", b"")
                    seen = {"observation": np.zeros(4, np.float32), "reward": 1.0}
                    client.tick("s", codec.encode(seen))
                with pytest.raises(ServiceError, match=text) as caught:
                    getattr(client, kind)("s", codec.encode(message))
                assert caught.value.code == "bad_request"
                assert len(caught.value.message) < 500
    finally:
        thread.close(0)


async def test_rewards_and_flags_may_be_those_of_numpy() -> None:
    actor = PolicyActor("s", Balance(), PolicyConfig())
    await actor.start(b"")
    observation = np.zeros(4, np.float32)
    await actor.tick(codec.encode({"observation": observation}))
    await actor.tick(codec.encode({"observation": observation, "reward": np.float32(0.5)}))
    await actor.end(codec.encode({"reward": np.int64(1), "terminated": np.bool_(True)}))
    assert actor.episode_return == 1.5


async def test_metrics_may_be_null_as_an_empty_map_of_go_is() -> None:
    actor = PolicyActor("s", Balance(), PolicyConfig())
    await actor.start(JsonBody(b'{"tags": null}'))
    await actor.end(JsonBody(b'{"terminated": true, "metrics": null}'))
    assert actor.episode_metrics == {}


async def test_a_tick_that_failed_can_be_sent_again() -> None:
    class Stumbles(Balance):
        calls = 0

        async def infer(self, observation: np.ndarray, batch: bool = False) -> Answer:
            self.calls += 1
            if self.calls in (2, 3):
                raise RuntimeError("not now")
            return await super().infer(observation, batch)

    buffer = Collector()
    actor = PolicyActor("s", Stumbles(), PolicyConfig(), buffer)  # type: ignore[arg-type]
    message = {"observation": np.zeros(4, np.float32), "reward": 1.0}
    await actor.tick(codec.encode(message))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await actor.tick(codec.encode(message))
    await actor.tick(codec.encode(message))
    await actor.end(codec.encode({**message, "terminated": True}))
    (row,) = buffer.rows
    tree = LAYOUT.views(row)
    assert (int(tree["length"]), float(tree["episode_return"])) == (2, 2.0)
    assert tree["reward"][:2].tolist() == [1.0, 1.0]


async def test_training_sees_clipped_rewards_and_returns_do_not() -> None:
    buffer = Collector()
    config = PolicyConfig(clip_reward=True)
    actor = PolicyActor("s", Balance(), config, buffer)  # type: ignore[arg-type]
    observation = np.zeros(4, np.float32)
    await actor.tick(codec.encode({"observation": observation}))
    for reward in (7.0, -0.5, 0):
        await actor.tick(codec.encode({"observation": observation, "reward": reward}))
    await actor.end(codec.encode({"observation": observation, "reward": 3, "terminated": True}))
    (row,) = buffer.rows
    tree = LAYOUT.views(row)
    assert tree["reward"][:4].tolist() == [1.0, -1.0, 0.0, 1.0]
    assert float(tree["episode_return"]) == 9.5


async def test_recording_needs_a_value_and_fills_extra_leaves() -> None:
    class Outputs(Balance):
        def __init__(self, **outputs: Any) -> None:
            super().__init__()
            self.row = outputs

        async def infer(self, observation: np.ndarray, batch: bool = False) -> Answer:
            return Answer(self.row, 0)

    class Extra(Collector):
        layout = Layout(
            segment_spec(OBSERVATION, ACTION, T, {"logits": ArraySpec(np.dtype("f4"), (2,))})
        )

        def push(
            self, *segments: Packed, wait: bool = False, timeout_s: float | None = None
        ) -> int:
            self.rows += [segment.block for segment in segments]
            return len(segments)

    logits, buffer = np.array([0.0, 9.0], np.float32), Extra()
    body = codec.encode({"observation": np.zeros(4, np.float32), "reward": 0.0})
    for outputs, got in (({}, "nothing"), ({"value": np.zeros(1, np.float32)}, r"float32 \(1,\)")):
        model: Any = Outputs(logits=logits, **outputs)
        await PolicyActor("s", model, PolicyConfig()).tick(body)  # production takes no value
        with pytest.raises(SpecError, match=rf"output value: expected float32 \(\), got {got}"):
            await PolicyActor("s", model, PolicyConfig(), buffer).tick(body)
    model = Outputs(logits=logits, value=np.float32(0.5))
    actor = PolicyActor("s", model, PolicyConfig(), buffer)
    await actor.tick(body)
    await actor.end(body)
    (row,) = buffer.rows
    assert Extra.layout.views(row)["logits"][0].tolist() == [0.0, 9.0]


def test_a_model_that_does_not_fit_the_actions_is_named() -> None:
    thread = serve(Balance(), num_actions=3)
    with pytest.raises(
        ServiceError, match=r"model output logits: expected float32 \(3,\), got float32 \(2,\)"
    ):
        play("cartpole", thread.addresses[0], episodes=1)
    thread.close()


def test_the_export_config_is_checked() -> None:
    factory = PolicyActor.from_export({"deterministic": True}, Balance())  # type: ignore[arg-type]
    assert isinstance(factory("s"), PolicyActor)
    with pytest.raises(ConfigError, match=r"manifest: actor\.config: determnistic: unknown key"):
        PolicyActor.from_export({"determnistic": True}, Balance())  # type: ignore[arg-type]


def test_nobody_there() -> None:
    with pytest.raises(ServiceError, match="unreachable"):
        play("cartpole", "tcp://127.0.0.1:1", episodes=1)
    command = [sys.executable, "-m", "bray_actor.gamecores.gamecore", "--env", "cartpole"]
    command += ["--address", "tcp://127.0.0.1:1"]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"environment": "CartPoel-v1"}, "unknown 'CartPoel-v1', did you mean 'CartPole-v"),
        ({"environment": "cartpole", "episodes": 0}, "episodes: expected 1 or more, got 0"),
        ({"environment": "cartpole", "num_envs": 0}, "num_envs: expected 1 or more, got 0"),
        ({"environment": "cartpole", "seed": -1}, "seed: expected 0 or more, got -1"),
    ],
)
def test_nonsense_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        play(actors="tcp://127.0.0.1:1", **arguments)


@pytest.mark.long
def test_a_fleet_that_always_fails_says_why(tmp_path: Any) -> None:
    fleet = GamecoreFleet("Nonsense-v9", ["tcp://127.0.0.1:1"], log=tmp_path / "log")
    fleet.start()
    with pytest.raises(  # noqa: PT012
        BrayError, match=r"gamecore 0 ended more than 10 times .*unknown 'Nonsense-v9'"
    ):
        for _ in range(1000):
            fleet.check()
            fleet._processes[0].wait(30)
    fleet.stop()
    fleet.stop()


class Ending(GamecoreFleet):
    """Its processes end at once."""

    def _spawn(self, index: int, addresses: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["true"])

    def wait(self) -> list[int]:
        for process in self._processes:
            process.wait(10)
        return self.pids


def test_each_gamecore_is_counted_alone() -> None:
    fleet = Ending("CartPole-v1", ["tcp://127.0.0.1:1"], num_processes=12)
    fleet.start()
    with pytest.raises(ConfigError, match="are running already"):
        fleet.start()
    for _ in range(10):
        before = fleet.wait()
        fleet.check()
        assert not set(before) & set(fleet.pids)
    fleet.wait()
    with pytest.raises(BrayError, match="gamecore 0 ended more than 10 times within 60 s"):
        fleet.check()
    fleet.stop()


def test_a_fleet_waits_for_actors_that_are_being_replaced(monkeypatch: Any) -> None:
    lost = False

    def addresses() -> list[str]:
        if lost:
            raise WorkerLostError("worker 0 is restarting")
        return ["tcp://127.0.0.1:1"]

    fleet = Ending("CartPole-v1", addresses)
    fleet.start()
    before = fleet.wait()
    lost = True
    for _ in range(20):
        fleet.check()
    assert fleet.pids == before
    lost = False
    fleet.check()
    assert fleet.pids != before
    fleet.wait()
    lost = True
    monkeypatch.setattr("bray_actor.gamecores.process_fleet._ADDRESS_TIMEOUT_S", 0.0)
    with pytest.raises(WorkerLostError, match="is restarting"):  # noqa: PT012
        fleet.check()
        fleet.check()
    fleet.stop()


def gamecore(address: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bray_actor.gamecores.gamecore", "--env", "cartpole"]
    return subprocess.Popen([*command, "--address", address, *arguments])


def wait_until_it_plays(thread: ServerThread) -> None:
    deadline = time.monotonic() + 20
    while not thread.stats()["sessions"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_gamecore_finds_a_server_that_restarts_and_ends_quietly() -> None:
    thread = serve(Balance())
    port = int(thread.addresses[0].rpartition(":")[2])
    with gamecore(thread.addresses[0]) as process:
        wait_until_it_plays(thread)
        thread.close()
        thread = ServerThread(PolicyActor.factory(Balance(), PolicyConfig()), tcp_port=port)  # type: ignore[arg-type]
        wait_until_it_plays(thread)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    thread.close()


def test_a_gamecore_whose_parent_went_before_it_could_ask_ends(server: ServerThread) -> None:
    with gamecore(server.addresses[0], "--parent", "1") as process:
        assert process.wait(20) == 0
    assert server.stats()["requests"] == 0


def test_process_1_can_be_the_parent_as_in_a_container(tmp_path: Path) -> None:
    isolate = ["unshare", "--pid", "--fork"]
    if subprocess.run([*isolate, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a process namespace")
    server = serve(Balance())
    script = (
        "import os, sys, time; from bray_actor import GamecoreFleet; assert os.getpid() == 1; "
        f"f = GamecoreFleet('CartPole-v1', ['{server.addresses[0]}']); f.start(); "
        "sys.stdin.read(); f.check(); f.stop()"
    )
    with subprocess.Popen([*isolate, sys.executable, "-c", script], stdin=subprocess.PIPE) as one:
        wait_until_it_plays(server)
        one.communicate(timeout=20)
    assert one.returncode == 0
    server.close()


def test_a_gamecore_that_is_ended_within_a_step_is_not_made_anew(tmp_path: Path) -> None:
    thread = serve(Balance())
    (tmp_path / "long_steps.py").write_text(
        "import time\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class LongSteps(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        time.sleep(0.5)\n"
        "        return super().step(action)\n"
    )
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "bray_actor.gamecores.gamecore"),
            *("--address", thread.addresses[0]),
            *("--make", '{"environment": "long_steps:LongSteps"}'),
        ],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    while thread.stats()["requests"] < 2:
        time.sleep(0.02)  # it is within a step soon, and for long
    time.sleep(0.2)
    process.terminate()
    _, said = process.communicate(timeout=10)
    thread.close()
    assert (process.returncode, said) == (0, "")


def test_gamecores_die_with_their_parent() -> None:
    thread = serve(Balance())
    script = (
        "import sys, time; from bray_actor import GamecoreFleet; "
        f"f = GamecoreFleet('CartPole-v1', ['{thread.addresses[0]}']); f.start(); "
        "print(f.pids[0], flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    while not thread.stats()["requests"]:
        time.sleep(0.02)  # until it plays
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    command = Path(f"/proc/{pid}/cmdline")
    while command.exists() and command.read_bytes():  # a zombie's is empty
        assert time.monotonic() < deadline
        time.sleep(0.02)
    thread.close()


class TestRunner:
    async def test_it_makes_the_segments_of_the_wire(self) -> None:
        import gymnasium

        env = gymnasium.make_vec("CartPole-v1", 6, vectorization_mode="sync")
        buffer = Collector()
        runner = Runner(env, Balance(), buffer, seed=3)  # type: ignore[arg-type]
        recorded = await runner.run(600)
        env.close()
        assert runner.num_envs == 6
        trees = [LAYOUT.views(row) for row in buffer.rows]
        steps = buffer.steps()
        assert recorded - 6 * T < steps <= recorded
        ends = [tree for tree in trees if not np.isnan(tree["episode_return"])]
        assert ends
        for tree in trees:
            length = int(tree["length"])
            last = tree["terminated"][length - 1] or tree["truncated"][length - 1]
            assert bool(last) == (not np.isnan(tree["episode_return"]))
            assert not (tree["terminated"] | tree["truncated"])[: length - 1].any()
            if not last:
                assert length == T
            following = np.concatenate(
                [tree["observation"][1:length], tree["final_observation"][None]]
            )
            if tree["terminated"][length - 1]:
                following, length = following[:-1], length - 1
            # CartPole's own dynamics: the cart moves by its velocity, and so does the pole.
            moved = tree["observation"][:length, 0] + 0.02 * tree["observation"][:length, 1]
            assert np.allclose(following[:, 0], moved, atol=1e-5)
        by_episode = {float(t["episode_return"]) == float(t["episode_length"]) for t in ends}
        assert by_episode == {True}

    async def test_logits_that_are_no_numbers_are_refused(self) -> None:
        import gymnasium

        class Diverged(Balance):
            def outputs(self, rows: np.ndarray) -> dict[str, np.ndarray]:
                outputs = super().outputs(rows)
                outputs["logits"][1, 1] = np.nan
                return outputs

        env = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")
        with pytest.raises(SpecError, match="logits: expected finite values"):
            await Runner(env, Diverged(), Collector()).run(1)  # type: ignore[arg-type]
        env.close()

    async def test_a_model_of_another_batch_is_refused(self) -> None:
        import gymnasium

        class Wrong(Balance):
            def outputs(self, rows: np.ndarray) -> dict[str, np.ndarray]:
                return super().outputs(rows[:1])

        env = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")
        with pytest.raises(
            SpecError, match=r"logits: expected float32 \(3, 2\), got float32 \(1, 2\)"
        ):
            await Runner(env, Wrong(), Collector()).run(1)  # type: ignore[arg-type]
        env.close()


def test_an_aborted_session_refunds_its_steps() -> None:
    async def scenario() -> None:
        model, buffer = Balance(), Collector()
        budget = StepBudget(5, model)  # type: ignore[arg-type]
        actor = PolicyActor("s", model, PolicyConfig(), buffer, budget)  # type: ignore[arg-type]
        body = codec.encode({"observation": np.zeros(4, np.float32), "reward": 1.0})
        for _ in range(3):
            await actor.tick(body)
        await actor.abort("gone")
        assert [budget.try_acquire() for _ in range(6)] == [True] * 5 + [False]

    asyncio.run(scenario())
    assert DeadlineError is not None
