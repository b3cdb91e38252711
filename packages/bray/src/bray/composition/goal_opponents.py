"""Who plays the other sides of the matches in which a goal is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bray.composition.casting import seat_of_frozen
from bray.composition.loaded import check_loaded, export_among, player_of
from bray.composition.match_seating import MatchSeating
from bray.composition.part_errors import PartNames, errors_of
from bray.composition.roster import Roster
from bray.games.exported_opponents import ExportedOpponents
from bray.games.matchmaker import Matchmaker
from bray.games.named_opponents import named_opponent
from bray.games.pairings import learner_of, player_name
from bray.games.side_groups import SideGroup, group_of, group_of_side
from bray.sources.opponents_config import is_version_name
from bray.templates.composition import AgentPart, SourcePart
from bray.training.learner import Learner
from bray_actor.multi_agent.seat import Seat
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces

_KEY = "goal.against"


class GoalOpponents:
    """Finds the opponents that a goal names, for each agent that they may have to play.

    Args:
        roster: who plays what.
        source: the source of matches.
        learners: learners that play in it, by name.
        matchmaker: knows the frozen versions.
        exports: policies that were trained before.
    """

    def __init__(
        self,
        roster: Roster,
        source: SourcePart,
        learners: Mapping[str, Learner],
        matchmaker: Matchmaker,
        exports: ExportedOpponents,
    ) -> None:
        self._roster = roster
        self._composition = roster.composition
        self._spaces = roster.agents[source.name]
        self._seating: MatchSeating = roster.seating(source)
        self._learners = learners
        self._matchmaker = matchmaker
        self._exports = exports

    def check(self, main: str, against: str) -> None:
        """Refuse an opponent whom nobody finds, or who fits no side that it would play.

        Args:
            main: name of the learner that is evaluated.
            against: who is named.

        Raises:
            ConfigError: names the goal's setting.
        """
        agents = self._opposing(main)
        part = self._composition.agents.get(against)
        if part is not None:
            self._check_agent(part, agents)
        elif is_version_name(against):
            self._check_fits(against, self._whole_name(main, against), agents)
        else:
            fitting = [agent for agent in agents if self._fits_export(against, agent)]
            with errors_of(PartNames(_KEY)):
                self._named(against, (fitting or agents)[0], main)
            if not fitting:
                self._refuse(against, agents)

    def opponents(
        self, main: str, against: str | None, seats: Mapping[str, Seat]
    ) -> dict[str, Seat]:
        """Return who plays each agent that the evaluated learner may leave to others.

        Args:
            main: name of the learner that is evaluated.
            against: who is named; None: the newest versions of those who may play them.
            seats: seats of the learners' snapshots, by name.
        """
        return {
            agent: self._opponent(against, agent, seats, main) for agent in self._opposing(main)
        }

    def _opposing(self, main: str) -> list[str]:
        """Return the agents of the sides that others may play."""
        own = group_of(self._seating.groups, main)
        alone = own.sides[0] if len(own.sides) == 1 else None
        sides = self._seating.sides
        return [agent for side, agents in sides.items() for agent in agents if side != alone]

    # What fits.

    def _check_agent(self, part: AgentPart, agents: list[str]) -> None:
        learner = self._composition.learner_of(part.name)
        if learner is not None:
            self._check_fits(part.name, learner.name, agents)
            return
        for agent in agents:
            seat = seat_of_frozen(part, self._spaces[agent], 0, self._exports)
            check_loaded(part, seat.config, agent, self._spaces[agent])

    def _check_fits(self, against: str, player: str, agents: list[str]) -> None:
        if not any(self._fits(player, agent) for agent in agents):
            self._refuse(against, agents)

    def _refuse(self, against: str, agents: list[str]) -> None:
        fitting = dict.fromkeys(name for agent in agents for name in self._group(agent).learners)
        raise ConfigError(
            f"{_KEY}: expected who sees and may do what {', '.join(agents)} do, such as random, "
            f"{', '.join(fitting)} or a version or an export of these, got {against!r}, which does "
            "not"
        )

    def _fits(self, player: str, agent: str) -> bool:
        """Return whether a learner, or a version of one, may play an agent."""
        name = player if player in self._composition.learners else learner_of(player)
        if name in self._learners:
            return self._group(agent).may_play(name)
        return self._roster.spaces_of(name).difference(self._spaces[agent]) is None

    def _fits_export(self, against: str, agent: str) -> bool:
        if not Path(against).is_dir():
            return True
        with errors_of(PartNames(_KEY)):
            told = self._exports.seat(self._folder(against, agent)).config.spaces
        if told is None:
            return True
        return Spaces.parse(_KEY, told).difference(self._spaces[agent]) is None

    def _group(self, agent: str) -> SideGroup:
        sides = self._seating.sides
        side = next(side for side, agents in sides.items() if agent in agents)
        return group_of_side(self._seating.groups, side)

    # Who plays.

    def _opponent(
        self, against: str | None, agent: str, seats: Mapping[str, Seat], main: str
    ) -> Seat:
        if against is None:
            return self._newest(agent, main)
        if (part := self._composition.agents.get(against)) is not None:
            learner = self._composition.learner_of(against)
            if learner is not None and learner.name != main:
                fits = self._fits(learner.name, agent)
                return seats[learner.name] if fits else self._usual(agent, seats, main)
            return self._named(player_of(part) or "random", agent, main)
        if is_version_name(against):
            against = self._whole_name(main, against)
            fits = self._fits(against, agent)
        else:
            fits = self._fits_export(against, agent)
        return self._named(against, agent, main) if fits else self._usual(agent, seats, main)

    def _usual(self, agent: str, seats: Mapping[str, Seat], main: str) -> Seat:
        """Return who plays an agent that the named opponent cannot play."""
        first = next((name for name in self._group(agent).learners if name != main), None)
        return self._newest(agent, main) if first is None else seats[first]

    def _newest(self, agent: str, main: str) -> Seat:
        """Return the newest version that may play an agent: the learner's own, where it may."""
        group = self._group(agent)
        learners = (main,) if main in group.learners else group.learners
        known = [one for one in self._matchmaker.versions if learner_of(one) in learners]
        return self._named(known[-1] if known else "random", agent, main)

    def _named(self, against: str, agent: str, main: str) -> Seat:
        if Path(against).is_dir() and not is_version_name(against):
            against = str(self._folder(against, agent))
        return named_opponent(
            against,
            self._spaces[agent],
            seed=self._composition.seed,
            versions=self._version,
            exports=self._exports,
        )

    def _folder(self, against: str, agent: str) -> Path:
        """Return the export that plays an agent: in a trial of several policies, that of the model
        of who plays it here."""
        learners = self._group(agent).learners
        models = [self._composition.learners[one].model for one in learners]
        return export_among(Path(against), models)

    def _version(self, name: str) -> Seat:
        policy = self._learners[learner_of(name)].policy
        config = replace(policy, deterministic=True, phase="opponent")
        return Seat(name=name, model=self._matchmaker.model(name), config=config)

    def _whole_name(self, main: str, name: str) -> str:
        """Return the whole name of a version that the trial has, such as `main:v12` of `v12`.

        Raises:
            ConfigError: the trial has none of that name, or several policies do.
        """
        known = self._matchmaker.versions
        groups = self._seating.groups
        is_own = len(group_of(groups, main).sides) > 1
        players = [main] if is_own else [n for one in groups for n in one.learners if n != main]
        whole = [name] if ":" in name else [player_name(one, name) for one in players]
        found = [one for one in whole if one in known]
        if len(found) == 1:
            return found[0]
        told = [one for one in known if ":" in name or learner_of(one) in players]
        there = ", ".join(found or told) or "none yet"
        raise ConfigError(
            f"{_KEY}: expected a version that the trial has, {there}, got {name!r}: "
            "versions are frozen while it trains; leave `against` out to play the newest"
        )
