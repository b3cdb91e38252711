"""IQL, CQL and TD3+BC on recorded steps, and training that goes on from their weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import bray
from bray.algorithms import bc, cql, dqn, iql, ppo, sac, td3, td3_bc
from bray.goal import Goal
from bray.policies.networks import example_inputs
from bray.sources import demonstrations
from bray.sources.environments import read_spaces
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.protocols import Answer
from bray_trainer.checkpoints import checkpoint

OFFLINE: list[Any] = [iql.IQL, cql.CQL, td3_bc.TD3BC]
SMALL: dict[str, Any] = {"hidden": (8,), "batch_size": 8, "evaluate_every": 2, "max_steps": 2}
SHORT = Goal(episode_return=math.inf, max_frames=1, evaluation_episodes=1)
SEEN: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (3,), np.float64),
    "nested": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (8, 8), np.uint8),
            "joints": spaces.Box(-9, 9, (2,), np.float32),
        }
    ),
    "masked": spaces.Dict(
        {
            "observation": spaces.Box(-1, 1, (3,), np.float32),
            "action_mask": spaces.MultiBinary(2),
        }
    ),
}


class Five(gymnasium.Env[Any, Any]):
    """Episodes of five steps; every other one is cut rather than ended."""

    def __init__(self, seen: str, action: str) -> None:
        self.observation_space = SEEN[seen]
        self.action_space = (
            spaces.Discrete(2) if action == "discrete" else spaces.Box(-2, 1, (2,), np.float32)
        )
        self.episodes = 0

    def _shown(self) -> Any:
        shown = self.observation_space.sample()
        if isinstance(shown, dict) and "action_mask" in shown:
            shown["action_mask"][:] = [1, 0]
        return shown

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps, self.episodes = 0, self.episodes + 1
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        is_over, is_cut = self.steps == 5, self.episodes % 2 == 0
        return self._shown(), 1.0, is_over and not is_cut, is_over and is_cut, {}


class Anything:
    """Draws any allowed action."""

    version = 0

    def __init__(self, num_reals: int) -> None:
        self._num_reals = num_reals

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        value = {"value": np.float32(0)}
        if self._num_reals:
            zeros = np.zeros(self._num_reals, np.float32)
            return Answer({"mean": zeros, "log_std": zeros, **value}, 0)
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        allowed = np.ones(2) if mask is None else mask
        return Answer({"logits": np.where(allowed, 0, -1e9).astype(np.float32), **value}, 0)


def task(seen: str, action: str) -> str:
    name = f"bray-tests/Five-{seen}-{action}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=Five, kwargs={"seen": seen, "action": action})
    return name


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of episodes for each task, by its name."""
    folder = tmp_path_factory.mktemp("recorded")
    for seen in SEEN:
        for action in ("discrete", "box"):
            reals = 2 if action == "box" else 0
            if not (seen == "masked" and reals):
                where = folder / f"{seen}-{action}"
                demonstrations.record(
                    where, task(seen, action), Anything(reals), episodes=4, seed=1
                )
    return folder


CELLS = [
    (algorithm, seen, action)
    for algorithm in OFFLINE
    for seen in SEEN
    for action in ("discrete", "box")
    if action in algorithm.takes.actions and not (seen == "masked" and action == "box")
]


@pytest.mark.parametrize(
    ("algorithm", "seen", "action"), CELLS, ids=[f"{a.__name__}-{s}-{k}" for a, s, k in CELLS]
)
def test_two_updates_change_every_network(
    algorithm: Any, seen: str, action: str, recorded: Path, tmp_path: Path
) -> None:
    """Also with normalised observations, whose statistics are those of the whole data set."""
    name = task(seen, action)
    made = algorithm.of(
        name,
        demonstrations=str(recorded / f"{seen}-{action}"),
        normalize_observation=True,
        **SMALL,
    )
    known = read_spaces(name)
    trainer = made.trainer_for(known)(known, made.parts, 1, None, tmp_path)
    before = {name: weight.clone() for name, weight in trainer.module.state_dict().items()}
    trainer.run(2)
    after = trainer.module.state_dict()
    trained = [name for name, _ in trainer.module.named_parameters()]
    assert all(torch.isfinite(weight).all() for weight in after.values())
    assert not all(torch.equal(before[name], after[name]) for name in trained)
    policy = trainer.module["policy"] if hasattr(trainer.module, "keys") else trainer.module
    counts = [int(norm.num_rows) for norm in policy.normalize.norms]
    assert counts
    assert set(counts) == {20}, "each step once"
    again = made.trainer_for(known)(known, made.parts, 1, None, tmp_path)
    again.run(0)
    assert again.steps == 2
    for name, weight in again.module.state_dict().items():
        assert torch.equal(weight, after[name]), name


