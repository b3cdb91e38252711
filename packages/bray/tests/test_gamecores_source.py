"""Gamecores as a source: runs repeat bit by bit, whichever gamecore is quicker; turns are whole."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms import ppo
from bray.goal import Goal
from bray.policies.config import NetworkConfig
from bray.policies.networks import example_inputs, make_policy
from bray.sources import demonstrations
from bray.sources.config import GamecoreSourceConfig, ServingActorConfig
from bray.sources.environments import read_spaces
from bray.sources.gamecores import gamecores
from bray.sources.wire.gamecore_play import GamecorePlay, steps_per_turn
from bray.training import evaluation
from bray.training.algorithm import load_algorithm
from bray.training.on_policy import segment_layout
from bray_actor import PolicyConfig
from bray_actor.gamecores.gamecore import play
from bray_buffer import BufferConfig
from bray_core.errors import BrayError, ConfigError, ServiceError
from bray_core.protocols import Answer
from bray_model import ModelConfig

pytestmark = pytest.mark.usefixtures("evaluated_here", "undrained")

ON_POLICY: dict[str, Any] = {"hidden": (8,), "segment_length": 16}
PPO = {**ON_POLICY, "steps_per_replay": 96, "epochs": 2, "minibatch_size": 32}
OFF_POLICY: dict[str, Any] = {
    "hidden": (8,),
    "capacity": 1000,
    "warmup_frames": 96,
    "batch_size": 16,
    "steps_per_collect": 8,
    "replays_per_collect": 4,
}
QUICK = {
    "ppo": ("ppo", "CartPole-v1", PPO),
    "appo": ("appo", "CartPole-v1", ON_POLICY),
    "dqn": ("dqn", "CartPole-v1", OFF_POLICY),
}
OTHERS = {
    "a2c": ("a2c", "CartPole-v1", ON_POLICY),
    "impala": ("impala", "CartPole-v1", ON_POLICY),
    "rl_imitation": ("rl_imitation", "CartPole-v1", {**PPO, "cloning_steps": 2}),
    "ppo-memory": ("ppo", "CartPole-v1", {**PPO, "memory_size": 4}),
    "dqn-prioritized": ("dqn", "CartPole-v1", {**OFF_POLICY, "prioritized": True}),
    "dqn-memory": ("dqn", "CartPole-v1", {**OFF_POLICY, "memory_size": 4}),
    "dqn-rainbow": ("dqn", "CartPole-v1", {**OFF_POLICY, "variant": "rainbow"}),
    "pqn": ("pqn", "CartPole-v1", PPO),
    "sac": ("sac", "Pendulum-v1", OFF_POLICY),
    "td3": ("td3", "Pendulum-v1", OFF_POLICY),
}
CASES = QUICK | OTHERS


class Threads:
    """The gamecores of a fleet as threads, which begin at once; they end with the server."""

    def __init__(
        self, environment: str, addresses: Callable[[], Sequence[str]], **options: Any
    ) -> None:
        self.pids: list[int] = []
        self._environment = environment
        self._addresses = addresses
        self._count = options["num_processes"]
        self._num_envs = options["envs_per_process"]
        self._seed = options["seed"]

    def start(self) -> None:
        self.pids = list(range(self._count))
        addresses = self._addresses()
        for index in self.pids:
            Thread(target=self._game, args=(index, addresses[index % len(addresses)])).start()

    def _game(self, index: int, address: str) -> None:
        lanes = {"num_envs": self._num_envs, "lane_offset": index * self._num_envs}
        try:
            play(self._environment, address, seed=self._seed, **lanes)
        except ServiceError:
            pass

    def check(self) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bray.Run, "gamecores", lambda run, *args, **options: Threads(*args, **options)
    )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def unevaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation takes seconds and says nothing here."""
    monkeypatch.setattr(evaluation, "evaluate", lambda *_, **__: [0.0])


class Demonstrator:
    """Pushes to the side to which the pole falls."""

    version = 0

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        push = int(observation[2] + 0.5 * observation[3] > 0.06)
        return Answer({"logits": np.where(np.arange(2) == push, 1.0, 0.0).astype("f4")}, 0)


