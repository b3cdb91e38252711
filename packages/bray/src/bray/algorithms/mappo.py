"""MAPPO: agents share a policy of what each sees itself; the critic, in training, sees the state.

Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games". On-policy
and in lockstep, with normalised values (§5.1). `critic=own` is independent PPO (de Witt et al.
2020, "Is independent learning all you need in the StarCraft multi-agent challenge?").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bray.checks import fraction, layers, not_negative, positive
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.sources.cooperative_tasks import make_teams
from bray.training.generator import KeepsGenerator
from bray.training.learning import Pace
from bray.training.play_gap import PlayGap
from bray.training.team_learning import learn
from bray_actor.runners.team_environments import AgentEnvironment
from bray_actor.runners.teams import Teams
from bray_algo import gae, mlp
from bray_algo.columns import standardised
from bray_algo.distributions import categorical
from bray_algo.losses import mappo
from bray_algo.networks.normalisation import RunningNorm
from bray_buffer import BufferConfig
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.protocols import ModelProtocol
from bray_trainer import Trainer, TrainerConfig
from bray_trainer.sequences import (
    IS_CURRENT,
    Batch,
    final_value,
    select_steps,
    time_major,
    valid_steps,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Of the algorithm and of what plays for it."""

    critic: Literal["state", "own"] = "state"
    """What the value function sees: the whole state, or what the agent sees itself."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of the hidden layers of policy and value function."""
    learning_rate: float = 7e-4
    """Adam's."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation."""
    epochs: int = 10
    """Passes over each replay."""
    minibatches: int = 2
    """Parts of each pass, one optimiser step each."""
    clip: float = 0.2
    """How far the policy may gain by leaving the one that played."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""
    num_envs: int = 16
    """Teams side by side, of one worker."""
    num_workers: int = 1
    """That play, on Ray."""
    steps_per_replay: int = 50
    """Steps of each team that one policy version plays."""

    def __post_init__(self) -> None:
        if self.critic not in ("state", "own"):
            raise ConfigError(f"critic: expected state or own, got {self.critic!r}")
        layers(hidden=self.hidden)
        fraction(gamma=self.gamma, gae_lambda=self.gae_lambda)
        not_negative(entropy_coefficient=self.entropy_coefficient)
        positive(
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            minibatches=self.minibatches,
            clip=self.clip,
            num_envs=self.num_envs,
            num_workers=self.num_workers,
            steps_per_replay=self.steps_per_replay,
        )


class MAPPOPolicy(nn.Module):
    """The agents' policy, and the value function with the scale that its targets have."""

    def __init__(self, teams: Teams, config: Config) -> None:
        super().__init__()
        self.sees = config.critic
        self.num_agents = teams.num_agents
        sizes = {"own": teams.observation_size, "state": teams.state_size}
        own, seen = (sizes[name] + teams.num_agents for name in ("own", config.critic))
        self.actor = mlp([own, *config.hidden, teams.num_actions], output_gain=0.01)
        self.critic = mlp([seen, *config.hidden, 1])
        self.scale = RunningNorm(())

    def parts(self, observation: Batch) -> tuple[Tensor, Tensor]:
        """Return logits `[B, A]`, and values `[B]` as the critic is trained, normalised."""
        who = nn.functional.one_hot(observation["agent"], self.num_agents).float()
        value = self.critic(torch.cat([observation[self.sees].float(), who], -1)).squeeze(-1)
        return self.actor(torch.cat([observation["own"].float(), who], -1)), value

    def forward(self, observation: Batch) -> dict[str, Tensor]:
        """Map `{"agent": [B], "own": [B, D], "state": [B, S]}` to `logits` and `value [B]`."""
        logits, value = self.parts(observation)
        return {"logits": logits, "value": self.scale.denormalise(value)}


def policy(teams: Teams, config: Config, seed: int) -> MAPPOPolicy:
    """Make the policy, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MAPPOPolicy(teams, config)


class MAPPOTrainer(KeepsGenerator, Trainer):
    """One replay is what one version played; `epochs` passes in minibatches over it."""

    def __init__(
        self,
        module: MAPPOPolicy,
        config: Config,
        seed: int,
        model: ModelProtocol,
        buffer: Any,
        directory: Path | None = None,
    ) -> None:
        self.settings = config
        self.gap = PlayGap()
        self.generator = torch.Generator().manual_seed(seed)
        trainer = TrainerConfig(
            learning_rate=config.learning_rate,
            max_grad_norm=0.5,
            checkpoint_every=500,
            seed=seed,
        )
        super().__init__(module, buffer, model=model, config=trainer, directory=directory)

    def handle(self, replay: Packed) -> Iterator[Batch]:
        """Yield shuffled minibatches of a replay's steps, its advantages computed once."""
        steps = self._steps(replay)
        self.module.scale.update(steps["return"])
        count = len(steps["return"])
        for _ in range(self.settings.epochs):
            order = torch.randperm(count, generator=self.generator)
            for index in order.tensor_split(min(self.settings.minibatches, count)):
                yield select_steps(steps, index)

    def _steps(self, replay: Packed) -> Batch:
        """Return the valid steps of all agents, flat `[N, …]`, with `advantage` and `return`."""
        segments = time_major(replay, self.device)
        self.gap.begin(segments, self.policy_version)
        with torch.no_grad():
            final = final_value(self.module, segments)
        advantage = gae(
            segments["reward"],
            segments["value"],
            final,
            segments["terminated"],
            segments["length"],
            gamma=self.settings.gamma,
            lambda_=self.settings.gae_lambda,
        )
        steps = {name: segments[name] for name in ("observation", "action", "log_prob")}
        steps |= {"advantage": advantage, "return": advantage + segments["value"]}
        steps |= {name: segments[name] for name in (IS_CURRENT,) if name in segments}
        return select_steps(steps, valid_steps(segments))

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return MAPPO's loss; each row is one agent, whose value is its own."""
        logits, value = self.module.parts(batch["observation"])
        log_prob, entropy = categorical.log_prob_and_entropy(logits, batch["action"])
        columns = (
            self.gap.see(log_prob, batch),
            entropy,
            value,
            batch["log_prob"],
            standardised(batch["advantage"]),
            self.module.scale(batch["return"]),
        )
        return mappo.loss(
            *(column.unsqueeze(1) for column in columns),
            clip=self.settings.clip,
            entropy_coefficient=self.settings.entropy_coefficient,
        )


def train(
    run: Run, task: str, config: Config | None = None, *, goal: Goal, seed: int = 1
) -> Outcome:
    """Train until the goal is reached or its frames (steps of an agent) are used up.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint.
        task: see `bray.sources.cooperative_tasks.make_teams`.
        config: of the algorithm.
        goal: the evaluation's return, and when to give up.
        seed: of network, task and draws.
    """
    config = config or Config()
    num_workers = 1 if run.is_local else config.num_workers
    with closing(make_teams(task, config.num_envs)) as teams:
        module = policy(teams, config, seed)
        rows = num_workers * config.num_envs * teams.num_agents
    steps = rows * config.steps_per_replay
    return learn(
        run,
        f"MAPPO on {task}, critic of {config.critic}",
        lambda count: AgentEnvironment(make_teams(task, count)),
        module,
        partial(MAPPOTrainer, module, config, seed),
        BufferConfig(batch_steps=steps, capacity=steps, when_full="block"),
        Pace(steps=config.steps_per_replay),
        by="logits",
        num_envs=config.num_envs,
        num_workers=num_workers,
        lockstep=True,
        goal=goal,
        seed=seed,
    )
