"""Algorithms whose policy is sampled from: what plays asks its model, and records what happens.

What it records and learns from is said by `RecordedPolicy`. Whether one policy plays environments
(`SampledPolicy.train`) or several play together is the business of who calls
`RecordedPolicy.learner`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from bray.goal import Goal, Outcome
from bray.run import Run
from bray.sources.environments import read_spaces
from bray.sources.gamecores import gamecores
from bray.sources.simulator_spaces import simulator_spaces
from bray.sources.source import ExperienceSource
from bray.sources.wire.gamecore_play import GamecorePlay
from bray.training.combination import check_combination
from bray.training.deploy import keep_spaces
from bray.training.evaluation import evaluate_latest, evaluate_simulators
from bray.training.learner import Learner, LearnerPlace
from bray.training.loop import Loop
from bray.training.recorded_policy import RecordedPolicy
from bray.training.schedules.run_curriculum import RunCurriculum
from bray_actor import PolicyConfig
from bray_actor.runners.rollouts import AnyRunner
from bray_core.spaces import Spaces
from bray_model import ModelConfig

C = TypeVar("C")


class SampledPolicy(RecordedPolicy[C]):
    """An algorithm whose policy is sampled from by whatever plays."""

    @abstractmethod
    def runner(
        self,
        model: Any,
        buffer: Any,
        seed: int,
        worker: int,
        *,
        is_local: bool,
        reset_options: Mapping[str, Any] | None = None,
    ) -> AnyRunner:
        """Make the runner of a worker's environments, in the worker's process.

        Args:
            model: policy that acts.
            buffer: where the segments go.
            seed: seed of the run.
            worker: number of the worker, from 0 on.
            is_local: whether one process plays and trains.
            reset_options: options that the first episodes begin with; None: no curriculum.
        """

    @abstractmethod
    def batching(self, *, is_local: bool) -> ModelConfig:
        """Return how the rows of a worker's environments are batched."""

    def check_spaces(self, spaces: Spaces) -> None:
        """Refuse spaces that the algorithm or its settings cannot take.

        Raises:
            ConfigError: says why, and what to do instead.
        """
        check_combination(self, spaces)

    def described(self, run: Run, spaces: Spaces) -> str:
        """Return a line about what computes, where that is worth one."""
        return ""

    # What follows from it.

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Play, record and train until the goal is reached; see `Algorithm`."""
        source = self.parts.source
        told = simulator_spaces(run, source, self.parts.actor)
        spaces = read_spaces(source.located()) if told is None else told
        self.check_spaces(spaces)
        keep_spaces(run, spaces)
        return self.settled(run, spaces)._train(run, spaces, told, goal, seed)

    def _train(
        self, run: Run, spaces: Spaces, told: Spaces | None, goal: Goal, seed: int
    ) -> Outcome:
        play = self.gamecore_play(told, seed) if self.parts.source.num_processes else None
        batching = self.batching(is_local=run.is_local)
        if play is not None:
            batching = replace(batching, max_batch_size=len(play.lanes()), pad_to=())
        learner = self.learner(
            run,
            spaces,
            LearnerPlace(
                buffer=self.buffer_name,
                checkpoints=run.experiment.checkpoints,
                batching=batching,
                seed=seed,
            ),
        )
        source, evaluate, lines = self.source(run, learner, play, goal, seed)
        learner = learner.with_trainer()
        title = f"{self.title} on {self.parts.source.title}{self.described(run, spaces)}"
        return Loop(
            run,
            "\n".join([title + (", gamecores over the wire" if play else ""), *lines]),
            model=learner.model,
            trainer=learner.trainer,
            source=source,
            turn=learner.turn,
            goal=goal,
            evaluate=evaluate,
        ).until_goal()

    def source(
        self,
        run: Run,
        learner: Learner,
        play: GamecorePlay | None,
        goal: Goal,
        seed: int,
        *,
        name: str = "rollouts",
        steps: int | None = None,
    ) -> tuple[ExperienceSource, Callable[[], Sequence[float] | None], Sequence[str]]:
        """Return what plays, what evaluates, and lines about both.

        Args:
            run: makes the components.
            learner: what is played for.
            play: what gamecores play; None: the workers step environments.
            goal: says how many episodes an evaluation has.
            seed: seed of environments and draws.
            name: name of the workers that step environments.
            steps: steps of each environment between two cuts; None: those of the learner's turn.
        """
        evaluate: Callable[[], Sequence[float] | None] = partial(
            evaluate_latest,
            learner.model,
            learner.module,
            learner.spaces,
            self.parts.source.located(),
            goal,
            seed=seed,
        )
        curriculum = RunCurriculum(run, self.parts.source.curriculum)
        if play is None:
            make = partial(
                self._located().runner,
                learner.model,
                learner.buffer,
                seed,
                is_local=run.is_local,
                reset_options=curriculum.first,
            )
            rollouts = run.rollouts(
                name,
                make,
                steps=steps or learner.turn.steps,
                lockstep=learner.steps_per_version is not None,
                num_workers=self.parts.actor.num_workers,
            )
            curriculum.follow(rollouts)
            return rollouts, evaluate, ()
        play = replace(play, policy=learner.policy, reset_options=curriculum.first)
        simulators = gamecores(run, play, learner.model, learner.buffer)
        curriculum.follow(simulators)
        if play.spaces is not None:
            evaluate = partial(
                evaluate_simulators,
                simulators,
                learner.model,
                learner.module,
                learner.example,
                goal,
                seed=seed,
            )
        return simulators, evaluate, simulators.lines()

    def _located(self) -> Self:
        """Return it with absolute paths of the environment's files.

        A worker on a cluster that was started elsewhere has another working directory.
        """
        source = self.parts.source
        found = source.located()
        source = replace(source, environment=found.environment, wrappers=found.wrappers)
        return type(self)(replace(self.parts, source=source))

    def gamecore_play(self, told: Spaces | None, seed: int) -> GamecorePlay:
        """Return what the gamecores play, but for how the policy answers them."""
        return GamecorePlay(
            source=self.parts.source,
            actor=self.parts.actor,
            policy=PolicyConfig(),
            steps_per_version=self.steps_per_version,
            seed=seed,
            spaces=told,
        )
