"""Evaluation of several policies at once: whole games by versions that do not change meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.playing import play_games

from bray.composition.turns import return_of
from bray.training.evaluation import EVALUATION_SEED, NUM_ENVS, snapshot
from bray.training.learner import Learner
from bray_actor.environments.spec import MOST_STEPS
from bray_actor.multi_agent.seat import Cast, GameResult, Seat


def snapshot_seats(
    learners: Mapping[str, Learner], rows: Mapping[str, int], stack: ExitStack
) -> dict[str, Seat]:
    """Return a seat for the newest version of each learner, which takes its likeliest actions.

    Args:
        learners: learners by name.
        rows: agents of each learner that one environment may have, at most.
        stack: closes the snapshots.
    """
    return {
        name: Seat(
            name=name,
            model=stack.enter_context(
                snapshot(one.model, one.module, one.example, NUM_ENVS * rows[name])
            ),
            config=replace(one.policy, deterministic=True, phase="evaluation"),
        )
        for name, one in learners.items()
    }


def evaluate_games(
    spec: MultiAgentSpec, cast: Cast, episodes: int, seed: int
) -> Sequence[GameResult]:
    """Play whole games; return how they ended.

    Args:
        spec: how an environment is made.
        cast: says who plays.
        episodes: number of games.
        seed: seed of the run.
    """
    with ExitStack() as stack:
        environments = [spec.make() for _ in range(min(NUM_ENVS, episodes))]
        for one in environments:
            stack.callback(one.close)
        return play_games(
            environments, cast, episodes, seed + EVALUATION_SEED, max_steps=MOST_STEPS
        )


def returns_of(results: Sequence[GameResult], learner: str) -> list[float]:
    """Return the mean return of a learner's agents in each game that it played."""
    return [value for one in results if (value := return_of(one, learner)) is not None]
