"""Trains a composition: its learners side by side, whatever its sources play.

sources ──segments──► buffer of each learner ──► its trainer ──versions──► its model ──► sources
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bray.composition.learners import algorithm_of, make_learner
from bray.composition.main_evaluation import MainEvaluation
from bray.composition.roster import Roster
from bray.composition.source_maker import SourceMaker
from bray.composition.turns import ReplaysDue, SeveralSources, SeveralTurns, SeveralWatch
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.templates.composition import Composition
from bray.training.learner import Learner
from bray.training.loop import Loop
from bray.training.sampled_policy import SampledPolicy
from bray_actor import Played


def train_composition(run: Run, composition: Composition, goal: Goal) -> Outcome:
    """Train until the goal is reached or its budget is used up.

    Args:
        run: returned by `bray.init`.
        composition: what is trained, checked.
        goal: the goal of the composition, with all that it left open decided.

    Raises:
        ConfigError: an algorithm cannot be trained on what its agents see and may do.
    """
    roster = Roster.read(composition)
    algorithms = {
        name: algorithm_of(run, roster, one) for name, one in composition.learners.items()
    }
    learners = {
        name: make_learner(run, roster, name, one).with_trainer()
        for name, one in algorithms.items()
    }
    return _Composed(run, roster, algorithms, learners, goal).train()


class _Composed:
    """The parts of one launch, and how they play together."""

    def __init__(
        self,
        run: Run,
        roster: Roster,
        algorithms: Mapping[str, SampledPolicy[Any]],
        learners: Mapping[str, Learner],
        goal: Goal,
    ) -> None:
        self._run = run
        self._composition = roster.composition
        self._algorithms = algorithms
        self._learners = learners
        self._goal = goal
        self._made = SourceMaker(run, roster, algorithms, learners, goal)
        self._sources = [self._made.make(one) for one in self._composition.sources.values()]
        self._evaluate = MainEvaluation(roster, learners, self._made, goal)

    def train(self) -> Outcome:
        """Play and train until the goal is reached."""
        learners, name = self._learners, self._composition.main.name
        main = learners[name]
        advance: SeveralTurns | SeveralWatch
        if self._run.is_local:
            due = {each: ReplaysDue(one, self._frames(each)) for each, one in learners.items()}
            advance = SeveralTurns(learners, due, self._sources, name, self._after)
        else:
            advance = SeveralWatch(learners, self._sources, name, self._after)
        return Loop(
            self._run,
            "\n".join([self._composition.title, *self._made.lines]),
            model=main.model,
            trainer=main.trainer,
            source=SeveralSources(self._sources, name),
            turn=main.turn,
            advance=advance,
            goal=self._goal,
            evaluate=self._evaluate,
            evaluate_every=self._evaluate_every,
            unit="agent steps",
        ).until_goal()

    def _frames(self, name: str) -> int:
        """Return the recorded steps for which a learner alone would have its replays."""
        source = self._algorithms[name].parts.source
        envs = int(source.num_envs) * max(1, int(source.num_processes))
        return max(1, self._learners[name].turn.steps * envs)

    @property
    def _evaluate_every(self) -> int | None:
        """Frames between two evaluations, where no training return calls for them."""
        return max(1, self._goal.budget // 20) if self._goal.win_rate is not None else None

    def _after(self, played: Played) -> None:
        """Tell those who choose opponents what was played."""
        for name, casting in self._made.castings.items():
            news = casting.after(played)
            if news is not None:
                source: Any = next(one.source for one in self._sources if one.name == name)
                source.tell(news)
