"""One description of how an environment is made, the same wherever it is played."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bray_actor.atari import is_atari, make_atari
from bray_actor.environments.spec_text import (
    made_with,
    short_name,
    spec_from_json,
    spec_to_json,
    wrapped,
)
from bray_actor.episodes import check_names
from bray_actor.spaces import has_sets, import_gymnasium, resolve
from bray_core.errors import ConfigError
from bray_core.process.user_modules import check_code_name, find_user_code
from bray_core.settings.ranges import PositiveInt, check_fields

VECTOR_CURE = (
    "make single ones of it, or let a script of yours give it to an algorithm's trainer "
    "(docs/guides/environments.md, vector environments)"
)
"""What to do with an environment that steps many at once."""
MOST_STEPS = 10_000
"""Steps of an evaluation's episode where nothing else limits it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentSpec:
    """How an environment is made, in training, in evaluation and in gamecores alike.

    It is plain data: it is pickled, and written as JSON for processes. Code of yours is named, and
    imported where the environment is made.
    """

    environment: str
    """What is played: a Gymnasium id (`FrozenLake-v1`), an id and the module that registers it
    (`module:Id-v0`), or a class or function of yours that returns an environment (`module:Class`,
    `file.py:Class`); it need not be registered."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the environment is made with, such as `{is_slippery: false}`."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around each environment, the innermost first: `module:Class` or `file.py:Class`,
    called with the environment, such as `gymnasium.wrappers:FlattenObservation`."""
    stepping: Literal["worker", "processes", "envpool"] = "worker"
    """Where environments are stepped: `worker`, one after the other by the worker itself;
    `processes`, each in a process of its own, which pays where a step takes a millisecond or more;
    `envpool`, by EnvPool's threads, where it is installed and has the environment."""
    max_episode_steps: PositiveInt | None = None
    """Steps after which an episode is cut, as by a time limit. None: the limit with which the
    environment is registered; where it has none, evaluations cut at 10,000, so that a policy that
    goes nowhere ends."""
    action_mask: bool = True
    """Whether an `action_mask` in the info of an environment with choices among its actions becomes
    a part of the observation, so that the policy does only what is allowed."""
    resize: PositiveInt | None = None
    """Height and width that images are resized to, such as 84; None leaves them as they are."""
    grey: bool = False
    """Whether images lose their colours: a third of the numbers, where colours say nothing."""
    frame_stack: PositiveInt = 1
    """Newest images that one observation holds, so that it shows what moves. 4 is usual."""
    frame_skip: PositiveInt = 1
    """Steps that each action is taken for, their rewards summed. 2 to 8 where little happens in one
    step."""

    most_members: PositiveInt = 32
    """Members that a set of an observation (`Sequence`) has at most: it becomes an array of so many
    rows, of which those without a member are marked. Too few and the run ends with an error; many
    cost time at every step."""

    info_metrics: tuple[str, ...] = ()
    """Keys of an episode's last info that become the metrics `episode/<key>`, such as `[success]`;
    those of its `info["metrics"]` do so anyway."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_names("info_metrics", self.info_metrics)
        for wrapper in self.wrappers:
            check_code_name("wrappers", wrapper)

    @classmethod
    def of(cls, environment: str | EnvironmentSpec) -> EnvironmentSpec:
        """Return the description of an id alone; a description as it is."""
        return cls(environment=environment) if isinstance(environment, str) else environment

    def __str__(self) -> str:
        return short_name(self.environment)

    # As text.

    def to_json(self) -> str:
        """Return what differs from the defaults as JSON, for a process's command line.

        Raises:
            ConfigError: the kwargs hold something that JSON cannot.
        """
        plain = EnvironmentSpec(environment=self.environment)
        written = {
            one.name: getattr(self, one.name)
            for one in fields(EnvironmentSpec)
            if one.name == "environment" or getattr(self, one.name) != getattr(plain, one.name)
        }
        return spec_to_json(written)

    @classmethod
    def from_json(cls, text: str) -> EnvironmentSpec:
        """Return the description that `to_json` wrote.

        Raises:
            ConfigError: it is no such text.
        """
        return spec_from_json(text, EnvironmentSpec, "--make")

    def with_limit(self) -> EnvironmentSpec:
        """Return it with a limit of 10,000 steps, unless it has one; for evaluations."""
        steps_in_cpp = self.is_atari or self.stepping == "envpool"
        if steps_in_cpp or self.max_episode_steps is not None:
            return self
        env = self.make(reports=False)
        try:
            registered = getattr(env, "spec", None)
            has_one = registered is not None and registered.max_episode_steps is not None
        finally:
            env.close()
        return self if has_one else replace(self, max_episode_steps=MOST_STEPS)

    def located(self) -> EnvironmentSpec:
        """Return it with absolute paths of files, for processes that run in other folders."""
        values = {one.name: getattr(self, one.name) for one in fields(EnvironmentSpec)}
        values["environment"] = located_code(self.environment)
        values["wrappers"] = tuple(map(located_code, self.wrappers))
        return EnvironmentSpec(**values)

    # What it makes.

    @property
    def is_atari(self) -> bool:
        """Whether it is an Atari game, which ALE's vector environment plays and preprocesses."""
        return self.stepping != "envpool" and is_atari(self.environment)

    def make(self, *, reports: bool = True) -> Any:
        """Make one environment, which is made anew where it raises; see `RecoveringEnvironment`.

        Args:
            reports: whether its errors are counted and logged here; else only its info tells them.

        Raises:
            ConfigError: the environment or a wrapper is unknown, or cannot be made.
            MissingExtraError: what it needs is not installed.
        """
        import_gymnasium()
        from bray_actor.environments.recovering import RecoveringEnvironment

        return RecoveringEnvironment(
            self._make_bare, self.environment, reports=reports, reads_masks=self.action_mask
        )

    def make_vector(self, num_envs: int, *, num_threads: int = 1) -> Any:
        """Make a vector environment, whose step that ends an episode begins the next.

        Args:
            num_envs: number of environments.
            num_threads: number of threads that step Atari games.

        Raises:
            ConfigError, MissingExtraError: see `make`.
        """
        import_gymnasium()
        if self.stepping == "envpool":
            from bray_actor.environments.envpool import EnvPoolEnvironments

            self._refuse_around("EnvPool's environments", ("kwargs",))
            return EnvPoolEnvironments(self.environment, num_envs, self.kwargs)
        if self.is_atari:
            self._refuse_around("Atari games", ())
            return make_atari(self.environment, num_envs, num_threads=num_threads)
        if self.stepping == "processes":
            from bray_actor.environments.processes import ProcessEnvironments

            make = partial(self.located().make, reports=False)
            return ProcessEnvironments(str(self), make, num_envs)
        from bray_actor.environments.serial import SerialEnvironments

        return SerialEnvironments([self.make] * num_envs)

    def _refuse_around(self, what: str, taken: tuple[str, ...]) -> None:
        """Refuse settings that change a single environment, where many step at once in C++."""
        plain = EnvironmentSpec(environment=self.environment)
        for one in fields(EnvironmentSpec):
            is_theirs = one.name in ("environment", "action_mask", "info_metrics", *taken)
            is_theirs |= one.name == "stepping" and self.stepping == "envpool"
            if not is_theirs and getattr(self, one.name) != getattr(plain, one.name):
                raise ConfigError(
                    f"{one.name}: expected {getattr(plain, one.name)!r}, got "
                    f"{getattr(self, one.name)!r}: {what} step many at once in C++, with a "
                    "preprocessing of their own"
                )

    def _make_bare(self) -> Any:
        """Make an environment with its wrappers, one that raises as it raises."""
        env = self._of_wrappers(self._of_own_code() or self._of_id())
        for name in ("observation_space", "action_space"):
            space = getattr(env, name, None)
            if space is None:
                raise ConfigError(
                    f"environment: {self.environment}: expected an {name}, got none: set it in "
                    "the class or in its __init__"
                )
            if isinstance(space, (tuple, list, dict, int)):
                raise ConfigError(
                    f"environment: {self.environment}: {name}: expected a space of "
                    f"gymnasium.spaces, got {space!r:.100}"
                )
        if self.max_episode_steps is not None:
            env = import_gymnasium().wrappers.TimeLimit(env, self.max_episode_steps)
        if self.frame_skip > 1:
            from bray_actor.environments.frame_skip import FrameSkip

            env = FrameSkip(env, self.frame_skip)
        if self.resize is not None or self.grey or self.frame_stack > 1:
            from bray_actor.environments.images import ImagePreprocessing

            env = ImagePreprocessing(
                env, resize=self.resize, grey=self.grey, stack=self.frame_stack
            )
        if has_sets(env.observation_space):
            from bray_actor.environments.sets import PaddedSets

            env = PaddedSets(env, self.most_members)
        if self.action_mask:
            from bray_actor.environments.action_mask import with_action_mask

            env = with_action_mask(env, self.environment, self.to_json())
        return env

    def _of_id(self) -> Any:
        gymnasium = import_gymnasium()
        known = resolve(self.environment)
        if gymnasium.spec(known).entry_point is None:
            raise ConfigError(f"environment: {known} is a vector environment alone: {VECTOR_CURE}")
        return self._called(partial(gymnasium.make, known, disable_env_checker=True))

    def _of_own_code(self) -> Any:
        """Return an environment of a class or function that is not registered; None of an id."""
        gymnasium = import_gymnasium()
        if resolve(self.environment) in gymnasium.registry:
            return None
        made = self._called(find_user_code(self.environment))
        if isinstance(made, gymnasium.Env):
            return made
        cure = "derive the class from gymnasium.Env, or return one"
        if isinstance(made, gymnasium.vector.VectorEnv):
            cure = VECTOR_CURE
        if hasattr(made, "possible_agents"):
            cure = "a game of several agents is played with source.kind=agents or matches"
        raise ConfigError(
            f"environment: {self.environment}: expected a gymnasium.Env, got "
            f"{type(made).__name__}: {cure}"
        )

    def _called(self, make: Any) -> Any:
        return made_with(make, self.environment, self.kwargs)

    def _of_wrappers(self, env: Any) -> Any:
        for wrapper in self.wrappers:
            env = wrapped(wrapper, env)
            if not isinstance(env, import_gymnasium().Env):
                raise ConfigError(
                    f"wrappers: {wrapper}: expected an environment, got {type(env).__name__}: "
                    "derive it from gymnasium.Wrapper"
                )
        return env


def located_code(name: str, folder: Path | None = None) -> str:
    """Return `file.py:Class` with the absolute path of its file; another name as it is.

    Args:
        name: name of code.
        folder: where the path begins; None: the working directory.
    """
    where, colon, attribute = name.rpartition(":")
    if not where.endswith(".py"):
        return name
    return f"{Path(folder or '', where).resolve()}{colon}{attribute}"
