"""The rules of the opponents: whom a learner meets how often, and who is better than whom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from bray.sources.opponents_config import OpponentRule, OpponentsConfig
from bray_algo.league.alphastar import League, Role
from bray_algo.league.champion import promotion_verdict
from bray_algo.league.intervals import Floats
from bray_algo.league.league_rules import LeagueRules
from bray_algo.league.matchmaking import pfsp_weights
from bray_algo.league.payoff import PayoffTable
from bray_core.errors import ConfigError

_EXPLOITER_PERIODS = 2.0
"""Periods of a main learner after which a main exploiter is frozen at the latest (AlphaStar)."""
_PFSP_SHARE = 0.5 / 0.65
"""Share of prioritised opponents in a main learner's games that are no self-play (AlphaStar)."""


def league_rules(config: OpponentsConfig) -> LeagueRules:
    """Return AlphaStar's rules with the shares and periods of a config."""
    rest = 1 - config.latest_share
    return LeagueRules(
        self_play=config.latest_share,
        pfsp=rest * _PFSP_SHARE,
        main_period=config.freeze_every,
        main_exploiter_timeout=_EXPLOITER_PERIODS * config.freeze_every,
        league_exploiter_timeout=config.freeze_every,
    )


def roles_of(config: OpponentsConfig, learners: Iterable[str]) -> dict[str, Role]:
    """Return the role of each learner; all are main learners where the rule knows no roles.

    Raises:
        ConfigError: there is no learner, or the config's roles are those of others.
    """
    names = list(learners)
    if not names:
        raise ConfigError("learners: expected one or more, got none")
    if config.rule != "league":
        return dict.fromkeys(names, "main")
    if set(config.roles) != set(names):
        raise ConfigError(
            f"roles: expected those of the learners {names}, got {list(config.roles)}"
        )
    return {name: config.roles[name] for name in names}


def version_weights(
    rule: OpponentRule,
    league: League,
    learner: str,
    versions: Sequence[str],
    *,
    champion: str | None,
) -> Floats:
    """Return the probability of each version where a learner meets one of them.

    Args:
        rule: `past`, `pfsp` or `champion`.
        league: League with the results of all.
        learner: Name of the learner.
        versions: Names of the versions, one or more.
        champion: Name of the best version.
    """
    if rule == "champion" and champion is not None:
        return np.array([float(name == champion) for name in versions])
    if rule == "pfsp":
        return pfsp_weights(_rates(league, learner, versions), "hard", league.rules.power)
    return np.full(len(versions), 1 / len(versions))


def surely_beats(payoff: PayoffTable, learner: str, champion: str | None, threshold: float) -> bool:
    """Return whether a learner's recent win rate surely exceeds a threshold against a version.

    Args:
        payoff: Results of both.
        learner: Name of the learner.
        champion: Name of the version; None is beaten.
        threshold: Win rate to exceed, 0 to 1.
    """
    if champion is None:
        return True
    row, column = (payoff.players.index(name) for name in (learner, champion))
    score = float(payoff.wins[row, column] + payoff.draws[row, column] / 2)
    games = float(payoff.games[row, column])
    return promotion_verdict(score, games, threshold=threshold, max_games=math.inf) == "promote"


def ease(league: League, version: str) -> float:
    """Return how often the main learners beat a version, 0 to 1."""
    mains = [name for name, role in league.learners.items() if role == "main"]
    return float(np.mean([_rates(league, main, [version])[0] for main in mains]))


def _rates(league: League, learner: str, names: Sequence[str]) -> Floats:
    return league.payoff.win_rates(learner, names, prior_games=league.rules.prior_games)