def trained(
    project: Path, case: str, num_processes: int, num_envs: int, frames: int = 768
) -> tuple[int, str]:
    """Train for a moment; return the newest version and a digest of its weights."""
    name, task, settings = CASES[case]
    if name == "rl_imitation":
        folder = project / "demonstrations"
        if not folder.exists():
            folder.mkdir()
            model: Any = Demonstrator()
            demonstrations.record(folder, task, model, episodes=2, seed=1)
        settings = {**settings, "demonstrations": str(folder)}
    shape = {"num_processes": num_processes, "num_envs": num_envs}
    if "steps_per_replay" in settings:
        shape["steps_per_replay"] = 16 * num_processes * num_envs
    algorithm = load_algorithm(name).of(task, **{**settings, **shape})
    goal = Goal(max_frames=frames, evaluation_episodes=1)
    number = len(list(project.iterdir()))
    with bray.init(project, f"trial-{number}") as run:
        outcome = algorithm.train(run, goal=goal, seed=1)
        assert outcome.frames >= frames
        version, weights = run.models["policy"].weights()
    sha = hashlib.sha256()
    for key, array in sorted(weights.items()):
        sha.update(key.encode() + array.tobytes())
    return version, sha.hexdigest()


SHAPES = [(6, 1), (2, 3)]


@pytest.mark.isa
@pytest.mark.parametrize(("num_processes", "num_envs"), SHAPES)
@pytest.mark.parametrize("case", QUICK)
@pytest.mark.usefixtures("threads", "unevaluated")
def test_one_seed_is_one_run(case: str, num_processes: int, num_envs: int, tmp_path: Path) -> None:
    first, second = (trained(tmp_path, case, num_processes, num_envs) for _ in range(2))
    assert first == second
    assert first[0] >= 2, "it was trained"


@pytest.mark.isa
@pytest.mark.slow
@pytest.mark.parametrize(("num_processes", "num_envs"), [*SHAPES, (1, 1), (5, 3), (2, 8)])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("threads", "unevaluated")
def test_one_seed_is_one_run_for_every_algorithm(
    case: str, num_processes: int, num_envs: int, tmp_path: Path
) -> None:
    first, second = (trained(tmp_path, case, num_processes, num_envs) for _ in range(2))
    assert first == second
    assert first[0] >= 2, "it was trained"


@pytest.mark.isa
@pytest.mark.usefixtures("unevaluated")
def test_processes_of_their_own_repeat(tmp_path: Path) -> None:
    assert len({trained(tmp_path, "dqn", 3, 1) for _ in range(2)}) == 1


def source_of(
    run: bray.Run,
    num_processes: int,
    num_envs: int,
    *,
    capacity: int = 1000,
    memory_size: int = 0,
    task: str = "CartPole-v1",
) -> tuple[Any, Any, Any, Any]:
    """Return a source, its buffer, and the policy and model that answer."""
    spaces = read_spaces(task)
    module = make_policy(spaces, NetworkConfig(hidden=(8,), memory_size=memory_size), 1)
    size = module.state_size
    batching = ModelConfig(max_batch_size=num_processes * num_envs)
    model = run.model("policy", module, example_inputs(spaces, size), batching)
    buffer: Any = run.buffer(
        "experience",
        segment_layout(spaces, 8, size),
        BufferConfig(batch_steps=48, capacity=capacity, when_full="block"),
    )
    source = GamecoreSourceConfig(environment=task, num_envs=num_envs, num_processes=num_processes)
    policy = PolicyConfig(state_size=size)
    what = GamecorePlay(source=source, actor=ServingActorConfig(), policy=policy)
    return gamecores(run, what, model, buffer), buffer, module, model


@pytest.mark.usefixtures("threads")
def test_a_turn_is_pushed_whole(tmp_path: Path) -> None:
    """However short its segments are, and whatever episodes end in it."""
    with bray.init(tmp_path, "turns") as run:
        source, buffer, _, _ = source_of(run, 3, 2)
        source.poll()
        returns = []
        for steps in (8, 1, 13, 40):
            source.collect(steps)
            played = source.poll()
            assert played.frames == 6 * steps
            assert buffer.stats()["queued_steps"] >= played.frames
            returns += played.returns
        assert source.poll()[:2] == (0, [])
        assert len(returns) >= 6
        assert all(value >= 8 for value in returns), "no episode of CartPole is shorter"


