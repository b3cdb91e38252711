"""One agent in one game: what it sees and does, and the segment that records it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.multi_agent.environment import AgentTick
from bray_actor.multi_agent.seat import Seat
from bray_actor.multi_agent.seat_record import SeatRecord
from bray_actor.policy.decision import Decision, Decoder
from bray_actor.policy.decoder import check_outputs, decoder_for
from bray_actor.segment import SegmentWriter, can_hold, observation_spec, state_size_of
from bray_core import nested
from bray_core.action_vector import ActionVector, step_specs
from bray_core.errors import ConfigError, SpecError
from bray_core.nested import Nested
from bray_core.protocols import Answer
from bray_core.spaces import Spaces


@dataclass(slots=True)
class _Step:
    """An action whose outcome is not known yet."""

    observation: Nested
    decision: Decision
    outputs: Mapping[str, Nested]
    version: int
    state: npt.NDArray[np.float32]


class Player:
    """Plays one agent through one game by the policy of its seat.

    Args:
        agent: Name of the agent.
        seat: Seat that answers for it.
        spaces: What it sees and may do.
        generator: Source of its draws.
        record: Where its steps are counted and pushed; None records nothing.

    Raises:
        ConfigError: the layout of the seat's buffer does not fit the agent's spaces.
    """

    def __init__(
        self,
        agent: str,
        seat: Seat,
        spaces: Spaces,
        generator: random.Random,
        record: SeatRecord | None,
    ) -> None:
        self.agent = agent
        """Name of the agent."""
        self.seat = seat
        """Seat that answers for it."""
        self.action: Nested = None
        """Action that it takes next, as the environment wants it."""
        self.outputs: Nested = None
        """What its model answered to what it saw last; None before the first answer."""
        self.episode_return = 0.0
        """Sum of its rewards."""
        self.length = 0
        """Number of its actions."""
        self.has_ended = False
        """Whether it acts no more in this game."""
        self._spaces = spaces
        self._actions = ActionVector(spaces.action, spaces.origin)
        self._random = generator
        self._record = record
        self._writer: SegmentWriter | None = None
        if record is not None and seat.buffer is not None:
            check_layout(seat, agent, spaces)
            self._writer = SegmentWriter(seat.buffer.layout, seat.config.gamma)
        self._decoder: Decoder | None = None
        self._observation: Nested = None
        self._state = np.zeros(seat.config.state_size, np.float32)
        self._step: _Step | None = None
        self._acted = False
        self._before = 0.0, 0
        """Return and actions of its earlier lives in this game."""

    @property
    def inputs(self) -> tuple[Nested, ...]:
        """What its model is asked with."""
        return (self._observation, self._state) if len(self._state) else (self._observation,)

    # What comes from the environment.

    def see(self, tick: AgentTick) -> None:
        """Take what the environment tells it, the outcome of its last action first.

        Raises:
            SpecError: observation or reward are not what they should be; names the agent.
        """
        if tick.observation is not None:
            self._look(tick.observation)
        elif not tick.has_ended:
            raise SpecError(f"environment: {self.agent} acts, expected an observation, got None")
        reward = float(tick.reward)
        if not math.isfinite(reward):
            raise SpecError(
                f"environment: reward of {self.agent}: expected a finite number, got {reward}"
            )
        if self.has_ended and not tick.has_ended:  # it has come back
            self._state = np.zeros_like(self._state)
            self._before = self.episode_return, self.length
        self.episode_return += reward
        self.has_ended = tick.has_ended
        if self._writer is not None and self._acted:
            self._finish_step(reward, tick)
        if self.has_ended:
            self._end(tick.terminated)
        elif self._writer is not None and self._writer.is_full:
            self.cut()

    def _look(self, observation: Nested) -> None:
        if not self.length:  # once a game is often enough
            nested.check(observation, self._spaces.observation_spec, name=self.agent)
        # Environments may write the next one into the same arrays.
        kept = self._writer is not None
        self._observation = nested.map(np.array, observation) if kept else observation

    def _finish_step(self, reward: float, tick: AgentTick) -> None:
        assert self._writer is not None
        assert self._record is not None
        if self.seat.config.clip_reward:
            reward = float(np.sign(reward))
        step, self._step, self._acted = self._step, None, False
        if step is None:
            self._writer.pass_step(reward)
            return
        self._writer.begin_step(
            step.observation,
            step.decision.action,
            log_prob=step.decision.log_prob,
            value=float(step.outputs["value"]),
            version=step.version,
            extra=step.outputs,
            state=step.state,
        )
        self._writer.finish_step(reward, terminated=tick.terminated, truncated=tick.truncated)
        self._record.finish()

    def _end(self, terminated: bool) -> None:
        """Hand over the episode's last segment."""
        if self._writer is not None and self._record is not None and len(self._writer):
            final = None if terminated else self._observation
            reward, length = self._before
            self._record.add(
                self._writer.finish(
                    final,
                    episode_return=self.episode_return - reward,
                    episode_length=self.length - length,
                )
            )

    # What it does.

    def act(self, answer: Answer) -> None:
        """Choose its next action by the model's outputs for it.

        Args:
            answer: Outputs of one row, and the version that computed them.

        Raises:
            SpecError: the outputs do not fit the action space; names them.
        """
        outputs = self.outputs = answer.outputs
        if self._decoder is None:
            self._decoder = self._decoder_of(outputs)
        if self.seat.config.deterministic:
            decision = self._decoder.mode(outputs)
        else:
            decision = self._decoder.sample(outputs, self._random)
        self.action = self._actions.assemble(np.asarray(decision.action))
        if self._record is not None:
            if self._record.take(answer.version):
                self._step = _Step(
                    self._observation, decision, outputs, answer.version, self._state
                )
            else:
                self.cut()
        if len(self._state):
            self._state = outputs["state"]
        self.length += 1
        self._acted = True

    def _decoder_of(self, outputs: Nested) -> Decoder:
        actions, config = self._actions, self.seat.config
        check_outputs(
            outputs,
            num_actions=actions.sizes[0] if actions.is_one else config.num_actions,
            state_size=config.state_size,
            needs_value=self._writer is not None,
        )
        choices, num_reals = _described(outputs)
        wanted = actions.sizes[0] if actions.is_one else actions.sizes
        if choices != wanted or num_reals != actions.num_reals:
            raise SpecError(
                f"model output: expected choices {wanted} and {actions.num_reals} reals of "
                f"{self.agent}, got {choices} and {num_reals}: its model was made for other spaces"
            )
        return decoder_for(outputs)

    # Its segment.

    def cut(self) -> None:
        """Hand over the segment of the finished steps; a step under way begins the next one."""
        if self._writer is not None and self._record is not None and len(self._writer):
            following = self._observation if self._step is None else self._step.observation
            self._record.add(self._writer.finish(following))

    def drop(self) -> None:
        """Drop the open segment: the game is void."""
        if self._writer is not None and self._record is not None:
            self._record.lose(self._writer.discard(), int(self._step is not None))
            self._step = None


