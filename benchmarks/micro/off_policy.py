"""Optimiser updates per second of the recipes' trainers, beside plain loops in CleanRL's structure.

    uv run python -m benchmarks.micro.off_policy [--only dqn|sac|td3] [--rounds 9] [--updates 100]

No environment: a replay of 10,000 transitions is filled, then both sides only train. The same
networks (MLP 256 x 256, ReLU), batch 256, n_step 1, double Q-learning for DQN. The trainers publish
to a model each 64 updates, as the recipes do; the loops, as in CleanRL's single files (Huang et al.
2022), keep plain replay arrays and step one optimiser after the other. One torch thread. Both take
turns, round by round; medians of the rounds, and of the ratios of each round.
"""

from __future__ import annotations

import copy
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarks.harness import Report, argument, in_turns, main
from torch import Tensor, nn

from bray.algorithms import dqn, sac, td3
from bray.training.on_policy import segment_layout
from bray_buffer import ReplayBuffer
from bray_core.layout import Layout, Packed
from bray_core.spaces import Spaces
from bray_model import Model, ModelConfig

BATCH, HIDDEN, STORED, LENGTH, EVERY = 256, (256, 256), 10_000, 16, 64
OBSERVATION, ACTIONS = 17, 6
"""As large as those of HalfCheetah."""


# The trainers.


def spaces(is_discrete: bool) -> Spaces:
    """Return the spaces of an environment that is not there."""
    box = {"shape": [ACTIONS], "low": -1.0, "high": 1.0}
    action = {"discrete": ACTIONS} if is_discrete else box
    return Spaces.parse("none", {"observation": {"shape": [OBSERVATION]}, "action": action})


SETTINGS = {
    "hidden": HIDDEN,
    "batch_size": BATCH,
    "capacity": STORED,
    "n_step": 1,
    "replays_per_collect": EVERY,
}


def trained(algorithm: Any, trainer: type, module: nn.Module, spaces: Spaces) -> Any:
    """Return an algorithm's trainer over a replay that is full."""
    layout = segment_layout(spaces, LENGTH, 0)
    replay = ReplayBuffer(layout, algorithm.buffer(is_local=True))
    fill(replay, layout)
    model = Model(module, spaces.example, config=ModelConfig(max_batch_size=4, pad_to=(4,)))
    return trainer(spaces, algorithm.parts, 0, model, replay).run


def fill(replay: ReplayBuffer, layout: Layout) -> None:
    """Push segments of noise."""
    rng = np.random.default_rng(0)
    count = STORED // LENGTH
    views = layout.views(block := layout.empty(count))
    views["length"][...] = LENGTH
    for name in ("observation", "final_observation", "reward", "action"):
        draw = rng.random(views[name].shape)
        views[name][...] = draw * (ACTIONS if views[name].dtype.kind == "i" else 1)
    replay.push(Packed(layout, block))


# The plain loops.


@dataclass
class Arrays:
    """A replay as CleanRL's: one array for each leaf, drawn from by indices."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    done: np.ndarray

    @classmethod
    def filled(cls, is_discrete: bool) -> Arrays:
        """Return one of noise."""
        rng = np.random.default_rng(0)
        numbers = rng.random((STORED, OBSERVATION), np.float32)
        shape = (STORED, 1) if is_discrete else (STORED, ACTIONS)
        action = rng.integers(0, ACTIONS, shape) if is_discrete else rng.random(shape, np.float32)
        zeros = np.zeros((STORED, 1), np.float32)
        return cls(numbers, action, rng.random((STORED, 1), np.float32), numbers.copy(), zeros)

    def sample(self) -> list[Tensor]:
        """Return the leaves of a batch."""
        index = np.random.randint(0, STORED, BATCH)
        return [torch.from_numpy(leaf[index]) for leaf in vars(self).values()]


def layers(inputs: int, outputs: int) -> nn.Sequential:
    """Return the network of every loop."""
    hidden = nn.Linear(inputs, HIDDEN[0]), nn.ReLU(), nn.Linear(*HIDDEN), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(HIDDEN[1], outputs))


def plain_dqn() -> Callable[[int], None]:
    """Return the loop of DQN, with double Q-learning."""
    q = layers(OBSERVATION, ACTIONS)
    target_q = copy.deepcopy(q)
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    replay = Arrays.filled(is_discrete=True)

    def run(updates: int) -> None:
        for update in range(updates):
            observation, action, reward, following, done = replay.sample()
            with torch.no_grad():
                best = q(following).argmax(1, keepdim=True)
                next_value = target_q(following).gather(1, best).flatten()
                target = reward.flatten() + 0.99 * next_value * (1 - done.flatten())
            loss = nn.functional.smooth_l1_loss(q(observation).gather(1, action).squeeze(), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(q.parameters(), 10.0)
            optimizer.step()
            if update % 250 == 0:
                follow(target_q, q, 1.0)

    return run


class Actor(nn.Module):
    """The policy of the loops of SAC and TD3."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.body = layers(OBSERVATION, outputs)

    def deterministic(self, observation: Tensor) -> Tensor:
        """Return TD3's action."""
        return torch.tanh(self.body(observation))

    def drawn(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return SAC's action and its log density."""
        mean, log_std = self.body(observation).chunk(2, 1)
        log_std = -5 + 0.5 * 7 * (torch.tanh(log_std) + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        before = normal.rsample()
        action = torch.tanh(before)
        log_prob = normal.log_prob(before) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1, keepdim=True)


def joined(observation: Tensor, action: Tensor) -> Tensor:
    """Return the input of a critic."""
    return torch.cat([observation, action], 1)


def follow(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move a target's parameters, one after the other."""
    for slow, fast in zip(target.parameters(), source.parameters(), strict=True):
        slow.data.copy_(tau * fast.data + (1 - tau) * slow.data)


def plain_sac() -> Callable[[int], None]:
    """Return the loop of SAC with a learned temperature."""
    actor = Actor(2 * ACTIONS)
    q1, q2 = (layers(OBSERVATION + ACTIONS, 1) for _ in range(2))
    target1, target2 = copy.deepcopy(q1), copy.deepcopy(q2)
    q_optimizer = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=1e-3)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    log_alpha = torch.zeros(1, requires_grad=True)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)
    replay = Arrays.filled(is_discrete=False)

    def run(updates: int) -> None:
        for _ in range(updates):
            alpha = log_alpha.exp().item()
            observation, action, reward, following, done = replay.sample()
            with torch.no_grad():
                next_action, next_log_prob = actor.drawn(following)
                pair = joined(following, next_action)
                next_q = torch.min(target1(pair), target2(pair)) - alpha * next_log_prob
                target = reward.flatten() + (1 - done.flatten()) * 0.99 * next_q.view(-1)
            pair = joined(observation, action)
            loss = nn.functional.mse_loss(q1(pair).view(-1), target)
            loss = loss + nn.functional.mse_loss(q2(pair).view(-1), target)
            q_optimizer.zero_grad()
            loss.backward()
            q_optimizer.step()
            drawn, log_prob = actor.drawn(observation)
            pair = joined(observation, drawn)
            actor_loss = (alpha * log_prob - torch.min(q1(pair), q2(pair))).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            alpha_loss = (-log_alpha.exp() * (log_prob.detach() - ACTIONS)).mean()
            alpha_optimizer.zero_grad()
            alpha_loss.backward()
            alpha_optimizer.step()
            follow(target1, q1, 0.005)
            follow(target2, q2, 0.005)

    return run


