"""QMIX, VDN and independent Q-learning: joint transitions → replay → a mixed value → next version.

Rashid et al. 2018, "QMIX: monotonic value function factorisation for deep multi-agent reinforcement
learning"; Sunehag et al. 2018, "Value-decomposition networks for cooperative multi-agent learning";
Tan 1993, "Multi-agent reinforcement learning: independent vs. cooperative agents". Agents share one
network, which knows by a one-hot which of them it answers for; each acts by what it sees alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bray.checks import fraction, layers, positive
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.sources.cooperative_tasks import make_teams
from bray.training.learning import Pace
from bray.training.team_learning import learn
from bray_actor.runners.team_environments import TeamEnvironment
from bray_actor.runners.teams import Teams
from bray_algo import mlp, schedules
from bray_algo.losses import dqn
from bray_algo.networks import mixers
from bray_algo.polyak import polyak_
from bray_algo.returns import targets
from bray_buffer import ReplayConfig
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.protocols import ModelProtocol
from bray_trainer import Trainer, TrainerConfig, to_torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Of the algorithm and of what plays for it."""

    mixing: Literal["qmix", "vdn", "independent"] = "qmix"
    """How the agents' values become the team's; `independent`: each learns as if it were alone."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of the agents' hidden layers."""
    learning_rate: float = 1e-3
    """Adam's."""
    gamma: float = 0.99
    """Discount per step."""
    batch_size: int = 128
    """Joint transitions of one step of the optimiser."""
    capacity: int = 50_000
    """Joint transitions that the replay holds."""
    warmup_frames: int = 1_000
    """Played before the first training."""
    target_every: int = 100
    """Optimiser steps between two copies to the target networks."""
    epsilon_end: float = 0.05
    """Share of random actions after `epsilon_steps`; before, it falls from 1 in a line."""
    epsilon_steps: int = 5_000
    """Optimiser steps."""
    num_envs: int = 8
    """Teams side by side, of one worker."""
    num_workers: int = 1
    """That play, on Ray."""
    steps_per_collect: int = 16
    """Steps of all teams between two trainings."""
    replays_per_collect: int = 32
    """Optimiser steps after these."""

    def __post_init__(self) -> None:
        if self.mixing not in ("qmix", "vdn", "independent"):
            raise ConfigError(f"mixing: expected qmix, vdn or independent, got {self.mixing!r}")
        layers(hidden=self.hidden)
        fraction(gamma=self.gamma, epsilon_end=self.epsilon_end)
        positive(
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            capacity=self.capacity,
            warmup_frames=self.warmup_frames,
            target_every=self.target_every,
            epsilon_steps=self.epsilon_steps,
            num_envs=self.num_envs,
            num_workers=self.num_workers,
            steps_per_collect=self.steps_per_collect,
            replays_per_collect=self.replays_per_collect,
        )

    @property
    def replay(self) -> ReplayConfig:
        """The replay's settings; on Ray it keeps playing and training in their proportion."""
        draws = self.replays_per_collect * self.batch_size
        return ReplayConfig(
            capacity=self.capacity,
            batch_size=self.batch_size,
            min_size=self.warmup_frames,
            unit="transition",
            gamma=self.gamma,
            samples_per_insert=draws / (self.num_envs * self.steps_per_collect),
            error_margin=4 * draws,
        )


class QMIXPolicy(nn.Module):
    """Each agent acts ε-greedily by its own values; ε lies in the weights, so it is published."""

    epsilon: Tensor

    def __init__(self, teams: Teams, hidden: tuple[int, ...]) -> None:
        super().__init__()
        sizes = [teams.observation_size + teams.num_agents, *hidden, teams.num_actions]
        # Agents that begin in the wrong order can get stuck: no weight may turn their order round.
        self.q = mlp(sizes, nn.ReLU, output_gain=0.01)
        self.register_buffer("epsilon", torch.ones(()))

    def forward(self, observation: dict[str, Tensor]) -> dict[str, Any]:
        """Map `{"agents": [B, M, D], …}` to `q [B, M, A]`, `logits`, M of `[B, A]`, `value [B]`."""
        agents = observation["agents"].float()
        # Not `len(agents)`, which an export would take for a constant.
        who = torch.eye(agents.shape[1], device=agents.device).expand(agents.shape[0], -1, -1)
        q = self.q(torch.cat([agents, who], -1))
        logits = dqn.epsilon_greedy(q, self.epsilon)
        return {"q": q, "logits": list(logits.unbind(1)), "value": q.amax(-1).sum(-1)}


