"""Trains a composition: its learners side by side, whatever its sources play.

sources ──segments──► buffer of each learner ──► its trainer ──versions──► its model ──► sources
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bray.composition.casting import Casting
from bray.composition.composed_launch import ComposedLaunch
from bray.composition.learners import algorithm_of, check_data_sets, make_learner
from bray.composition.main_evaluation import MainEvaluation
from bray.composition.part_errors import PartNames, errors_of
from bray.composition.roster import Roster
from bray.composition.source_maker import SourceMaker
from bray.composition.turns import (
    PlayingSource,
    ReplaysDue,
    SeveralSources,
    SeveralTurns,
    SeveralWatch,
    StepsDue,
)
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.templates.composition import Composition
from bray.training.loop import Loop
from bray_actor import Played
from bray_core.errors import CapacityError, ConfigError, NotFoundError


def train_composition(run: Run, composition: Composition, goal: Goal) -> Outcome:
    """Train until the goal is reached or its budget is used up.

    Args:
        run: returned by `bray.init`.
        composition: what is trained, checked.
        goal: the goal of the composition, with all that it left open decided.

    Raises:
        ConfigError: an algorithm cannot be trained on what its agents see and may do, or a part
            cannot be made; with the place of its setting.
        NotFoundError: a data set, or a policy that is loaded, is not there.
        CapacityError: a part does not fit into memory.
    """
    try:
        launch = _launch(run, composition, goal)
        made = SourceMaker(launch)
        sources = []
        for part in composition.sources.values():
            with errors_of(PartNames.of_source(part)):
                sources.append(made.make(part))
        for casting in made.castings.values():
            casting.check(composition.main.name, goal)
    except (ConfigError, NotFoundError, CapacityError) as error:
        raise composition.located(error) from error
    try:
        return _train(launch, composition, made, sources)
    except ConfigError as error:  # of a simulator, which is started with the first turn
        words, (first, *others) = str(error), composition.sources
        if others or not words.startswith("source."):
            raise
        renamed = ConfigError(f"sources.{first}.{words.removeprefix('source.')}")
        raise composition.located(renamed) from error


def _launch(run: Run, composition: Composition, goal: Goal) -> ComposedLaunch:
    """Return the composition with its learners made."""
    roster = Roster.read(composition)
    check_data_sets(roster)
    algorithms = {}
    for name, one in composition.learners.items():
        with errors_of(PartNames.of_learner(composition, one)):
            algorithms[name] = algorithm_of(run, roster, one)
    learners = {}
    for name, algorithm in algorithms.items():
        with errors_of(PartNames.of_learner(composition, composition.learners[name])):
            learners[name] = make_learner(run, roster, name, algorithm).with_trainer()
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
        due = {each: _due(launch, each) for each in learners}
        advance = SeveralTurns(learners, due, sources, name, after)
    else:
        advance = SeveralWatch(learners, sources, name, after)
    loop = Loop(
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
    )
    try:
        return loop.until_goal()
    finally:
        for casting in made.castings.values():
            casting.save()


def _due(launch: ComposedLaunch, name: str) -> Callable[[int], int]:
    """Return what says how often a learner trains after a turn."""
    learner = launch.learners[name]
    if learner.buffer is None:
        return StepsDue(learner)
    return ReplaysDue(learner, _frames(launch, name))


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
