"""N environments that a gamecore plays side by side: single ones, or one vector environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.episodes import metrics_of_info, metrics_of_row
from bray_actor.spaces import check_spaces, import_gymnasium, to_action, to_arrays
from bray_core.errors import ConfigError
from bray_core.nested import Nested


class StepOutcome(NamedTuple):
    """What an action led to."""

    observation: Nested
    reward: float
    terminated: bool
    truncated: bool
    metrics: Mapping[str, float] = {}
    """What the environment says of the episode that has ended."""

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


class Environments(Protocol):
    """N environments, numbered from 0, each of which begins anew when its episode has ended."""

    def reset(self) -> dict[int, Nested]:
        """Begin all; return the first observations."""
        ...

    def step(
        self, actions: Mapping[int, Nested]
    ) -> tuple[dict[int, StepOutcome], dict[int, Nested]]:
        """Take the actions of some.

        Returns:
            The outcome of each, and the first observations of episodes that began. One begins with
            the step that ended the one before, or with a later one.
        """
        ...

    def set_reset_options(self, index: int, options: Mapping[str, Any]) -> Nested | None:
        """Set the options of an environment's episodes.

        Return the first observation of an episode that began anew because of it; None: they count
        from the next episode on.
        """
        ...

    def close(self) -> None:
        """Close all."""
        ...


def seed_of_lane(seed: int, lane: int) -> int:
    """Return the seed of a lane's environment in a run or an evaluation of a seed."""
    return seed * 1_000_003 + lane


def share_of_lane(episodes: int, num_envs: int, lane: int) -> int:
    """Return how many of an evaluation's episodes a lane plays: as many as any other, or one more.

    Args:
        episodes: number of episodes of all lanes.
        num_envs: number of lanes.
        lane: number of the lane, from 0 on.
    """
    return episodes // num_envs + (lane < episodes % num_envs)


class SingleEnvironments:
    """One Gymnasium environment for each; environment i is seeded with `seed + i`."""

    def __init__(self, environment: str | EnvironmentSpec, num_envs: int, seed: int) -> None:
        spec = EnvironmentSpec.of(environment)
        self._names = spec.info_metrics
        self._envs = [spec.make() for _ in range(num_envs)]
        self._seed = seed
        self._space = self._envs[0].observation_space
        self._action_space = self._envs[0].action_space
        check_spaces(self._space, self._action_space)

    def reset(self) -> dict[int, Nested]:
        """Begin all."""
        return {
            index: to_arrays(self._space, env.reset(seed=self._seed + index)[0])
            for index, env in enumerate(self._envs)
        }

    def step(
        self, actions: Mapping[int, Nested]
    ) -> tuple[dict[int, StepOutcome], dict[int, Nested]]:
        """Take the actions of some."""
        outcomes, begun = {}, {}
        for index, action in actions.items():
            env = self._envs[index]
            observation, reward, terminated, truncated, info = env.step(
                to_action(self._action_space, action)
            )
            outcome = outcomes[index] = StepOutcome(
                to_arrays(self._space, observation),
                float(reward),
                bool(terminated),
                bool(truncated),
                metrics_of_info(info, None, self._names) if terminated or truncated else {},
            )
            if outcome.ended:
                begun[index] = to_arrays(self._space, env.reset()[0])
        return outcomes, begun

    def set_reset_options(self, index: int, options: Mapping[str, Any]) -> Nested | None:
        """Begin the environment's episode anew, if these are other options than before."""
        env = self._envs[index]
        if env.reset_options == options:
            return None
        env.reset_options = options
        return to_arrays(self._space, env.reset()[0])

    def close(self) -> None:
        """Close all."""
        for env in self._envs:
            env.close()