class Mixer(nn.Module):
    """Turns the agents' values into what is learnt: one number, or one of each agent alone."""

    def __init__(self, teams: Teams, mixing: str) -> None:
        super().__init__()
        self.mixing = mixing
        if mixing == "qmix":
            self.qmix = mixers.QMix(teams.num_agents, teams.state_size)

    def forward(self, chosen: Tensor, state: Tensor) -> Tensor:
        """Map values `[B, M]` and states `[B, S]` to `[B, 1]`, or `[B, M]` of the independent."""
        if self.mixing == "independent":
            return chosen
        mixed = self.qmix(chosen, state.float()) if self.mixing == "qmix" else mixers.vdn(chosen)
        return mixed.unsqueeze(1)


def networks(teams: Teams, config: Config, seed: int) -> dict[str, nn.Module]:
    """Make policy and mixer, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {"policy": QMIXPolicy(teams, config.hidden), "mixer": Mixer(teams, config.mixing)}


class QMixTrainer(Trainer):
    """One replay is one batch of joint transitions is one step; the policy alone is published."""

    def __init__(
        self,
        modules: dict[str, nn.Module],
        config: Config,
        seed: int,
        model: ModelProtocol,
        buffer: Any,
        directory: Path | None = None,
    ) -> None:
        self.settings = config
        self.target = copy.deepcopy(nn.ModuleDict(modules)).requires_grad_(False)
        trainer = TrainerConfig(
            learning_rate=config.learning_rate,
            max_grad_norm=10.0,
            prefetch=0,
            publish_every=config.replays_per_collect,
            checkpoint_every=10_000,
            seed=seed,
        )
        models = {"policy": model}
        super().__init__(modules, buffer, model=models, config=trainer, directory=directory)

    def handle(self, replay: Packed) -> Iterator[dict[str, Any]]:
        """Yield the batch; before it, what depends on the number of steps."""
        if self.steps % self.settings.target_every == 0:
            polyak_(self.target, self.module, tau=1.0)
        end, num_steps = self.settings.epsilon_end, self.settings.epsilon_steps
        epsilon = schedules.linear(self.steps, start=1.0, end=end, num_steps=num_steps)
        self.module["policy"].epsilon.fill_(epsilon)
        yield to_torch(replay, self.device)

    def loss(self, batch: dict[str, Any], step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared error of the mixed value towards double Q-learning's target."""
        policy, mixer = self.module["policy"], self.module["mixer"]
        now, following = batch["observation"], batch["next_observation"]
        mixed = mixer(mixers.chosen(policy(now)["q"], batch["action"]), now["state"])
        with torch.no_grad():
            best = mixers.greedy(policy(following)["q"])
            next_q = mixers.chosen(self.target["policy"](following)["q"], best)
            next_mixed = self.target["mixer"](next_q, following["state"])
            reward = batch["reward"][:, None].expand_as(mixed)
            discount = batch["discount"][:, None].expand_as(mixed)
            target = targets.bootstrap(reward, discount, next_mixed)
        return mixers.joint_loss(mixed.flatten(), target.flatten())

    def state_dict(self) -> dict[str, Any]:
        """Return the target networks."""
        return {"target": self.target.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.target.load_state_dict(state["target"])


def train(
    run: Run, task: str, config: Config | None = None, *, goal: Goal, seed: int = 1
) -> Outcome:
    """Train until the goal is reached or its frames (steps of a team) are used up.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint and its replay.
        task: see `bray.sources.cooperative_tasks.make_teams`.
        config: of the algorithm.
        goal: the evaluation's return, and when to give up.
        seed: of networks, task and draws.
    """
    config = config or Config()
    with closing(make_teams(task, config.num_envs)) as teams:
        modules = networks(teams, config, seed)
    return learn(
        run,
        f"{config.mixing} on {task}",
        lambda count: TeamEnvironment(make_teams(task, count)),
        modules["policy"],
        partial(QMixTrainer, modules, config, seed),
        config.replay,
        Pace(
            steps=config.steps_per_collect,
            replays=config.replays_per_collect,
            warmup_frames=config.warmup_frames,
        ),
        by="q",
        num_envs=config.num_envs,
        num_workers=config.num_workers,
        lockstep=False,
        goal=goal,
        seed=seed,
    )
