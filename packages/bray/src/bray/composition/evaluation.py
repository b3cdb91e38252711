"""Evaluation of several policies at once: whole games by versions that do not change meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from bray.composition.turns import episode_of
from bray.training.evaluation import NUM_ENVS, snapshot
from bray.training.learner import Learner
from bray_actor.environments.spec import MOST_STEPS
from bray_actor.multi_agent.environment import MultiAgentEnvironment
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.playing import play_games
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


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationGames:
    """The games of an evaluation: what is played, how often, from which seed on."""

    spec: MultiAgentSpec
    """How an environment is made."""
    number: int
    """Number of games."""
    seed: int
    """Seed of environments and draws, other than in training."""

    @contextmanager
    def environments(self) -> Iterator[list[MultiAgentEnvironment]]:
        """Make the environments that are stepped side by side, and close them."""
        with ExitStack() as stack:
            made = [self.spec.make() for _ in range(min(NUM_ENVS, self.number))]
            for one in made:
                stack.callback(one.close)
            yield made

    def play(self, cast: Cast) -> Sequence[GameResult]:
        """Play all games; return how they ended.

        Args:
            cast: says who plays.
        """
        with self.environments() as environments:
            return play_games(environments, cast, self.number, self.seed, max_steps=MOST_STEPS)


def returns_of(results: Sequence[GameResult], learner: str) -> list[float]:
    """Return the mean return of a learner's agents in each game that it played."""
    found = [episode_of(one, learner) for one in results]
    return [episode.episode_return for episode in found if episode is not None]
