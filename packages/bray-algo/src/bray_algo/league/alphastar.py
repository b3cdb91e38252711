"""AlphaStar's league: who plays whom, when a copy is frozen, when a learner begins anew.

Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning",
Methods, "Multi-agent learning". Names in, decisions out: whoever holds the models keeps them by
these names, plays `opponent(...)`, and follows `advance(...)`. The ratings and opponents of simpler
self-play are in `elo` and `matchmaking`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from bray_algo.league.league_rules import LeagueRules
from bray_algo.league.matchmaking import pfsp_weights
from bray_algo.league.payoff import PayoffTable
from bray_algo.validation.scalars import check_not_negative

Role: TypeAlias = Literal["main", "main_exploiter", "league_exploiter"]


class LeagueMatch(NamedTuple):
    """A game to be played."""

    learner: str
    opponent: str
    """Name of a learner, as it is now (perhaps the same one), or of a frozen player."""
    reason: Literal["self_play", "pfsp", "forgotten", "curriculum", "target"]


class FrozenCopy(NamedTuple):
    """A copy to be made: the learner's weights of now are to stay under this name for ever."""

    learner: str
    name: str
    reset: bool
    """Whether the learner afterwards gets the weights that it began with."""


class League:
    """Learners by role and the frozen players that they left behind. Not thread-safe.

    Args:
        learners: Role of each learner by name: `main`, `main_exploiter` or `league_exploiter`; one
            main or more.
        rules: Numbers of the rules; None is the paper's.
        seed: Seed of the draws; None is another one each time.

    Raises:
        ValueError: no main learner, or an unknown role.

    Examples:
        >>> league = League({"main": "main", "rival": "main_exploiter"}, seed=0)
        >>> league.freeze("main")  # the first copy, as the learner is before it learns
        FrozenCopy(learner='main', name='main-1', reset=False)
        >>> league.opponent("rival")
        LeagueMatch(learner='rival', opponent='main', reason='target')
        >>> league.record("rival", "main", 1.0)
        >>> league.advance("rival", num_steps=1000)  # not yet time
    """

    def __init__(
        self,
        learners: Mapping[str, Role],
        *,
        rules: LeagueRules | None = None,
        seed: int | None = None,
    ) -> None:
        for name, role in learners.items():
            if role not in get_args(Role):
                raise ValueError(f"{name}: expected one of {get_args(Role)}, got {role!r}")
        if "main" not in learners.values():
            raise ValueError(f"learners: expected one main or more, got {dict(learners)}")
        self.rules = rules or LeagueRules()
        self.learners: dict[str, Role] = dict(learners)
        self.frozen: dict[str, str] = {}
        """Frozen player → the learner that it is a copy of, oldest first."""
        self.payoff = PayoffTable(learners, decay=self.rules.decay)
        self._steps = dict.fromkeys(learners, 0)
        self._rng = np.random.default_rng(seed)

    def opponent(self, learner: str) -> LeagueMatch:
        """Draw whom a learner plays next."""
        return {
            "main": self._for_main,
            "main_exploiter": self._for_main_exploiter,
            "league_exploiter": self._for_league_exploiter,
        }[self._role(learner)](learner)

    def record(self, player: str, opponent: str, score: float) -> None:
        """Count a game: 1 the player won, 0.5 a draw, 0 the opponent; against itself: nothing."""
        if player != opponent:
            self.payoff.record(player, opponent, score)

    def advance(self, learner: str, num_steps: int, name: str | None = None) -> FrozenCopy | None:
        """Count steps that a learner has learned from, and freeze it when it is time.

        Args:
            learner: Name of the learner.
            num_steps: Number of steps since the call before.
            name: Name of the copy, if there is one; see `freeze`.

        Raises:
            ValueError: an unknown learner, or a negative number of steps.
        """
        role = self._role(learner)
        check_not_negative("num_steps", num_steps)
        self._steps[learner] += num_steps
        return self.freeze(learner, name) if self._is_due(learner, role) else None

    def freeze(self, learner: str, name: str | None = None) -> FrozenCopy:
        """Add a copy of a learner as a new player, whatever the time.

        A learner that begins anew loses its results: they were another policy's.

        Args:
            learner: Name of the learner.
            name: Name of the copy, new in the league; None: `<learner>-<number>`.

        Raises:
            ValueError: an unknown learner, or a player has that name.
        """
        role = self._role(learner)
        name = name or self._new_name(learner)
        self.payoff.add(name)
        self.frozen[name] = learner
        self._steps[learner] = 0
        # A main exploiter is thrown away once frozen: its task is to find the next weakness.
        chance = {"main": 0.0, "main_exploiter": 1.0}.get(role, self.rules.league_exploiter_reset)
        reset = bool(self._rng.random() < chance)
        if reset:
            self.payoff.forget(learner)
        return FrozenCopy(learner, name, reset)

    def drop(self, name: str) -> None:
        """Take a frozen player and its games out, for good.

        Raises:
            ValueError: there is no frozen player of that name.
        """
        if name not in self.frozen:
            raise ValueError(f"name: expected a frozen player, got {name!r}")
        del self.frozen[name]
        self.payoff.remove(name)

    def copies(self, *roles: Role) -> list[str]:
        """Return the frozen players whose learners have these roles, oldest first; no role: all."""
        return [
            n for n, parent in self.frozen.items() if not roles or self.learners[parent] in roles
        ]

    def state(self) -> dict[str, Any]:
        """Return everything but the rules, as JSON takes it."""
        return {
            "learners": dict(self.learners),
            "frozen": dict(self.frozen),
            "steps": dict(self._steps),
            "payoff": self.payoff.state(),
            "rng": json.loads(json.dumps(self._rng.bit_generator.state)),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, rules: LeagueRules | None = None) -> League:
        """Return the league that `state` described; it draws on as that one would have.

        Raises:
            ValueError: it is not a league's state.
        """
        try:
            league = cls(state["learners"], rules=rules)
            league.frozen = {str(name): str(parent) for name, parent in state["frozen"].items()}
            league._steps = {name: int(state["steps"][name]) for name in league.learners}
            league.payoff = PayoffTable.from_state(state["payoff"])
            league.payoff.decay = league.rules.decay
            league._rng.bit_generator.state = state["rng"]
            if {*league.learners, *league.frozen} != set(league.payoff.players):
                raise ValueError("payoff: its players are not the league's")
            if not set(league.frozen.values()) <= set(league.learners):
                raise ValueError("frozen: a copy of no learner")
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise ValueError(f"state: expected what state() returned, got {error!r}") from error
        return league

    def _new_name(self, learner: str) -> str:
        number = 1 + sum(parent == learner for parent in self.frozen.values())
        while f"{learner}-{number}" in self.payoff:  # an older one was dropped
            number += 1
        return f"{learner}-{number}"

    def _for_main(self, learner: str) -> LeagueMatch:
        draw = self._rng.random()
        if draw < self.rules.pfsp and self.frozen:
            return LeagueMatch(learner, self._draw(learner, self.copies(), "hard"), "pfsp")
        if self.rules.pfsp <= draw < 1 - self.rules.self_play:
            lost = self._forgotten(learner)
            if lost:
                return LeagueMatch(learner, self._draw(learner, lost, "hard"), "forgotten")
        return self._self_play(learner)

    def _self_play(self, learner: str) -> LeagueMatch:
        opponent = self._any_main()
        copies = [name for name, parent in self.frozen.items() if parent == opponent]
        if copies and self._rates(learner, [opponent])[0] < self.rules.struggling_win_rate:
            return LeagueMatch(learner, self._draw(learner, copies, "var"), "curriculum")
        return LeagueMatch(learner, opponent, "self_play")

    def _forgotten(self, learner: str) -> list[str]:
        """Return frozen main players that the learner no longer beats, and strong exploiters."""
        limits = [
            (self.copies("main"), self.rules.forgotten_win_rate),
            (self.copies("main_exploiter"), self.rules.strong_exploiter_win_rate),
        ]
        return [
            name
            for names, limit in limits
            for name, rate in zip(names, self._rates(learner, names), strict=True)
            if rate < limit
        ]

    def _for_main_exploiter(self, learner: str) -> LeagueMatch:
        opponent = self._any_main()
        copies = self.copies("main")
        is_weak = self._rates(learner, [opponent])[0] < self.rules.curriculum_win_rate
        if copies and is_weak and self._rng.random() < self.rules.curriculum:
            return LeagueMatch(learner, self._draw(learner, copies, "var"), "curriculum")
        return LeagueMatch(learner, opponent, "target")

    def _for_league_exploiter(self, learner: str) -> LeagueMatch:
        if not self.frozen:
            return LeagueMatch(learner, self._any_main(), "target")
        return LeagueMatch(learner, self._draw(learner, self.copies(), "hard"), "pfsp")

    def _is_due(self, learner: str, role: Role) -> bool:
        steps = self._steps[learner]
        if role == "main":
            return steps >= self.rules.main_period
        if role == "main_exploiter":
            targets, timeout = self._mains(), self.rules.main_exploiter_timeout
        else:
            targets, timeout = self.copies(), self.rules.league_exploiter_timeout
        rates = self._rates(learner, targets)
        beaten = len(rates) > 0 and bool((rates > self.rules.freeze_win_rate).all())
        return beaten or steps >= timeout

    def _draw(self, learner: str, names: Sequence[str], kind: Literal["hard", "var"]) -> str:
        weights = pfsp_weights(self._rates(learner, names), kind, self.rules.power)
        return names[int(self._rng.choice(len(names), p=weights))]

    def _rates(self, learner: str, names: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return self.payoff.win_rates(learner, names, prior_games=self.rules.prior_games)

    def _any_main(self) -> str:
        mains = self._mains()
        return mains[int(self._rng.integers(len(mains)))]

    def _mains(self) -> list[str]:
        return [name for name, role in self.learners.items() if role == "main"]

    def _role(self, learner: str) -> Role:
        role = self.learners.get(learner)
        if role is None:
            raise ValueError(f"learner: expected one of {list(self.learners)}, got {learner!r}")
        return role
