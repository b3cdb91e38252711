"""One optimiser step on the default perceptrons, beside CleanRL's loop and SB3's own `train`.

    uv run --with stable-baselines3==2.9.2 python -m benchmarks.micro.update [--only ppo]

No environment: each side trains on what it has stored. PPO: two perceptrons 64 x 64 with tanh, 512
steps a replay, ten epochs, minibatches of 128; the advantages are part of the update on each side.
Its second row of bray is the same network by the way that every other module takes, its third what
autograd needs for that module's forward and backward alone. DQN, SAC and TD3: 256 x 256 with ReLU,
batches of 256 (`off_policy` has the loops). CleanRL's loops (Huang et al. 2022) are written here
plainly; without Stable-Baselines3 its row is left out. One torch thread; all take turns, round by
round. Seconds are the process's own, so that its neighbours count less; medians of the rounds, and
of the ratios of each round.
"""

from __future__ import annotations

import importlib.util
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from benchmarks.harness import Report, argument, in_turns, main
from benchmarks.micro import off_policy
from torch import Tensor, nn

from bray.algorithms import ppo
from bray.policies.config import NetworkConfig
from bray.policies.networks import VectorPolicy
from bray.training.on_policy import segment_layout
from bray_core.layout import Packed
from bray_core.spaces import Spaces
from bray_model import Model, ModelConfig

STEPS, ENVS, EPOCHS, MINIBATCH, SIZE, CHOICES = 512, 16, 10, 128, 4, 2
A_REPLAY = EPOCHS * STEPS // MINIBATCH
Update = Callable[[int], None]
"""Takes so many optimiser steps, or the replays that make them up."""


# PPO.


def spaces() -> Spaces:
    """Return spaces as large as those of CartPole."""
    shown = {"observation": {"shape": [SIZE]}, "action": {"discrete": CHOICES}}
    return Spaces.parse("none", shown)


class Ready:
    """A buffer that has its replay already."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return it."""
        return self.packed


class Own(VectorPolicy):
    """The same network, by a class that bray knows nothing of."""


def seeded(policy: type[VectorPolicy]) -> VectorPolicy:
    """Return a policy for these spaces."""
    torch.manual_seed(0)
    return policy(spaces(), NetworkConfig())


def passes(module: nn.Module) -> Update:
    """Return what runs a module forward and backward alone: what no trainer of it can be below."""
    seen = torch.randn(MINIBATCH, SIZE)
    of_logits, of_value = torch.randn(MINIBATCH, CHOICES), torch.randn(MINIBATCH)

    def step() -> None:
        outputs = module(seen)
        module.zero_grad()
        torch.autograd.backward([outputs["logits"], outputs["value"]], [of_logits, of_value])

    return lambda steps: [step() for _ in range(steps)] and None