@pytest.mark.usefixtures("threads")
def test_a_buffer_without_room_for_a_turn_is_told_of(tmp_path: Path) -> None:
    """Nothing is popped while a turn is played: waiting would be for ever."""
    with bray.init(tmp_path, "full") as run:
        source, _, _, _ = source_of(run, 2, 1, capacity=4)
        source.poll()
        with pytest.raises(BrayError, match=r"has room for 4 of the .* raise its capacity"):
            source.collect(48)


@pytest.mark.isa
@pytest.mark.usefixtures("threads")
def test_memory_is_carried_from_tick_to_tick(tmp_path: Path) -> None:
    """A trainer that goes through the segments finds the probabilities that the actors drew by."""
    with bray.init(tmp_path, "memory") as run:
        source, buffer, module, model = source_of(
            run, 2, 2, memory_size=5, task="bray.sources.tasks:Recall-v0"
        )
        with torch.no_grad():  # far from uniform
            for parameter in module.parameters():
                parameter.add_(0.3)
        model.publish({k: v.numpy() for k, v in module.state_dict().items()})
        source.poll()
        source.collect(4)  # within an episode, which are of 7 steps
        source.collect(20)
        config = ppo.PPOConfig(epochs=1, minibatch_size=1000)
        trainer = ppo.PPOTrainer(module, buffer, model=model, part=config, seed=1)
        (batch,) = trainer.handle(buffer.pop(timeout_s=1))
        assert batch["initial_state"].any(), "some segments begin inside an episode"
        _, terms = trainer.loss(batch, 0)
        assert float(terms["approx_kl"]) == pytest.approx(0.0, abs=1e-5)


def test_a_killed_gamecore_is_replaced_and_the_turn_is_whole(tmp_path: Path) -> None:
    with bray.init(tmp_path, "killed") as run:
        source, buffer, _, _ = source_of(run, 2, 2)
        source.poll()
        source.collect(4)
        before = list(source._fleet.pids)
        os.kill(before[0], signal.SIGKILL)
        source.collect(40)
        assert source.poll().frames == 4 * 44
        assert buffer.stats()["queued_steps"] == 4 * 44
        after = source._fleet.pids
        assert after[0] != before[0]
        assert after[1] == before[1]
    log = (tmp_path / "killed" / "bray.log").read_text()
    assert "from here on this is another run than the one that its seed repeats" in log


def test_a_replay_that_the_environments_cannot_share_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a multiple of the 6 environments .*, got 32 steps"):
        steps_per_turn(32, 6)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("case", QUICK)
def test_on_ray_they_play_by_themselves(case: str, tmp_path: Path) -> None:
    """A killed actor worker is replaced, and the trial goes on in one process."""
    name, task, settings = QUICK[case]
    shape = {"num_processes": 2, "num_envs": 2, "num_workers": 2}
    algorithm = load_algorithm(name).of(task, **settings, **shape)
    with bray.init(tmp_path, "trial", "ray") as run:
        killed: list[int] = []

        def kill(figures: Any, save: Any) -> None:
            if figures["frames"] >= 400 and not killed:
                from bray_core.remote.pool import WorkerPool

                killed.append(WorkerPool.get("actor").pids()[0])
                os.kill(killed[0], signal.SIGKILL)

        run.listen(kill)
        goal = Goal(max_frames=2_000, evaluation_episodes=2)
        outcome = algorithm.train(run, goal=goal, seed=1)
        assert killed
        assert outcome.reached
        assert outcome.frames >= 2_000
        assert outcome.version >= 2
    with bray.init(tmp_path, "trial") as run:
        goal = Goal(max_frames=outcome.frames + 192, evaluation_episodes=2)
        again = algorithm.train(run, goal=goal, seed=1)
        assert outcome.frames + 192 <= again.frames < outcome.frames + 1_000
        assert again.version > outcome.version
