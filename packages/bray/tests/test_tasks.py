"""The tasks of known optimum: that it is one, and what ignoring the task's point earns."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from bray.sources.tasks import LongCorridor, Recall, TwoHeads
from bray_actor.spaces import resolve


@pytest.mark.parametrize("name", ["TwoHeads-v0", "Recall-v0", "LongCorridor-v0"])
def test_they_are_environments(name: str) -> None:
    env = gymnasium.make(resolve(f"bray.sources.tasks:{name}"))
    check_env(env.unwrapped, skip_render_check=True)


def test_two_heads_returns_ten_at_best() -> None:
    env, rng = TwoHeads(), np.random.default_rng(0)
    totals = []
    for choose in (_best, _random, _without_mask):
        returns = []
        for episode in range(100):
            observation, _ = env.reset(seed=episode)
            total, ended = 0.0, False
            while not ended:
                action = choose(env, observation, rng)
                observation, reward, ended, _, _ = env.step(action)
                total += reward
            returns.append(total)
        totals.append(np.mean(returns))
    assert totals[0] == pytest.approx(TwoHeads.BEST_RETURN)
    assert totals[1] < 0.8 * TwoHeads.BEST_RETURN, "a random allowed pair is not enough"
    assert totals[2] < 0.5 * TwoHeads.BEST_RETURN, "nor is what would be best without the mask"


def _best(env: TwoHeads, observation: dict, rng: object) -> np.ndarray:
    mask = observation["action_mask"].astype(bool)
    allowed = np.outer(mask[: env.LEVERS], mask[env.LEVERS :])
    situation = observation["observation"][: env.SITUATIONS].argmax()
    worth = np.where(allowed, env.worth[situation], -1.0)
    return np.array(np.unravel_index(worth.argmax(), worth.shape))


def _random(env: TwoHeads, observation: dict, rng: np.random.Generator) -> np.ndarray:
    mask = observation["action_mask"].astype(bool)
    levers, forces = mask[: env.LEVERS], mask[env.LEVERS :]
    return np.array([rng.choice(np.nonzero(levers)[0]), rng.choice(np.nonzero(forces)[0])])


def _without_mask(env: TwoHeads, observation: dict, rng: object) -> np.ndarray:
    worth = env.worth[observation["observation"][: env.SITUATIONS].argmax()]
    return np.array(np.unravel_index(worth.argmax(), worth.shape))


def test_recall_asks_for_what_was_shown_first() -> None:
    env = Recall()
    for episode in range(8):
        observation, _ = env.reset(seed=episode)
        cue, total, ended, steps = int(observation[: env.CUES].argmax()), 0.0, False, 0
        while not ended:
            asked = bool(observation[-1])
            assert asked == (steps == env.DELAY)
            action = (cue + episode % 2) % env.CUES if asked else 0
            observation, reward, ended, _, _ = env.step(action)
            total += reward
            steps += 1
            assert not observation[: env.CUES].any(), "the cue is seen once"
        assert total == (episode % 2 == 0)
        assert steps == env.DELAY + 1


def test_a_corridor_is_walked_by_its_table_and_not_by_chance() -> None:
    env, rng = LongCorridor(), np.random.default_rng(0)
    place, _ = env.reset()
    total, steps, ended = 0.0, 0, False
    while not ended:
        place, reward, ended, _, _ = env.step(int(env.onwards[place]))
        total, steps = total + reward, steps + 1
    assert (total, steps) == (LongCorridor.BEST_RETURN, LongCorridor.PLACES - 1)
    farthest = 0
    for _ in range(100):
        env.reset()
        ended = cut = False
        while not (ended or cut):
            place, _, ended, cut, _ = env.step(int(rng.integers(env.ACTIONS)))
            farthest = max(farthest, place)
    assert farthest < LongCorridor.PLACES // 2
    # A birth and death chain's distribution after 100 steps, with the end absorbing.
    chance = np.zeros(LongCorridor.PLACES)
    chance[0] = 1.0
    for _ in range(LongCorridor.STEPS):
        moved = np.zeros_like(chance)
        moved[1:] += chance[:-1] / 3
        moved[:-2] += chance[1:-1] * 2 / 3
        moved[0] += chance[0] * 2 / 3
        moved[-1] += chance[-1]
        chance = moved
    assert chance.sum() == pytest.approx(1.0)
    assert chance[-1] < 1e-6
