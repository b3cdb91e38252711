"""Observations and rewards that are normalised: the statistics, and who changes them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import bray
from bray.algorithms import a2c, appo, dqn, es, impala, ppo, sac, td3
from bray.goal import Goal
from bray.policies.config import NetworkConfig, TrunkConfig
from bray.policies.networks import make_policy
from bray.policies.normalisation import ObservationNorm, find_norm, normalised
from bray.sources.environments import read_spaces
from bray.training.normalisation import NormalisingTrainer
from bray_actor import SegmentWriter, segment_spec
from bray_core.action_vector import ActionVector
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.spaces import Spaces
from bray_model import Model
from bray_trainer.distributed.ranks import Ranks

pytestmark = pytest.mark.usefixtures("evaluated_here")

T, GAMMA = 8, 0.9
CARTPOLE = read_spaces("CartPole-v1")
MIXED = Spaces.parse(
    "mixed",
    {
        "observation": {
            "place": {"shape": [2], "dtype": "int64", "low": 0, "high": 5000},
            "speed": {"shape": [], "dtype": "float64"},
            "kind": {"discrete": 4},
            "camera": {"shape": [12, 12, 3], "dtype": "uint8", "low": 0, "high": 255},
            "action_mask": {"multi_binary": 2},
        },
        "action": {"discrete": 2},
    },
)


class Feed:
    """Prepared replays."""

    def __init__(self, *replays: Packed) -> None:
        self.replays = list(replays)

    def pop(self, timeout_s: float | None = None) -> Packed:
        return self.replays.pop(0)


class Target:
    """A model that only counts what is published."""

    version = 0

    def publish(self, weights: Mapping[str, Any]) -> int:
        self.version += 1
        return self.version

    def checkpoint(self) -> None:
        """Do nothing."""


def segments(lengths: list[int], seed: int, *, reward: float = 1.0, sums: bool = False) -> Packed:
    """Return segments of CartPole whose padding is nonsense."""
    action = ActionVector(CARTPOLE.action).spec
    spec = segment_spec(CARTPOLE.recorded, action, T, discounted=sums)
    layout, rng = Layout(spec), np.random.default_rng(seed)
    block = layout.empty(len(lengths))
    views = layout.views(block)
    names = ["observation", "final_observation", "value", "log_prob", "reward"]
    for name in names:
        views[name][...] = rng.normal(size=views[name].shape)
    views["observation"][...] = 1e3 + 50 * views["observation"]
    views["final_observation"][...] = 1e3
    views["log_prob"][...] = np.log(0.5)
    views["reward"][...] *= reward
    views["action"][...] = rng.integers(0, 2, views["action"].shape)
    views["length"][...] = lengths
    for row, length in enumerate(lengths):
        views["observation"][row, length:] = 1e9
    if sums:
        views["discounted_return"][...] = np.cumsum(views["reward"], 1)
    return Packed(layout, block)


def valid(*replays: Packed, name: str = "observation") -> np.ndarray[Any, Any]:
    """Return the rows of the steps that are no padding."""
    parts = []
    for replay in replays:
        tree = replay.tree
        parts.append(tree[name][np.arange(T) < tree["length"][:, None]])
    return np.concatenate(parts).astype("f8")


def trainer(*replays: Packed, directory: Path | None = None, **settings: Any) -> Any:
    algorithm = ppo.PPO.of("CartPole-v1", epochs=2, minibatch_size=16, **settings)
    module = make_policy(CARTPOLE, algorithm.parts.model, seed=0)
    return ppo.PPOTrainer(
        module, Feed(*replays), model=Target(), part=algorithm.config, seed=0, directory=directory
    )


def test_numbers_are_normalised_and_nothing_else() -> None:
    norm = ObservationNorm(MIXED, TrunkConfig(normalize_observation=True))
    made = torch.Generator().manual_seed(1)
    rows = {
        "place": torch.randint(0, 5000, (64, 2), generator=made),
        "speed": 1e6 + torch.randn(64, generator=made, dtype=torch.float64),
        "kind": torch.randint(0, 4, (64,), generator=made),
        "camera": torch.randint(0, 256, (64, 12, 12, 3), generator=made, dtype=torch.uint8),
        "action_mask": torch.ones(64, 2, dtype=torch.int8),
    }
    norm.update_with(norm.moments_of(rows))
    seen = norm(rows)
    for name in ("place", "speed"):
        assert seen[name].dtype == torch.float32
        np.testing.assert_allclose(seen[name].mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(seen[name].std(0, correction=0), 1, atol=1e-5)
    assert all(seen[name] is rows[name] for name in ("kind", "camera", "action_mask"))
    read = normalised(MIXED, TrunkConfig(normalize_observation=True)).observation
    assert (read["place"].low, read["place"].dtype) == (None, "float32"), "it is scaled once"
    assert normalised(MIXED, TrunkConfig()) is MIXED


@pytest.mark.parametrize("memory_size", [0, 3])
def test_without_it_a_network_is_what_it_was(memory_size: int) -> None:
    plain = make_policy(CARTPOLE, NetworkConfig(memory_size=memory_size), 1)
    normal = make_policy(
        CARTPOLE, NetworkConfig(memory_size=memory_size, normalize_observation=True), 1
    )
    assert find_norm(plain) is None
    added = normal.state_dict().keys() - plain.state_dict().keys()
    assert added == {f"normalize.norms.0.{name}" for name in ("num_rows", "mean", "variance")}
    assert all(torch.equal(normal.state_dict()[k], v) for k, v in plain.state_dict().items())


class WholePolicy(torch.nn.Module):
    """A whole policy of a user's."""

    def __init__(self, spaces: Any, settings: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        numbers = self.layer(observation)
        return {"logits": numbers[..., :2], "value": numbers[..., 2]}


class Trunk(torch.nn.Module):
    """A trunk of a user's."""

    feature_size = 5

    def __init__(self, spaces: Any, settings: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 5)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return self.layer(seen)


@pytest.mark.parametrize("name", ["WholePolicy", "Trunk"])
def test_networks_of_yours_read_normalised_numbers(name: str) -> None:
    config = NetworkConfig(network=f"{__file__}:{name}", normalize_observation=True)
    policy: Any = make_policy(CARTPOLE, config, 1)
    norm = find_norm(policy)
    assert norm is not None
    norm.update_with(norm.moments_of(1e4 + torch.randn(100, 4)))
    inputs: list[torch.Tensor] = []
    layer = next(part for part in policy.modules() if isinstance(part, torch.nn.Linear))
    layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    policy(1e4 + torch.randn(50, 4))
    assert float(inputs[0].abs().max()) < 6


def small(**settings: Any) -> dict[str, Any]:
    return {"hidden": (8,), "num_envs": 2, "normalize_observation": True, **settings}


REPLAY = {"steps_per_collect": 8, "replays_per_collect": 2, "warmup_frames": 32, "batch_size": 16}
RUNS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "ppo": (ppo.PPO, "CartPole-v1", {"steps_per_replay": 64, "epochs": 2}),
    "ppo-memory": (ppo.PPO, "CartPole-v1", {"steps_per_replay": 64, "memory_size": 3}),
    "a2c": (a2c.A2C, "CartPole-v1", {}),
    "impala": (impala.IMPALA, "CartPole-v1", {}),
    "appo-memory": (appo.APPO, "CartPole-v1", {"memory_size": 3}),
    "dqn": (dqn.DQN, "CartPole-v1", {**REPLAY, "n_step": 3}),
    "sac": (sac.SAC, "Pendulum-v1", REPLAY),
    "td3": (td3.TD3, "Pendulum-v1", REPLAY),
}


