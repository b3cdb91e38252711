"""Curiosity: the bonus by its formula, what checkpoints keep, and a corridor that chance fails."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms import a2c, appo, impala, ppo
from bray.goal import Goal
from bray.policies.config import NetworkConfig
from bray.policies.networks import make_policy
from bray.sources.environments import read_spaces
from bray.training.exploration.curiosity import Curiosity
from bray.training.on_policy import segment_layout
from bray_buffer import Buffer, BufferConfig
from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.spaces import LeafSpace, Spaces
from bray_trainer.sequences import next_observation, time_major

CORRIDOR = "bray.sources.tasks:LongCorridor-v0"
CARTPOLE = read_spaces("CartPole-v1")
FRAMES = Spaces.parse(
    "frames",
    {
        "observation": {"shape": [4, 84, 84], "dtype": "uint8", "low": 0, "high": 255},
        "action": {"discrete": 2},
    },
)
LENGTHS = [8, 3, 5]
GAMMA, WEIGHT = 0.9, 0.5


def curiosity(spaces: Spaces = CARTPOLE, seed: int = 1) -> Curiosity:
    return Curiosity(spaces, weight=WEIGHT, gamma=GAMMA, seed=seed, device=torch.device("cpu"))


def replay(seed: int = 0, *, padding: float = 0.0) -> Packed:
    """Return segments of CartPole, of which each step's observation is its own."""
    layout = segment_layout(CARTPOLE, 8, 0)
    rng = np.random.default_rng(seed)
    block = layout.empty(len(LENGTHS))
    views = layout.views(block)
    for name in ("observation", "final_observation", "value", "reward"):
        views[name][...] = rng.normal(size=views[name].shape)
    views["action"][...] = 0
    views["log_prob"][...] = np.log(0.5)
    views["terminated"][...] = False
    views["episode_return"][...] = np.nan
    views["length"][...] = LENGTHS
    for row, length in enumerate(LENGTHS):
        views["observation"][row, length:] = padding
        views["reward"][row, length:] = padding
    return Packed(layout, block)


def make_trainer(algorithm: Any = ppo.PPO, **settings: Any) -> Any:
    made = algorithm.of("CartPole-v1", **settings)
    make = made.make_trainer(CARTPOLE, model=None, directory=None, seed=3)
    layout = segment_layout(CARTPOLE, 8, 0)
    return make(
        make_policy(CARTPOLE, NetworkConfig(hidden=(8,)), seed=0),
        Buffer(layout, BufferConfig(batch_steps=16, capacity=64)),
    )


def test_a_step_is_followed_by_the_next_or_by_the_final_observation() -> None:
    segments = time_major(replay())
    found = next_observation(segments)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            is_last = t == length - 1
            wanted = segments["final_observation"][row]
            wanted = wanted if is_last else segments["observation"][t + 1, row]
            assert torch.equal(found[t, row], wanted)


def test_the_bonus_is_the_error_over_the_deviation_of_its_discounted_sums() -> None:
    """Burda et al. 2019, §2.4, step by step in NumPy."""
    made, segments = curiosity(), time_major(replay(padding=np.nan))
    before = copy.deepcopy(made.networks)
    reward = segments["reward"].clone()
    made.add_bonus(segments)
    rows = {
        (t, row): next_observation(segments)[t, row].double().numpy()
        for row, length in enumerate(LENGTHS)
        for t in range(length)
    }
    every = np.stack(list(rows.values()))
    errors, sums = {}, []
    for row, length in enumerate(LENGTHS):
        total = 0.0
        for t in range(length):
            normal = (rows[t, row] - every.mean(0)) / np.sqrt(every.var(0) + 1e-8)
            x = torch.from_numpy(normal.clip(-5, 5)).float()[None]
            with torch.no_grad():
                gap = before.predictor(x) - before.target(x)
            errors[t, row] = float(gap.square().mean())
            total = GAMMA * total + errors[t, row]
            sums.append(total)
    deviation = np.sqrt(np.var(sums) + 1e-8)
    for (t, row), error in errors.items():
        wanted = float(reward[t, row]) + WEIGHT * error / deviation
        assert float(segments["reward"][t, row]) == pytest.approx(wanted, rel=1e-4)


