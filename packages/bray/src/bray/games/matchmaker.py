"""Who meets whom in self-play and leagues: drawn in the driver, from the results of all games."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bray.best import BestVersion
from bray.games.frozen_versions import FrozenVersions
from bray.games.league_file import read_league, write_league
from bray.games.match_ratings import PlayerRating, SkillRatings, elo_ratings
from bray.games.match_scores import pair_scores
from bray.games.opponent_draw import OpponentDraw
from bray.games.opponent_rules import (
    ease,
    league_rules,
    roles_of,
    surely_beats,
    version_weights,
)
from bray.games.pairings import LATEST, Pairings, learner_of, player_name
from bray.games.side_groups import SideGroups, one_group
from bray.games.sides import Sides, sides_in
from bray.sources.opponents_config import OpponentsConfig
from bray_actor.multi_agent.seat import GameResult
from bray_algo.league.alphastar import FrozenCopy, League
from bray_algo.league.intervals import Floats
from bray_algo.league.payoff import PayoffTable
from bray_core.errors import ConfigError

logger = logging.getLogger(__name__)

OPPONENTS_AT_ONCE = 4
"""Number of opponents that are drawn for each learner and pairing. More make each pairing nearer to
the rule's shares, and fewer rows of each opponent's model."""
CHAMPION_WIN_RATE = 0.55
"""Win rate against the champion that a learner must surely exceed for its version to take its
place (AlphaGo Zero: 0.55)."""


class Matchmaker:
    """Freezes versions of the learners, counts results, and says whom each learner meets.

    Versions are named `main:v12`: version 12 of the learner main. Of each learner at most
    `config.versions` are kept; the one that is beaten most easily goes first, never the newest, the
    champion, or one that is pinned.

    Args:
        config: Rule of the opponents, and how often versions are frozen.
        models: Models of the learners by name: `Model`s or `RemoteModel`s with a directory.
        path: Path of the league's file, `league.json` of a trial; one that exists is taken up, and
            all goes on exactly as it would have. `bray view` shows it.
        sides: Agents by side.
        groups: Which learners may play which sides; None: any of them plays any side.
        seed: Seed of the draws.
        opponents_at_once: Number of opponents that are drawn for each learner and pairing.
        champion_win_rate: Win rate that a new champion must surely exceed against the old one.

    Raises:
        ConfigError: the roles are not those of the learners, or the file is no league's or that of
            other learners.
        FormatError: a newer version of bray wrote the file.

    Use it between the turns of a run:

        matchmaker.record(results)
        for frozen in matchmaker.progress({"main": frames}):
            ...  # where frozen.reset is true, the learner's trainer begins anew
        cast.tell(matchmaker.pairings())
    """

    def __init__(
        self,
        config: OpponentsConfig,
        models: Mapping[str, Any],
        path: Path,
        *,
        sides: Sides,
        groups: SideGroups | None = None,
        seed: int,
        opponents_at_once: int = OPPONENTS_AT_ONCE,
        champion_win_rate: float = CHAMPION_WIN_RATE,
    ) -> None:
        self.config = config
        self.path = path
        self.champion: str | None = None
        """Best version, for the rule `champion`; None before the first."""
        self.pinned: set[str] = set()
        """Versions that `pin` named."""
        self._sides = sides
        self._champion_win_rate = champion_win_rate
        self._rules = league_rules(config)
        self._draw = OpponentDraw(
            config,
            groups or one_group(sides, models),
            np.random.default_rng([seed, 1]),
            opponents_at_once,
        )
        self._league = League(roles_of(config, models), rules=self._rules, seed=seed)
        self._skills = SkillRatings(models)
        self._versions = FrozenVersions(models)
        self._frames = dict.fromkeys(models, 0)
        if path.exists():
            self._restore()

    @property
    def payoff(self) -> PayoffTable:
        """Results of learners and versions against each other; recent games count more."""
        return self._league.payoff

    @property
    def learners(self) -> tuple[str, ...]:
        """Names of the learners."""
        return tuple(self._league.learners)

    @property
    def frames(self) -> dict[str, int]:
        """Recorded frames of each learner when `progress` last took them."""
        return dict(self._frames)

    @property
    def versions(self) -> tuple[str, ...]:
        """Names of the frozen versions, oldest first."""
        return tuple(self._versions.numbers)

    def elo(self, confidence: float = 0.95) -> dict[str, PlayerRating]:
        """Return the Elo rating of each learner and version, fitted to the payoff table.

        Args:
            confidence: Probability that a rating lies within its interval.
        """
        return elo_ratings(self.payoff, confidence)

    def trueskill(self, confidence: float = 0.95) -> dict[str, PlayerRating]:
        """Return the TrueSkill rating of each; a version begins with its learner's.

        Args:
            confidence: Probability that a rating lies within its interval.
        """
        return self._skills.ratings(confidence)

    def record(self, results: Sequence[GameResult]) -> None:
        """Count matches, of more than two sides each pair of them.

        A learner's matches against itself do not count, nor those of players that are unknown, as
        are scripts and versions that were dropped meanwhile, nor games of other sides.

        Args:
            results: Matches as they ended.
        """
        for result in results:
            sides = sides_in(list(result.seats), self._sides)
            for pair in () if sides is None else pair_scores(result, sides):
                one, other = self._player(pair.one), self._player(pair.other)
                if one != other and one in self.payoff and other in self.payoff:
                    self._league.record(one, other, pair.score)
                    self._skills.record(one, other, pair.score)

    def _player(self, seat: str) -> str:
        learner = learner_of(seat)
        return learner if seat == player_name(learner, LATEST) else seat

    def pairings(self) -> Pairings:
        """Draw whom each learner meets until the next pairings."""
        return self._draw.pairings(self._league, self._versions, self._weights)

    def _weights(self, learner: str, names: Sequence[str] = ()) -> Floats:
        return version_weights(
            self.config.rule,
            self._league,
            learner,
            names or self.versions,
            champion=self.champion,
        )

    def progress(self, frames: Mapping[str, int]) -> list[FrozenCopy]:
        """Freeze the learners for which it is time, and write the file if there are any.

        Args:
            frames: Recorded frames of each learner since the trial began.

        Returns:
            What was frozen. Where `reset` is true, that learner's trainer must begin anew, with the
            weights that it began with; its results are forgotten already.

        Raises:
            ConfigError: one of them is no learner.
            CheckpointError: a version cannot be written.
        """
        copies = [
            copy
            for learner, number in frames.items()
            if (copy := self._advance(learner, number)) is not None
        ]
        if copies:
            self.save()
        return copies

    def _advance(self, learner: str, frames: int) -> FrozenCopy | None:
        if learner not in self._frames:
            raise ConfigError(f"frames: expected one of {list(self.learners)}, got {learner!r}")
        name = self._versions.next_name(learner)
        new = frames - self._frames[learner]
        if name is None or new <= 0:  # nothing was published since, or an older checkpoint goes on
            return None
        self._frames[learner] = frames
        is_better = surely_beats(self.payoff, learner, self.champion, self._champion_win_rate)
        copy = self._league.advance(learner, new, name)
        if copy is None:
            return None
        self._versions.freeze(learner, name)
        self._skills.freeze(learner, name, resets=copy.reset)
        if self.config.rule == "champion" and is_better:
            self.champion = name
        self._drop_surplus(learner)
        logger.info("league: %s is frozen, %d versions in all", name, len(self.versions))
        return copy

    def _drop_surplus(self, learner: str) -> None:
        own = self._versions.of(learner)
        spare = [name for name in own[:-1] if name not in {self.champion, *self.pinned}]
        for _ in range(min(len(spare), len(own) - self.config.versions)):
            # Of equals the oldest goes.
            easiest = max(spare, key=lambda name: ease(self._league, name))
            spare.remove(easiest)
            self._drop(easiest)

    def _drop(self, name: str) -> None:
        best = BestVersion.read(self.path.parent)
        number = self._versions.numbers[name]
        self._league.drop(name)
        self._skills.drop(name)
        self._versions.drop(name, keeps_file=best is not None and best.version == number)

    def pin(self, name: str) -> None:
        """Keep a version among the opponents, however easily it is beaten.

        Raises:
            NotFoundError: there is no such version; names those that are.
        """
        self.pinned.add(self._versions.find(name))

    def model(self, name: str) -> Any:
        """Return the model of a version, `main:v12`, or `v12` of a single learner.

        Raises:
            NotFoundError: there is no such version; names those that are.
        """
        return self._versions.model(self._versions.find(name))

    def save(self) -> None:
        """Write everything that a resumed run needs: the whole file or nothing."""
        league = self._league.state()
        state = {
            "rule": self.config.rule,
            "payoff": league.pop("payoff"),
            "league": league,
            "versions": self._versions.numbers,
            "champion": self.champion,
            "pinned": sorted(self.pinned),
            "frames": self._frames,
            "trueskill": self._skills.state(),
            "rng": self._draw.rng.bit_generator.state,
        }
        write_league(self.path, state)

    def _restore(self) -> None:
        with read_league(self.path) as state:
            league = {**state["league"], "payoff": state["payoff"]}
            found = League.from_state(league, rules=self._rules)
            if found.learners != self._league.learners:
                raise ValueError(f"learners {found.learners}, not {self._league.learners}")
            self._versions.numbers = {str(n): int(v) for n, v in state["versions"].items()}
            if set(self.versions) != set(found.frozen):
                raise ValueError("versions: others than the league's")
            self._league = found
            self._skills.restore(state["trueskill"])
            self.champion, self.pinned = state["champion"], set(state["pinned"])
            self._frames = {name: int(state["frames"][name]) for name in self._frames}
            self._draw.rng.bit_generator.state = state["rng"]
        logger.info("league: %d versions are restored from %s", len(self.versions), self.path)
