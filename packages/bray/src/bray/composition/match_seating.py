"""Which policies may play which sides of a source of matches, and how that is told."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bray.games.side_groups import SideGroup, SideGroups, group_of, one_group
from bray.games.sides import Sides, sides_of
from bray.sources.multi_agent_config import MatchesSourceConfig
from bray.templates.composition import Composition, SourcePart
from bray_core.errors import ConfigError
from bray_core.settings.name_pattern import fits
from bray_core.spaces import Spaces


@dataclass(frozen=True, slots=True)
class MatchSeating:
    """The sides of a source of matches, and who may play them."""

    sides: Sides
    """Agents by side."""
    groups: SideGroups
    """Which learners may play which sides."""

    @property
    def learners(self) -> set[str]:
        """Names of all learners."""
        return {name for group in self.groups for name in group.learners}

    def agents_of(self, learner: str) -> list[str]:
        """Return the agents that a learner may play."""
        group = group_of(self.groups, learner)
        return [agent for side in group.sides for agent in self.sides[side]]


def seating_of(
    composition: Composition,
    source: SourcePart,
    spaces: Mapping[str, Spaces],
    learners: Sequence[str],
) -> MatchSeating:
    """Return who may play which sides: any learner any of them where all agents are alike, else
    each those that look as the ones for which `agents` names it.

    Args:
        composition: the run.
        source: the source of matches.
        spaces: what each agent sees and may do, or each pattern of a simulator's.
        learners: names of the learners that play in it.

    Raises:
        ConfigError: agents that differ have one policy, or none that is named; a side has several;
            or the rule of the opponents is for sides that are alike. Names the setting.
    """
    config: MatchesSourceConfig = source.config
    if config.changes_sides and len(_kinds(spaces)) == 1:
        sides = sides_of(list(spaces), config.sides or None)
        return MatchSeating(sides, one_group(sides, learners))
    owners = _Owners(composition, source, spaces, learners).found()
    config.opponents.check_unlike_sides()
    sides = sides_of(list(spaces), config.sides) if config.sides else _sides_by_owner(owners)
    owner_of = {side: _owner(source, side, agents, owners) for side, agents in sides.items()}
    if len(sides) < 2:
        raise ConfigError(
            f"sources.{source.name}.agents: expected two policies or more, as a match has two "
            f"sides or more, got {dict(source.agents)}"
        )
    return MatchSeating(sides, _groups(sides, owner_of, spaces, config.changes_sides))


def _kinds(spaces: Mapping[str, Spaces]) -> list[list[str]]:
    """Return the names of agents that see and may do the same, kind by kind."""
    found: list[list[str]] = []
    for agent, own in spaces.items():
        alike = (kind for kind in found if spaces[kind[0]].difference(own) is None)
        kind = next(alike, None)
        if kind is None:
            found.append([agent])
        else:
            kind.append(agent)
    return found


def _sides_by_owner(owners: Mapping[str, str]) -> Sides:
    found: dict[str, tuple[str, ...]] = {}
    for agent, owner in owners.items():
        found[owner] = (*found.get(owner, ()), agent)
    return found


def _owner(source: SourcePart, side: str, agents: Sequence[str], owners: Mapping[str, str]) -> str:
    """Return the one learner that plays a side."""
    names = list(dict.fromkeys(owners[agent] for agent in agents))
    if len(names) > 1:
        shown = ", ".join(f"{agent} by {owners[agent]}" for agent in agents)
        raise ConfigError(
            f"sides.{side}: expected agents of one policy, got {shown}: give each policy a side of "
            "its own; for teams of several policies see `kind: agents`, whose opponents stay"
        )
    return names[0]


def _groups(
    sides: Sides, owner_of: Mapping[str, str], spaces: Mapping[str, Spaces], changes_sides: bool
) -> SideGroups:
    """Return the sides by who plays them; those that are alike together, if sides change."""
    first = {side: spaces[agents[0]] for side, agents in sides.items()}
    if changes_sides:
        together = _kinds(first)
    else:
        together = [
            [side for side in sides if owner_of[side] == owner]
            for owner in dict.fromkeys(owner_of.values())
        ]
    return tuple(
        SideGroup(tuple(those), tuple(dict.fromkeys(owner_of[side] for side in those)))
        for those in together
    )


class _Owners:
    """Finds the learner for which `agents` names each agent, and says what is lacking."""

    def __init__(
        self,
        composition: Composition,
        source: SourcePart,
        spaces: Mapping[str, Spaces],
        learners: Sequence[str],
    ) -> None:
        self._composition = composition
        self._source = source
        self._key = f"sources.{source.name}.agents"
        self._spaces = spaces
        self._learners = learners

    def found(self) -> dict[str, str]:
        """Return the learner of each agent.

        Raises:
            ConfigError: an agent has none, or those of one learner differ.
        """
        owners = {agent: self._owner(agent) for agent in self._spaces}
        first: dict[str, str] = {}
        for agent, owner in owners.items():
            other = first.setdefault(owner, agent)
            difference = self._spaces[other].difference(self._spaces[agent])
            if difference is not None:
                raise ConfigError(
                    f"{self._key}: expected a policy of its own for each kind of side, got "
                    f"{owner!r} for {other} and {agent}, which differ: {difference}: "
                    f"{self._remedy()}"
                )
        return owners

    def _owner(self, agent: str) -> str:
        for pattern, name in self._source.agents.items():
            if fits(agent, pattern):
                learner = self._composition.learner_of(name)
                if learner is not None:
                    return learner.name
        written = ", ".join(self._source.agents) or "nothing"
        are_alike = len(_kinds(self._spaces)) == 1
        why = "with `changes_sides: false` sides have" if are_alike else "sides that differ have"
        raise ConfigError(
            f"{self._key}: expected who plays {agent}, as {why} a policy each, got {written}: "
            f"{self._remedy()}"
        )

    def _remedy(self) -> str:
        return policies_to_write(self._composition, self._spaces, self._learners)


def policies_to_write(
    composition: Composition, spaces: Mapping[str, Spaces], learners: Sequence[str]
) -> str:
    """Return what to write so that each kind of agents has a policy.

    Args:
        composition: the run.
        spaces: what each agent sees and may do.
        learners: names of the learners that play, one or more.
    """
    kinds = _kinds(spaces)
    if len(kinds) == 1:  # alike, but each with a policy of its own
        kinds = [[agent] for agent in spaces]
    enough = len(learners) >= len(kinds)
    names = list(learners) if enough else _policy_names(kinds)
    patterns = [
        (pattern, name)
        for kind, name in zip(kinds, names, strict=False)
        for pattern in _patterns(kind, spaces)
    ]
    agents = ", ".join(f'"{pattern}": {name}' for pattern, name in patterns)
    if enough:
        return f"write `agents: {{{agents}}}`"
    algorithm = composition.learners[learners[0]].algorithm
    trainers = ", ".join(f"{name}: {{algorithm: {algorithm}}}" for name in names)
    return (
        f"write `trainers: {{{trainers}}}`, in the source `agents: {{{agents}}}`, and "
        f"`goal: {{agent: {names[0]}}}`"
    )


def _policy_names(kinds: Sequence[Sequence[str]]) -> list[str]:
    """Return a name for the policy of each kind of agents, such as `adversary` of `adversary_0`."""
    short = [re.sub(r"[\W\d_]+$", "", _common_start(kind)) for kind in kinds]
    is_clear = all(short) and len(set(short)) == len(short)
    whole = [re.sub(r"\W", "_", kind[0]).strip("_") or f"side_{i}" for i, kind in enumerate(kinds)]
    return short if is_clear else whole


def _patterns(kind: Sequence[str], agents: Mapping[str, Spaces]) -> list[str]:
    """Return the pattern of the names of a kind of agents that fits no other; else the names."""
    prefix = _common_start(kind)
    fits = {agent for agent in agents if agent.startswith(prefix)}
    is_one = len(kind) > 1 and fits == set(kind)
    return [f"{prefix}*"] if is_one else list(kind)


def _common_start(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((at for at, (one, other) in pairs if one != other), len(first))]
