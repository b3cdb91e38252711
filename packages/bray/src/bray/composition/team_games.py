"""How the games of a source are made: teams are told more than their members see."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Any

from bray.games.board_game import board_code
from bray.sources.multi_agent_config import MultiAgentSourceConfig
from bray.templates.composition import Composition, SourcePart
from bray.training.team_policy import TeamPolicy
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.team import Team
from bray_actor.multi_agent.team_game import TeamedSpec


def games_spec(composition: Composition, source: SourcePart) -> MultiAgentSpec:
    """Return how the environments of a source are made, for workers in other folders too.

    Args:
        composition: the run.
        source: the source.

    Raises:
        ConfigError: the environment is unknown, or its agents cannot be the team that they are to
            be.
    """
    spec = _spec(source.config)
    if not any(_team_algorithm(composition, agent) for agent in source.agents.values()):
        return spec
    with closing(spec.make()) as environment:
        teams = _teams(composition, source, environment.agents)
    whole = {one.name: getattr(spec, one.name) for one in fields(MultiAgentSpec)}
    return TeamedSpec(**whole, teams=teams)


def _spec(config: MultiAgentSourceConfig) -> MultiAgentSpec:
    located = config.located()
    return MultiAgentSpec(
        environment=board_code(located.environment),
        kwargs=located.kwargs,
        wrappers=located.wrappers,
    )


def _team_algorithm(composition: Composition, agent: str) -> type[TeamPolicy[Any]] | None:
    """Return the algorithm by which an agent learns as one of a team; None: it learns otherwise."""
    learner = composition.learner_of(agent)
    found = None if learner is None else learner.algorithm_class
    return found if found is not None and issubclass(found, TeamPolicy) else None


def _teams(composition: Composition, source: SourcePart, agents: Sequence[str]) -> tuple[Team, ...]:
    """Return the teams of an environment: all whom one learner plays are one."""
    members: dict[str, list[str]] = {}
    rows = {}
    for agent in agents:
        fitting = (name for pattern, name in source.agents.items() if fnmatchcase(agent, pattern))
        name = next(fitting, None)
        algorithm = None if name is None else _team_algorithm(composition, name)
        if name is None or algorithm is None:
            continue
        learner = composition.learner_of(name)
        assert learner is not None, "who has an algorithm learns"
        members.setdefault(learner.name, []).append(agent)
        rows[learner.name] = algorithm.rows
    return tuple(Team(agents=tuple(those), rows=rows[one]) for one, those in members.items())