def test_what_was_seen_often_is_worth_less_and_only_the_predictor_learns() -> None:
    made = curiosity()
    before = copy.deepcopy(made.networks)
    for _ in range(200):
        made.add_bonus(time_major(replay(7)))
    seen = next_observation(time_major(replay(7)))[:3].flatten(0, 1)
    assert made.networks(seen).mean() < 0.1 * before(seen).mean()
    far = 4.0 * torch.ones(1, 4)
    assert made.networks(far).mean() > 5 * made.networks(seen).mean()
    for name, weight in made.networks.target.state_dict().items():
        assert torch.equal(weight, before.target.state_dict()[name]), name


def test_a_checkpoint_goes_on_where_it_stood() -> None:
    trainer = make_trainer(curiosity=WEIGHT)
    for seed in range(3):
        list(trainer.handle(replay(seed)))
    other = make_trainer(curiosity=WEIGHT)
    other.load_state_dict(copy.deepcopy(trainer.state_dict()))
    wanted, found = (next(iter(t.handle(replay(9)))) for t in (trainer, other))
    for name in wanted:
        assert torch.equal(wanted[name], found[name]), name
    without = make_trainer()
    assert "curiosity" not in without.state_dict()
    trainer.load_state_dict(without.state_dict())  # begins anew


def test_the_callers_random_numbers_go_on() -> None:
    torch.manual_seed(4)
    wanted = torch.rand(2)
    torch.manual_seed(4)
    first = curiosity()
    assert torch.equal(torch.rand(2), wanted)
    same, different = curiosity(), curiosity(seed=2)
    x = torch.ones(1, 4)
    assert torch.equal(first.networks(x), same.networks(x))
    assert not torch.equal(first.networks(x), different.networks(x))


@pytest.mark.parametrize("algorithm", [ppo.PPO, a2c.A2C, impala.IMPALA, appo.APPO])
def test_all_actor_critics_take_it(algorithm: Any) -> None:
    plain, curious = make_trainer(algorithm), make_trainer(algorithm, curiosity=2.0)
    assert plain.curiosity is None
    raised = curious.segments(replay())["reward"] - plain.segments(replay())["reward"]
    for row, length in enumerate(LENGTHS):
        assert (raised[:length, row] > 0).all()
        assert (raised[length:, row] == 0).all()


def test_of_a_stack_of_frames_the_last_is_read() -> None:
    made = curiosity(FRAMES)
    shape = (2, 3, 4, 84, 84)
    frames = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1)).byte()
    segments = {
        "observation": frames,
        "final_observation": frames[0],
        "reward": torch.zeros(2, 3),
        "length": torch.tensor([2, 1, 2]),
    }
    other = {**segments, "observation": frames.clone(), "final_observation": frames[0].clone()}
    other["observation"][..., :3, :, :] = 0
    other["final_observation"][..., :3, :, :] = 0
    made.add_bonus(segments)
    curiosity(FRAMES).add_bonus(other)
    assert (segments["reward"][0] > 0).all()
    assert torch.equal(segments["reward"], other["reward"])


