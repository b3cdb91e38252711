"""QMIX, VDN and independent Q-learning: joint transitions → replay → a mixed value → next version.

Rashid et al. 2018, "QMIX: monotonic value function factorisation for deep multi-agent reinforcement
learning"; Sunehag et al. 2018, "Value-decomposition networks for cooperative multi-agent learning";
Tan 1993, "Multi-agent reinforcement learning: independent vs. cooperative agents". Agents share one
network, which knows by a one-hot which of them it answers for; each acts by what it sees alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from bray.checks import fraction, positive
from bray.cooperative_tasks import make_teams
from bray.evaluation import frozen
from bray.learning import Learning, Outcome, Pace
from bray.run import Run
from bray.team_evaluation import evaluate_teams
from bray.template import GoalPart
from bray_actor import Runner, segment_spec
from bray_actor.spaces import spec_of
from bray_actor.team_environments import TeamEnvironment
from bray_actor.teams import Teams
from bray_algo import dqn, mixers, mlp, schedules, targets
from bray_algo.polyak import polyak_
from bray_buffer import ReplayConfig
from bray_core.errors import ConfigError
from bray_core.layout import Layout, Packed
from bray_core.protocols import Model
from bray_model import ModelConfig
from bray_trainer import Trainer, TrainerConfig, to_torch

Mixing = Literal["qmix", "vdn", "independent"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Of the algorithm and of what plays for it."""

    mixing: Mixing = "qmix"
    """How the agents' values become the team's; `independent`: each learns from the team's reward
    as if it were alone."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of the agents' hidden layers."""
    mixing_units: int = 32
    """Of QMIX's mixing layer."""
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
        if self.mixing not in get_args(Mixing):
            raise ConfigError(f"mixing: expected qmix, vdn or independent, got {self.mixing!r}")
        fraction(gamma=self.gamma, epsilon_end=self.epsilon_end)
        positive(
            mixing_units=self.mixing_units,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
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
        frames = self.num_envs * self.steps_per_collect
        rate = self.replays_per_collect * self.batch_size / frames
        return ReplayConfig(
            capacity=self.capacity,
            batch_size=self.batch_size,
            min_size=self.warmup_frames,
            unit="transition",
            gamma=self.gamma,
            samples_per_insert=rate,
            error_margin=4 * rate * frames,
        )


class Policy(nn.Module):
    """Each agent acts ε-greedily by its own values; ε lies in the weights, so it is published."""

    epsilon: Tensor

    def __init__(self, teams: Teams, hidden: tuple[int, ...]) -> None:
        super().__init__()
        sizes = [teams.observation_size + teams.num_agents, *hidden, teams.num_actions]
        # Agents that begin in the wrong order can get stuck: no weight may turn their order round.
        self.q = mlp(sizes, nn.ReLU, output_gain=0.01)
        self.register_buffer("epsilon", torch.ones(()))

    def values(self, agents: Tensor) -> Tensor:
        """Map what the agents see, `[B, M, D]`, to their values `[B, M, A]`."""
        who = torch.eye(agents.shape[1]).expand(len(agents), -1, -1)
        values: Tensor = self.q(torch.cat([agents, who], -1))
        return values

    def forward(self, observation: dict[str, Tensor]) -> dict[str, Any]:
        """Map `{"agents": [B, M, D], …}` to `logits`, M times `[B, A]`, `value [B]` and `q`."""
        q = self.values(observation["agents"])
        logits = dqn.epsilon_greedy(q, self.epsilon)
        return {"logits": list(logits.unbind(1)), "value": q.amax(-1).sum(-1), "q": q}


class Joint(nn.Module):
    """The agents and their mixer; the policy alone is published."""

    def __init__(self, teams: Teams, config: Config, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.policy = Policy(teams, config.hidden)
            sizes = teams.num_agents, teams.state_size, config.mixing_units
            self.mixer = mixers.QMix(*sizes) if config.mixing == "qmix" else None
        self.mixing = config.mixing

    def mixed(self, chosen: Tensor, state: Tensor) -> Tensor:
        """Map agents' values `[B, M]` to what is learnt: one column, or M of independent agents."""
        if self.mixer is not None:
            value: Tensor = self.mixer(chosen, state)
            return value.unsqueeze(1)
        return mixers.vdn(chosen).unsqueeze(1) if self.mixing == "vdn" else chosen


class QMixTrainer(Trainer):
    """One replay is one batch of joint transitions is one step."""

    def __init__(
        self,
        joint: Joint,
        config: Config,
        seed: int,
        model: Model,
        buffer: Any,
        directory: Path | None = None,
    ) -> None:
        self.settings = config
        self.joint, self.target = joint, copy.deepcopy(joint).requires_grad_(False)
        trainer = TrainerConfig(
            learning_rate=config.learning_rate,
            max_grad_norm=10.0,
            prefetch=0,
            publish_every=config.replays_per_collect,
            checkpoint_every=10_000,
            seed=seed,
        )
        modules: dict[str, nn.Module] = {"policy": joint.policy}
        if joint.mixer is not None:
            modules["mixer"] = joint.mixer
        super().__init__(
            modules, buffer, model={"policy": model}, config=trainer, directory=directory
        )

    def handle(self, replay: Packed) -> Iterator[dict[str, Any]]:
        """Yield the batch; before it, what depends on the number of steps."""
        if self.steps % self.settings.target_every == 0:
            polyak_(self.target, self.joint, tau=1.0)
        self.joint.policy.epsilon.fill_(
            schedules.linear(
                self.steps,
                start=1.0,
                end=self.settings.epsilon_end,
                num_steps=self.settings.epsilon_steps,
            )
        )
        yield to_torch(replay, self.device)

    def loss(self, batch: dict[str, Any], step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared error of the mixed value towards double Q-learning's target."""
        now, following = batch["observation"], batch["next_observation"]
        q = mixers.chosen(self.joint.policy.values(now["agents"]), batch["action"])
        mixed = self.joint.mixed(q, now["state"])
        with torch.no_grad():
            best = mixers.greedy(self.joint.policy.values(following["agents"]))
            next_q = mixers.chosen(self.target.policy.values(following["agents"]), best)
            next_mixed = self.target.mixed(next_q, following["state"])
            reward, discount = (
                batch[name][:, None].expand_as(mixed) for name in ("reward", "discount")
            )
            target = targets.bootstrap(reward, discount, next_mixed)
        return mixers.joint_loss(mixed.flatten(), target.flatten())

    def state_dict(self) -> dict[str, Any]:
        """Return the target networks."""
        return {"target": self.target.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.target.load_state_dict(state["target"])


def train(
    run: Run, task: str, config: Config | None = None, *, goal: GoalPart, seed: int = 1
) -> Outcome:
    """Train until the goal is reached or its frames (steps of a team) are used up.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint and its replay.
        task: see `bray.cooperative_tasks.make_teams`.
        config: of the algorithm.
        goal: the evaluation's return, and when to give up.
        seed: of networks, task and draws.
    """
    config = config or Config()
    n = config.num_envs
    environment = TeamEnvironment(make_teams(task, n))
    joint = Joint(environment.teams, config, seed)
    example, _ = environment.reset(seed=seed)
    model = run.model("policy", joint.policy, example, ModelConfig(max_batch_size=n, pad_to=(n,)))
    observation = spec_of(environment.single_observation_space)
    action = spec_of(environment.single_action_space)
    layout = Layout(segment_spec(observation, action, config.steps_per_collect))
    buffer = run.buffer("replay", layout, config.replay)
    return Learning(
        run,
        f"{config.mixing} on {task}",
        model=model,
        trainer=run.trainer(
            "qmix",
            partial(QMixTrainer, joint, config, seed, model, buffer, run.experiment.checkpoints),
        ),
        rollouts=run.rollouts(
            "rollouts",
            lambda worker: Runner(
                TeamEnvironment(make_teams(task, n)), model, buffer, seed=seed + 1000 * worker
            ),
            steps=config.steps_per_collect,
            num_workers=config.num_workers,
        ),
        pace=Pace(
            steps=config.steps_per_collect,
            replays=config.replays_per_collect,
            warmup_frames=config.warmup_frames,
        ),
        goal=goal,
        evaluate=lambda: evaluate_teams(
            frozen(model, joint.policy, example),
            TeamEnvironment,
            task,
            goal.evaluation_episodes,
            by="q",
            seed=seed + 1_000_000,
        ),
    ).until_goal()
