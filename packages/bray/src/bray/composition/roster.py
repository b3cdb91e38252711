"""Who plays what: the agents of each source, the policies that answer, what they see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from bray.composition.loaded import loaded_spaces
from bray.composition.match_seating import MatchSeating, policies_to_write, seating_of
from bray.composition.part_errors import PartNames, errors_of
from bray.composition.team_games import games_spec
from bray.sources.environments import read_spaces
from bray.sources.multi_agent_config import MatchesSourceConfig, MultiAgentSourceConfig
from bray.sources.source_kind import SourceKindConfig, find_source_kind, read_agents
from bray.templates.composition import AgentPart, Composition, SourcePart
from bray_core.errors import ConfigError
from bray_core.settings.choice import closest
from bray_core.settings.name_pattern import fits
from bray_core.spaces import Spaces

Seated = Mapping[str, Mapping[str, Spaces]]
"""Spaces by the environment's name of an agent, by source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roster:
    """Who plays in the sources of a composition."""

    composition: Composition
    """The run."""
    agents: Mapping[str, Mapping[str, Spaces]]
    """What each agent of a source sees and may do, by its name in the environment; by pattern where
    a simulator tells the names only when it plays, and in a source of one agent. A team that acts
    as one has the name of its first agent."""

    @classmethod
    def read(cls, composition: Composition) -> Roster:
        """Make an environment of each source, and read what its agents see and may do.

        Raises:
            ConfigError: an environment is unknown, a simulator's spaces are not said, or the sides
                of a match differ, and have no policies of their own.
        """
        found = {name: _named_spaces(composition, one) for name, one in composition.sources.items()}
        roster = cls(composition=composition, agents=found)
        for source in composition.sources.values():
            if isinstance(source.config, MatchesSourceConfig):
                with errors_of(PartNames.of_source(source)):
                    roster.seating(source)
        return roster

    def part_of(self, source: SourcePart, agent: str) -> AgentPart:
        """Return who answers for an agent of a source.

        Raises:
            ConfigError: no pattern fits it.
        """
        for pattern, name in source.agents.items():
            if fits(agent, pattern):
                return self.composition.agents[name]
        raise ConfigError(
            f"sources.{source.name}.agents: expected a pattern that fits each agent, got none for "
            f"{agent!r}: patterns are {', '.join(source.agents) or 'none'}; '*' fits all"
        )

    def patterns(self, source: SourcePart) -> dict[str, str]:
        """Return who answers by pattern of the agents' names: learners by their names, those who
        never learn by their agents'."""
        if isinstance(source.config, MatchesSourceConfig) and not source.agents:
            *others, last = self.learners(source)
            return {**{name: name for name in others}, "*": last}  # a match's cast says who plays
        found = {}
        for pattern, agent in source.agents.items():
            learner = self.composition.learner_of(agent)
            found[pattern] = agent if learner is None else learner.name
        return found

    def parts(self, source: SourcePart) -> dict[str, AgentPart]:
        """Return who answers for each agent of a source, by its key in `agents`; in matches only
        those that are named."""
        if isinstance(source.config, MatchesSourceConfig) and not source.agents:
            return {}
        has_names = isinstance(source.config, MultiAgentSourceConfig | SourceKindConfig)
        if not has_names or source.config.is_simulator:  # then only the template knows some
            return {pattern: self.composition.agents[n] for pattern, n in source.agents.items()}
        return {agent: self.part_of(source, agent) for agent in self.agents[source.name]}

    def learners(self, source: SourcePart) -> list[str]:
        """Return the names of the learners that play in a source, in the template's order."""
        if isinstance(source.config, MatchesSourceConfig):
            playing = set(source.agents.values()) or set(self.composition.agents)
        else:
            playing = {part.name for part in self.parts(source).values()}
        found = [self.composition.learner_of(name) for name in playing]
        names = {one.name for one in found if one is not None}
        return [name for name in self.composition.learners if name in names]

    def seating(self, source: SourcePart) -> MatchSeating:
        """Return who may play which sides of a source of matches.

        Raises:
            ConfigError: sides differ that have no policies of their own.
        """
        agents = self.agents[source.name]
        return seating_of(self.composition, source, agents, self.learners(source))

    def spaces_of(self, learner: str) -> Spaces:
        """Return what a learner's policy sees and may do, the same in all that it plays.

        Raises:
            ConfigError: two of its agents differ, or it plays nowhere.
        """
        seen = [
            (f"{source.name}: {agent}", spaces)
            for source in self.composition.sources.values()
            for agent, spaces in self._played_by(source, learner)
        ]
        if not seen:
            raise ConfigError(
                f"trainers.{learner}: expected a source in which it plays, found none: name its "
                "agent in sources.*.agents"
            )
        first = seen[0][1]
        for where, spaces in seen[1:]:
            if (difference := first.difference(spaces)) is not None:
                raise ConfigError(
                    f"trainers.{learner}: expected agents that see and may do the same, but "
                    f"{where} differs from {seen[0][0]}: {difference}: give each kind a model of "
                    f"its own{self._lines(learner)}"
                )
        return first

    def _lines(self, learner: str) -> str:
        """Return what to write where a learner's agents differ within a source; else nothing."""
        for source in self.composition.sources.values():
            agents = dict(self._played_by(source, learner))
            own = list(agents.values())
            if any(own[0].difference(other) is not None for other in own[1:]):
                spaces, names = self.agents[source.name], self.learners(source)
                return f": {policies_to_write(self.composition, spaces, names)}"
        return ""

    def rows_of(self, learner: str) -> int:
        """Return how many agents of a source's environments a learner may answer at once."""
        rows = [
            len(self._played_by(source, learner)) * max(1, int(source.config.num_envs))
            for source in self.composition.sources.values()
        ]
        return max([1, *rows])

    def _played_by(self, source: SourcePart, learner: str) -> Sequence[tuple[str, Spaces]]:
        agents = self.agents[source.name]
        if isinstance(source.config, MatchesSourceConfig):
            if learner not in self.learners(source):
                return []
            return [(agent, agents[agent]) for agent in self.seating(source).agents_of(learner)]
        return [
            (agent, agents[agent])
            for agent, part in self.parts(source).items()
            if (found := self.composition.learner_of(part.name)) is not None
            and found.name == learner
        ]


