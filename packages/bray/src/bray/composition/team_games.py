"""How the games of a source are made: teams are told more than their members see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import fields

from bray.composition.loaded import loaded_spaces
from bray.composition.part_errors import PartNames, errors_of
from bray.games.board_game import board_code
from bray.sources.multi_agent_config import MultiAgentSourceConfig
from bray.templates.composition import Composition, SourcePart
from bray.training.team_policy import TeamPolicy
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.team import Rows, Team
from bray_actor.multi_agent.team_game import TeamedSpec
from bray_core.settings.name_pattern import fits


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
    rows = {name: found for name in source.agents.values() if (found := _rows(composition, name))}
    if not rows:
        return spec
    with closing(spec.make()) as environment:
        teams = _teams(composition, source, environment.agents, rows)
    whole = {one.name: getattr(spec, one.name) for one in fields(MultiAgentSpec)}
    return TeamedSpec(**whole, teams=teams)


def _spec(config: MultiAgentSourceConfig) -> MultiAgentSpec:
    located = config.located()
    return MultiAgentSpec(
        environment=board_code(located.environment),
        kwargs=located.kwargs,
        wrappers=located.wrappers,
    )


def _rows(composition: Composition, agent: str) -> Rows | None:
    """Return what acts of the team that an agent plays in; None: it plays by itself."""
    learner = composition.learner_of(agent)
    if learner is not None:
        found = learner.algorithm_class
        return found.rows if issubclass(found, TeamPolicy) else None
    part = composition.agents[agent]
    if part.load is None:
        return None
    with errors_of(PartNames(f"models.{part.model}.load")):
        seen = (loaded_spaces(part) or {}).get("observation", {})
    by_leaves: dict[frozenset[str], Rows] = {
        frozenset({"agent", "own", "state"}): "member",
        frozenset({"agents", "state"}): "team",
    }
    return by_leaves.get(frozenset(seen))


def _teams(
    composition: Composition, source: SourcePart, agents: Sequence[str], rows: Mapping[str, Rows]
) -> tuple[Team, ...]:
    """Return the teams of an environment: all whom one model plays are one."""
    members: dict[str, list[str]] = {}
    rows_of: dict[str, Rows] = {}
    for agent in agents:
        fitting = (name for pattern, name in source.agents.items() if fits(agent, pattern))
        name = next(fitting, None)
        if name is None or name not in rows:
            continue
        model = str(composition.agents[name].model)
        members.setdefault(model, []).append(agent)
        rows_of[model] = rows[name]
    return tuple(Team(agents=tuple(those), rows=rows_of[one]) for one, those in members.items())
