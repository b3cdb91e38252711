"""PPO as one plain loop over torch, in the manner of CleanRL's single files. One JSON line.

CleanRL's recipe for Atari: 128 steps, 4 minibatches, 4 epochs, Adam at 2.5e-4 falling to nothing
over 10 M frames, clipping at 0.1 of policy and value. The games are ALE's C++ vector, on 2 threads.
"""

from __future__ import annotations

import numpy as np
import torch
from atari_games import Games
from atari_run import Run
from torch import nn
from torch.distributions import Categorical

NUM_ENVS = 8
NUM_STEPS = 128
NUM_MINIBATCHES = 4
LEARNING_RATE = 2.5e-4
TOTAL_FRAMES = 10_000_000
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.1
ENTROPY, VALUE, MAX_NORM = 0.01, 0.5, 0.5


def orthogonal(layer: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """Return the layer with orthogonal weights and no bias to begin with."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """The Nature CNN with a policy and a value on top."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            orthogonal(nn.Conv2d(4, 32, 8, 4)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, 2)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, 1)),
            nn.ReLU(),
            nn.Flatten(),
            orthogonal(nn.Linear(3136, 512)),
            nn.ReLU(),
        )
        self.policy = orthogonal(nn.Linear(512, num_actions), 0.01)
        self.value = orthogonal(nn.Linear(512, 1), 1)

    def forward(self, observations: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        """Return the policy `[B, A]` and the values `[B]` of uint8 `[B, 4, 84, 84]`."""
        hidden = self.trunk(observations / 255.0)
        return Categorical(logits=self.policy(hidden)), self.value(hidden).squeeze(-1)


run = Run("cleanrl", torch.__version__, "PPO", epochs=4)
np.random.seed(run.seed)
torch.manual_seed(run.seed)
games = Games(run.game, NUM_ENVS, num_threads=2, seed=run.seed)
agent = Agent(games.num_actions)
optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)

observations = torch.zeros((NUM_STEPS, NUM_ENVS, 4, 84, 84), dtype=torch.uint8)
actions = torch.zeros((NUM_STEPS, NUM_ENVS), dtype=torch.int64)
log_probs, rewards, ends, values = torch.zeros((4, NUM_STEPS, NUM_ENVS))
batch_size = NUM_STEPS * NUM_ENVS
minibatch_size = batch_size // NUM_MINIBATCHES
frames = trained = 0
observation = torch.from_numpy(games.reset())

over = False
while not over:
    optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(1 - frames / TOTAL_FRAMES, 0.0)
    with torch.no_grad():
        for step in range(NUM_STEPS):
            observations[step] = observation
            policy, values[step] = agent(observation)
            actions[step] = policy.sample()
            log_probs[step] = policy.log_prob(actions[step])
            played = games.step(actions[step].numpy())
            observation, rewards[step], ends[step] = map(torch.from_numpy, played[:3])
            run.episodes(played[3])
        frames += batch_size

        advantages = torch.zeros_like(rewards)
        next_value, later = agent(observation)[1], torch.zeros(NUM_ENVS)
        for step in reversed(range(NUM_STEPS)):
            goes_on = 1 - ends[step]
            error = rewards[step] + GAMMA * next_value * goes_on - values[step]
            later = advantages[step] = error + GAMMA * LAMBDA * goes_on * later
            next_value = values[step]
        returns = (advantages + values).flatten()

    for _ in range(run.epochs):
        for index in torch.randperm(batch_size).split(minibatch_size):
            policy, value = agent(observations.flatten(0, 1)[index])
            old_value, target = values.flatten()[index], returns[index]
            advantage = advantages.flatten()[index]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            log_prob = policy.log_prob(actions.flatten()[index])
            ratio = (log_prob - log_probs.flatten()[index]).exp()
            surrogate = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            near = old_value + (value - old_value).clamp(-CLIP, CLIP)
            value_loss = torch.max((value - target) ** 2, (near - target) ** 2).mean() / 2
            entropy = policy.entropy().mean()
            loss = -surrogate.mean() + VALUE * value_loss - ENTROPY * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_NORM)
            optimizer.step()
            trained += len(index)
    over = run.updated(frames, trained)

run.finish(
    num_envs=NUM_ENVS,
    num_steps=NUM_STEPS,
    batch=minibatch_size,
    threads=torch.get_num_threads(),
    games="ale_py.vector_env, 2 threads",
)
