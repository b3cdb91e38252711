"""Trains a composition: its learners side by side, whatever its sources play.

sources ──segments──► buffer of each learner ──► its trainer ──versions──► its model ──► sources
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import Any

from bray.composition.casting import Casting, casting_of
from bray.composition.evaluation import EvaluationGames, snapshot_seats
from bray.composition.learners import algorithm_of, make_learner
from bray.composition.own_source import OwnSource
from bray.composition.roster import Roster, names_agents, spec_of
from bray.composition.turns import (
    PlayingSource,
    ReplaysDue,
    SeveralSources,
    SeveralTurns,
    SeveralWatch,
)
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.sources.gamecore_play import GamecorePlay
from bray.sources.games import GamesPlay
from bray.sources.multi_agent_config import MultiAgentSourceConfig
from bray.sources.seat_plan import SeatPlan
from bray.sources.several_gamecores import several_gamecores
from bray.sources.source_kind import SourceKindConfig
from bray.templates.composition import Composition, SourcePart
from bray.training.algorithm import Parts
from bray.training.deploy import export_best
from bray.training.evaluation import EVALUATION_SEED, evaluate_latest
from bray.training.learner import Learner
from bray.training.loop import Loop
from bray.training.sampled_policy import SampledPolicy
from bray_actor import Played, PolicyConfig
from bray_core.errors import ConfigError
from bray_model import ExportReport

_TURN_STEPS = 64
"""Steps of an environment between two looks at the quotas, on Ray."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Made:
    """A learner of a run, with the algorithm that made it."""

    algorithm: SampledPolicy[Any]
    learner: Learner


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
    made = {
        name: _Made(algorithm=one, learner=make_learner(run, roster, name, one).with_trainer())
        for name, one in algorithms.items()
    }
    return _Composed(run, roster, made, goal).train()


def export_all(run: Run, composition: Composition) -> ExportReport | None:
    """Export each learner's policy: the main one's best version, the others' newest.

    Args:
        run: the run that trained them.
        composition: what was trained.

    Returns:
        The report of the main learner's.

    Raises:
        ExportError: an export's outputs differ from torch's.
    """
    main = composition.main
    reports = {
        name: export_best(
            run,
            one.algorithm_class,
            one.model,
            is_main=one is main,
            agents=_patterns(composition, name),
        )
        for name, one in composition.learners.items()
    }
    return reports[main.name]


def _patterns(composition: Composition, learner: str) -> list[str]:
    """Return the patterns of the agents that a learner plays in environments of several."""
    found = {
        pattern: composition.learner_of(agent)
        for source in composition.sources.values()
        if isinstance(source.config, MultiAgentSourceConfig | SourceKindConfig)
        for pattern, agent in source.agents.items()
    }
    return [pattern for pattern, one in found.items() if one is not None and one.name == learner]


def _playing_in(parts: Parts, source: Any) -> Parts:
    """Return an algorithm's settings with the environments of another source."""
    named = {one.name for one in fields(parts.source)}
    shared = {one.name: getattr(source, one.name) for one in fields(source) if one.name in named}
    return replace(parts, source=replace(parts.source, **shared))