def names_agents(source: SourcePart) -> bool:
    """Return whether the agents of a source are told apart: in games of several, and by simulators
    for which a template names several."""
    several = len(source.agents) > 1 and getattr(source.config, "is_simulator", False)
    return isinstance(source.config, MultiAgentSourceConfig) or several


def _named_spaces(composition: Composition, source: SourcePart) -> dict[str, Spaces]:
    """Return what the agents of a source see and may do; an error names the source."""
    with errors_of(PartNames.of_source(source)):
        found = _spaces(composition, source)
        _check_patterns(source, found)
        return found


def _check_patterns(source: SourcePart, agents: Mapping[str, Spaces]) -> None:
    """Refuse patterns that fit none of an environment's agents."""
    if not isinstance(source.config, MultiAgentSourceConfig) or source.config.is_simulator:
        return
    for pattern in source.agents:
        if not any(fits(agent, pattern) for agent in agents):
            raise ConfigError(
                f"sources.{source.name}.agents.{pattern}: expected the name of an agent of "
                f"{source.config.title}, or a pattern of some, got {pattern!r}"
                f"{closest(pattern, agents)}; there are: {', '.join(agents)}"
            )


def _spaces(composition: Composition, source: SourcePart) -> dict[str, Spaces]:
    """Return what the agents of a source see and may do."""
    config: Any = source.config
    if isinstance(config, SourceKindConfig):
        return read_agents(source.name, find_source_kind(source.kind)(config))
    if not isinstance(config, MultiAgentSourceConfig):
        return {
            pattern: _of_one(composition, source, name) for pattern, name in source.agents.items()
        }
    is_told = bool(getattr(config, "sides", None)) or len(source.agents) < 2
    if config.is_simulator and isinstance(config, MatchesSourceConfig) and is_told:
        return _of_sides(composition, source)
    if config.is_simulator:
        return {
            pattern: _declared(composition, source, name) for pattern, name in source.agents.items()
        }
    with closing(games_spec(composition, source).make()) as environment:
        return {agent: environment.spaces(agent) for agent in environment.agents}


def _of_sides(composition: Composition, source: SourcePart) -> dict[str, Spaces]:
    """Return what the sides of a simulator's matches see and may do, by their patterns."""
    if not source.config.sides:
        raise ConfigError(
            f"sources.{source.name}.sides: expected the pattern of each side's agents, such as "
            '{red: "red*", blue: "blue*"}, got none: a simulator does not tell who plays together'
        )
    learning = [one for one in composition.agents if composition.learner_of(one) is not None]
    found = {}
    for side in map(str, source.config.sides.values()):
        fitting = (a for p, a in source.agents.items() if fits(side, p))
        found[side] = _declared(composition, source, next(fitting, learning[0]))
    return found


def _of_one(composition: Composition, source: SourcePart, agent: str) -> Spaces:
    if getattr(source.config, "is_simulator", False):
        return _declared(composition, source, agent)
    return read_spaces(source.config.located())


def _declared(composition: Composition, source: SourcePart, agent: str) -> Spaces:
    """Return what a template says of a simulator's spaces."""
    part = composition.agents[agent]
    told = part.spaces or source.config.spaces
    if told is None and part.model is not None:
        told = composition.models[part.model].spaces or loaded_spaces(part)
    if told is None:
        raise ConfigError(
            f"sources.{source.name}.spaces: expected what the simulator shows and takes, such as "
            "{observation: {shape: [3]}, action: {discrete: 3}}, here, at each model, or at the "
            f"agent of a script, got none for {agent!r}"
        )
    where = f"agents.{agent}" if part.model is None else f"models.{part.model}"
    return Spaces.parse(f"{where}.spaces", told)
