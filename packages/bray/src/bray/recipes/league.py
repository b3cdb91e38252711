"""AlphaStar's league on a matrix game, beside naive self-play with the same learner.

Learners of the league's three roles are mixtures over the actions, trained by policy gradient on
games against whom `League` names; one trainer steps them all. What comes near the equilibrium is
the Nash mixture of the frozen players by their payoff table; no learner does by itself. Naive
self-play, the latest against the latest, goes round in circles.

    python -m bray.recipes.league --project trials --trial rps --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import bray
from bray.lockstep import next_versions, training
from bray.matrix_league import Cycle, MatrixLeague, Mixture, antisymmetric, cycle, named_game, play
from bray_algo import a2c, categorical
from bray_algo.equilibrium import exploitability
from bray_algo.intervals import Floats
from bray_algo.league_rules import LeagueRules, Role
from bray_buffer import BufferConfig
from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, to_torch

logger = logging.getLogger(__name__)
Say = Callable[[str], None]
ROLES: Mapping[str, Role] = {r: r for r in ("main", "main_exploiter", "league_exploiter")}
NAIVE = "naive"
LAYOUT = Layout(
    nested.spec({"action": np.int64(0), "reward": np.float32(0), "restart": np.bool_(False)})
)
"""Of one game of a learner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Settings of the league; a round is one step of each learner."""

    rounds: int = 900
    """Rounds of a run."""
    games_per_round: int = 128
    """Games of each learner in a round."""
    matches_per_round: int = 8
    """Opponents that the league names for them, each for an equal share of the games."""
    period: int = 60
    """Rounds between two copies of the main learner; after so many a league exploiter is frozen at
    the latest, after twice as many a main exploiter."""
    rating_games: int = 400
    """Games of each two frozen players for the final payoff table, whose noise is what is left of
    the exploitability: with 20 it is 0.03 to 0.09."""
    learning_rate: float = 0.5
    """Of plain gradient ascent, on payoffs from −1 to 1."""
    spread: float = 0.3
    """Standard deviation of the first logits."""

    def __post_init__(self) -> None:
        for name in ("rounds", "games_per_round", "matches_per_round", "period", "rating_games"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        if self.games_per_round % self.matches_per_round:
            raise ConfigError(
                f"games_per_round: expected a multiple of matches_per_round="
                f"{self.matches_per_round}, got {self.games_per_round}"
            )

    def rules(self) -> LeagueRules:
        """Return the league's rules: the paper's shares, periods in rounds."""
        return LeagueRules(
            main_period=self.period,
            main_exploiter_timeout=2 * self.period,
            league_exploiter_timeout=self.period,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended; exploitabilities are in units of the game's largest payoff."""

    reached: bool
    exploitability: float
    """Of the Nash mixture of the frozen players, by the payoff table of their games."""
    main_exploitability: float
    """Of the main learner's own policy at the end, which is no equilibrium by itself."""
    naive: Cycle
    """Naive self-play over the last third of the rounds."""
    frozen: int
    """Frozen players."""
    games: int
    """Of training, naive self-play's not counted."""
    wall_s: float


