"""Vectorised collection for simulators that are Python or C++ batches: no wire, no sessions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.episodes import PlayedEpisode, metrics_of_row
from bray_actor.gamecores.environments import autoreset_mode, final_observation
from bray_actor.multi_agent.seat import GameResult
from bray_actor.policy.batch_decoder import batch_decoder
from bray_actor.runners.open_segments import PUSH_TIMEOUT_S, Column, OpenSegments, Rows
from bray_actor.runners.reward_transform import RewardTransform
from bray_actor.runners.step_quota import StepQuota
from bray_actor.runners.stepping import make_stepper
from bray_actor.segment import can_hold, stack_of, state_size_of
from bray_actor.spaces import of_gymnasium, spec_of, to_arrays
from bray_core import metrics, nested
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError, SpecError
from bray_core.layout import Layout
from bray_core.nested import ArraySpec, Nested
from bray_core.protocols import Answer, BufferProtocol, ModelProtocol


class Runner:
    """Steps a Gymnasium vector environment and pushes the same segments as `PolicyActor`.

    One loop of batched observation → `infer` → `step`; columns are written for all environments
    at once. Observations may be nested. The model's outputs are those that `PolicyActor` takes,
    with a leading N: Discrete actions by `logits [N, A]`, several choices (MultiDiscrete,
    MultiBinary) by a list of heads `[N, A_k]`, reals (Box) by `mean, log_std [N, D]` (clipped to
    the Box for the environment, recorded as drawn; with `low, high [N, D]` too they are squashed
    between them by tanh; `alpha, beta, low, high [N, D]` are Beta distributions between them), Dict
    and Tuple of these by both, and `value [N]`. An action is recorded as one array
    (`bray_core.action_vector`). A recurrent model (the layout has `initial_state [S]`) takes
    observation and `state [N, S]`, and returns the next `state`. It does not matter which way the
    environment resets itself: steps are counted as they are recorded, and one that only begins an
    episode is none. A full buffer that blocks lets the runner wait.

    Of environments that step in threads or processes of their own (ALE's, Gymnasium's
    `AsyncVectorEnv`) two runners can take turns: see `AlternatingRunners`.

    Args:
        environment: A `gymnasium.vector.VectorEnv` of N environments.
        model: Model of the policy.
        buffer: Buffer of the segments; T and extra leaves are read from its layout, the latter
            filled with the outputs of their names.
        seed: Seed of the environments and the draws.
        reward_transform: Changes the rewards and ends that training sees, such as an
            `AtariRewardTransform`. Returns of episodes are the environment's.
        gamma: Discount of the leaf `discounted_return`, if the layout has it.
        info_metrics: Keys of an episode's last info that are metrics of it, beside those of
            `info["metrics"]`.
        reset_options: Options that episodes begin with, see `set_reset_options`; None: none.

    Raises:
        ConfigError: a space has no fixed arrays or no decoder, or the layout does not fit it; the
            message names it.
    """

    def __init__(
        self,
        environment: Any,
        model: ModelProtocol,
        buffer: BufferProtocol,
        *,
        seed: int = 0,
        reward_transform: RewardTransform | None = None,
        gamma: float = 0.99,
        info_metrics: Sequence[str] = (),
        reset_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._env = environment
        self._info_metrics = tuple(info_metrics)
        self._model = model
        self._layout: Layout = buffer.layout
        self._random = np.random.default_rng(seed)
        n: int = environment.num_envs
        self._space = environment.single_observation_space
        spaces = of_gymnasium(
            "environment", environment.single_observation_space, environment.single_action_space
        )
        self._actions = ActionVector(spaces.action)
        self._decoder = batch_decoder(self._actions, n)
        self._state = np.zeros((n, state_size_of(self._layout)), np.float32)
        self._check_layout()
        self._mode = autoreset_mode(environment)
        if reset_options is not None:
            self.set_reset_options(reset_options)
        observation, info = environment.reset(seed=seed)
        self._reward_transform = reward_transform
        if reward_transform is not None:
            reward_transform.begin(info)
        self._stepping = make_stepper(environment)
        self._observation = to_arrays(self._space, observation)
        self._rows: Rows = np.arange(n)
        self._acting = self._rows
        """Those that act in this step: of the others it only begins an episode."""
        self._quota = StepQuota(n)
        self._shapes = {path: leaf.shape for path, leaf in nested.items(self._expected(n))}
        self._check_observation(self._observation)
        self._segments = OpenSegments(buffer, n, gamma)
        self._version = model.version
        self._asked = self._of_version = 0
        """Steps that the last run was to record, and those of the version that acts, in all."""
        self._ahead = 0
        """Steps of that version that the next run need not record again."""
        self._stepping_s = 0.0
        self._is_stepping = False
        self._held: tuple[Rows, npt.NDArray[np.bool_]] | None = None
        """Completed segments of the next run, and whose episode had ended."""
        self._outputs: Nested = None
        """Outputs of the model for the step that is under way."""

    def _check_layout(self) -> None:
        spec, wanted = self._layout.spec, spec_of(self._space)
        has = spec.get("final_observation")
        if stack := stack_of(self._layout):
            frames = spec["frames"]
            has = ArraySpec(frames.dtype, (stack, *frames.shape[1:]))
        if not can_hold(has, wanted):
            raise ConfigError(
                f"buffer: its segments' observation is {has}, the environment's is {wanted}"
            )
        action, shape = spec["action"], self._actions.spec.shape
        if isinstance(action, dict | list | tuple) or action.shape[1:] != shape:
            raise ConfigError(
                f"buffer: its segments' action is {action}, the environment's has shape {shape}"
            )

    @property
    def num_envs(self) -> int:
        """Number of environments, N."""
        return len(self._rows)

    async def run(self, steps: int) -> int:
        """Record so many steps of each environment in the mean; return how many that were in all.

        That is `steps` times N exactly. An environment that begins its episodes by steps of their
        own is stepped more often for it, and what a last step brings beyond is recorded, but pushed
        and counted with the next run.

        Raises:
            ConfigError: steps is below 1.
            SpecError: the environment or the model returned arrays that do not fit; the message
                names them.
            DeadlineError: the environment's processes or the buffer took too long.
        """
        self.owe(steps)
        recorded = 0
        started, self._stepping_s = time.perf_counter(), 0.0
        while self.owes:
            await self.act()
            recorded += self.finish()
        metrics.record("actor/steps", recorded, kind="count")
        metrics.record("actor/utilisation", self._stepping_s / (time.perf_counter() - started))
        return recorded

    def owe(self, steps: int) -> None:
        """Let `owes` be True until so many steps of each environment are under way."""
        if steps < 1:
            raise ConfigError(f"steps: expected 1 or more, got {steps}")
        self._asked = steps * self.num_envs
        self._quota.begin(steps, self._ahead)
        self._ahead = 0

    @property
    def owes(self) -> bool:
        """Whether `act` is to be called again for what `owe` asked."""
        return self._quota.is_open

    async def act(self) -> None:
        """Begin a step: let the model decide, and hand its actions to the environments."""
        self._push_held()
        answer = await self._infer()
        action, log_prob = self._draw(answer.outputs)
        if answer.version != self._version:
            self._version, self._of_version = answer.version, 0
        self._outputs = answer.outputs
        if len(late := self._quota.take(self._acting)):
            self._begin_late(late)
        self._segments.begin_steps(
            self._acting,
            self._observation,
            self._state,
            action,
            log_prob,
            answer.outputs,
            answer.version,
        )
        taken = self._actions.assemble(action, from_start=True)
        started = time.perf_counter()
        self._stepping.begin(taken)
        self._is_stepping = True
        self._stepping_s += time.perf_counter() - started

    def _draw(self, outputs: Nested) -> tuple[Any, Any]:
        """Draw actions by the model's outputs; where an observation has spoilt them, say so."""
        try:
            return self._decoder.sample(outputs, self._random)
        except SpecError as error:
            for path, leaf in nested.items(self._observation):
                if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                    name = f"observation/{path}" if path else "observation"
                    raise SpecError(
                        f"environment: {name}: expected finite numbers, got NaN or inf among them: "
                        "mend the environment"
                    ) from error
            raise

    def finish(self) -> int:
        """Finish the step that `act` began, if it did; return how many steps were recorded."""
        if not self._is_stepping:
            return 0
        self._is_stepping = False
        started = time.perf_counter()
        observation, reward, terminated, truncated, info = self._stepping.finish()
        self._stepping_s += time.perf_counter() - started
        acting = self._acting
        reward = self._column("reward", reward, "biuf")
        terminated = self._column("terminated", terminated, "biu").astype(bool, copy=False)
        truncated = self._column("truncated", truncated, "biu").astype(bool, copy=False)
        following = to_arrays(self._space, observation)
        self._check_observation(following)
        ended = terminated | truncated
        self._segments.add_returns(acting, reward)
        if self._reward_transform is not None:
            reward, lost = self._reward_transform(reward, ended, info)
            terminated = terminated | lost
        self._segments.finish_steps(acting, reward, terminated, truncated)
        if len(acting) < len(ended):  # what only begins has not ended
            ended = ended & np.isin(self._rows, acting)
        if ended.any():
            self._note_metrics(ended, info)
        self._cut(acting, following, terminated, ended, info)
        self._remember(self._outputs, acting, ended)
        if self._mode == "NextStep":
            # The next step of an environment that ended only resets it.
            self._acting = np.nonzero(~ended)[0] if ended.any() else self._rows
        elif self._mode == "Disabled" and ended.any():
            observation, _ = self._env.reset(options={"reset_mask": ended})
            following = to_arrays(self._space, observation)
        self._observation = following
        counted = self._quota.count(len(acting))
        self._of_version += counted
        return counted

    def _note_metrics(self, ended: Column, info: dict[str, Any]) -> None:
        """Note what the environments say of the episodes that have just ended."""
        for row in np.nonzero(ended)[0].tolist():
            found = metrics_of_row(info, row, self._mode, self._info_metrics)
            self._segments.note_metrics(row, found)

    def _expected(self, *lead: int) -> Nested:
        """Return the spec of an observation of all, with `lead` before each shape."""
        return nested.map(
            lambda leaf: ArraySpec(leaf.dtype, (*lead, *leaf.shape)), spec_of(self._space)
        )

    def _check_observation(self, observation: Nested) -> None:
        """Refuse what would be broadcast into the segments."""
        if isinstance(observation, np.ndarray) and observation.shape == self._shapes.get(""):
            return  # the quick way
        for path, leaf in nested.items(observation):
            if leaf.shape != self._shapes[path]:
                name = f"observation/{path}" if path else "observation"
                raise SpecError(
                    f"environment: {name}: expected {self._shapes[path]}, got {leaf.shape}"
                )

    def _column(self, name: str, value: Any, kinds: str) -> Column:
        """Return what the environment said of each, as an array `[N]`."""
        column = np.asarray(value)
        if column.shape != self._rows.shape or column.dtype.kind not in kinds:
            wanted = "numbers" if "f" in kinds else "flags"
            raise SpecError(
                f"environment: {name}: expected {self.num_envs} {wanted}, one of each environment, "
                f"got {column.dtype} {column.shape}"
            )
        return column

    def take_stepping_s(self) -> float:
        """Return how long the environments were waited for since the last call or `run`."""
        waited, self._stepping_s = self._stepping_s, 0.0
        return waited

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Let later episodes begin with options: `environment.reset(options=options)`.

        Call it between two runs.
        """
        self._env.set_attr("reset_options", dict(options))

    async def next_version(self, timeout_s: float = PUSH_TIMEOUT_S) -> None:
        """Wait until the model has a newer version than acted last: see `next_version` here.

        Raises:
            DeadlineError: the model had none within `timeout_s`.
        """
        await next_version([self], timeout_s)

    def close(self) -> None:
        """Close the environments."""
        self._stepping.close()

    def cut(self) -> None:
        """Push the segments that are under way, so that all that was recorded can be popped.

        What a run has recorded beyond its steps stays for the next one.
        """
        is_under_way = self._segments.steps > 0
        is_under_way[self._quota.late] = False
        under_way = self._rows[is_under_way]
        if len(under_way):
            self._segments.write_final(under_way, self._observation)
            self._segments.push(under_way, np.zeros(len(self._rows), bool))

    def take_episodes(self) -> list[PlayedEpisode]:
        """Return the episodes that ended since the last call (the newest 10,000)."""
        return self._segments.take_episodes()

    def take_returns(self) -> list[float]:
        """Return the sums of rewards of the episodes that ended since the last call (the newest
        10,000)."""
        return [episode.episode_return for episode in self.take_episodes()]

    def take_results(self) -> list[GameResult]:
        """Return nothing: these are no games of several policies."""
        return []

    async def _infer(self) -> Answer:
        if self._state.shape[1]:
            return await self._model.infer(self._observation, self._state, batch=True)
        return await self._model.infer(self._observation, batch=True)

    def _remember(self, outputs: Nested, acting: Rows, ended: npt.NDArray[np.bool_]) -> None:
        """Take the next state of a recurrent policy; zeros where an episode begins."""
        if not self._state.shape[1]:
            return
        goes_on = acting[~ended[acting]]
        state = self._segments.checked("state", outputs.get("state"), self._state[:, None])
        self._state = np.zeros_like(self._state)
        self._state[goes_on] = state[goes_on]

    def _cut(
        self,
        acting: Rows,
        observation: Nested,
        terminated: Column,
        ended: Column,
        info: dict[str, Any],
    ) -> None:
        """Push the segments that are full or whose episode ended."""
        full = self._segments.complete(acting, terminated | ended)
        if not len(full):
            return
        self._write_final(full[~terminated[full]], observation, ended, info)
        if len(self._quota.late):
            is_late = np.isin(full, self._quota.late)
            self._held = full[is_late], ended
            full = full[~is_late]
        if len(full):
            self._segments.push(full, ended)

    def _begin_late(self, late: Rows) -> None:
        """Cut the segments of those whose step counts for the next run: that has their step."""
        goes_on = late[self._segments.steps[late] > 0]
        if len(goes_on):
            self._segments.write_final(goes_on, self._observation)
            self._segments.push(goes_on, np.zeros(self.num_envs, bool))

    def _push_held(self) -> None:
        """Push what the last step of the run before completed beyond its steps."""
        if self._held is not None:
            held, self._held = self._held, None
            if len(held[0]):
                self._segments.push(*held)

    def _write_final(
        self, goes_on: Rows, observation: Nested, ended: Column, info: dict[str, Any]
    ) -> None:
        """Write what followed the last step, where something did."""
        self._segments.write_final(goes_on, observation)
        if self._mode != "SameStep":
            return
        for row in goes_on[ended[goes_on]]:  # the observation is of the next episode already
            final = to_arrays(self._space, final_observation(info, row))
            self._segments.write_final_of(row, final)


async def next_version(runners: Sequence[Runner], timeout_s: float = PUSH_TIMEOUT_S) -> None:
    """Wait until the model of runners that step by turns has a newer version than acted last.

    It may have got that one while the last run was under way: where there were steps of a player
    that died, the trainer had enough before. Then the next run records what is lacking of the steps
    of that version, and this does not wait: the trainer needs them for the next one.

    Raises:
        DeadlineError: the model had none within `timeout_s`.
    """
    newest = max(runner._version for runner in runners)
    if all(runner._of_version >= runner._asked for runner in runners):
        await runners[-1]._model.wait_version(newest + 1, timeout_s)
        return
    for runner in runners:
        runner._ahead = runner._of_version if runner._version == newest else 0