class _Composed:
    """The parts of one launch, and how they play together."""

    def __init__(self, run: Run, roster: Roster, made: Mapping[str, _Made], goal: Goal) -> None:
        self._run = run
        self._roster = roster
        self._composition = roster.composition
        self._algorithms = {name: one.algorithm for name, one in made.items()}
        self._learners = {name: one.learner for name, one in made.items()}
        self._main = roster.composition.main.name
        self._goal = goal
        self._castings: dict[str, Casting] = {}
        self._lines: list[str] = []
        self._sources = [self._playing(one) for one in self._composition.sources.values()]

    def train(self) -> Outcome:
        """Play and train until the goal is reached."""
        learners, main = self._learners, self._learners[self._main]
        advance: SeveralTurns | SeveralWatch
        if self._run.is_local:
            due = {name: ReplaysDue(one, self._frames(name)) for name, one in learners.items()}
            advance = SeveralTurns(learners, due, self._sources, self._main, self._after)
        else:
            advance = SeveralWatch(learners, self._sources, self._main, self._after)
        return Loop(
            self._run,
            "\n".join([self._composition.title, *self._lines]),
            model=main.model,
            trainer=main.trainer,
            source=SeveralSources(self._sources, self._main),
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
        for name, casting in self._castings.items():
            news = casting.after(played)
            if news is not None:
                source: Any = next(one.source for one in self._sources if one.name == name)
                source.tell(news)

    # What plays.

    def _playing(self, part: SourcePart) -> PlayingSource:
        if isinstance(part.config, SourceKindConfig):
            return self._own(part)
        return self._games(part) if names_agents(part) else self._environments(part)

    def _own(self, part: SourcePart) -> PlayingSource:
        """Return what a source of your own plays, in its own runners."""
        names = self._roster.learners(part)
        if not names:
            raise ConfigError(f"sources.{part.name}: expected an agent that learns, got none")
        num_workers = 1 if self._run.is_local else part.actor.num_workers
        own, quotas = OwnSource(self._roster, part, self._learners), self._quotas(names)
        play = own.play(self._recording, quotas, num_workers)
        only = names[0] if len(names) == 1 else None
        steps = self._turn_steps(names) if only is None else self._own_turn_steps(only, part)
        source = self._run.rollouts(
            part.name, play.runner, steps=steps, lockstep=bool(quotas), num_workers=num_workers
        )
        return PlayingSource(name=part.name, source=source, steps=steps, learner=only)

    def _own_turn_steps(self, name: str, part: SourcePart) -> int:
        """Return the steps of a turn in which one learner plays a source of your own."""
        algorithm, learner = self._algorithms[name], self._learners[name]
        algorithm = type(algorithm)(replace(algorithm.parts, source=part.config))
        buffer = next(iter(learner.replays.values()), learner.buffer)
        return self._share_of_turn(name, algorithm, buffer)

    def _share_of_turn(self, name: str, algorithm: SampledPolicy[Any], buffer: Any) -> int:
        """Return the steps of a learner's turn that fall to each of the sources that it plays."""
        sharing = sum(
            name in self._roster.learners(one) for one in self._composition.sources.values()
        )
        return -(-algorithm.turn(buffer).steps // sharing)

    def _environments(self, part: SourcePart) -> PlayingSource:
        """Return environments of one agent, as its learner alone would play them."""
        (agent,) = set(part.agents.values())
        found = self._composition.learner_of(agent)
        if found is None:
            raise ConfigError(f"sources.{part.name}: expected an agent that learns, got {agent!r}")
        seed = self._composition.seed
        algorithm = self._algorithms[found.name]
        algorithm = type(algorithm)(_playing_in(algorithm.parts, part.config))
        learner = self._recording(found.name, agent)
        steps = self._share_of_turn(found.name, algorithm, learner.buffer)
        play = None
        if algorithm.parts.source.num_processes:
            is_own = getattr(part.config, "is_simulator", False)
            play = algorithm.gamecore_play(learner.spaces if is_own else None, seed)
        source, _, lines = algorithm.source(
            self._run, learner, play, self._goal, seed, name=part.name, steps=steps
        )
        self._lines += [f"{part.name}: {line}" for line in lines]
        return PlayingSource(name=part.name, source=source, steps=steps, learner=found.name)

    def _recording(self, name: str, agent: str) -> Learner:
        """Return a learner with the buffer into which an agent records."""
        learner = self._learners[name]
        if not learner.replays:
            return learner
        recorded = self._composition.agents[agent].buffer
        if recorded is None or recorded not in learner.replays:
            raise ConfigError(
                f"agents.{agent}.buffer: expected one that trainers.{name} draws from, "
                f"{', '.join(learner.replays)}, got {recorded!r}"
            )
        return replace(learner, buffer=learner.replays[recorded])

    def _games(self, part: SourcePart) -> PlayingSource:
        """Return environments of several agents, stepped by the workers."""
        config: Any = part.config
        casting = casting_of(self._run, self._roster, part, self._learners)
        self._castings[part.name] = casting
        if config.is_simulator:
            return self._simulators(part, casting)
        actor = part.actor
        num_workers = 1 if self._run.is_local else actor.num_workers
        play = GamesPlay(
            spec=spec_of(config),
            num_envs=config.num_envs,
            cast=casting.cast,
            quotas=self._quotas(self._roster.learners(part)),
            num_workers=num_workers,
            ends_with_first=self._run.is_local,
            seed=self._composition.seed,
        )
        steps = self._turn_steps(self._roster.learners(part))
        source = self._run.rollouts(
            part.name,
            play.runner,
            steps=steps,
            lockstep=bool(play.quotas),
            num_workers=num_workers,
        )
        return PlayingSource(name=part.name, source=source, steps=steps)

    def _simulators(self, part: SourcePart, casting: Casting) -> PlayingSource:
        """Return simulators that call over the wire, each agent a session."""
        actor: Any = part.actor
        play = GamecorePlay(
            source=part.config,
            actor=replace(actor, num_workers=1) if self._run.is_local else actor,
            policy=PolicyConfig(),
            seed=self._composition.seed,
            spaces=next(iter(self._learners.values())).spaces,
        )
        for agent in part.agents.values():
            if self._composition.learner_of(agent) is None:
                raise ConfigError(
                    f"sources.{part.name}.agents: expected agents that learn, got {agent!r}: over "
                    "the wire no script or frozen policy plays beside them: let the simulator do it"
                )
        quotas = self._quotas(self._roster.learners(part))
        plans = {
            name: SeatPlan(name, one.model, one.policy, one.buffer, quotas.get(name))
            for name, one in self._learners.items()
        }
        patterns = self._roster.patterns(part)
        seats = {pattern: plans[name] for pattern, name in patterns.items()}
        source = several_gamecores(self._run, play, seats, casting.make_cast)
        self._lines += [f"{part.name}: {line}" for line in source.lines()]
        return PlayingSource(
            name=part.name, source=source, steps=self._turn_steps(self._roster.learners(part))
        )

    def _quotas(self, names: Sequence[str]) -> dict[str, int]:
        """Return the steps of one version that are recorded, of learners that have a bound.

        In a local run each queue has one, which is what it can hold.
        """
        found = {}
        for name in names:
            one = self._learners[name]
            quota = one.steps_per_version
            if self._run.is_local and one.batch_steps is not None:
                quota = one.batch_steps
            if quota is not None:
                found[name] = quota
        return found

    def _turn_steps(self, names: Sequence[str]) -> int:
        """Return the steps of each environment between two cuts."""
        if not self._run.is_local:
            return _TURN_STEPS
        replays = [n for n in names if self._learners[n].batch_steps is None]
        if replays:
            return min(self._learners[name].turn.steps for name in replays)
        return max(self._quotas(names).values())  # the first quota that is filled ends the turn

    # How it is evaluated.

    def _evaluate(self) -> Sequence[float] | None:
        """Play episodes of the first source that the main learner plays; return what it got."""
        part = next(
            one
            for one in self._composition.sources.values()
            if self._main in self._roster.learners(one)
        )
        config: Any = part.config
        if getattr(config, "is_simulator", False):
            return None
        if isinstance(config, SourceKindConfig):
            return OwnSource(self._roster, part, self._learners).evaluate(self._main, self._goal)
        main, seed = self._learners[self._main], self._composition.seed
        if not isinstance(config, MultiAgentSourceConfig):
            return evaluate_latest(
                main.model, main.module, main.spaces, config.located(), self._goal, seed=seed
            )
        rows = {name: self._roster.rows_of(name) for name in self._learners}
        with ExitStack() as stack:
            seats = snapshot_seats(self._learners, rows, stack)
            games = EvaluationGames(
                spec=spec_of(config),
                number=self._goal.evaluation_episodes,
                seed=seed + EVALUATION_SEED,
            )
            return self._castings[part.name].evaluate(games, seats, self._main, self._goal)
