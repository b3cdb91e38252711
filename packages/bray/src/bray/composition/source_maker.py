"""Makes what plays each source of a composition."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from bray.composition.casting import Casting, FixedCasting
from bray.composition.composed_launch import ComposedLaunch
from bray.composition.match_casting import MatchCasting
from bray.composition.own_source import OwnSource
from bray.composition.roster import names_agents
from bray.composition.team_games import games_spec
from bray.composition.turn_shares import TurnShares
from bray.composition.turns import PlayingSource
from bray.sources.games import GamesPlay
from bray.sources.multi_agent_config import MatchesSourceConfig
from bray.sources.source_kind import SourceKindConfig
from bray.sources.wire.gamecore_play import GamecorePlay
from bray.sources.wire.seat_plan import AnySeat, SeatPlan
from bray.sources.wire.several_gamecores import several_gamecores
from bray.templates.composition import SourcePart
from bray.training.algorithm import Parts
from bray.training.learner import Learner
from bray.training.schedules.run_curriculum import RunCurriculum
from bray_actor import PolicyConfig
from bray_buffer.shared_out import SharedOut
from bray_core.errors import ConfigError


class SourceMaker:
    """Makes the sources of one launch, one after the other.

    Args:
        launch: what is trained.
    """

    def __init__(self, launch: ComposedLaunch) -> None:
        self._launch = launch
        self._run, self._roster = launch.run, launch.roster
        self._algorithms, self._learners = launch.algorithms, launch.learners
        self._composition = launch.roster.composition
        self._shares = TurnShares(launch)
        self.castings: dict[str, Casting] = {}
        """Who plays in games of several agents, by source."""
        self.own_sources: dict[str, OwnSource] = {}
        """Sources of your own."""
        self.lines: list[str] = []
        """What the sources say of themselves."""

    def make(self, part: SourcePart) -> PlayingSource:
        """Make what plays a source.

        Raises:
            ConfigError: nobody learns from it, or it cannot be played so.
        """
        if isinstance(part.config, SourceKindConfig):
            return self._own(part)
        return self._games(part) if names_agents(part) else self._environments(part)

    def _own(self, part: SourcePart) -> PlayingSource:
        """Return what a source of your own plays, in its own runners."""
        names = self._roster.learners(part)
        if not names:
            raise ConfigError(f"sources.{part.name}: expected an agent that learns, got none")
        num_workers = 1 if self._run.is_local else part.actor.num_workers
        own = OwnSource(self._launch, part)
        self.own_sources[part.name] = own
        quotas = self._shares.quotas(names)
        play = own.play(self._recording, quotas, num_workers)
        only = names[0] if len(names) == 1 else None
        steps = self._shares.steps(names) if only is None else self._own_turn_steps(only, part)
        source = self._run.rollouts(
            part.name, play.runner, steps=steps, lockstep=bool(quotas), num_workers=num_workers
        )
        return PlayingSource(name=part.name, source=source, steps=steps, learner=only)

    def _own_turn_steps(self, name: str, part: SourcePart) -> int:
        """Return the steps of a turn in which one learner plays a source of your own."""
        algorithm, learner = self._algorithms[name], self._learners[name]
        algorithm = type(algorithm)(replace(algorithm.parts, source=part.config))
        buffer = next(iter(learner.replays.values()), learner.buffer)
        return self._shares.of_source(name, algorithm, buffer)

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
        steps = self._shares.of_source(found.name, algorithm, learner.buffer)
        play = None
        if algorithm.parts.source.num_processes:
            is_own = getattr(part.config, "is_simulator", False)
            play = algorithm.gamecore_play(learner.spaces if is_own else None, seed)
        source, _, lines = algorithm.source(
            self._run, learner, play, self._launch.goal, seed, name=part.name, steps=steps
        )
        self.lines += [f"{part.name}: {line}" for line in lines]
        return PlayingSource(name=part.name, source=source, steps=steps, learner=found.name)

    def _recording(self, name: str, agent: str) -> Learner:
        """Return a learner with the buffer into which an agent records."""
        learner = self._learners[name]
        if not learner.replays:
            return learner
        recorded = self._composition.agents[agent].buffer
        shares = {recorded: 1.0} if isinstance(recorded, str) else dict(recorded or {"": 1.0})
        for one in shares:
            if one not in learner.replays:
                raise ConfigError(
                    f"agents.{agent}.buffer: expected one that trainers.{name} draws from, "
                    f"{', '.join(learner.replays)}, got {one or None!r}"
                )
        if len(shares) == 1:
            return replace(learner, buffer=learner.replays[next(iter(shares))])
        replays = {one: (learner.replays[one], share) for one, share in shares.items()}
        return replace(learner, buffer=SharedOut(replays))

    def _recordings(self, part: SourcePart) -> dict[str, Learner]:
        """Return the learners with the buffers into which their agents in a source record.

        Raises:
            ConfigError: a learner has agents in it that record into several.
        """
        found: dict[str, Learner] = {}
        first: dict[str, Any] = {}
        agents = part.agents.values() or self._composition.agents
        for agent in dict.fromkeys(agents):
            learner = self._composition.learner_of(agent)
            if learner is None:
                continue
            recorded = self._composition.agents[agent].buffer
            if learner.name not in found:
                found[learner.name], first[learner.name] = (
                    self._recording(learner.name, agent),
                    recorded,
                )
            elif recorded != first[learner.name]:
                raise ConfigError(
                    f"agents.{agent}.buffer: expected that of the other agents of "
                    f"{learner.name!r} in sources.{part.name}, got another: give it a source"
                )
        return found

    def _games(self, part: SourcePart) -> PlayingSource:
        """Return environments of several agents, stepped by the workers."""
        config: Any = part.config
        casting = _casting_of(replace(self._launch, learners=self._recordings(part)), part)
        self.castings[part.name] = casting
        if config.is_simulator:
            return self._simulators(part, casting)
        curriculum = RunCurriculum(self._run, config.curriculum)
        actor = part.actor
        num_workers = 1 if self._run.is_local else actor.num_workers
        play = GamesPlay(
            spec=games_spec(self._roster.composition, part),
            num_envs=config.num_envs,
            cast=casting.cast,
            quotas=self._shares.quotas(self._roster.learners(part)),
            num_workers=num_workers,
            ends_with_first=self._run.is_local,
            seed=self._composition.seed,
            info_metrics=config.info_metrics,
            reset_options=curriculum.first,
        )
        steps = self._shares.steps(self._roster.learners(part))
        source = self._run.rollouts(
            part.name,
            play.runner,
            steps=steps,
            lockstep=bool(play.quotas),
            num_workers=num_workers,
        )
        curriculum.follow(source)
        return PlayingSource(name=part.name, source=source, steps=steps)

    def _simulators(self, part: SourcePart, casting: Casting) -> PlayingSource:
        """Return simulators that call over the wire, each agent a session."""
        actor: Any = part.actor
        config: Any = part.config
        curriculum = RunCurriculum(self._run, config.curriculum)
        play = GamecorePlay(
            source=config,
            actor=replace(actor, num_workers=1) if self._run.is_local else actor,
            policy=PolicyConfig(),
            seed=self._composition.seed,
            spaces=next(iter(self._learners.values())).spaces,
            reset_options=curriculum.first,
        )
        source = several_gamecores(
            self._run, play, self._wire_seats(part, casting), casting.make_cast
        )
        curriculum.follow(source)
        self.lines += [f"{part.name}: {line}" for line in source.lines()]
        return PlayingSource(
            name=part.name, source=source, steps=self._shares.steps(self._roster.learners(part))
        )

    def _wire_seats(self, part: SourcePart, casting: Casting) -> dict[str, AnySeat]:
        """Return who answers the sessions of simulators, by pattern of their agents."""
        names = self._roster.learners(part)
        quotas = self._shares.quotas(names)
        seats: dict[str, AnySeat] = {}
        for name, one in self._recordings(part).items():
            if one.buffer is None:
                continue  # its seat is below, with those that record nothing either
            seats[name] = SeatPlan(name, one.model, one.policy, one.buffer, quotas.get(name))
        patterns = self._roster.patterns(part)
        for pattern, seat in casting.frozen.items():
            seats.setdefault(patterns[pattern], seat)
        return {pattern: seats[name] for pattern, name in patterns.items()}


def _casting_of(launch: ComposedLaunch, source: SourcePart) -> Casting:
    """Return who plays the games of a source."""
    is_match = isinstance(source.config, MatchesSourceConfig)
    return MatchCasting(launch, source) if is_match else FixedCasting(launch, source)


def _playing_in(parts: Parts, source: Any) -> Parts:
    """Return an algorithm's settings with the environments of another source."""
    named = {one.name for one in fields(parts.source)}
    shared = {one.name: getattr(source, one.name) for one in fields(source) if one.name in named}
    return replace(parts, source=replace(parts.source, **shared))
