"""The actor of a policy: the same class in training and in production.

Bodies are in bray's codec, or in JSON, whose observations are cast to what the model takes. start:
`{}`; reply `{}`, or `{"settings"}`, options of the episode, where a run has a curriculum. tick:
`{"observation", "reward"}`, the reward being that of the action before (absent in the first tick);
reply `{"action"}`. end: `{"observation", "reward", "terminated", "truncated"}`, of a match also
`"score"`, and `"metrics"`, numbers by name, if the simulator tells some of the episode. One session
is one episode of one environment.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from bray_actor.actor import Actor
from bray_actor.episodes import EpisodeLog, PlayedEpisode
from bray_actor.policy.decision import Decision, Decoder
from bray_actor.policy.decoder import check_outputs, decoder_for
from bray_actor.policy.lane_barrier import LaneBarrier
from bray_actor.policy.observation_reader import ObservationReader
from bray_actor.policy.policy_config import PolicyConfig
from bray_actor.policy.session_message import (
    check_finite,
    check_flags,
    decoded,
    flag_of,
    plain_number,
    recorded_metrics,
    required,
    score_of,
)
from bray_actor.policy.session_start import SessionStart
from bray_actor.policy.step_budget import Pace
from bray_actor.reset_options import ResetOptions
from bray_actor.segment import SegmentWriter, observation_spec
from bray_core import codec, metrics
from bray_core.action_vector import ActionVector
from bray_core.config import from_mapping
from bray_core.errors import ConfigError, ServiceError, SpecError
from bray_core.json_body import JsonBody
from bray_core.layout import Packed
from bray_core.nested import Nested
from bray_core.protocols import Answer, BufferProtocol, ModelProtocol


class PolicyActor(Actor):
    """Asks the model for each observation; with a buffer it records what happens.

    An aborted session's open segment is dropped (its last step has no outcome), counted in the
    metric `actor/steps_lost`, and refunded to the budget.

    Args:
        session: Id of the session; it seeds the draws.
        model: Model of the policy.
        config: Settings: how to act.
        buffer: Buffer of finished segments; None records nothing.
        budget: What holds steps back, such as a `StepBudget` of each policy version; None lets
            every tick through.
        lanes: Barrier that answers the ticks of a fixed set of sessions together, so that a run
            repeats; it has a budget of its own. None asks the model for each tick by itself.
        push_timeout_s: Seconds that a full buffer that blocks may hold the session back. With 0,
            segments without room are dropped at once, counted and refunded.
        actions: What turns drawn numbers into the simulator's actions; None reads the config.
        episodes: Log that each episode is added to when it has ended; None keeps none.
        options: Options that an episode's simulator is told when it starts; None tells none.
        reader: Reads observations; None makes one by the config.

    Raises:
        ConfigError: both a budget and lanes are given.
        SpecError: the session belongs to none of the lanes.
    """

    def __init__(
        self,
        session: str,
        model: ModelProtocol,
        config: PolicyConfig,
        buffer: BufferProtocol | None = None,
        budget: Pace | None = None,
        lanes: LaneBarrier | None = None,
        push_timeout_s: float = 0.0,
        actions: ActionVector | None = None,
        episodes: EpisodeLog | None = None,
        options: ResetOptions | None = None,
        reader: ObservationReader | None = None,
    ) -> None:
        if budget is not None and lanes is not None:
            raise ConfigError("budget: expected None beside lanes, which have their own")
        self._session = session
        self._episodes = episodes
        self._options = options
        self._model = model
        self._config = config
        self._labels = config.metric_labels()
        self._buffer = buffer
        self._push_timeout_s = push_timeout_s
        self._actions = config.action_vector() if actions is None else actions
        self._budget = lanes if budget is None else budget
        self._pace = budget
        self._seat = None if lanes is None else lanes.join(session, self._cut)
        self._writer = SegmentWriter(buffer.layout, config.gamma) if buffer is not None else None
        self._state = np.zeros(config.state_size, np.float32)
        self._random = random.Random(f"{config.seed}/{session}")
        self._decoder: Decoder | None = None
        self._reader = ObservationReader(config.spaces) if reader is None else reader
        self._has_acted = False  # and the outcome has not come yet
        self._is_recorded = True  # the step at hand
        self._return = 0.0
        self._length = 0
        self._score: float | None = None
        self._metrics: Mapping[str, float] = {}

    @classmethod
    def factory(
        cls,
        model: ModelProtocol,
        config: PolicyConfig,
        *,
        buffer: BufferProtocol | None = None,
        budget: Pace | None = None,
        lanes: LaneBarrier | None = None,
        push_timeout_s: float = 0.0,
        episodes: EpisodeLog | None = None,
        options: ResetOptions | None = None,
    ) -> Callable[[str], PolicyActor]:
        """Return what a server calls with each session's id."""
        # Read once, not by each session.
        actions, reader = config.action_vector(), ObservationReader(config.spaces)
        return lambda session: cls(
            session,
            model,
            config,
            buffer,
            budget,
            lanes,
            push_timeout_s,
            actions,
            episodes,
            options,
            reader,
        )

    @classmethod
    def from_export(
        cls, config: Mapping[str, Any], model: ModelProtocol
    ) -> Callable[[str], PolicyActor]:
        """Return the factory that `bray serve` hosts, from the manifest's `actor.config`.

        Raises:
            ConfigError: a key is unknown, or a value wrong.
        """
        return cls.factory(model, from_mapping(config, PolicyConfig, "manifest: actor.config"))

    @property
    def episode_return(self) -> float:
        """Sum of the episode's rewards so far, as the simulator gave them."""
        return self._return

    @property
    def episode_length(self) -> int:
        """Number of the episode's actions so far."""
        return self._length

    @property
    def score(self) -> float | None:
        """What the simulator said of the match: 1 won, 0.5 drawn, 0 lost; None: nothing."""
        return self._score

    @property
    def episode_metrics(self) -> Mapping[str, float]:
        """What the simulator said of the episode besides, by name; empty until it has ended."""
        return self._metrics

    async def start(self, body: bytes) -> bytes:
        """Begin an episode; tell the simulator its options, if there are some.

        Raises:
            ServiceError: `bad_request`: the body is none of a `start`; `bad_spaces`: it tells
                others than the policy's.
        """
        try:
            start = SessionStart.read(await decoded(body))
            self._reader.spaces.check(self._session, start.spaces)
        except BaseException:  # also a client that went away: nobody aborts it then
            if self._seat is not None:
                self._seat.lose()
            raise
        if self._options is None or not self._options.current:
            return _EMPTY
        return codec.encode({"settings": dict(self._options.current)})

    async def tick(self, body: bytes) -> bytes:
        """Take the last action's reward and the new observation; return the next action."""
        message = await decoded(body)
        observation = self._read(message, body)
        self._finish_step(message)
        if self._writer is not None and self._writer.is_full:
            await self._push(self._finish_segment(observation))
        answer = await self._ask(observation)
        if self._options is not None:
            self._options.commit()
        try:
            decision = self._decide(answer.outputs)
            self._begin_step(observation, decision, answer.outputs, answer.version)
        except BaseException as error:
            self._refund_step()
            if isinstance(error, SpecError):  # of numbers that are none come outputs that are none
                check_finite(observation)
            raise
        action = decision.action
        return codec.encode(
            {"action": action if self._actions is None else self._actions.assemble(action)}
        )

    def _read(self, message: dict[str, Any], body: bytes) -> Nested:
        """Return a message's observation as arrays, and keep it there.

        Raises:
            ServiceError: `bad_request`: there is none, or it does not fit; names the leaf.
        """
        observation = required(message, "observation")
        is_json = type(body) is JsonBody
        if is_json or type(observation) is not np.ndarray:
            spec = self._observation_spec()
            if spec is not None:
                observation = self._reader.arrays(observation, spec, is_json=is_json)
                message["observation"] = observation
        self._reader.check(observation)
        return observation

    def _observation_spec(self) -> Nested | None:
        """Return what the model takes, else what the buffer holds; None: neither says it."""
        signature = getattr(self._model, "signature", None)
        if signature is not None:
            return signature.inputs[0]
        return None if self._buffer is None else observation_spec(self._buffer.layout)

    async def _ask(self, observation: Nested) -> Answer:
        """Return the policy's outputs; the step counts in the budget.

        Raises:
            ServiceError: `bad_request`: the observation does not fit the model.
        """
        inputs = (observation, self._state) if self._config.state_size else (observation,)
        try:
            if self._seat is not None:
                return await self._seat.ask(*inputs)
            await self._admit(observation)
            return await self._infer(*inputs)
        except SpecError as error:
            raise ServiceError("bad_request", f"observation: {error}") from error

    async def end(self, body: bytes) -> bytes:
        """Take the last outcome and push the episode's last segment."""
        try:
            message = await decoded(body)
            check_flags(message)
            if not flag_of(message, "terminated"):
                self._read(message, body)
            return await self._end(message)
        finally:
            self._drop_segment()  # empty, unless the end was refused: then nobody can repeat it
            if self._seat is not None:
                self._seat.end()

    async def _end(self, message: dict[str, Any]) -> bytes:
        terminated, truncated = flag_of(message, "terminated"), flag_of(message, "truncated")
        observation = None if terminated else required(message, "observation")
        found = self._metrics = recorded_metrics(message, self._labels)
        self._score = score_of(message)
        self._finish_step(message, terminated, truncated)
        writer = self._writer
        if writer is not None and len(writer):
            await self._push(self._finish_segment(observation, self._return, self._length))
        metrics.record("actor/episode_return", self._return, kind="mean", **self._labels)
        metrics.record("actor/episode_length", self._length, kind="mean", **self._labels)
        metrics.record("actor/episodes", 1, kind="count", **self._labels)
        if self._episodes is not None:
            self._episodes.add(self._session, PlayedEpisode(self._return, self._length, found))
        return _EMPTY

    async def abort(self, reason: str) -> None:
        """Drop the open segment and refund its steps."""
        self._drop_segment()
        if self._seat is not None:
            self._seat.lose()

    def _drop_segment(self) -> None:
        if self._writer is not None:
            self._lose(self._writer.discard())

    def _finish_step(
        self, message: dict[str, Any], terminated: bool = False, truncated: bool = False
    ) -> None:
        """Take the outcome of the action before, once: a tick that failed may be sent again."""
        if not self._has_acted:
            return
        reward = plain_number(message, "reward")
        if not isinstance(reward, int | float):
            got = type(reward).__name__
            raise ServiceError("bad_request", f"reward: expected a number, got {got}")
        if not math.isfinite(reward):
            raise ServiceError("bad_request", f"reward: expected a finite number, got {reward}")
        if abs(reward) > _MOST_REWARD:  # it would be recorded as infinite
            wanted = f"expected a number within ±{_MOST_REWARD:.3g} (float32)"
            raise ServiceError("bad_request", f"reward: {wanted}, got {reward:.3g}")
        self._has_acted = False
        self._return += reward
        if self._writer is not None and self._writer.has_open_step:
            if self._config.clip_reward:
                reward = float(np.sign(reward))
            self._writer.finish_step(reward, terminated=terminated, truncated=truncated)
        elif self._writer is not None:
            self._writer.pass_step(float(np.sign(reward)) if self._config.clip_reward else reward)

    async def _admit(self, observation: Nested) -> None:
        """Wait for the budget; a segment that is open meanwhile is cut here and pushed."""
        if self._pace is not None:
            self._is_recorded = await self._pace.admit(partial(self._cut, observation))

    def _cut(self, observation: Nested) -> None:
        """Push the open segment, which `observation` follows, if there is one."""
        if self._writer is not None and len(self._writer):
            self._push_now(self._finish_segment(observation))

    def _refund(self, steps: int) -> None:
        if self._budget is not None:
            self._budget.refund(steps)

    def _refund_step(self) -> None:
        """Give the step at hand back, if it was taken of the budget."""
        if self._is_recorded:
            self._refund(1)

    async def _infer(self, *inputs: Nested) -> Answer:
        try:
            return await self._model.infer(*inputs)
        except BaseException:  # also a client that went away: the step was not taken
            self._refund_step()
            raise

    def _decide(self, outputs: Nested) -> Decision:
        if self._decoder is None:
            check_outputs(
                outputs,
                num_actions=self._config.num_actions,
                state_size=self._config.state_size,
                needs_value=self._writer is not None,
            )
            self._decoder = decoder_for(outputs)
        if self._config.deterministic:
            return self._decoder.mode(outputs)
        return self._decoder.sample(outputs, self._random)

    def _begin_step(
        self, observation: Nested, decision: Decision, outputs: Nested, version: int
    ) -> None:
        if self._writer is not None and self._is_recorded:
            self._writer.begin_step(
                observation,
                decision.action,
                log_prob=decision.log_prob,
                value=float(outputs["value"]),
                version=version,
                extra=outputs,
                state=self._state,
            )
        if self._config.state_size:
            self._state = outputs["state"]
        self._has_acted = True
        self._length += 1
        metrics.record("actor/steps", 1, kind="count", **self._labels)

    def _finish_segment(
        self, final_observation: Nested, whole_return: float = math.nan, whole_length: int = 0
    ) -> Packed:
        """Finish the segment. Raises ServiceError: `bad_request`: the observation does not fit."""
        assert self._writer is not None
        check_finite(final_observation)
        try:
            return self._writer.finish(
                final_observation, episode_return=whole_return, episode_length=whole_length
            )
        except SpecError as error:
            raise ServiceError("bad_request", str(error)) from error

    async def _push(self, segment: Packed) -> None:
        """Push a segment; a full buffer may hold the session back meanwhile."""
        if not self._push_timeout_s:
            self._push_now(segment)
            return
        buffer: Any = self._buffer
        try:
            taken = await buffer.push_async(segment, wait=True, timeout_s=self._push_timeout_s)
        except BaseException:  # also a client that went away
            self._lose(int(segment.tree["length"]))
            raise
        if not taken:  # it has no room, and does not block
            self._lose(int(segment.tree["length"]))

    def _push_now(self, segment: Packed) -> None:
        assert self._buffer is not None
        if not self._buffer.push(segment):
            self._lose(int(segment.tree["length"]))

    def _lose(self, steps: int) -> None:
        if steps:
            metrics.record("actor/steps_lost", steps, kind="count")
            self._refund(steps)


_EMPTY = codec.encode({})
_MOST_REWARD = float(np.finfo(np.float32).max)
