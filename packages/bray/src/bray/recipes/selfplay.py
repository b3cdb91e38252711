"""Self-play by PPO: a policy learns tic-tac-toe from games against its own past, without search.

Each round is of one policy version: games side by side against whom `Opponents` names, one replay,
`epochs` passes of minibatches (Schulman et al. 2017), the next version. Frozen versions are clones
of the one model, so the pool costs no process of its own; it is kept in the trial's `league.json`.

    python -m bray.recipes.selfplay --project trials --trial tictactoe --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

import bray
from bray.arena import PolicyPlayer, openings, play
from bray.learner import Learner, layout, moves_of, network
from bray.lockstep import next_versions, training
from bray.opponents import LATEST, Opponents, Opposition
from bray.tournament import complete
from bray.version_pool import VersionPool
from bray.yardsticks import TIC_TAC_TOE as _GAME
from bray.yardsticks import Report, report, share_lost
from bray_algo import categorical, ppo
from bray_buffer import BufferConfig
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_model import ModelConfig
from bray_trainer import Trainer, TrainerConfig, to_torch

logger = logging.getLogger(__name__)
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Settings of self-play."""

    opponents: Opposition = "pfsp"
    """Whom to play beside the latest: see `Opponents`."""
    latest: float = 0.5
    """Share of games against the policy as it is now, 0 to 1."""
    freeze_every: int = 25
    """Rounds between two versions that join the pool."""
    versions_per_round: int = 8
    """Versions drawn from the pool as opponents of a round."""
    games_per_round: int = 512
    """Games side by side, even: half of them with the first move."""
    opening_moves: int = 3
    """Games begin after 0 to so many random moves, 3 at most: each side has one left to decide."""
    max_games: int = 1_000_000
    """Games of training after which the run ends, its goal reached or not."""
    evaluate_every: int = 25
    """Rounds between two evaluations."""
    evaluation_games: int = 1000
    """Games of an evaluation against each yardstick, even."""
    rating_games: int = 20
    """Games of each two versions of the pool for the final ratings, even; 0 plays none."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of the policy's hidden layers, and of the value function's."""
    learning_rate: float = 1e-3
    """Adam's."""
    epochs: int = 4
    """Passes over each replay."""
    minibatch_size: int = 512
    """Moves of an optimiser step."""
    clip: float = 0.2
    """PPO's ε."""
    entropy_coefficient: float = 0.02
    """Weight of the policy's entropy."""
    gae_lambda: float = 0.95
    """λ; the discount is 1."""

    def __post_init__(self) -> None:
        for name in ("freeze_every", "versions_per_round", "max_games", "evaluate_every", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        for name, least in (("games_per_round", 2), ("evaluation_games", 2), ("rating_games", 0)):
            number = getattr(self, name)
            if number < least or number % 2:
                raise ConfigError(f"{name}: expected an even number from {least}, got {number}")
        if not 0 <= self.opening_moves <= 3:
            raise ConfigError(f"opening_moves: expected 0 to 3, got {self.opening_moves}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended."""

    reached: bool
    report: Report
    """Of games that decided nothing."""
    versions: int
    """In the pool."""
    games: int
    """Of training."""
    moves: int
    """Of the learner in this launch: its frames."""
    wall_s: float
    """Of this launch, without the ratings' games."""


class SelfPlayTrainer(Trainer):
    """PPO over the moves of whole games."""

    def __init__(self, config: Config, seed: int, buffer: Any, model: Any, folder: Path) -> None:
        self.part, self.generator = config, torch.Generator().manual_seed(seed)
        settings = TrainerConfig(
            learning_rate=config.learning_rate, max_grad_norm=0.5, checkpoint_every=50, seed=seed
        )
        super().__init__(
            network(_GAME, config.hidden, seed),
            buffer,
            model=model,
            config=settings,
            directory=folder,
        )

    def handle(self, replay: Packed) -> Iterator[dict[str, Tensor]]:
        """Yield shuffled minibatches of the moves of one round, `[N, …]`."""
        moves = moves_of(to_torch(replay, self.device), self.part.gae_lambda)
        for _ in range(self.part.epochs):
            order = torch.randperm(len(moves["action"]), generator=self.generator)
            for index in torch.split(order, self.part.minibatch_size):
                yield {name: leaf[index] for name, leaf in moves.items()}

    def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return PPO's loss over a minibatch, advantages normalised within it."""
        outputs = self.module(batch["observation"])
        logits = categorical.mask(outputs["logits"], batch["legal"])
        advantage = batch["advantage"]
        return ppo.loss(
            categorical.log_prob(logits, batch["action"]),
            categorical.entropy(logits),
            outputs["value"],
            batch["log_prob"],
            (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8),
            advantage + batch["value"],
            clip=self.part.clip,
            entropy_coefficient=self.part.entropy_coefficient,
        )


class SelfPlay:
    """The components of a run and their rounds."""

    def __init__(self, run: bray.Run, config: Config, seed: int) -> None:
        self.config, number = config, config.games_per_round
        example = np.zeros((1, _GAME.observation_size), np.float32)
        batching = ModelConfig(max_batch_size=max(64, number))
        queue = BufferConfig(batch_size=number, capacity=2 * number)
        module = network(_GAME, config.hidden, seed)
        model = run.model("policy", module, example, batching)
        buffer = run.buffer("games", layout(_GAME), queue)
        folder = run.experiment.checkpoints
        self.model, self.buffer = model, buffer
        self.trainer = run.trainer(
            "selfplay", lambda: SelfPlayTrainer(config, seed, buffer, model, folder)
        )
        self.moves = 0
        self.pool = VersionPool(model, run.experiment.path / "league.json")
        self.rng, self.generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        self.opponents = Opponents(config.opponents, self.pool, latest=config.latest, rng=self.rng)

    async def learn(self, goal: float, say: Say) -> int:
        """Train until the goal is reached or the games are used up; return their number."""
        config = self.config
        async with training(self.trainer, [self.model]):
            number = int(self.trainer.progress()["replays"])  # not 0 where it resumes
            while True:
                number += 1
                version = self.model.version
                self.buffer.push(await self.round())
                await next_versions(self.trainer, [self.model], [version])
                if number % config.freeze_every == 0:
                    await self.opponents.freeze(_GAME, self.generator)
                games = number * config.games_per_round
                if number % config.evaluate_every and games < config.max_games:
                    continue
                lost = await share_lost(self.model, config.evaluation_games, seed=number)
                say(f"games {games:,}  versions {len(self.pool)}  lost to perfect play {lost:.1%}")
                if lost <= goal or games >= config.max_games:
                    return games

    async def round(self) -> Packed:
        """Play a batch of games of the current version, and return the learner's moves."""
        number = self.config.games_per_round
        drawn = self.opponents.draw(number, self.config.versions_per_round)
        learner = Learner(_GAME, self.model, self.generator, number)
        players: dict[str, Any] = {"learner": learner}
        for name in sorted(set(drawn)):
            model = self.model if name == LATEST else self.pool[name]
            players[name] = PolicyPlayer(_GAME, model, self.generator)
        pairs = [("learner", n) if i % 2 else (n, "learner") for i, n in enumerate(drawn)]
        states = openings(_GAME, number, self.config.opening_moves, self.rng)
        score = await play(_GAME, players, pairs, states)
        score[::2] = 1 - score[::2]  # there the learner moves second
        for name, own in zip(drawn, score.tolist(), strict=True):
            self.opponents.record(name, own)
        self.moves += int(learner.moves.sum())
        return learner.end(score)


def train(
    run: bray.Run, config: Config, *, goal: float = 0.0, seed: int = 1, say: Say = logger.info
) -> Outcome:
    """Train until at most the share `goal` of evaluation games is lost to the perfect player.

    Or until `max_games` are played. Then every two versions of the pool play, and their results are
    drawn into the trial's folder. A trial that exists is resumed: weights, counters, pool.
    """
    return asyncio.run(_train(SelfPlay(run, config, seed), goal, seed, say))


async def _train(player: SelfPlay, goal: float, seed: int, say: Say) -> Outcome:
    started, pool = time.monotonic(), player.pool
    games = await player.learn(goal, say)
    wall_s = time.monotonic() - started
    found = await report(player.model, player.config.evaluation_games, seed=1_000_000)
    await complete(pool, _GAME, player.config.rating_games, seed=seed)
    if len(pool):
        pool.draw(pool.path.parent)
    return Outcome(
        reached=found.lost_to_perfect <= goal,
        report=found,
        versions=len(pool),
        games=games,
        moves=player.moves,
        wall_s=wall_s,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the recipe from the command line; 0 if the goal was reached."""
    parser = argparse.ArgumentParser(description="self-play by PPO: tic-tac-toe")
    parser.add_argument("--project", default="trials")
    parser.add_argument("--trial", default="selfplay")
    parser.add_argument("--runtime", choices=("local", "ray"), default="local")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--opponents", choices=get_args(Opposition), default="pfsp")
    parser.add_argument("--max-games", type=int, default=Config().max_games)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    config = Config(opponents=options.opponents, max_games=options.max_games)
    with bray.init(options.project, options.trial, options.runtime, config=asdict(config)) as run:
        outcome = train(run, config, seed=options.seed, say=partial(print, flush=True))
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    return 0 if outcome.reached else 1


if __name__ == "__main__":
    sys.exit(main())
