"""Videos of a policy while it is trained: a file after each evaluation, if a template says so."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from bray.callbacks import Callback, EvaluationResult
from bray.composition.whole_run import OpenRun
from bray.retention import RetentionPolicy
from bray.run import Run
from bray.templates.template import Template
from bray.trained.policy_player import PolicyPlayer
from bray.trained.watching import check_drawn, save_video
from bray.training.deploy import actor_config, deployed_model
from bray.training.evaluation import EVALUATION_SEED
from bray_actor import PolicyConfig
from bray_actor.environments.spec import EnvironmentSpec
from bray_core.config import from_mapping
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces

FOLDER = "videos"
"""Folder of a trial with a video for each evaluation, named by the frames until then."""

logger = logging.getLogger(__name__)


def with_videos(open_run: OpenRun, template: Template) -> OpenRun:
    """Return what opens a run whose evaluations are filmed, if the template wants that.

    Args:
        open_run: opens the trial and starts the runtime.
        template: what is trained.

    Raises:
        ConfigError: it wants videos of an environment that draws nothing.
    """
    if not template.render.videos:
        return open_run
    environment = _environment(template)

    def opened(config: Mapping[str, object], keep: RetentionPolicy) -> Run:
        run = open_run(config, keep)
        run.listen(EvaluationVideos(run, environment, template.render.videos, template.seed))
        return run

    return opened


class EvaluationVideos(Callback):
    """Writes a video of some episodes after each evaluation; training waits meanwhile.

    What is drawn changes nothing of the training: a copy of the policy plays, in environments of
    its own. A video that fails is logged.

    Args:
        run: the run, of which the deployed model plays.
        environment: what is played.
        episodes: episodes of a video.
        seed: seed of the run.
    """

    def __init__(self, run: Run, environment: EnvironmentSpec, episodes: int, seed: int) -> None:
        self._run = run
        self._environment = environment
        self._episodes = episodes
        self._seed = seed + EVALUATION_SEED
        self._kind = "mp4" if shutil.which("ffmpeg") is not None else "gif"

    def on_evaluation(self, evaluation: EvaluationResult) -> None:
        """Draw the policy that was evaluated."""
        file = self._run.experiment.path / FOLDER / f"{evaluation.frames:010d}.{self._kind}"
        try:
            with torch.random.fork_rng(devices=[]):  # the draws of training are left as they are
                self._draw(file)
        except Exception:
            logger.exception("%s: the evaluation has no video", file)

    def _draw(self, file: Path) -> None:
        name = deployed_model(self._run)
        if name is None:
            return
        model = self._run.models[name]
        written = actor_config(self._run, name, model)
        config = from_mapping({**written, "phase": "played"}, PolicyConfig, "the policy")
        spaces = None if config.spaces is None else Spaces.parse(name, config.spaces)
        copy = model.clone()
        player = PolicyPlayer(copy, config, spaces)
        try:
            save_video(player, self._environment, self._episodes, seed=self._seed, file=file)
        finally:
            player.close()
            copy.close()


def _environment(template: Template) -> EnvironmentSpec:
    """Return what is drawn.

    Raises:
        ConfigError: it draws nothing, or a simulator plays.
    """
    source = template.parts.source
    plays_by_itself = getattr(source, "command", None) or getattr(source, "external", False)
    if not isinstance(source, EnvironmentSpec) or not source.environment or plays_by_itself:
        raise ConfigError(
            f"render.videos: expected 0 where no Gymnasium environment is played, got "
            f"{template.render.videos}"
        )
    environment = EnvironmentSpec.from_json(source.to_json())
    check_drawn(environment)
    return environment
