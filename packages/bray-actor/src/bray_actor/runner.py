"""Vectorised collection for simulators that are Python or C++ batches: no wire, no sessions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.spaces import import_gymnasium, spec_of
from bray_core import metrics
from bray_core.errors import ConfigError, SpecError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.protocols import Buffer, Model


class Runner:
    """Steps a Gymnasium vector environment and pushes the same segments as `PolicyActor`.

    One loop of batched observation → `infer` → `step`; columns are written for all environments
    at once. For one Box observation and a Discrete action, outputs `logits [B, A]`, `value [B]`.
    The environment resets itself on the step after an episode's end (Gymnasium's default).

    Args:
        environment: a `gymnasium.vector.VectorEnv` of N environments.
        model: the policy.
        buffer: of the segments; T is read from its layout.
        seed: of the environments and the draws.
    """

    def __init__(self, environment: Any, model: Model, buffer: Buffer, *, seed: int = 0) -> None:
        _check(environment)
        self._env = environment
        self._model = model
        self._buffer = buffer
        self._layout: Layout = buffer.layout
        self._length: int = self._layout.spec["reward"].shape[0]
        self._random = np.random.default_rng(seed)
        n: int = environment.num_envs
        self._rows = np.arange(n)
        self._observation, _ = environment.reset(seed=seed)
        self._begins = np.zeros(n, bool)  # this step only resets: its action is not used
        self._at = np.zeros(n, np.int64)
        self._returns = np.zeros(n)
        self._lengths = np.zeros(n, np.int64)
        self._blocks = self._layout.empty(n)
        self._views = self._layout.views(self._blocks)

    @property
    def num_envs(self) -> int:
        """N."""
        return len(self._rows)

    async def run(self, steps: int) -> int:
        """Take so many steps of all environments; return how many were recorded."""
        recorded = 0
        for _ in range(steps):
            recorded += await self._step()
        metrics.record("actor/steps", recorded, kind="count")
        return recorded

    async def _step(self) -> int:
        answer = await self._model.infer(self._observation, batch=True)
        logits = np.asarray(answer.outputs["logits"], np.float64)
        if logits.ndim != 2 or len(logits) != self.num_envs:
            raise SpecError(
                f"model output logits: expected float32 ({self.num_envs}, A), got {logits.shape}"
            )
        if not np.isfinite(logits.max(1)).all():  # the maximum of a row with a NaN is NaN
            raise SpecError("model output logits: expected finite values, got a row of NaN or inf")
        action, log_prob = self._sample(logits)
        acting = np.nonzero(~self._begins)[0]
        self._begin_steps(acting, action, log_prob, answer.outputs["value"], answer.version)
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._finish_steps(acting, reward, terminated, truncated)
        ended = terminated | truncated
        self._cut(acting, observation, terminated, ended)
        self._begins = ended
        self._observation = observation
        return len(acting)

    def _sample(
        self, logits: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Draw one action a row by the Gumbel-max trick (Gumbel 1954)."""
        log_p = logits - logits.max(1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
        action = (log_p + self._random.gumbel(size=log_p.shape)).argmax(1)
        return action, log_p[self._rows, action]

    def _begin_steps(
        self, acting: Any, action: Any, log_prob: Any, value: Any, version: int
    ) -> None:
        at = self._at[acting]
        views = self._views
        views["observation"][acting, at] = self._observation[acting]
        views["action"][acting, at] = action[acting]
        views["log_prob"][acting, at] = log_prob[acting]
        views["value"][acting, at] = value[acting]
        views["policy_version"][acting, at] = version

    def _finish_steps(self, acting: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        at = self._at[acting]
        self._views["reward"][acting, at] = reward[acting]
        self._views["terminated"][acting, at] = terminated[acting]
        self._views["truncated"][acting, at] = truncated[acting]
        self._at[acting] += 1
        self._returns[acting] += reward[acting]
        self._lengths[acting] += 1

    def _cut(self, acting: Any, observation: Any, terminated: Any, ended: Any) -> None:
        """Push the segments that are full or whose episode ended."""
        full = acting[(self._at[acting] == self._length) | ended[acting]]
        if not len(full):
            return
        views = self._views
        views["length"][full] = self._at[full]
        goes_on = full[~terminated[full]]
        views["final_observation"][full] = 0
        views["final_observation"][goes_on] = observation[goes_on]
        views["episode_return"][full] = np.where(ended[full], self._returns[full], math.nan)
        views["episode_length"][full] = np.where(ended[full], self._lengths[full], 0)
        self._buffer.push(Packed(self._layout, self._blocks[full]))
        self._record(full[ended[full]])
        self._at[full] = 0
        self._blocks[full] = 0

    def _record(self, ended: Any) -> None:
        for episode_return, length in zip(self._returns[ended], self._lengths[ended], strict=True):
            metrics.record("actor/episode_return", float(episode_return))
            metrics.record("actor/episode_length", float(length))
        metrics.record("actor/episodes", len(ended), kind="count")
        self._returns[ended] = 0.0
        self._lengths[ended] = 0


def _check(environment: Any) -> None:
    """Refuse an environment whose steps `Runner` would read wrongly."""
    if not isinstance(spec_of(environment.single_observation_space), ArraySpec):
        raise ConfigError("environment: Runner takes one Box observation, got a Dict or Tuple")
    action = environment.single_action_space
    if not isinstance(action, import_gymnasium().spaces.Discrete):
        raise ConfigError(f"environment: Runner takes Discrete actions, got {action}")
    mode = environment.metadata.get("autoreset_mode")
    mode = getattr(mode, "value", mode)
    if mode not in (None, "NextStep"):
        raise ConfigError(
            f"environment: autoreset_mode: expected NextStep, got {mode}: make the vector "
            "environment with autoreset_mode=AutoresetMode.NEXT_STEP"
        )