class VectorEnvironments:
    """A `gymnasium.vector.VectorEnv`, whichever way it resets itself; seeded with `seed`."""

    def __init__(self, environment: Any, seed: int, info_metrics: Sequence[str] = ()) -> None:
        self._env = environment
        self._names = info_metrics
        self._seed = seed
        self._space = environment.single_observation_space
        self._action_space = environment.single_action_space
        check_spaces(self._space, self._action_space)
        self._mode = autoreset_mode(environment)
        self._num_envs: int = environment.num_envs
        self._options: Mapping[str, Any] | None = None
        self._resets = np.zeros(self._num_envs, bool)
        """Environments whose next step only begins an episode."""
        self._action_space.seed(0)
        self._actions = [self._action_space.sample() for _ in range(self._num_envs)]
        """The last action of each: also what those get that take none."""

    def _rows(self, observation: Any) -> list[Nested]:
        """Return each environment's observation, of a batch that is converted once."""
        batch = to_arrays(self._space, observation)
        return [_row(batch, index) for index in range(self._num_envs)]

    def reset(self) -> dict[int, Nested]:
        """Begin all."""
        observation, _ = self._env.reset(seed=self._seed)
        return dict(enumerate(self._rows(observation)))

    def step(
        self, actions: Mapping[int, Nested]
    ) -> tuple[dict[int, StepOutcome], dict[int, Nested]]:
        """Take the actions of some; the others repeat their last one, to no effect."""
        for index, action in actions.items():
            self._actions[index] = to_action(self._action_space, action)
        observation, reward, terminated, truncated, info = self._env.step(self._joined())
        rows = self._rows(observation)
        begun = {int(index): rows[index] for index in np.nonzero(self._resets)[0]}
        ended = (np.asarray(terminated) | np.asarray(truncated)) & ~self._resets
        outcomes = {}
        for index in actions:
            final, found = rows[index], {}
            if ended[index] and self._mode == "SameStep":
                final = to_arrays(self._space, final_observation(info, index))
            if ended[index]:
                found = metrics_of_row(info, index, self._mode, self._names)
            outcomes[index] = StepOutcome(
                final, float(reward[index]), bool(terminated[index]), bool(truncated[index]), found
            )
        if self._mode == "NextStep":
            self._resets = ended
        elif ended.any():
            begun = self._begun(ended, rows)
        return outcomes, begun

    def set_reset_options(self, index: int, options: Mapping[str, Any]) -> Nested | None:
        """Set the options of all environments, from the next episode of each on."""
        if options != self._options:
            self._options = options
            self._env.set_attr("reset_options", dict(options))
        return None

    def _begun(self, ended: Any, rows: list[Nested]) -> dict[int, Nested]:
        if self._mode == "Disabled":
            observation, _ = self._env.reset(options={"reset_mask": ended})
            rows = self._rows(observation)
        return {int(index): rows[index] for index in np.nonzero(ended)[0]}

    def _joined(self) -> Any:
        utils = import_gymnasium().vector.utils
        empty = utils.create_empty_array(self._action_space, self._num_envs)
        return utils.concatenate(self._action_space, self._actions, empty)

    def close(self) -> None:
        """Close it."""
        self._env.close()


def make_vector(environment: str, num_envs: int) -> Any:
    """Return the vector environment of an id: its own, if it has one, else single ones in turn."""
    gymnasium = import_gymnasium()
    if gymnasium.spec(environment).vector_entry_point is not None:
        return gymnasium.make_vec(environment, num_envs, vectorization_mode="vector_entry_point")
    return gymnasium.make_vec(environment, num_envs, vectorization_mode="sync")


def autoreset_mode(environment: Any) -> str:
    """Return NextStep, SameStep or Disabled: when a vector environment begins anew.

    Raises:
        ConfigError: the environment resets itself in another way.
    """
    mode = environment.metadata.get("autoreset_mode", "NextStep")  # Gymnasium's default
    mode = getattr(mode, "value", mode)
    if mode not in ("NextStep", "SameStep", "Disabled"):
        raise ConfigError(
            "environment: metadata autoreset_mode: expected NextStep, SameStep or Disabled, "
            f"got {mode}"
        )
    return str(mode)


def final_observation(info: Mapping[str, Any], index: int) -> Any:
    """Return the observation in which an episode ended, of an environment that is a step further.

    Raises:
        ConfigError: the environment does not tell how it resets itself.
    """
    final = info.get("final_obs", info.get("final_observation"))  # its name until Gymnasium 1.0
    row = None if final is None else _row(final, index)
    if row is None:
        raise ConfigError("environment: autoreset_mode is SameStep: expected final_obs in the info")
    return row


def _row(tree: Any, index: int) -> Any:
    if isinstance(tree, dict):
        return {name: _row(child, index) for name, child in tree.items()}
    if isinstance(tree, list | tuple):
        return [_row(child, index) for child in tree]
    row = tree[index]  # a dict where each environment gives its own
    return np.asarray(row) if isinstance(row, np.generic) else row
