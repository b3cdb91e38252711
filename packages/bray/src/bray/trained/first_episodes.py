"""A few episodes of the trained policy, recorded at the end of a trial's first launch.

They give `bray view` something to show of a trial whose episodes nobody asked to record. The newest
one is drawn by its environment, the others are not: a thousand frames take longer than CartPole's
training.
"""

from __future__ import annotations

import logging
from pathlib import Path

from bray.templates.template import Template
from bray.trained.agent import TrainedAgent, trained_environment
from bray.trained.watching import record_drawn
from bray.training.evaluation import EVALUATION_SEED, plays_here
from bray_actor.recording import SUFFIX
from bray_core.errors import ConfigError, NotFoundError
from bray_core.files.trial_folders import EPISODES
from bray_model.export.export_folder import find_exports

logger = logging.getLogger(__name__)


def record_first_episodes(template: Template, trial: Path) -> int:
    """Record episodes by the trial's export, as its `render` says; return how many.

    None are recorded where the trial has some, where there is no export, where several policies
    learn, and in environments that are not Gymnasium's own, which may take long. A failure is
    logged: the trial is whole without them.

    Args:
        template: what was trained.
        trial: folder of the trial, which no process runs.
    """
    wanted = min(template.render.first_episodes, template.keep.episodes)
    if not wanted or any((trial / EPISODES).glob(f"*{SUFFIX}")):
        return 0
    try:
        find_exports(trial)
        return _record(trial, wanted)
    except NotFoundError:
        return 0
    except Exception:
        logger.exception("%s: no first episodes were recorded", trial)
        return 0


def _record(trial: Path, episodes: int) -> int:
    try:
        environment = trained_environment(trial)
        agent = TrainedAgent(trial) if plays_here(environment) else None
    except ConfigError:  # a simulator plays, or several policies do
        return 0
    if agent is None:
        return 0
    with agent:
        if episodes > 1:
            agent.record(trial / EPISODES, episodes - 1)
        try:  # the newest one, which the viewer opens first, with what the environment draws
            record_drawn(agent, environment, trial / EPISODES, seed=EVALUATION_SEED + episodes)
        except ConfigError:
            agent.record(trial / EPISODES, 1, seed=episodes)
    return episodes