def plain_td3() -> Callable[[int], None]:
    """Return the loop of TD3."""
    actor = Actor(ACTIONS)
    q1, q2 = (layers(OBSERVATION + ACTIONS, 1) for _ in range(2))
    slow_actor, target1, target2 = (copy.deepcopy(module) for module in (actor, q1, q2))
    q_optimizer = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=1e-3)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    replay = Arrays.filled(is_discrete=False)

    def run(updates: int) -> None:
        for update in range(updates):
            observation, action, reward, following, done = replay.sample()
            with torch.no_grad():
                noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5)
                pair = joined(following, (slow_actor.deterministic(following) + noise).clamp(-1, 1))
                next_q = torch.min(target1(pair), target2(pair)).view(-1)
                target = reward.flatten() + (1 - done.flatten()) * 0.99 * next_q
            pair = joined(observation, action)
            loss = nn.functional.mse_loss(q1(pair).view(-1), target)
            loss = loss + nn.functional.mse_loss(q2(pair).view(-1), target)
            q_optimizer.zero_grad()
            loss.backward()
            q_optimizer.step()
            if update % 2 == 0:
                actor_loss = -q1(joined(observation, actor.deterministic(observation))).mean()
                actor_optimizer.zero_grad()
                actor_loss.backward()
                actor_optimizer.step()
                for slow, fast in ((slow_actor, actor), (target1, q1), (target2, q2)):
                    follow(slow, fast, 0.005)

    return run


def ways(name: str) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """Return the recipe's trainer and the plain loop of an algorithm."""
    there = spaces(is_discrete=name == "dqn")
    kind, trainer, plain = {
        "dqn": (dqn.DQN, dqn.DQNTrainer, plain_dqn),
        "sac": (sac.SAC, sac.SACTrainer, plain_sac),
        "td3": (td3.TD3, td3.TD3Trainer, plain_td3),
    }[name]
    algorithm = kind.of("CartPole-v1" if name == "dqn" else "Pendulum-v1", **SETTINGS)
    return trained(algorithm, trainer, algorithm.policy(there, 0), there), plain()


def rate(run: Callable[[int], None], updates: int) -> float:
    """Return updates per second."""
    started = time.perf_counter()
    run(updates)
    return updates / (time.perf_counter() - started)


def benchmark(options: Namespace, report: Report) -> None:
    """Print a line for each algorithm."""
    torch.set_num_threads(1)
    for name in [options.only] if options.only else ["dqn", "sac", "td3"]:
        ours, plain = ways(name)
        rate(ours, 10), rate(plain, 10)
        sides = {
            "bray": lambda ours=ours: rate(ours, options.updates),
            "plain loop": lambda plain=plain: rate(plain, options.updates),
        }
        report.table(name, in_turns(sides, options.rounds), unit="updates/s", base="plain loop")


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--only", choices=("dqn", "sac", "td3")),
        argument("--updates", type=int, default=100, help="in a round, of each side"),
        rounds=9,
    )
