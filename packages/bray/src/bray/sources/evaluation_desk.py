"""Answers the evaluation sessions of simulators, and gathers the returns of those that count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from bray_actor import PolicyActor, PolicyConfig
from bray_core.protocols import ModelProtocol


class EvaluationDesk:
    """Makes the actors of evaluation sessions: most likely actions, nothing recorded, no budget.

    While an evaluation is open, the first N sessions that start are answered by its policy, and
    their returns count: so short episodes are not preferred. All others are answered by the run's
    own model and count for nothing, so that a stray client cannot end a run.

    Args:
        model: the run's model.
        config: how the policy acts in training.
    """

    def __init__(self, model: ModelProtocol, config: PolicyConfig) -> None:
        self._model = model
        self._config = replace(config, deterministic=True, phase="evaluation")
        self._changed = threading.Condition()
        self._policy: ModelProtocol | None = None
        self._started = 0
        self._wanted = 0
        self._counting = 0
        """Sessions that have ended and count, or will."""
        self._returns: dict[int, float] = {}
        self.was_called = False
        """Whether there has been an evaluation session."""
        self.last_call_s = 0.0
        """When a session last started, ticked or ended, by `time.monotonic`."""

    def __call__(self, session: str) -> _EvaluatedSession:
        """Return the actor of a session."""
        with self._changed:
            self.was_called = True
            self.last_call_s = time.monotonic()
            number = None
            policy = self._model
            if self._policy is not None:
                policy = self._policy
                if self._counting < self._wanted:
                    number = self._started
                    self._counting += 1
                self._started += 1
        note = (lambda value: None) if number is None else self._noting(number, policy)
        return _EvaluatedSession(PolicyActor(session, policy, self._config), note, self._hear)

    def _hear(self) -> None:
        """Note that a session lives; a game may take longer than anybody waits for silence."""
        self.last_call_s = time.monotonic()

    def _noting(self, number: int, policy: ModelProtocol) -> Callable[[float | None], None]:
        def note(episode_return: float | None) -> None:
            with self._changed:
                if self._policy is not policy:  # that evaluation is over
                    return
                self.last_call_s = time.monotonic()
                if episode_return is None:
                    self._counting -= 1  # another takes its place
                else:
                    self._returns[number] = episode_return
                self._changed.notify_all()

        return note

    def open(self, policy: ModelProtocol, episodes: int) -> None:
        """Begin an evaluation.

        Args:
            policy: the version that is evaluated; its weights do not change meanwhile.
            episodes: number of episodes that count.
        """
        with self._changed:
            self._policy, self._wanted = policy, episodes
            self._started = self._counting = 0
            self._returns = {}
            self.last_call_s = time.monotonic()

    def wait(self, timeout_s: float) -> Sequence[float] | None:
        """Wait for all returns, and return them in the order of their starts; None: not yet."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._returns) >= self._wanted, timeout_s):
                return None
            return [self._returns[number] for number in sorted(self._returns)]

    @property
    def ended(self) -> int:
        """Number of episodes that have ended and count."""
        return len(self._returns)

    def close(self) -> None:
        """End the evaluation; sessions that are still played count no more."""
        with self._changed:
            self._policy = None


class _EvaluatedSession:
    """A session whose return is noted in the end."""

    def __init__(
        self,
        actor: PolicyActor,
        note: Callable[[float | None], None],
        hear: Callable[[], None],
    ) -> None:
        self._actor = actor
        self._note = note
        self._hear = hear

    async def start(self, body: bytes) -> bytes:
        return await self._actor.start(body)

    async def tick(self, body: bytes) -> bytes:
        self._hear()
        return await self._actor.tick(body)

    async def end(self, body: bytes) -> bytes:
        try:
            reply = await self._actor.end(body)
        except BaseException:
            self._note(None)
            raise
        self._note(self._actor.episode_return)
        return reply

    async def abort(self, reason: str) -> None:
        self._note(None)
        await self._actor.abort(reason)