OBSERVATIONS: dict[str, Any] = {
    "image": {"shape": [32, 24, 3], "dtype": "uint8", "low": 0, "high": 255},
    "channels first": {"shape": [3, 40, 44], "low": 0.0, "high": 1.0},
    "grid": {"shape": [7, 7, 3], "dtype": "uint8"},
    "grey": {"shape": [20, 30], "dtype": "uint8"},
    "stack": {"shape": [4, 32, 32, 1], "dtype": "uint8"},
    "set": {"most": 5, "features": 3},
    "large category": {"discrete": 5000},
    "nested": {
        "image": {"shape": [9, 8, 3], "dtype": "uint8"},
        "units": {"most": 4, "features": 2},
        "self": [{"shape": [3]}, {"multi_discrete": [2, 3000]}, {"multi_binary": 4}],
        "action_mask": {"multi_binary": 2},
    },
}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations_of_any_space_are_read(name: str) -> None:
    told = {"observation": OBSERVATIONS[name], "action": {"discrete": 2}}
    spaces = Spaces.parse("any", told)
    rng = np.random.default_rng(1)

    def drawn(lead: tuple[int, ...]) -> Any:
        def draw(leaf: LeafSpace) -> torch.Tensor:
            shape, kind = (*lead, *leaf.shape), np.dtype(leaf.dtype).kind
            high = min(leaf.sizes, default=2 if kind == "b" or leaf.kind == "binary" else 9)
            real = kind == "f"
            found = rng.normal(size=shape) if real else rng.integers(0, high, shape)
            return torch.from_numpy(np.asarray(found).astype(leaf.dtype))

        leaves = [draw(leaf) for _, leaf in nested.items(spaces.observation)]
        return nested.unflatten(spaces.observation, leaves)

    segments = {
        "observation": drawn((6, 3)),
        "final_observation": drawn((3,)),
        "length": torch.tensor([6, 1, 4]),
    }
    made = curiosity(spaces)
    bonuses = []
    for _ in range(150):
        replayed = {**segments, "reward": torch.zeros(6, 3)}
        made.add_bonus(replayed)
        bonuses.append(replayed["reward"])
    assert (bonuses[0][0] > 0).all()  # rated, and worth less once it is known
    assert (bonuses[0][1:, 1] == 0).all()
    rows = made._reader(segments["observation"]).flatten(0, 1)
    fresh = curiosity(spaces)
    fresh.networks.observations.load_state_dict(made.networks.observations.state_dict())
    assert made.networks(rows).mean() < 0.5 * fresh.networks(rows).mean()


def test_values_of_a_large_category_differ() -> None:
    spaces = Spaces.parse("any", {"observation": {"discrete": 5000}, "action": {"discrete": 2}})
    read = curiosity(spaces)._reader(torch.tensor([0, 1, 2, 4999]))
    assert read.shape == (4, 13)
    assert torch.equal(read @ 2.0 ** torch.arange(13), torch.tensor([0.0, 1.0, 2.0, 4999.0]))


def test_absent_members_of_a_set_say_nothing() -> None:
    spaces = Spaces.parse(
        "any", {"observation": {"most": 2, "features": 1}, "action": {"discrete": 2}}
    )
    read = curiosity(spaces)._reader
    one = torch.tensor([[3.0, 1.0], [7.0, 0.0]])
    other = torch.tensor([[3.0, 1.0], [-1.0, 0.0]])
    assert torch.equal(read(one), read(other))


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.curiosity: expected 0 for several ranks"):
        appo.APPO.of("CartPole-v1", curiosity=1.0, num_ranks=2)
    with pytest.raises(ConfigError, match="curiosity: expected 0 or more, got -1"):
        ppo.PPO.of("CartPole-v1", curiosity=-1.0)
    trainer = ppo.PPOTrainer
    with pytest.raises(ConfigError, match=r"trainer\.curiosity: expected spaces="):
        trainer(
            make_policy(CARTPOLE, NetworkConfig(hidden=(8,)), seed=0),
            Buffer(segment_layout(CARTPOLE, 8, 0), BufferConfig(batch_steps=16, capacity=64)),
            model=None,  # type: ignore[arg-type]
            part=ppo.PPO.of("CartPole-v1", curiosity=1.0).config,
            seed=0,
        )


@pytest.mark.slow
@pytest.mark.isa
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("weight", "reaches"), [(0.1, True), (0.0, False)])
def test_curiosity_finds_the_end_of_a_corridor(
    tmp_path: Path, weight: float, reaches: bool
) -> None:
    """Seed 1 needs 43,008 frames; without the bonus no frame has a reward."""
    goal = Goal(episode_return=0.9, evaluate_at=0.5, max_frames=100_000, evaluation_episodes=10)
    settings = {
        "curiosity": weight,
        "num_envs": 16,
        "steps_per_replay": 2048,
        "minibatch_size": 256,
        "learning_rate": 5e-4,
        "entropy_coefficient": 0.02,
    }
    with bray.init(tmp_path, "corridor") as run:
        outcome = ppo.PPO.of(CORRIDOR, **settings).train(run, goal=goal, seed=1)
    assert outcome.reached == reaches, outcome
