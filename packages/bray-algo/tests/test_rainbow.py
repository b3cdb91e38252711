"""Rainbow put together from its parts, on a chain whose best policy is known."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from bray_algo.losses import c51, dqn
from bray_algo.networks.noisy import NoisyLinear, redraw_noise_
from bray_algo.networks.polyak import polyak_
from bray_algo.returns import targets

STATES, ACTIONS, ATOMS, STEPS, GAMMA = 6, 2, 21, 3, 0.9


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(STATES, 32), nn.ReLU())
        self.value = NoisyLinear(32, ATOMS)
        self.advantage = NoisyLinear(32, ACTIONS * ATOMS)

    def forward(self, state: Tensor) -> Tensor:
        features = self.trunk(nn.functional.one_hot(state, STATES).float())
        advantage = self.advantage(features).view(-1, ACTIONS, ATOMS)
        return dqn.duelling(self.value(features), advantage)


def walks(rng: np.random.Generator, count: int) -> dict[str, Tensor]:
    """Random n-step transitions: left (0) costs 0.01 a step, the right end (1) pays 1 and ends."""
    rows = []
    for _ in range(count):
        state = start = int(rng.integers(STATES - 1))
        actions = rng.integers(0, ACTIONS, STEPS)
        total, over, taken = 0.0, False, 0
        for taken, action in enumerate(actions, 1):
            state = min(max(state + (1 if action else -1), 0), STATES - 1)
            over = state == STATES - 1
            total += GAMMA ** (taken - 1) * (1.0 if over else -0.01)
            if over:
                break
        rows.append((start, actions[0], total, over, state, taken))
    names = ("state", "action", "reward", "terminated", "next_state", "steps")
    return {
        name: torch.tensor(np.array(column))
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def test_rainbow_by_composition_finds_the_way() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    replay = walks(rng, 500)
    support = c51.atoms(-1, 1, ATOMS)
    online = Network()
    following = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=3e-3)
    priority = np.ones(500)
    for _ in range(250):
        chance = priority / priority.sum()
        key = rng.choice(500, 64, p=chance)
        b = {name: column[key] for name, column in replay.items()}
        weight = torch.tensor((500 * chance[key]) ** -0.5, dtype=torch.float32)
        redraw_noise_(online)
        redraw_noise_(following)
        with torch.no_grad():
            target = c51.target(
                following(b["next_state"]),
                b["reward"].float(),
                targets.discount(GAMMA, b["terminated"], b["steps"]),
                support,
                next_online_logits=online(b["next_state"]),
            )
        logits = online(b["state"])
        loss, _ = c51.loss(logits, b["action"], target, weight=weight / weight.max())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        polyak_(following, online, 0.05)
        priority[key] = c51.divergence(logits, b["action"], target).numpy() ** 0.5 + 1e-3
    q = c51.q_values(online.eval()(torch.arange(STATES - 1)), support)
    assert dqn.greedy(q).tolist() == [1] * (STATES - 1)
    assert abs(q[-1, 1].item() - 1) < 0.1  # the last step pays 1 for sure
