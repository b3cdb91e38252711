"""Trains a composition: its learners side by side, whatever its sources play.

sources ──segments──► buffer of each learner ──► its trainer ──versions──► its model ──► sources
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bray.composition.casting import Casting
from bray.composition.composed_launch import ComposedLaunch
from bray.composition.learners import algorithm_of, make_learner
from bray.composition.main_evaluation import MainEvaluation
from bray.composition.roster import Roster
from bray.composition.source_maker import SourceMaker
from bray.composition.turns import (
    PlayingSource,
    ReplaysDue,
    SeveralSources,
    SeveralTurns,
    SeveralWatch,
)
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.templates.composition import Composition
from bray.training.loop import Loop
from bray_actor import Played
from bray_core.errors import ConfigError


def train_composition(run: Run, composition: Composition, goal: Goal) -> Outcome:
    """Train until the goal is reached or its budget is used up.

    Args:
        run: returned by `bray.init`.
        composition: what is trained, checked.
        goal: the goal of the composition, with all that it left open decided.

    Raises:
        ConfigError: an algorithm cannot be trained on what its agents see and may do.
    """
    try:
        launch = _launch(run, composition, goal)
        made = SourceMaker(launch)
        sources = [made.make(one) for one in composition.sources.values()]
    except ConfigError as error:
        raise composition.located(error) from error
    return _train(launch, composition, made, sources)


def _launch(run: Run, composition: Composition, goal: Goal) -> ComposedLaunch:
    """Return the composition with its learners made."""
    roster = Roster.read(composition)
    algorithms = {
        name: algorithm_of(run, roster, one) for name, one in composition.learners.items()
    }
    learners = {
        name: make_learner(run, roster, name, one).with_trainer()
        for name, one in algorithms.items()
    }
    return ComposedLaunch(
        run=run, roster=roster, algorithms=algorithms, learners=learners, goal=goal
    )


def _train(
    launch: ComposedLaunch,
    composition: Composition,
    made: SourceMaker,
    sources: Sequence[PlayingSource],
) -> Outcome:
    """Play and train until the goal is reached."""
    name, learners = composition.main.name, launch.learners
    after = partial(_tell_opponents, sources, made.castings)
    advance: SeveralTurns | SeveralWatch
    if launch.run.is_local:
        due = {each: ReplaysDue(one, _frames(launch, each)) for each, one in learners.items()}
        advance = SeveralTurns(learners, due, sources, name, after)
    else:
        advance = SeveralWatch(learners, sources, name, after)
    return Loop(
        launch.run,
        "\n".join([composition.title, *made.lines]),
        model=learners[name].model,
        trainer=learners[name].trainer,
        source=SeveralSources(sources, name),
        turn=learners[name].turn,
        advance=advance,
        goal=launch.goal,
        evaluate=MainEvaluation(launch, made),
        evaluate_every=_evaluate_every(launch.goal),
        unit="agent steps",
    ).until_goal()


def _frames(launch: ComposedLaunch, name: str) -> int:
    """Return the recorded steps for which a learner alone would have its replays."""
    source = launch.algorithms[name].parts.source
    envs = int(source.num_envs) * max(1, int(source.num_processes))
    return max(1, launch.learners[name].turn.steps * envs)


def _evaluate_every(goal: Goal) -> int | None:
    """Return the frames between two evaluations, where no training return calls for them."""
    return max(1, goal.budget // 20) if goal.win_rate is not None else None


def _tell_opponents(
    sources: Sequence[PlayingSource], castings: Mapping[str, Casting], played: Played
) -> None:
    """Tell those who choose opponents what was played."""
    for name, casting in castings.items():
        news = casting.after(played)
        if news is not None:
            source: Any = next(one.source for one in sources if one.name == name)
            source.tell(news)
