"""Algorithms of vectors take any number type, as MuJoCo's float64, and exports answer in it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import bray
from bray.algorithms import (
    a2c,
    appo,
    bc,
    dqn,
    es,
    impala,
    mappo,
    ppo,
    pqn,
    qmix,
    rl_imitation,
    sac,
    td3,
)
from bray.goal import Goal
from bray.policies.config import NetworkConfig
from bray.policies.networks import example_inputs, make_policy
from bray.sources import demonstrations
from bray.sources.cooperative_tasks import TeamSourceConfig, make_teams
from bray.sources.environments import read_spaces
from bray.training import evaluation
from bray.training.on_policy import segment_layout
from bray_actor import SegmentWriter
from bray_core.spaces import Spaces
from bray_model import Model

pytestmark = pytest.mark.usefixtures("evaluated_here")

KINDS = {"float64": np.float64, "float16": np.float16, "int64": np.int64, "int8": np.int8}
D = 3


class Numbers(gymnasium.Env[Any, Any]):
    """Episodes of four steps in which observations are random numbers of one type."""

    def __init__(self, kind: str, *, is_continuous: bool) -> None:
        self.observation_space = spaces.Box(-9, 9, (D,), KINDS[kind])
        self.action_space = spaces.Discrete(2)
        if is_continuous:
            self.action_space = spaces.Box(-2.0, 2.0, (2,), np.float64)
        self._step = 0

    def _observation(self) -> np.ndarray[Any, Any]:
        return self.np_random.uniform(-9, 9, D).astype(self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        return self._observation(), float(np.sum(action)), self._step == 4, False, {}


def task(kind: str, *, is_continuous: bool) -> str:
    name = f"bray-test/{kind}-{'box' if is_continuous else 'discrete'}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(
            name, Numbers, kwargs={"kind": kind, "is_continuous": is_continuous}, order_enforce=True
        )
    return name


ON_POLICY = {"hidden": (4,), "num_envs": 2, "segment_length": 4}
OFF_POLICY = {
    "hidden": (4,),
    "num_envs": 2,
    "steps_per_collect": 4,
    "replays_per_collect": 2,
    "warmup_frames": 8,
    "batch_size": 4,
}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (ppo.PPO, {**ON_POLICY, "steps_per_replay": 16, "epochs": 1}),
    "ppo with memory": (
        ppo.PPO,
        {**ON_POLICY, "steps_per_replay": 16, "epochs": 1, "memory_size": 3},
    ),
    "a2c": (a2c.A2C, ON_POLICY),
    "impala": (impala.IMPALA, {**ON_POLICY, "replays_per_collect": 1}),
    "appo": (appo.APPO, {**ON_POLICY, "replays_per_collect": 1}),
    "dqn": (dqn.DQN, OFF_POLICY),
    "pqn": (pqn.PQN, {**ON_POLICY, "steps_per_replay": 16, "epochs": 1}),
    "es": (es.ES, {"hidden": (4,), "population": 4}),
    "sac": (sac.SAC, OFF_POLICY),
    "td3": (td3.TD3, OFF_POLICY),
}
DISCRETE_ALONE, CONTINUOUS_ALONE = {"dqn", "es", "pqn"}, {"sac", "td3"}
RUNS = [
    (case, kind, is_continuous)
    for case in CASES
    for is_continuous in (False, True)
    if case not in (DISCRETE_ALONE if is_continuous else CONTINUOUS_ALONE)
    for kind in (KINDS if case in ("ppo", "dqn", "sac") else ["float64"])
]
GOAL = Goal(episode_return=1e9, evaluate_at=1e9, max_frames=32, evaluation_episodes=1)


@pytest.fixture(autouse=True)
def evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations play in a process of their own, which knows no task of a test."""
    monkeypatch.setattr(evaluation, "evaluate", lambda *_, **__: [0.0])


