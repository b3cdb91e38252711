"""The source of a run that trains a language model: supervised batches, then rounds of samples."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from bray.text.policy_gradient_config import GRPOConfig
from bray.text.rounds import Rounds
from bray.text.row_queue import RowQueue, pack_demonstrations, pack_samples
from bray.text.samples import TextSample, TokenRow
from bray.text.shaping import shaped, split_by_difference
from bray_actor import Played
from bray_core import metrics
from bray_core.errors import BrayError

logger = logging.getLogger(__name__)

FIRST_ROUNDS = 20
"""Rounds over which the share of groups with differing rewards must not be too small."""

Demonstrate = Callable[[int, np.random.Generator], Sequence[TokenRow]]
"""Number of demonstrations, and what they are drawn from → their rows."""


class CountsReplays(Protocol):
    """What a source asks of its trainer: how far it is, which checkpoints keep."""

    replays: int
    supervised_steps: int
    is_supervised_over: bool


class TextSource:
    """Fills the queue of rows; in turns with the trainer, or meanwhile.

    What is drawn follows from the seed and the number of replays alone, so that a trial that is
    resumed goes on as it would have.

    Args:
        rounds: what plays.
        queue: where replays go.
        part: hyperparameters.
        trainer: counts replays.
        demonstrate: rows of demonstrations; None where there are none.
        version: newest version of the weights.
        longest_answer: largest number of tokens of an answer.
        seed: seed of the run.
    """

    def __init__(
        self,
        rounds: Rounds,
        queue: RowQueue,
        part: GRPOConfig,
        trainer: CountsReplays,
        *,
        demonstrate: Demonstrate | None,
        version: Callable[[], int],
        longest_answer: int,
        seed: int,
    ) -> None:
        self._rounds = rounds
        self._queue = queue
        self._part = part
        self._trainer = trainer
        self._demonstrate = demonstrate
        self._version = version
        self._longest_answer = longest_answer
        self._seed = seed
        self._played = Played(0, [])
        self._supervised_steps: int | None = None
        """Supervised batches of the trial; None: none of this launch yet."""
        self._shares: list[float] = []
        self._rewards: list[float] = []
        self._ahead: _AheadOfTraining | None = None
        if part.max_lag:
            self._ahead = _AheadOfTraining(self._round, part.max_lag)

    def collect(self, steps: int) -> None:
        """Put a replay into the queue: a supervised batch, or a round of samples."""
        if self._is_supervised() and self._supervise():
            return
        fresh: list[TextSample] = []
        while not fresh:  # the trainer waits for a replay, and until then no weights are newer
            samples = self._round(self._rng(0)) if self._ahead is None else self._ahead.next()
            fresh = [one for one in samples if self._lag(one) <= self._part.max_lag]
            if len(fresh) < len(samples):
                metrics.record("text/stale_samples", len(samples) - len(fresh), kind="count")
        self._queue.put(pack_samples(fresh))

    def _is_supervised(self) -> bool:
        return self._part.supervised_until is not None and not self._trainer.is_supervised_over

    def _supervise(self) -> bool:
        """Put a supervised batch into the queue; False where the phase is over."""
        part = self._part
        if self._demonstrate is None:
            raise BrayError(
                "trainer.supervised_until: there are no demonstrations: write "
                "source.demonstrations, or give the task a method `demonstrations`"
            )
        if self._supervised_steps is None:  # a trial that is resumed has trained on some
            self._supervised_steps = self._trainer.supervised_steps
        if self._supervised_steps % part.supervised_look_every == 0 and self._trainer.replays:
            mean = float(np.mean(self._rounds.evaluate(200, None) or [0.0]))
            metrics.record("text/supervised_reward", mean)
            if part.supervised_until is not None and mean >= part.supervised_until:
                logger.info("supervised phase ends: mean reward %.3f of likeliest answers", mean)
                self._trainer.is_supervised_over = True
                return False
        if self._supervised_steps >= part.supervised_steps:
            raise BrayError(
                f"trainer.supervised_until: not reached within supervised_steps="
                f"{part.supervised_steps}: lower it, or allow more steps"
            )
        rows = self._demonstrate(part.supervised_batch_size, self._rng(0))
        self._queue.put(pack_demonstrations(rows, self._version()))
        self._supervised_steps += 1
        self._played = Played(self._played.frames + len(rows), self._played.returns)
        metrics.record("actor/steps", len(rows), kind="count")
        return True

    def _rng(self, number: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, self._trainer.replays, number])

    def _lag(self, sample: TextSample) -> int:
        return self._version() - min(row.oldest_version for row in sample.rows)

    def _round(self, rng: np.random.Generator) -> list[TextSample]:
        """Return a round of samples: again with other prompts until enough groups differ."""
        part, found, equal = self._part, list[TextSample](), list[TextSample]()
        for number in range(part.sampling_rounds):
            played = self._rounds.play(part.prompts_per_step, part.group_size, rng)
            self._count(played)
            first = 1 + max((one.group for one in found), default=-1)
            differ, same = split_by_difference(shaped(played, part, self._longest_answer), first)
            found += differ
            equal = same if number == 0 else equal
            if len({one.group for one in found}) >= part.prompts_per_step:
                break
        if part.sampling_rounds == 1:
            return sorted([*found, *equal], key=lambda one: one.group)
        return found or equal

    def _count(self, played: Sequence[TextSample]) -> None:
        if not played:
            raise BrayError("samples: every sample of a round failed: the log says why")
        rewards = [one.reward for one in played]
        self._played = Played(self._played.frames + len(played), self._played.returns + rewards)
        tokens = sum(one.num_own_tokens for one in played)
        metrics.record("text/samples", len(played), kind="count")
        metrics.record("actor/steps", len(played), kind="count")  # the axis of all curves
        metrics.record("actor/episodes", len(played), kind="count")
        metrics.record("actor/episode_return", rewards)
        metrics.record("text/sampled_tokens", tokens, kind="count")
        metrics.record("text/reward", rewards)
        metrics.record("text/answer_tokens", tokens / len(played))
        metrics.record("text/cut_share", float(np.mean([one.is_cut for one in played])))
        metrics.record("text/segments_per_session", float(np.mean([len(s.rows) for s in played])))
        groups: dict[int, set[float]] = {}
        for one in played:
            groups.setdefault(one.group, set()).add(one.reward)
        share = float(np.mean([len(found) > 1 for found in groups.values()]))
        metrics.record("text/informative_share", share)
        self._check_progress(share, rewards)

    def _check_progress(self, share: float, rewards: Sequence[float]) -> None:
        """End a run that cannot learn: hardly any group of the first rounds has a gradient.

        A trial that is resumed after its first rounds may have learnt all there is.

        Raises:
            BrayError: says what was seen, and what may help.
        """
        num_before = self._trainer.replays - self._trainer.supervised_steps
        is_resumed = not self._shares and num_before >= FIRST_ROUNDS
        if is_resumed or len(self._shares) >= FIRST_ROUNDS or not self._part.least_informative:
            return
        self._shares.append(share)
        self._rewards.extend(rewards)
        mean_share, mean = float(np.mean(self._shares)), float(np.mean(self._rewards))
        if len(self._shares) < FIRST_ROUNDS or mean_share >= self._part.least_informative:
            return
        lowest, highest = min(self._rewards), max(self._rewards)
        raise BrayError(
            f"rewards: in the first {FIRST_ROUNDS} rounds {mean_share:.2%} of the groups had "
            f"rewards that differ, less than least_informative={self._part.least_informative:g} "
            f"asks for (mean reward {mean:.3g}, {lowest:.3g} to {highest:.3g}): without "
            "a difference there is no gradient, and nothing would be learnt. Where nearly all "
            "answers fail, begin with a stronger model or more supervised steps "
            "(supervised_until), ask easier prompts, reward parts of an answer, or raise "
            "group_size; where nearly all succeed, ask harder prompts. least_informative=0 trains "
            "all the same"
        )

    def poll(self) -> Played:
        """Return what was played since the last call."""
        played, self._played = self._played, Played(0, [])
        return played

    def close(self) -> None:
        """End what plays."""
        if self._ahead is not None:
            self._ahead.close()
        self._rounds.close()


class _AheadOfTraining:
    """Samples in a thread of its own, at most so many rounds ahead.

    Args:
        play: makes a round from a random generator.
        capacity: rounds that wait at most.
    """

    def __init__(self, play: Callable[[np.random.Generator], Any], capacity: int) -> None:
        self._play = play
        self._room = threading.Semaphore(capacity)
        self._changed = threading.Condition()
        self._ready: list[Any] = []
        self._error: Exception | None = None
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def next(self) -> list[TextSample]:
        """Return the oldest round that waits; the first call begins to sample.

        Raises:
            Exception: what sampling failed with.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._go_on, name="text-rounds", daemon=True)
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._error is not None)
            if not self._ready:
                assert self._error is not None, "it waited for one of both"
                raise self._error
            found: list[TextSample] = self._ready.pop(0)
        self._room.release()
        return found

    def _go_on(self) -> None:
        rng = np.random.default_rng()  # what is sampled meanwhile does not repeat in any case
        while True:
            self._room.acquire()
            if self._is_closing:
                return
            try:
                found = self._play(rng)
            except Exception as error:  # noqa: BLE001 - raised to the loop
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._ready.append(found)
                self._changed.notify_all()

    def close(self) -> None:
        """End the thread after the round at hand."""
        self._is_closing = True
        self._room.release()
        if self._thread is not None:
            self._thread.join(60)
