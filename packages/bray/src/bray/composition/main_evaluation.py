"""Evaluation of the learner that a run is measured by, in the first source that it plays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from bray.composition.composed_launch import ComposedLaunch
from bray.composition.evaluation import EvaluationGames, snapshot_seats
from bray.composition.source_maker import SourceMaker
from bray.composition.team_games import games_spec
from bray.sources.multi_agent_config import MultiAgentSourceConfig
from bray.sources.source_kind import SourceKindConfig
from bray.training.evaluation import EVALUATION_SEED, evaluate_latest


class MainEvaluation:
    """Plays the evaluations of the main learner.

    Args:
        launch: what is trained.
        made: what plays, once all is made.
    """

    def __init__(self, launch: ComposedLaunch, made: SourceMaker) -> None:
        self._roster, self._learners, self._goal = launch.roster, launch.learners, launch.goal
        self._made = made

    def __call__(self) -> Sequence[float] | None:
        """Return what the main learner got; None where the returns of training decide."""
        composition = self._roster.composition
        main_name, seed = composition.main.name, composition.seed
        part = next(
            one for one in composition.sources.values() if main_name in self._roster.learners(one)
        )
        config: Any = part.config
        if getattr(config, "is_simulator", False):
            return None
        if isinstance(config, SourceKindConfig):
            return self._made.own_sources[part.name].evaluate(main_name, self._goal)
        if not isinstance(config, MultiAgentSourceConfig):
            main = self._learners[main_name]
            return evaluate_latest(
                main.model, main.module, main.spaces, config.located(), self._goal, seed=seed
            )
        rows = {name: self._roster.rows_of(name) for name in self._learners}
        with ExitStack() as stack:
            seats = snapshot_seats(self._learners, rows, stack)
            games = EvaluationGames(
                spec=games_spec(self._roster.composition, part),
                number=self._goal.evaluation_episodes,
                seed=seed + EVALUATION_SEED,
            )
            return self._made.castings[part.name].evaluate(games, seats, main_name, self._goal)
