"""Whole episodes by a policy's most likely actions, played in this process.

It plays what `bray_actor.gamecores.gamecore.play` plays against deterministic `PolicyActor`s behind
a `LaneBarrier`: the same environments, seeds, batches and actions, so the same returns bit by bit.
The wire, the codec and a session for each episode are left out, which cost more than a quick
environment and a small network together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.episodes import metrics_of_info, record_metrics
from bray_actor.gamecores.lanes import lane_seed, lane_share
from bray_actor.policy.decision import Decoder
from bray_actor.policy.decoder import check_outputs, decoder_for
from bray_actor.policy.policy_config import PolicyConfig
from bray_actor.policy.row_block import RowBlock, row_of
from bray_actor.spaces import check_spaces, to_action, to_arrays
from bray_core import metrics
from bray_core.errors import SpecError
from bray_core.nested import Nested

BatchPolicy = Callable[..., Nested]
"""A policy that is called as `policy(observation, batch=True)` with rows `[N, ...]`, a recurrent
one as `policy(observation, state, batch=True)`, and returns its outputs: a `bray_model.Model`."""


def play_most_likely(
    environment: str | EnvironmentSpec,
    policy: BatchPolicy,
    episodes: int,
    *,
    num_envs: int,
    seed: int,
    config: PolicyConfig | None = None,
) -> list[float]:
    """Play episodes with the most likely actions; return their returns.

    Args:
        environment: a Gymnasium id, or how it is made; no Atari game.
        policy: policy whose weights do not change meanwhile.
        episodes: number of episodes, shared out to the environments beforehand, so that short
            ones are not preferred.
        num_envs: number of environments side by side, at most: the rows of a batch.
        seed: seed of the environments.
        config: what is known of the policy, such as the state of a recurrent one.

    Returns:
        The returns in the order of (environment, episode).

    Raises:
        ConfigError: the environment is unknown, or a space or an action does not fit.
        SpecError: an output is missing or not finite, or a reward is not; the message names it.
    """
    spec, num_envs = EnvironmentSpec.of(environment), min(num_envs, episodes)
    lanes = [
        _EpisodeLane(spec, row, lane_seed(seed, row), lane_share(episodes, num_envs, row))
        for row in range(num_envs)
    ]
    try:
        play = _Play(lanes, policy, config or PolicyConfig())
        while play.step():
            pass
    finally:
        for lane in lanes:
            lane.env.close()
    return [episode_return for lane in lanes for episode_return in lane.returns]


class _EpisodeLane:
    """One environment, which plays its share of the episodes one after the other."""

    def __init__(self, spec: EnvironmentSpec, row: int, seed: int, quota: int) -> None:
        self.env = spec.make()
        self.row = row
        self.returns: list[float] = []
        self.quota = quota
        self.state: Any = None
        self.is_new = True
        """Whether an episode begins with the next step."""
        self._metrics = spec.info_metrics
        self._space = self.env.observation_space
        self._return, self._length = 0.0, 0
        self.observation = to_arrays(self._space, self.env.reset(seed=seed)[0])

    @property
    def is_open(self) -> bool:
        """Whether it has episodes left."""
        return len(self.returns) < self.quota

    def step(self, action: Any, labels: dict[str, str]) -> None:
        """Take an action; where that ends an episode, begin the next."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        self._length += 1
        self.is_new = bool(terminated or truncated)
        if self.is_new:
            self._end(info, labels)
            observation, _ = self.env.reset()
        self.observation = to_arrays(self._space, observation)

    def _end(self, info: dict[str, Any], labels: dict[str, str]) -> None:
        """Note an episode, in the metrics too, as a `PolicyActor` does."""
        if not math.isfinite(self._return):
            raise SpecError(f"environment: reward: expected finite numbers, got {self._return}")
        metrics.record("actor/episode_return", self._return, kind="mean", **labels)
        metrics.record("actor/episode_length", self._length, kind="mean", **labels)
        metrics.record("actor/episodes", 1, kind="count", **labels)
        record_metrics(metrics_of_info(info, None, self._metrics), **labels)
        self.returns.append(self._return)
        self._return, self._length = 0.0, 0


class _Play:
    """Lets the policy decide for all lanes at once, each in a row of its own."""

    def __init__(
        self, lanes: Sequence[_EpisodeLane], policy: BatchPolicy, config: PolicyConfig
    ) -> None:
        self._lanes = lanes
        self._policy = policy
        self._config = config
        self._labels = config.metric_labels()
        self._space = lanes[0].env.action_space
        check_spaces(lanes[0].env.observation_space, self._space)
        self._actions = config.action_vector()
        self._block = RowBlock(len(lanes))
        self._num_actions = getattr(self._space, "n", None)
        """Actions of a Discrete space; None: it is another one."""
        self._first = int(getattr(self._space, "start", 0)) if self._num_actions else 0
        self._decoder: Decoder | None = None

    def step(self) -> bool:
        """Take a step of every lane that has episodes left; return whether there was one."""
        lanes = [lane for lane in self._lanes if lane.is_open]
        if not lanes:
            return False
        batch = self._block.fill({lane.row: self._inputs(lane) for lane in lanes})
        outputs = self._policy(*batch, batch=True)
        actions = self._decide(outputs, [lane.row for lane in lanes])
        for lane, action in zip(lanes, actions, strict=True):
            if self._config.state_size:
                lane.state = outputs["state"][lane.row]
            lane.step(action, self._labels)
        metrics.record("actor/steps", len(lanes), kind="count", **self._labels)
        return True

    def _inputs(self, lane: _EpisodeLane) -> tuple[Nested, ...]:
        if not self._config.state_size:
            return (lane.observation,)
        if lane.is_new:
            lane.state = np.zeros(self._config.state_size, np.float32)
        return lane.observation, lane.state

    def _decide(self, outputs: Nested, rows: Sequence[int]) -> list[Any]:
        """Return the most likely action of each row, as the environment takes it."""
        if self._decoder is None:
            first = row_of(outputs, rows[0])
            check_outputs(
                first, num_actions=self._config.num_actions, state_size=self._config.state_size
            )
            self._decoder = decoder_for(first)
        logits = outputs.get("logits")
        is_plain = isinstance(logits, np.ndarray) and logits.shape[1:] == (self._num_actions,)
        if is_plain and self._actions is None:
            return self._choose(logits[rows])
        return [self._decided(self._decoder, row_of(outputs, row)) for row in rows]

    def _choose(self, logits: Any) -> list[int]:
        """Return the actions of a Discrete space: the first of the largest logits of each row."""
        if not np.isfinite(logits.max(1)).all():  # NaN where a row has one
            raise SpecError("model output logits: expected finite values, got a row of NaN or inf")
        return [self._first + choice for choice in logits.argmax(1).tolist()]

    def _decided(self, decoder: Decoder, outputs: Nested) -> Any:
        action = decoder.mode(outputs).action
        return to_action(
            self._space, action if self._actions is None else self._actions.assemble(action)
        )