def newest(trial: Path) -> dict[str, Any]:
    return load_file(sorted((trial / "models/policy/versions").glob("*.safetensors"))[-1])


@pytest.mark.parametrize("name", RUNS)
def test_statistics_are_those_of_all_that_was_trained_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, task, settings = RUNS[name]
    seen: list[Any] = []
    trainers: list[Any] = []
    kind = algorithm.trainer
    handle = kind.handle

    def noted(self: Any, replay: Packed) -> Any:
        tree = replay.tree
        if "length" in tree:
            steps = np.arange(tree["reward"].shape[1]) < tree["length"][:, None]
            seen.append({k: tree[k][steps].astype("f8") for k in tree if k in LEAVES})
        else:
            seen.append({k: tree[k].astype("f8") for k in tree if k in LEAVES})
        trainers.append(self)
        return handle(self, replay)

    LEAVES = ("observation", "discounted_return")
    monkeypatch.setattr(kind, "handle", noted)
    goal = Goal(evaluate_at=-1e9, max_frames=200, evaluation_episodes=1)
    with bray.init(tmp_path, "trial") as run:
        made = algorithm.of(task, **small(normalize_reward=True, **settings))
        made.train(run, goal=goal, seed=1)
    rows = np.concatenate([leaves["observation"] for leaves in seen])
    weights = newest(tmp_path / "trial")
    assert len(rows) > 100
    assert weights["normalize.norms.0.num_rows"] == len(rows), "evaluations do not count"
    np.testing.assert_allclose(weights["normalize.norms.0.mean"], rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(weights["normalize.norms.0.variance"], rows.var(0), rtol=1e-9)
    scale = trainers[-1].reward_scale
    sums = np.concatenate([leaves["discounted_return"] for leaves in seen])
    assert float(scale.variance) == pytest.approx(sums.var(), rel=1e-9)


def test_candidates_of_es_share_the_statistics_of_the_generations_before(tmp_path: Path) -> None:
    settings = {"population": 8, "hidden": (4,), "normalize_observation": True}
    found = []
    for trial, frames in (("whole", (400,)), ("parts", (100, 400))):
        for max_frames in frames:
            goal = Goal(evaluate_at=1e9, max_frames=max_frames, evaluation_episodes=1)
            with bray.init(tmp_path, trial) as run:
                outcome = es.ES.of("CartPole-v1", **settings).train(run, goal=goal, seed=1)
        weights = newest(tmp_path / trial)
        assert weights["normalize.norms.0.num_rows"] == outcome.frames
        found.append(weights)
    for name, leaf in found[0].items():
        np.testing.assert_array_equal(found[1][name], leaf)


class ThreadRanks(Ranks):
    """One of two ranks in two threads of this process."""

    def __init__(self, rank: int, told: dict[int, Any], barrier: threading.Barrier) -> None:
        super().__init__(rank, 2)
        self._told, self._barrier = told, barrier

    def gather(self, value: Any) -> list[Any]:
        self._told[self.rank] = value
        self._barrier.wait()
        everyones = [self._told[0], self._told[1]]
        self._barrier.wait()
        return everyones


def test_two_ranks_hold_the_statistics_of_both() -> None:
    replays = [segments([8, 3, 5], 1, sums=True), segments([1, 2, 8, 8], 2, sums=True)]
    told: dict[int, Any] = {}
    barrier = threading.Barrier(2, timeout=30)
    made = [trainer(normalize_observation=True, normalize_reward=True) for _ in range(2)]

    def learn(rank: int) -> None:
        made[rank].ranks = ThreadRanks(rank, told, barrier)
        for _ in range(2):
            next(made[rank].handle(replays[rank]))
            made[rank].finish_replay()

    threads = [threading.Thread(target=learn, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = (one.observation_norm.norms[0] for one in made)
    rows = valid(*replays, *replays)
    assert int(first.num_rows) == len(rows)
    np.testing.assert_allclose(first.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(first.variance, rows.var(0), rtol=1e-9)
    scales = [one.reward_scale for one in made]
    sums = valid(*replays, name="discounted_return")
    assert float(scales[0].variance) == pytest.approx(sums.var(), rel=1e-9)
    for a, b in zip([first, scales[0]], [second, scales[1]], strict=True):
        assert all(torch.equal(a.state_dict()[k], v) for k, v in b.state_dict().items())


@pytest.mark.parametrize("memory_size", [0, 3])
def test_the_first_minibatch_is_of_the_policy_that_acted(
    memory_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = [], []
    handle = ppo.PPOTrainer.handle

    def noted(self: Any, replay: Packed) -> Any:
        for number, batch in enumerate(handle(self, replay)):
            yield batch
            found = float(self._approx_kl)
            if number == 0:
                first.append(found)
        last.append(found)

    monkeypatch.setattr(ppo.PPOTrainer, "handle", noted)
    goal = Goal(evaluate_at=1e9, max_frames=300, evaluation_episodes=1)
    with bray.init(tmp_path, "trial") as run:
        settings = small(steps_per_replay=64, memory_size=memory_size)
        ppo.PPO.of("CartPole-v1", **settings).train(run, goal=goal, seed=1)
    assert len(first) > 3
    assert max(first) < 1e-7
    assert max(last) > 1e-6, "the later ones are of a policy that has moved"


def test_a_resumed_trainer_goes_on_with_the_same_statistics(tmp_path: Path) -> None:
    settings = {"normalize_observation": True, "normalize_reward": True}
    replays = [segments([8, 3, 5], seed, sums=True) for seed in range(3)]
    whole = trainer(*replays, directory=tmp_path / "whole", **settings)
    whole.run(3)
    trainer(*replays[:2], directory=tmp_path / "parts", **settings).run(2)
    parts = trainer(replays[2], directory=tmp_path / "parts", **settings)
    parts.run(1)
    for a, b in ((whole.module, parts.module), (whole.reward_scale, parts.reward_scale)):
        assert all(torch.equal(a.state_dict()[k], v) for k, v in b.state_dict().items())
    rows = valid(*replays)
    np.testing.assert_allclose(parts.observation_norm.norms[0].mean, rows.mean(0), rtol=1e-12)
    sums = valid(*replays, name="discounted_return")
    assert float(parts.reward_scale.variance) == pytest.approx(sums.var(), rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("memory_size", [0, 3])
def test_an_export_normalises_as_torch_does(tmp_path: Path, memory_size: int) -> None:
    config = NetworkConfig(normalize_observation=True, hidden=(8,), memory_size=memory_size)
    policy: Any = make_policy(CARTPOLE, config, 1)
    norm = find_norm(policy)
    assert norm is not None
    scale = torch.tensor([1e-3, 1e3, 1.0, 50.0])
    norm.update_with(norm.moments_of((5 + torch.randn(200, 4)) * scale))
    state = (np.zeros((1, policy.state_size), np.float32),) if memory_size else ()
    example = np.zeros((1, 4), np.float32)
    with Model(policy, (example, *state) if state else example) as model:
        model.export(tmp_path / "export")  # compares it with torch
    rows = ((5 + torch.randn(7, 4)) * scale).numpy()
    states = [np.zeros((7, policy.state_size), np.float32)] if memory_size else []
    with Model(tmp_path / "export") as served:
        logits = served(rows, *states, batch=True)["logits"]
    with torch.no_grad():
        wanted = policy(torch.from_numpy(rows), *map(torch.from_numpy, states))["logits"]
        flat = policy(torch.from_numpy(rows[::-1].copy()), *map(torch.from_numpy, states))
    np.testing.assert_allclose(logits, wanted, atol=1e-5)
    assert float((flat["logits"] - wanted).abs().max()) > 1e-4, "the numbers matter"


def test_a_segment_has_the_discounted_sum_of_its_episode() -> None:
    number = ArraySpec(np.dtype("float32"), ())
    writer = SegmentWriter(Layout(segment_spec(number, number, 2, discounted=True)), GAMMA)
    found, rewards = [], [1.0, 2.0, -3.0, 5.0]
    for step, reward in enumerate(rewards):
        writer.begin_step(np.float32(0), np.float32(0), log_prob=0.0, value=0.0, version=1)
        writer.finish_step(reward, truncated=step == 2)
        if writer.is_full or step == 2:
            segment = writer.finish(np.float32(0))
            tree = segment.tree
            found += tree["discounted_return"][: int(tree["length"])].tolist()
    wanted = [1.0, GAMMA + 2, GAMMA * (GAMMA + 2) - 3]
    assert found == pytest.approx(wanted)
    segment = writer.finish(np.float32(0))
    assert segment.tree["discounted_return"][0] == 5.0, "an episode of its own"


def test_runners_carry_the_sum_over_segments_and_end_it_with_the_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums: list[np.ndarray[Any, Any]] = []
    scale = NormalisingTrainer.scale_reward

    def noted(self: Any, batch: Any) -> None:
        steps = np.arange(len(batch["reward"]))[:, None] < batch["length"].numpy()
        sums.append(batch["discounted_return"].numpy()[steps])
        scale(self, batch)

    monkeypatch.setattr(NormalisingTrainer, "scale_reward", noted)
    goal = Goal(evaluate_at=1e9, max_frames=400, evaluation_episodes=1)
    settings = {"normalize_reward": True, "gamma": GAMMA, "segment_length": 4, "num_envs": 2}
    with bray.init(tmp_path, "trial") as run:
        ppo.PPO.of("CartPole-v1", **settings).train(run, goal=goal, seed=1)
    # Of rewards of 1 the sum after k steps is (1 - γ^k) / (1 - γ): whole numbers of steps.
    steps = np.log1p(-np.concatenate(sums) * (1 - GAMMA)) / np.log(GAMMA)
    np.testing.assert_allclose(steps, steps.round(), atol=1e-2)
    assert steps.max() > 8, "more than two segments"


def test_the_unit_of_rewards_does_not_matter() -> None:
    batches = []
    for unit in (1.0, 1e4):
        made = trainer(normalize_reward=True, gamma=GAMMA)
        # Before the minibatches, each of which is normalised by itself.
        found = made._with_advantages(segments([8, 8, 8], 1, reward=unit, sums=True))
        batches.append(found["advantage"].flatten().sort().values)
        sums = valid(segments([8, 8, 8], 1, sums=True), name="discounted_return")
        assert float(made.reward_scale.variance.sqrt()) == pytest.approx(unit * sums.std())
    np.testing.assert_allclose(batches[0], batches[1], rtol=1e-4, atol=1e-5)


def test_passes_end_where_the_policy_is_too_far(tmp_path: Path) -> None:
    steps = {}
    for target in (None, 1e-6, 1e9):
        made = trainer(segments([8, 8, 8], 1), target_kl=target, learning_rate=1e-2)
        made.run(1)
        steps[target] = made.steps
    assert steps[None] == steps[1e9] == 4
    assert 1 <= steps[1e-6] < 4


BADLY_SCALED = """
import gymnasium
import numpy as np


class BadlyScaled(gymnasium.ObservationWrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)

    def observation(self, observation):
        return observation.astype("f8") * [1e3, 1e3, 1e-3, 1e-3] + [1e4, 0, 0, 0]


gymnasium.register("BadlyScaled-v0", BadlyScaled, max_episode_steps=500)
"""


@pytest.mark.slow
@pytest.mark.isa
def test_a_badly_scaled_task_is_learnt_with_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its positions are large and far from 0, its angles tiny."""
    (tmp_path / "badly.py").write_text(BADLY_SCALED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    returns = {}
    for normalize in (False, True):
        goal = Goal(episode_return=475, evaluate_at=1e9, max_frames=30_000, evaluation_episodes=10)
        with bray.init(tmp_path, f"normal-{normalize}") as run:
            algorithm = ppo.PPO.of("badly:BadlyScaled-v0", normalize_observation=normalize)
            returns[normalize] = algorithm.train(run, goal=goal, seed=1).evaluation_return
    assert returns[True] > 150
    assert returns[False] < returns[True] / 2


def test_dqn_acts_by_the_values_that_it_trains() -> None:
    from bray.policies.values import QNetworkConfig

    spaces = read_spaces("CartPole-v1")
    for variant in ({}, {"dueling": True}, {"distributional": "c51", "noisy": True}):
        config = QNetworkConfig(hidden=(8,), normalize_observation=True, **variant)  # type: ignore[arg-type]
        policy = dqn.make_policy(spaces, config, seed=1)
        observation = torch.randn(64, 4) * 5 + 3
        norm = find_norm(policy)
        assert norm is not None
        norm.update_with(norm.moments_of(observation, None))
        with torch.no_grad():
            acted, trained = policy(observation)["value"], policy.values(observation).amax(-1)
        torch.testing.assert_close(acted, trained)


def test_every_trainer_of_a_replay_sees_what_it_trains_on(tmp_path: Path) -> None:
    from bray.training.algorithm import load_algorithm

    goal = Goal(evaluate_at=1e9, max_frames=64, evaluation_episodes=1)
    for name in ("sac", "td3", "tqc", "crossq"):
        algorithm = load_algorithm(name).of(
            "Pendulum-v1",
            normalize_observation=True,
            normalize_reward=True,
            hidden=(8,),
            num_envs=2,
            warmup_frames=16,
            batch_size=8,
            steps_per_collect=8,
            replays_per_collect=2,
        )
        with bray.init(tmp_path, name) as run:
            algorithm.train(run, goal=goal, seed=1)
            _, weights = run.models["policy"].weights()
        counts = [leaf for path, leaf in weights.items() if path.endswith("num_rows")]
        assert counts, name
        assert min(map(float, counts)) > 0, f"{name}: its statistics have seen nothing"
