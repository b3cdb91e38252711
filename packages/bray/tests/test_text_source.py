"""The source of rounds: supervised first, ends of runs that cannot learn, stale samples, DAPO."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bray.text.policy_gradient_config import GRPOConfig
from bray.text.row_queue import SUPERVISED, RowQueue
from bray.text.samples import TextSample, TokenRow
from bray.text.text_source import FIRST_ROUNDS, TextSource
from bray_core.errors import BrayError


def sample(reward: float, group: int, version: int = 1, tokens: int = 3) -> TextSample:
    row = TokenRow.of_answer([1], [2] * tokens, [-1.0] * tokens, version)
    return TextSample(rows=(row,), reward=reward, group=group)


class Rounds:
    """Returns prepared rounds, the last one again and again."""

    def __init__(self, *rounds: list[TextSample], greedy: float = 0.0) -> None:
        self.rounds = list(rounds)
        self.greedy = greedy

    def play(self, groups: int, size: int, rng: np.random.Generator) -> list[TextSample]:
        return self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]

    def evaluate(self, count: int, rng: Any) -> list[float]:
        return [self.greedy]

    def close(self) -> None:
        pass


def source(rounds: Rounds, version: int = 1, demonstrate: Any = None, **settings: Any) -> Any:
    trainer = SimpleNamespace(replays=0, supervised_steps=0, is_supervised_over=False)
    queue = RowQueue(99)
    made = TextSource(
        rounds,
        queue,
        GRPOConfig(**settings),
        trainer,
        demonstrate=demonstrate,
        version=lambda: version,
        longest_answer=4,
        seed=1,
    )
    return SimpleNamespace(source=made, queue=queue, trainer=trainer)


def popped(queue: RowQueue) -> Any:
    packed = queue.pop(0)
    return packed.layout.views(packed.block)


def test_a_run_whose_groups_are_all_equal_ends_and_says_why() -> None:
    one = source(Rounds([sample(0.0, 0), sample(0.0, 0)]))
    for _ in range(FIRST_ROUNDS - 1):
        one.source.collect(1)
    with pytest.raises(BrayError, match=r"first 20 rounds 0\.00% of the groups had rewards that d"):
        one.source.collect(1)


def test_a_trial_that_is_resumed_after_its_first_rounds_may_have_learnt_all() -> None:
    rounds = Rounds([sample(1.0, 0), sample(1.0, 0)])
    done = source(rounds)
    done.trainer.replays, done.trainer.supervised_steps = FIRST_ROUNDS + 5, 5
    for _ in range(FIRST_ROUNDS + 1):
        done.source.collect(1)
        done.trainer.replays += 1
    young = source(rounds)
    young.trainer.replays, young.trainer.supervised_steps = FIRST_ROUNDS, 5
    for _ in range(FIRST_ROUNDS - 1):
        young.source.collect(1)
    with pytest.raises(BrayError, match="nothing would be learnt"):
        young.source.collect(1)


def test_supervised_steps_are_those_of_the_trial() -> None:
    def demonstrate(count: int, rng: np.random.Generator) -> list[TokenRow]:
        return [TokenRow.of_demonstration([1, 2], [False, True])] * count

    rounds = Rounds([sample(0.0, 0)])
    one = source(rounds, demonstrate=demonstrate, supervised_until=0.1, supervised_steps=7)
    one.trainer.replays = one.trainer.supervised_steps = 6
    one.source.collect(1)
    with pytest.raises(BrayError, match="not reached within supervised_steps=7"):
        one.source.collect(1)


def test_a_run_with_some_difference_goes_on() -> None:
    one = source(Rounds([sample(0.0, 0), sample(1.0, 0), sample(0.0, 1), sample(0.0, 1)]))
    for _ in range(FIRST_ROUNDS + 1):
        one.source.collect(1)
    assert one.source.poll().frames == 4 * (FIRST_ROUNDS + 1)


def test_samples_older_than_the_lag_are_dropped() -> None:
    rounds = Rounds([sample(0.0, 0, version=3), sample(1.0, 0, version=4)])
    one = source(rounds, version=4)
    one.source.collect(1)
    assert popped(one.queue)["reward"].tolist() == [1.0]
    ahead = source(rounds, version=4, max_lag=1)
    ahead.source.collect(1)
    ahead.source.close()
    assert popped(ahead.queue)["reward"].tolist() == [0.0, 1.0]


def test_dynamic_sampling_asks_again_until_enough_groups_differ() -> None:
    equal, differ = [sample(1.0, 0), sample(1.0, 0)], [sample(0.0, 0), sample(1.0, 0)]
    one = source(Rounds(equal, differ, differ), prompts_per_step=2, sampling_rounds=4)
    one.source.collect(1)
    found = popped(one.queue)
    assert found["reward"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert found["group"].tolist() == [0, 0, 1, 1]
    assert one.source.poll().frames == 6


def test_long_answers_cost_reward() -> None:
    rounds = Rounds([sample(1.0, 0, tokens=2), sample(1.0, 0, tokens=3), sample(1.0, 0, tokens=4)])
    one = source(rounds, overlong_buffer=2)
    one.source.collect(1)
    assert sorted(popped(one.queue)["reward"].tolist()) == [0.0, 0.5, 1.0]


def test_supervision_lasts_until_its_reward_is_reached() -> None:
    rounds = Rounds([sample(0.0, 0), sample(1.0, 0)], greedy=0.05)

    def demonstrate(count: int, rng: np.random.Generator) -> list[TokenRow]:
        return [TokenRow.of_demonstration([1, 2], [False, True])] * count

    one = source(
        rounds,
        demonstrate=demonstrate,
        supervised_until=0.1,
        supervised_batch_size=2,
        supervised_look_every=2,
        supervised_steps=6,
    )
    for replays in range(4):
        one.trainer.replays = replays
        one.source.collect(1)
        assert popped(one.queue)["group"].tolist() == [SUPERVISED] * 2
    rounds.greedy = 0.2
    one.source.collect(1)
    assert popped(one.queue)["group"].tolist() == [0, 0]
    assert one.trainer.is_supervised_over

    late = source(
        Rounds([sample(0.0, 0)]),
        demonstrate=demonstrate,
        supervised_until=0.1,
        supervised_steps=1,
    )
    late.source.collect(1)
    with pytest.raises(BrayError, match="not reached within supervised_steps=1"):
        late.source.collect(1)


def test_supervision_without_demonstrations_is_told() -> None:
    one = source(Rounds([sample(0.0, 0)]), supervised_until=0.1)
    with pytest.raises(BrayError, match="there are no demonstrations"):
        one.source.collect(1)


def test_a_round_of_stale_samples_alone_is_followed_by_another() -> None:
    stale, fresh = [sample(1.0, 0, version=3)], [sample(2.0, 0, version=4)]
    one = source(Rounds(stale, stale, fresh), version=4)
    one.source.collect(1)
    assert popped(one.queue)["reward"].tolist() == [2.0], "the trainer waits for it"