@pytest.mark.parametrize(("case", "kind", "is_continuous"), RUNS)
def test_an_algorithm_trains_on_any_number_type(
    case: str, kind: str, is_continuous: bool, tmp_path: Path
) -> None:
    algorithm, settings = CASES[case]
    environment = task(kind, is_continuous=is_continuous)
    with bray.init(tmp_path, "trial") as run:
        outcome = algorithm.of(environment, **settings).train(run, goal=GOAL, seed=1)
    assert outcome.version >= 2, "updates"
    assert outcome.frames >= 32


@pytest.mark.parametrize("is_continuous", [False, True])
def test_demonstrations_of_float64_are_imitated(is_continuous: bool, tmp_path: Path) -> None:
    environment, folder = task("float64", is_continuous=is_continuous), tmp_path / "demonstrations"
    known = read_spaces(environment)
    with Model(
        make_policy(known, NetworkConfig(hidden=(4,)), 1), example_inputs(known, 0)
    ) as model:
        demonstrations.record(folder, environment, model, episodes=2, seed=1)
    config = {"demonstrations": str(folder), "hidden": (4,)}
    with bray.init(tmp_path, "cloned") as run:
        settings = dict(**config, batch_size=4, evaluate_every=2, max_steps=2)
        bc.BC.of(environment, **settings).train(run, goal=GOAL)
    with bray.init(tmp_path, "mixed") as run:
        _, both = CASES["ppo"]
        settings = dict(**{**both, **config}, cloning_steps=2)
        assert (
            rl_imitation.RLImitation.of(environment, **settings).train(run, goal=GOAL).version >= 2
        )


@pytest.mark.parametrize("case", ["dqn", "sac"])
def test_an_export_takes_what_the_environment_gives(case: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    algorithm, settings = CASES[case]
    environment = task("float64", is_continuous=case in CONTINUOUS_ALONE)
    spaces_ = read_spaces(environment)
    module = algorithm.of(environment, **settings).policy(spaces_, 1)
    row = np.linspace(-1, 1, D)
    with Model(module, spaces_.example) as model:
        model.export(tmp_path / "export")
        with Model(tmp_path / "export") as exported:
            got, want = exported(row), model(row)
    assert got.keys() == want.keys()
    for name, leaf in want.items():
        assert leaf.dtype == np.float32, name
        assert np.allclose(got[name], leaf, atol=1e-5), name


def test_float64_is_recorded_in_half_the_memory() -> None:
    spaces_ = read_spaces(task("float64", is_continuous=True))
    assert spaces_.example.dtype == np.float64, "what a model is asked with"
    assert recorded(spaces_) == [np.float32, np.float32]
    whole = read_spaces(task("int64", is_continuous=False))
    assert recorded(whole) == [np.int64, np.int64]


def recorded(known: Spaces) -> list[Any]:
    views = segment_layout(known, 4, 0).spec
    return [views[name].dtype for name in ("observation", "action")]


def test_a_session_records_float64_in_float32() -> None:
    spaces_ = read_spaces(task("float64", is_continuous=True))
    writer = SegmentWriter(segment_layout(spaces_, 4, 0))
    row = np.linspace(-1, 1, D)
    writer.begin_step(row, np.ones(2), log_prob=0.0, value=0.0, version=1)
    writer.finish_step(1.0)
    segment = writer.finish(row).tree
    assert segment["observation"][0].tolist() == row.astype(np.float32).tolist()


@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_teams_may_see_any_number_type(kind: Any) -> None:
    with closing(make_teams(TeamSourceConfig(environment="two-step"), 2)) as teams:
        sizes = {"own": teams.observation_size, "state": teams.state_size}
        own, state = (torch.ones(4, size).numpy().astype(kind) for size in sizes.values())
        seen = {"agent": torch.zeros(4).long(), "own": torch.tensor(own)}
        policy = mappo.policy(teams, mappo.MAPPO.of("two-step", hidden=(4,)).parts.model, 1)
        assert policy({**seen, "state": torch.tensor(state)})["logits"].dtype == torch.float32
        agents = torch.ones(4, teams.num_agents, sizes["own"]).double()
        assert qmix.QMIXPolicy(teams, (4,))({"agents": agents})["q"].dtype == torch.float32