class LeagueTrainer(Trainer):
    """Policy gradient (A2C without a critic: the batch's mean reward is the baseline)."""

    def __init__(self, config: Config, start: dict[str, Tensor], buffers: Any, models: Any,
                 folder: Path) -> None:  # fmt: skip
        self.first, self.rate = start, config.learning_rate
        modules = {name: Mixture(logits) for name, logits in start.items()}
        super().__init__(modules, buffers, model=models, directory=folder)

    def make_optimizer(self) -> dict[str, torch.optim.Optimizer]:
        """Return plain gradient ascent, one for each learner."""
        return {n: torch.optim.SGD(m.parameters(), self.rate) for n, m in self.module.items()}

    def handle(self, replay: dict[str, Packed]) -> Iterator[Any]:
        """Yield the games of the learners by name; one that begins anew does so here."""
        batch = {name: to_torch(packed) for name, packed in replay.items()}
        anew = [name for name, games in batch.items() if bool(games["restart"].any())]
        for name in anew:
            self.module[name].load_state_dict({"logits": self.first[name]})
        yield {name: games for name, games in batch.items() if name not in anew}

    def loss(self, batch: Any, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return each learner's loss."""
        losses = {}
        for name, games in batch.items():
            reward = games["reward"]
            logits = self.module[name](torch.zeros(len(reward), 1))
            baseline = reward.mean().expand_as(reward)
            losses[name], _ = a2c.loss(
                categorical.log_prob(logits, games["action"]), categorical.entropy(logits),
                baseline, reward - baseline, reward, value_coefficient=0, entropy_coefficient=0,
            )  # fmt: skip
        return losses, {}


def train(
    run: bray.Run,
    payoff: npt.ArrayLike,
    config: Config,
    *,
    goal: float = 0.05,
    seed: int = 1,
    say: Say = logger.info,
) -> Outcome:
    """Play all rounds, then every two frozen players, and mix those by their payoff table.

    A trial that exists is resumed: learners, frozen players, payoff table, rounds.

    Args:
        run: of the trial.
        payoff: of a zero-sum game, `[N, N]` antisymmetric (both players choose among the same
            actions), or any `[M, N]`, of which `symmetrised` is played. Scaled to a largest of 1.
        config: the numbers.
        goal: exploitability to be below.
        seed: of everything random.
        say: what to do with a line of progress.
    """
    game, noise = antisymmetric(payoff), torch.Generator().manual_seed(seed)
    start = {
        name: config.spread * torch.randn(len(game), generator=noise) for name in (*ROLES, NAIVE)
    }
    example, number = np.zeros((1, 1), np.float32), config.games_per_round
    models = {n: run.model(n, Mixture(logits), example) for n, logits in start.items()}
    queue = BufferConfig(batch_size=number, capacity=2 * number)
    buffers = {name: run.buffer(name, LAYOUT, queue) for name in start}
    folder = run.experiment.checkpoints
    trainer = run.trainer("league", lambda: LeagueTrainer(config, start, buffers, models, folder))
    path = run.experiment.path / "league.json"
    league = MatrixLeague(ROLES, models, path, config.rules(), seed)
    outcome = asyncio.run(_play(game, config, goal, seed, say, league, buffers, trainer))
    league.draw(path.parent / "win_rates.png")
    return outcome


async def _play(game: Floats, config: Config, goal: float, seed: int, say: Say,
                league: MatrixLeague, buffers: Any, trainer: Any) -> Outcome:  # fmt: skip
    started, rng = time.monotonic(), np.random.default_rng([seed, league.rounds])
    naive = await _rounds(game, config, rng, say, league, buffers, trainer)
    mixture = await league.nash_mixture(game, config.rating_games, rng)
    league.save()
    gap = exploitability(game, mixture)
    say(f"Nash mixture of {len(league.versions)} frozen players {np.round(mixture, 3).tolist()}  "
        f"exploitability {gap:.3f}")  # fmt: skip
    return Outcome(
        reached=gap < goal,
        exploitability=gap,
        main_exploitability=exploitability(game, await league.policy("main")),
        naive=cycle(game, naive[-1 - config.rounds // 3 :]),
        frozen=len(league.versions),
        games=config.games_per_round * league.rounds * len(ROLES),
        wall_s=time.monotonic() - started,
    )


async def _rounds(game: Floats, config: Config, rng: np.random.Generator, say: Say,
                  league: MatrixLeague, buffers: Any, trainer: Any) -> list[Floats]:  # fmt: skip
    """Play the rounds that are left; return naive self-play's policy before each and after all."""
    models, naive, anew = list(league.models.values()), [], set[str]()
    async with training(trainer, models):
        while league.rounds < config.rounds:
            versions = [model.version for model in models]
            naive.append(await _round(game, config, league, buffers, anew, rng))
            await next_versions(trainer, models, versions)
            anew = {name for name in ROLES if league.advance(name)}
            league.rounds += 1
            if league.rounds % 100 == 0:
                say(f"round {league.rounds}  frozen {len(league.versions)}  naive self-play "
                    f"{np.round(naive[-1], 2).tolist()}  "
                    f"exploitability {exploitability(game, naive[-1]):.3f}")  # fmt: skip
    return [*naive, await league.policy(NAIVE)]


async def _round(game: Floats, config: Config, league: MatrixLeague, buffers: Any,
                 anew: set[str], rng: np.random.Generator) -> Floats:  # fmt: skip
    """Play a round of every learner, hand its games to the trainer; return naive self-play.

    A learner in `anew` does not play on: its replay tells the trainer to begin anew.
    """
    policies = {name: await league.policy(name) for name in league.models}
    share = config.games_per_round // config.matches_per_round
    for name, buffer in buffers.items():
        block = LAYOUT.empty(config.games_per_round)
        games: Any = LAYOUT.views(block)
        games["restart"][:] = name in anew
        for first in range(0, 0 if name in anew else config.games_per_round, share):
            opponent = NAIVE if name == NAIVE else league.league.opponent(name).opponent
            if opponent not in policies:
                policies[opponent] = await league.policy(opponent)
            at = slice(first, first + share)
            action, won = play(game, policies[name], policies[opponent], share, rng)
            games["action"][at], games["reward"][at] = action, won
            if name != NAIVE:
                league.record(name, opponent, won, rng)
        buffer.push(Packed(LAYOUT, block))
    return policies[NAIVE]


def main(arguments: list[str] | None = None) -> int:
    """Run the recipe from the command line; 0 if the goal was reached."""
    parser = argparse.ArgumentParser(description="AlphaStar's league on a matrix game")
    parser.add_argument("--project", default="trials")
    parser.add_argument("--trial", default="league")
    parser.add_argument("--runtime", choices=("local", "ray"), default="local")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--game", type=named_game, default="rock-paper-scissors",
                        help="a name of `matrix_league.GAMES`, or a matrix as JSON")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=Config().rounds)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    config = Config(rounds=options.rounds)
    with bray.init(options.project, options.trial, options.runtime, config=asdict(config)) as run:
        outcome = train(
            run, options.game, config, seed=options.seed, say=partial(print, flush=True)
        )
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    return 0 if outcome.reached else 1


if __name__ == "__main__":
    sys.exit(main())