def test_a_masked_action_is_not_taken(recorded: Path) -> None:
    """CQL presses only values down that may be taken, and both policies mask the others."""
    name = task("masked", "discrete")
    known = read_spaces(name)
    for algorithm in (iql.IQL, cql.CQL):
        where = str(recorded / "masked-discrete")
        made = algorithm.of(name, demonstrations=where, **SMALL)
        trainer = made.trainer_for(known)(known, made.parts, 1)
        trainer.run(2)
        is_several = hasattr(trainer.module, "keys")
        policy = trainer.module["policy"] if is_several else trainer.module
        seen: Any = {
            "observation": torch.randn(16, 3),
            "action_mask": torch.tensor([[1, 0]]).expand(16, 2),
        }
        assert (policy(seen)["logits"].argmax(-1) == 0).all()


@pytest.fixture(scope="module")
def trials(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with an offline trial of each kind, exported and evaluated."""
    project = tmp_path_factory.mktemp("trials")
    for algorithm, action in (
        (iql.IQL, "box"),
        (cql.CQL, "discrete"),
        (td3_bc.TD3BC, "box"),
        (bc.BC, "discrete"),
    ):
        name = f"{algorithm.__name__}-{action}"
        where = str(recorded / f"vector-{action}")
        made = algorithm.of(task("vector", action), demonstrations=where, **SMALL)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "bray.training.off_policy.offline.evaluate_latest", lambda *_, **__: [0.0]
            )
            with bray.init(project, name) as run:
                outcome = made.train(run, goal=SHORT)
                assert outcome.version >= 1
    return project


@pytest.mark.parametrize(
    ("every", "most", "wanted"), [(4, 8, [4, 8]), (3, 8, [3, 6, 9]), (100, 5, [5])]
)
def test_it_takes_the_steps_that_it_says(
    recorded: Path, tmp_path: Path, every: int, most: int, wanted: list[int]
) -> None:
    settings = SMALL | {"evaluate_every": every, "max_steps": most}
    made = bc.BC.of(
        task("vector", "discrete"),
        demonstrations=str(recorded / "vector-discrete"),
        **settings,
    )
    taken: list[int] = []

    def evaluated(*_: Any, **__: Any) -> list[float]:
        state = checkpoint.load_newest(tmp_path / "run" / "checkpoints")
        taken.append(0 if state is None else state["steps"])
        return [0.0]

    figures: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bray.training.off_policy.offline.evaluate_latest", evaluated)
        with bray.init(tmp_path, "run") as run:
            run.listen(lambda reported, save: figures.append(reported["frames"]))
            made.train(run, goal=SHORT)
    state = checkpoint.load_newest(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert state["steps"] == wanted[-1]
    assert sorted({int(one) for one in figures if one}) == wanted
    assert len(taken) == len(wanted)


def weights(trial: Path) -> dict[str, torch.Tensor]:
    state = checkpoint.load_newest(trial / "checkpoints")
    assert state is not None
    found: dict[str, torch.Tensor] = state["module"]
    return found


def test_sac_goes_on_with_the_policy_and_critics_of_iql(trials: Path) -> None:
    saved = weights(trials / "IQL-box")
    known = read_spaces(task("vector", "box"))
    begun = sac.SAC.of(task("vector", "box"), hidden=(8,), begin_from=str(trials / "IQL-box"))
    networks = sac.SACTrainer.networks(known, begun.parts, 7)
    for name in ("policy", "critics"):
        for key, weight in networks[name].state_dict().items():
            assert torch.equal(weight, saved[f"{name}.{key}"])
    assert float(networks["temperature"].log_alpha.detach()) == pytest.approx(math.log(0.2))


@pytest.mark.parametrize(
    ("algorithm", "trial"),
    [(td3.TD3, "TD3BC-box"), (dqn.DQN, "CQL-discrete"), (ppo.PPO, "BC-discrete")],
)
def test_online_training_begins_with_an_offline_policy(
    algorithm: Any, trial: str, trials: Path
) -> None:
    saved = weights(trials / trial)
    name = task("vector", trial.partition("-")[2])
    made = algorithm.of(name, hidden=(8,), begin_from=str(trials / trial))
    known = read_spaces(name)
    policy = made.policy(known, 7)
    for key, weight in policy.state_dict().items():
        assert torch.equal(weight, saved.get(f"policy.{key}", saved.get(key))), key
    zeros = torch.from_numpy(example_inputs(known, 0))
    assert policy(zeros).keys() >= {"value"}


def test_an_own_trial_goes_on_with_its_own_weights(
    trials: Path, recorded: Path, tmp_path: Path
) -> None:
    name = task("vector", "box")
    begun = dict(SMALL, begin_from=str(trials / "TD3BC-box"))
    made = td3_bc.TD3BC.of(name, demonstrations=str(recorded / "vector-box"), **begun)
    known = read_spaces(name)
    first = td3_bc.TD3BCTrainer(known, made.parts, 1, None, tmp_path)
    first.run(2)
    again = td3_bc.TD3BCTrainer(known, made.parts, 1, None, tmp_path)
    again.run(0)
    for key, weight in first.module.state_dict().items():
        assert torch.equal(weight, again.module.state_dict()[key]), key


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"begin_from": "nowhere"}, "model.begin_from: expected the folder of a trial with a ch"),
        (
            {"begin_from": "IQL-box", "hidden": (16,)},
            r"policy body.0.weight: expected shape \(16, 3\), got \(8, 3\): give model the settin",
        ),
        (
            {"begin_from": "BC-discrete", "hidden": (8,)},
            r"expected a policy with .*, got one of another kind without: begin from a trial of",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    settings: dict[str, Any], message: str, trials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trials)
    name = task("vector", "box")
    with pytest.raises(ConfigError, match=message):
        sac.SAC.of(name, **settings).policy(read_spaces(name), 1)


def test_critics_that_do_not_fit_begin_anew(
    trials: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TQC has the policy of SAC, and so of IQL, and other critics."""
    from bray.algorithms import tqc

    name = task("vector", "box")
    made = tqc.TQC.of(name, hidden=(8,), begin_from=str(trials / "IQL-box"))
    made.policy(read_spaces(name), 1)
    assert "IQL-box has no critics that fit: they begin anew" in caplog.text


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"expectile: expected .* got 1"):
        iql.IQL.of("CartPole-v1", expectile=1.0)
    with pytest.raises(ConfigError, match="conservatism: expected 0 or more, got -1"):
        cql.CQL.of("CartPole-v1", conservatism=-1.0)
    with pytest.raises(ConfigError, match="alpha: expected more than 0, got 0"):
        td3_bc.TD3BC.of("Pendulum-v1", alpha=0.0)


