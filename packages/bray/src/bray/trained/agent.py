"""A trained policy that plays in this process: the export of a trial, asked by its own actor."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from bray.trained.policy_player import PolicyPlayer
from bray.trained.watching import watch_episodes
from bray_actor import PolicyActor, PolicyConfig, Recorder
from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.gamecores.gamecore import play
from bray_core.config import from_mapping
from bray_core.errors import ConfigError, NotFoundError
from bray_core.files.trial_folders import CONFIG, EPISODES
from bray_core.spaces import Spaces
from bray_model import Model
from bray_model.export.export_folder import copy_export, find_exports
from bray_model.export_files.agent_file import read_index, unpacked
from bray_model.export_files.manifest import Manifest


@dataclass(frozen=True, slots=True)
class PlayedEpisodes:
    """The returns of some episodes."""

    returns: tuple[float, ...]
    """Sum of each episode's rewards, in the order in which they were shared out."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))

    def __str__(self) -> str:
        """Say it in words."""
        played = f"{len(self.returns)} episode{'s'[: len(self.returns) != 1]}"
        return f"mean return {self.mean:.1f} ± {self.std:.1f} over {played}"


class TrainedAgent:
    """A trained policy. It needs no torch: it runs the trial's ONNX export.

    What answers is the actor of `bray serve`, with the state of a recurrent policy, so the agent
    plays here as it plays in production. Thread-safe for one caller at a time.

    Args:
        path: folder of a trial, or of an export, or a file that `bray pack` wrote.
        policy: name of the policy's model, where a trial has several.
        deterministic: whether it takes the most likely actions; None: as the export says, which is
            that it does.

    Raises:
        NotFoundError: the folder has no export, or none of that policy.
        ConfigError: the trial has several policies, and none was named; or the export answers
            rows of numbers alone, not simulators.
        ExportError: the export is broken.
    """

    def __init__(
        self, path: str | Path, *, policy: str | None = None, deterministic: bool | None = None
    ) -> None:
        self._policy = policy
        self.path = Path(path)
        """Folder or file that it was loaded from."""
        with contextlib.ExitStack() as opened:
            self._folder = opened.enter_context(unpacked(self.path))
            self._export = export_of(self._folder, policy).absolute()
            self._absolute = self.path.absolute()  # found where the working directory changes, too
            config = _actor_config(self._export)
            if deterministic is not None:
                config = replace(config, deterministic=deterministic)
            self._config = replace(config, phase="played")
            spaces = config.spaces
            self.spaces = None if spaces is None else Spaces.parse(str(self._export), spaces)
            """What it sees and may do; None where the export does not say it."""
            self._model = Model(self._export, name="agent")
            self._close_files = opened.pop_all().close
        self._player = PolicyPlayer(self._model, self._config, self.spaces)

    def act(self, observation: Any) -> Any:
        """Return the action for an observation, as the environment gives and takes them.

        A policy with memory remembers what it has seen since `reset`.

        Raises:
            SpecError: the observation does not fit; names the place, what was expected and got.
        """
        return self._player.act(observation)

    @property
    def last_decision(self) -> dict[str, Any]:
        """What the network answered to the observation of the last `act`: see `described`."""
        return self._player.last_decision

    def reset(self) -> None:
        """Begin a new episode: a policy with memory forgets."""
        self._player.reset()

    @property
    def environment(self) -> EnvironmentSpec:
        """How the environment is made that it was trained in.

        Raises:
            ConfigError: it was trained by a simulator or in a match, this is a bare export, or a
                packed agent names code, which is not run unasked.
        """
        if self._absolute.is_file():
            return packed_environment(self._absolute)
        return trained_environment(self._absolute, self._policy)

    def evaluate(
        self,
        episodes: int = 100,
        *,
        environment: str | EnvironmentSpec | None = None,
        seed: int = 1,
    ) -> PlayedEpisodes:
        """Play whole episodes and return their returns.

        Args:
            episodes: number of episodes.
            environment: what is played; None: what it was trained in.
            seed: seed of the environments, in which training has not played.

        Raises:
            ConfigError: there is no environment, or `episodes` is below 1.
        """
        from bray.training.evaluation import EVALUATION_SEED, evaluate, evaluate_here, plays_here

        if episodes < 1:
            raise ConfigError(f"episodes: expected 1 or more, got {episodes}")
        played = self.environment if environment is None else environment
        play_all = evaluate_here if plays_here(played) else evaluate
        found = play_all(
            self._model, played, episodes, seed=seed + EVALUATION_SEED, config=self._config
        )
        return PlayedEpisodes(tuple(found))

    def watch(
        self,
        episodes: int = 1,
        *,
        save: str | Path | None = None,
        environment: str | EnvironmentSpec | None = None,
        seed: int = 1,
    ) -> PlayedEpisodes:
        """Play in a window, or into a video.

        Args:
            episodes: number of episodes.
            save: file of the video: `.gif`, `.webp`, or `.mp4` where ffmpeg is installed. None: a
                window; where there is no screen, `watch.gif` in the trial, or beside the file.
            environment: what is played; None: what it was trained in.
            seed: seed of the environment.

        What a trial's policy plays into a video is kept in its `episodes/` too, with the frames and
        what the policy decided: `bray view` shows it step by step.

        Raises:
            ConfigError: there is no environment, it draws nothing, or the file's kind is unknown.
        """
        played = self.environment if environment is None else EnvironmentSpec.of(environment)
        path = self._absolute
        default = (path.parent if path.is_file() else path) / "watch.gif"
        record = path / EPISODES if (path / CONFIG).is_file() else None
        returns = watch_episodes(
            self, played, episodes, seed=seed, save=save, default=default, record=record
        )
        return PlayedEpisodes(tuple(returns))

    def record(
        self,
        folder: str | Path,
        episodes: int = 1,
        *,
        environment: str | EnvironmentSpec | None = None,
        seed: int = 1,
    ) -> PlayedEpisodes:
        """Play episodes and record each in a file, as `bray view` and demonstrations read them.

        Args:
            folder: where the files go; made if it is absent.
            episodes: number of episodes.
            environment: what is played; None: what it was trained in.
            seed: seed of the environment.

        Raises:
            ConfigError: there is no environment, or `episodes` is below 1.
        """
        from bray.training.evaluation import EVALUATION_SEED

        if episodes < 1:
            raise ConfigError(f"episodes: expected 1 or more, got {episodes}")
        played = self.environment if environment is None else EnvironmentSpec.of(environment)
        recorder = Recorder(folder, every=1, max_files=1_000_000, max_waiting=episodes)
        actors = recorder.record(PolicyActor.factory(self._model, self._config))
        try:
            returns = play(
                played.with_limit(), actors, episodes=episodes, seed=seed + EVALUATION_SEED
            )
        finally:
            recorder.close()
        return PlayedEpisodes(tuple(returns))

    def export(self, folder: str | Path) -> Path:
        """Copy the export that it runs, for a server or another machine; return the folder.

        Raises:
            AlreadyExistsError: the folder holds something else than an export.
        """
        copy_export(self._export, Path(folder))
        return Path(folder)

    def close(self) -> None:
        """Free what it holds."""
        self._player.close()
        self._model.close()
        self._close_files()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TrainedAgent({str(self.path)!r})"