def _described(outputs: Nested) -> tuple[int | list[int], int]:
    """Return the number of values of a choice, or of each of several, and how many reals."""
    logits: Any = outputs.get("logits", [])
    reals = outputs.get("mean", outputs.get("alpha", ()))
    if isinstance(logits, list | tuple):
        return [len(head) for head in logits], len(reals)
    return len(logits), len(reals)


def check_layout(seat: Seat, agent: str, spaces: Spaces) -> None:
    """Refuse a buffer whose segments do not hold an agent's steps.

    Raises:
        ConfigError: names the seat, the agent, what the segments hold and what comes.
    """
    assert seat.buffer is not None
    layout = seat.buffer.layout
    observation, action = step_specs(spaces)
    has, shape = observation_spec(layout), layout.spec["action"].shape[1:]
    if not can_hold(has, observation):
        raise ConfigError(
            f"buffer: seat {seat.name}: its segments' observation is {has}, that of {agent} is "
            f"{observation}"
        )
    if shape != action.shape:
        raise ConfigError(
            f"buffer: seat {seat.name}: its segments' action has shape {shape}, that of {agent} "
            f"{action.shape}"
        )
    if state_size_of(layout) != seat.config.state_size:
        raise ConfigError(
            f"buffer: seat {seat.name}: its segments' state has size {state_size_of(layout)}, the "
            f"policy's state_size is {seat.config.state_size}"
        )