def test_reals_and_choices_have_the_networks_of_online_algorithms() -> None:
    choice, reals = read_spaces("CartPole-v1"), read_spaces("Pendulum-v1")
    for algorithm, known, wanted in (
        (iql.IQL, reals, sac.SACPolicy),
        (cql.CQL, reals, sac.SACPolicy),
        (cql.CQL, choice, dqn.DQNPolicy),
        (td3_bc.TD3BC, reals, td3.TD3Policy),
    ):
        assert type(algorithm.of("CartPole-v1").policy(known, 1)) is wanted
        assert not ActionVector(known.action).is_one or wanted is dqn.DQNPolicy


def test_a_run_goes_on_online_with_weights_and_data(
    trials: Path, recorded: Path, tmp_path: Path
) -> None:
    """The data set counts as the warm-up: the first turn trains."""
    name = task("vector", "box")
    made = td3.TD3.of(
        name,
        hidden=(8,),
        begin_from=str(trials / "TD3BC-box"),
        begin_with=str(recorded / "vector-box"),
        warmup_frames=20,
        num_envs=2,
        batch_size=8,
        steps_per_collect=2,
        replays_per_collect=2,
    )
    goal = Goal(episode_return=math.inf, max_frames=4, evaluation_episodes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bray.training.sampled_policy.evaluate_latest", lambda *_, **__: [0.0])
        with bray.init(tmp_path, "online") as run:
            outcome = made.train(run, goal=goal)
    assert outcome.frames == 4
    assert outcome.version >= 1, "it trained"