def trained_ppo(policy: type[VectorPolicy]) -> Update:
    """Return bray's trainer on a replay of noise, published after each."""
    layout = segment_layout(spaces(), STEPS // ENVS, 0)
    views = layout.views(block := layout.empty(ENVS))
    rng = np.random.default_rng(0)
    for name in ("observation", "final_observation", "reward", "value"):
        views[name][...] = rng.normal(size=views[name].shape)
    views["action"][...] = rng.integers(0, CHOICES, views["action"].shape)
    views["log_prob"][...] = -np.log(CHOICES)
    views["length"][...] = STEPS // ENVS
    module = seeded(policy)
    part = ppo.PPO.of("CartPole-v1", epochs=EPOCHS, minibatch_size=MINIBATCH).config
    model = Model(module, spaces().example, config=ModelConfig(max_batch_size=4, pad_to=(4,)))
    trainer = ppo.PPOTrainer(module, Ready(Packed(layout, block)), model=model, part=part, seed=0)
    return lambda steps: trainer.run(steps // A_REPLAY, checkpoint=False)


class Agent(nn.Module):
    """CleanRL's agent for vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.critic, self.actor = (
            nn.Sequential(
                nn.Linear(SIZE, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
            )
            for outputs in (1, CHOICES)
        )

    def judged(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log probability, entropy and value."""
        chances = torch.distributions.Categorical(logits=self.actor(observation))
        return chances.log_prob(action), chances.entropy(), self.critic(observation)


def plain_ppo() -> Update:
    """Return CleanRL's loop over epochs and minibatches, with its statistics."""
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
    length = STEPS // ENVS
    observation = torch.randn(length, ENVS, SIZE)
    action = torch.randint(0, CHOICES, (length, ENVS))
    log_prob = torch.full((length, ENVS), -float(np.log(CHOICES)))
    reward, value, done = torch.randn(3, length, ENVS)
    done = torch.zeros_like(done)

    def advantages() -> Tensor:
        with torch.no_grad():
            next_value = agent.critic(observation[-1]).reshape(1, -1)
            found, last = torch.zeros_like(reward), torch.zeros(ENVS)
            for t in reversed(range(length)):
                following = next_value if t == length - 1 else value[t + 1]
                delta = reward[t] + 0.99 * following * (1 - done[t]) - value[t]
                found[t] = last = delta + 0.99 * 0.95 * (1 - done[t]) * last
        return found

    def replay() -> None:
        advantage = advantages()
        returns = (advantage + value).reshape(-1)
        b_observation, b_action = observation.reshape(-1, SIZE), action.reshape(-1)
        b_log_prob, b_advantage = log_prob.reshape(-1), advantage.reshape(-1)
        b_value, index = value.reshape(-1), np.arange(STEPS)
        clip_fractions = []
        for _ in range(EPOCHS):
            np.random.shuffle(index)
            for start in range(0, STEPS, MINIBATCH):
                rows = index[start : start + MINIBATCH]
                new_log_prob, entropy, new_value = agent.judged(b_observation[rows], b_action[rows])
                log_ratio = new_log_prob - b_log_prob[rows]
                ratio = log_ratio.exp()
                with torch.no_grad():
                    (-log_ratio).mean()
                    ((ratio - 1) - log_ratio).mean()
                    clip_fractions += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
                chosen = b_advantage[rows]
                chosen = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
                first, second = -chosen * ratio, -chosen * torch.clamp(ratio, 0.8, 1.2)
                policy_loss = torch.max(first, second).mean()
                new_value = new_value.view(-1)
                unclipped = (new_value - returns[rows]) ** 2
                held = b_value[rows] + torch.clamp(new_value - b_value[rows], -0.2, 0.2)
                clipped = (held - returns[rows]) ** 2
                value_loss = 0.5 * torch.max(unclipped, clipped).mean()
                loss = policy_loss - 0.01 * entropy.mean() + value_loss * 0.5
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()

    return lambda steps: [replay() for _ in range(steps // A_REPLAY)] and None


# Stable-Baselines3.


def box(size: int) -> Any:
    """Return a space of so many numbers."""
    from gymnasium.spaces import Box

    return Box(-1.0, 1.0, (size,), np.float32)


def environment(name: str) -> Any:
    """Return an environment that is only there for its spaces."""
    import gymnasium
    from gymnasium.spaces import Discrete

    class Still(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = box(SIZE if name == "ppo" else off_policy.OBSERVATION)
        action_space = box(off_policy.ACTIONS)

    choices = {"ppo": CHOICES, "dqn": off_policy.ACTIONS}
    if name in choices:
        Still.action_space = Discrete(choices[name])
    return Still


def sb3_ppo() -> Update:
    """Return SB3's advantages and `PPO.train` over its full rollout buffer."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import DummyVecEnv

    length = STEPS // ENVS
    model = PPO(
        "MlpPolicy",
        DummyVecEnv([environment("ppo")] * ENVS),
        n_steps=length,
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        ent_coef=0.01,
        device="cpu",
    )
    model.set_logger(Logger(None, []))
    buffer = model.rollout_buffer
    for _ in range(length):
        buffer.add(
            np.random.randn(ENVS, SIZE),
            np.random.randint(0, CHOICES, (ENVS, 1)),
            np.random.randn(ENVS),
            np.zeros(ENVS),
            torch.randn(ENVS),
            torch.full((ENVS,), -float(np.log(CHOICES))),
        )
    first = {
        name: array.copy() for name, array in vars(buffer).items() if type(array) is np.ndarray
    }

    def replay() -> None:
        vars(buffer).update(first, generator_ready=False)
        buffer.compute_returns_and_advantage(torch.zeros(ENVS), np.zeros(ENVS))
        model.train()

    return lambda steps: [replay() for _ in range(steps // A_REPLAY)] and None


def sb3_off_policy(name: str) -> Update:
    """Return `train` of SB3's DQN, SAC or TD3 over its full replay."""
    import stable_baselines3
    from stable_baselines3.common.logger import Logger

    kind = getattr(stable_baselines3, name.upper())
    settings = {"batch_size": off_policy.BATCH, "buffer_size": off_policy.STORED}
    layers = {"net_arch": list(off_policy.HIDDEN)}
    made = environment(name)()
    model = kind("MlpPolicy", made, policy_kwargs=layers, device="cpu", **settings)
    model.set_logger(Logger(None, []))
    buffer = model.replay_buffer
    rng = np.random.default_rng(0)
    for array in (buffer.observations, buffer.next_observations, buffer.rewards, buffer.actions):
        draw = rng.random(array.shape)
        array[...] = draw * (off_policy.ACTIONS if array.dtype.kind == "i" else 1)
    buffer.full = True
    return lambda steps: model.train(steps, off_policy.BATCH)


# All.


def ways(name: str) -> dict[str, Update]:
    """Return what updates, by its row's name."""
    if name == "ppo":
        found = {
            "bray": trained_ppo(VectorPolicy),
            "bray, any other module": trained_ppo(Own),
            "that module alone": passes(seeded(Own)),
            "CleanRL's loop": plain_ppo(),
        }
    else:
        ours, plain = off_policy.ways(name)
        found = {"bray": ours, "CleanRL's loop": plain}
    if importlib.util.find_spec("stable_baselines3"):
        found["SB3's train"] = sb3_ppo() if name == "ppo" else sb3_off_policy(name)
    return found


def rate(update: Update, steps: int) -> float:
    """Return optimiser steps per second of the process."""
    started = time.process_time()
    update(steps)
    return steps / (time.process_time() - started)


def sides(name: str, steps: int) -> dict[str, Callable[[], float]]:
    """Return what measures each row's rate."""
    return {row: partial(rate, way, steps) for row, way in ways(name).items()}


def benchmark(options: Namespace, report: Report) -> None:
    """Print a table for each algorithm."""
    torch.set_num_threads(1)
    for name in [options.only] if options.only else ["ppo", "dqn", "sac", "td3"]:
        steps = options.steps if name == "ppo" else options.steps // 4
        found = in_turns(sides(name, steps), options.rounds, warm_up=1)
        report.table(name, found, unit="steps/s", base="CleanRL's loop")


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--only", choices=("ppo", "dqn", "sac", "td3")),
        argument(
            "--steps", type=int, default=160, help="of PPO in a round; of the others a quarter"
        ),
        rounds=9,
    )