def export_of(path: Path, policy: str | None) -> Path:
    """Return the export of a policy in a folder; without a name that of the only one.

    Raises:
        NotFoundError: there is none, or none of that name.
        ConfigError: there are several, and none was named.
    """
    exports = find_exports(path)
    if policy is None and len(exports) == 1:
        return exports[0]
    named = {model_of(path, export): export for export in exports}
    if policy is None:
        raise ConfigError(f"policy: {path} has several, name one: {', '.join(sorted(named))}")
    if policy not in named:
        raise NotFoundError(
            f"policy: {path} has no export of {policy!r}; there are: {', '.join(sorted(named))}"
        )
    return named[policy]


def model_of(path: Path, export: Path) -> str:
    """Return the name of an export's model: its folder in a trial, else what it says itself."""
    inside = export.relative_to(path).parts if export.is_relative_to(path) else ()
    return inside[1] if inside[:1] == ("models",) else Manifest.read(export).name


def _actor_config(export: Path) -> PolicyConfig:
    actor = Manifest.read(export).actor
    if actor is None or actor["name"] != "policy":
        raise ConfigError(
            f"{export}: expected the export of a policy that answers simulators, got one that "
            "answers rows alone: open it with bray.Model (`bray watch` shows a trial of AlphaZero)"
        )
    return from_mapping(actor["config"], PolicyConfig, "manifest: actor.config")


def packed_environment(path: Path) -> EnvironmentSpec:
    """Return how the environment of a packed agent is made.

    Raises:
        ConfigError: the file says none, or names code: whoever packed it would have it run here.
    """
    described = read_index(path).environment
    if described is None:
        raise ConfigError(f"environment: {path} says none: name one")
    spec = EnvironmentSpec.from_json(json.dumps(described))
    if ":" in spec.environment or spec.wrappers:
        code = ", ".join([spec.environment, *spec.wrappers])
        raise ConfigError(
            f"environment: {path} names code ({code}), which a packed agent does not run: name the "
            "environment yourself if you trust that code"
        )
    return spec


def trained_environment(path: Path, policy: str | None = None) -> EnvironmentSpec:
    """Return how the environment of a trial is made.

    Args:
        path: folder of the trial.
        policy: name of the policy's model, where a trial has several.

    Raises:
        ConfigError: there is no trial, or it was trained in something else.
    """
    from bray.sources.multi_agent_config import MultiAgentSourceConfig
    from bray.templates.loading import load

    if not (path / CONFIG).is_file():
        raise ConfigError(f"environment: {path} is no trial, so it says none: name one")
    template = load(str(path))
    source = template.parts.source
    if template.composition is not None and policy is not None:
        learners = template.composition.learners.values()
        source = next((one.parts.source for one in learners if one.model == policy), source)
    has_one = isinstance(source, EnvironmentSpec) and source.environment
    if not has_one or getattr(source, "command", None) or getattr(source, "external", False):
        is_game = isinstance(source, MultiAgentSourceConfig)
        games = f"; `bray watch {path}` plays its games of several agents" if is_game else ""
        raise ConfigError(
            f"environment: {path} was not trained in a Gymnasium environment of its own: name one "
            "(`--env ID`, or environment= in Python), or let the simulator call `bray serve`"
            f"{games}"
        )
    assert isinstance(source, EnvironmentSpec)
    return EnvironmentSpec.from_json(source.to_json())
