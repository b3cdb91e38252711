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
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bray.goal import Goal, Outcome
from bray.policies.config import LayersConfig
from bray.run import Run
from bray.sources.cooperative_tasks import TeamSourceConfig, make_teams
from bray.training.algorithm import Takes
from bray.training.device import DeviceConfig
from bray.training.generator import KeepsGenerator
from bray.training.loop import Turn
from bray.training.minibatches import shuffled_order
from bray.training.on_policy import segment_layout
from bray.training.play_gap import PlayGap
from bray.training.schedules.scheduled_trainer import FollowsSchedules, ReplayClock
from bray.training.team_learning import learn
from bray.training.team_policy import TeamPolicy, TeamShape
from bray_actor.runners.team_environments import AgentEnvironment
from bray_actor.runners.teams import TeamSizes
from bray_algo import gae, mlp
from bray_algo.distributions import categorical
from bray_algo.losses import mappo
from bray_algo.losses.reductions import standardised
from bray_algo.networks.normalisation import RunningNorm
from bray_buffer import BufferConfig, ReplayConfig
from bray_core.layout import Layout, Packed
from bray_core.protocols import ModelProtocol
from bray_core.settings.ranges import (
    Fraction,
    PositiveInt,
    check_fields,
)
from bray_core.settings.schedule import ScheduledNonNegativeFloat, ScheduledPositiveFloat, value_at
from bray_core.spaces import Spaces
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
class CentralCriticConfig(LayersConfig):
    """The networks of policy and value function."""

    critic: Literal["state", "own"] = "state"
    """What the value function sees: the whole state, or what the agent sees itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MAPPOConfig(DeviceConfig):
    """MAPPO's hyperparameters."""

    learning_rate: ScheduledPositiveFloat = 7e-4
    """Adam's step size. Too large and the return collapses now and then; too small and it creeps.
    1e-4 to 1e-3."""
    gamma: Fraction = 0.99
    """Discount per step: about 1 / (1 - γ) steps are looked ahead."""
    gae_lambda: Fraction = 0.95
    """λ of generalised advantage estimation. 0 trusts the value function alone (biased while it is
    wrong), 1 the returns alone (noisy). 0.9 to 0.99."""
    epochs: PositiveInt = 10
    """Passes over each replay. Agents change together, so fewer are steadier in hard tasks: 5 to
    15."""
    minibatches: PositiveInt = 2
    """Parts of each pass, one optimiser step each. 1 or 2, as the paper found."""
    clip: ScheduledPositiveFloat = 0.2
    """Clip range ε of the probability ratio. Larger steps learn faster and collapse sooner. 0.05 to
    0.2."""
    entropy_coefficient: ScheduledNonNegativeFloat = 0.01
    """Weight of the entropy bonus. Too small and the policy settles before it has tried much; too
    large and it stays random. 0 to 0.05."""
    steps_per_replay: PositiveInt = 50
    """Steps of each team that one policy version plays."""

    def __post_init__(self) -> None:
        check_fields(self)


class MAPPOPolicy(nn.Module):
    """The agents' policy, and the value function with the scale that its targets have."""

    def __init__(self, teams: TeamSizes, config: CentralCriticConfig) -> None:
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


def policy(teams: TeamSizes, config: CentralCriticConfig, seed: int) -> MAPPOPolicy:
    """Make the policy, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MAPPOPolicy(teams, config)


class MAPPOTrainer(KeepsGenerator, FollowsSchedules, Trainer):
    """One replay is what one version played; `epochs` passes in minibatches over it."""

    def __init__(
        self,
        module: MAPPOPolicy,
        config: MAPPOConfig,
        seed: int,
        model: ModelProtocol,
        buffer: Any,
        directory: Path | None = None,
    ) -> None:
        self.settings = config
        self.gap = PlayGap()
        self.generator = torch.Generator().manual_seed(seed)
        trainer = TrainerConfig(
            learning_rate=value_at(config.learning_rate, 0),
            max_grad_norm=0.5,
            checkpoint_every=500,
            device=config.device,
            seed=seed,
        )
        super().__init__(module, buffer, model=model, config=trainer, directory=directory)

    def handle(self, replay: Packed) -> Iterator[Batch]:
        """Yield shuffled minibatches of a replay's steps, its advantages computed once."""
        steps = self._steps(replay)
        self.module.scale.update(steps["return"])
        count = len(steps["return"])
        for _ in range(self.settings.epochs):
            order = shuffled_order(count, self.generator, self.device)
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
            clip=self.now(self.settings.clip),
            entropy_coefficient=self.now(self.settings.entropy_coefficient),
        )


_LONGEST_SEGMENT = 32
"""Steps of a segment at most, where a team plays beside other policies."""


class MAPPO(TeamPolicy[MAPPOConfig]):
    """Agents share a policy; the critic sees the whole state while they train."""

    title = "MAPPO"
    example = "two-step"
    pacing = "lockstep"
    rows = "member"
    takes = Takes(plays="teams")
    serves = "function"
    configs: ClassVar[dict[str, type[Any]]] = {
        "model": CentralCriticConfig,
        "source": TeamSourceConfig,
        "trainer": MAPPOConfig,
    }

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Train a team; see `Algorithm`. Frames are steps of an agent."""
        config, source = self.config, self.parts.source
        num_envs = source.num_envs
        num_workers = 1 if run.is_local else self.parts.actor.num_workers
        with closing(make_teams(source, num_envs)) as teams:
            module = policy(teams, self.parts.model, seed)
            rows = num_workers * num_envs * teams.num_agents
        steps = rows * config.steps_per_replay
        return learn(
            run,
            f"MAPPO on {source.environment}, critic of {self.parts.model.critic}",
            lambda count: AgentEnvironment(make_teams(source, count)),
            module,
            partial(MAPPOTrainer, module, config, seed),
            BufferConfig(batch_steps=steps, capacity=steps, when_full="block"),
            Turn(steps=config.steps_per_replay),
            by="logits",
            num_envs=num_envs,
            num_workers=num_workers,
            lockstep=True,
            goal=goal,
            seed=seed,
            settings=config,
        )

    # Beside other policies: each row is one agent, as alone.

    def policy(self, spaces: Spaces, seed: int) -> nn.Module:
        """Return the policy to begin with."""
        return policy(TeamShape.of(spaces), self.parts.model, seed)

    def layout(self, spaces: Spaces, state_size: int) -> Layout:
        """Return the layout of a segment."""
        length = min(self.config.steps_per_replay, _LONGEST_SEGMENT)
        return segment_layout(spaces, length, state_size)

    @property
    def steps_per_version(self) -> int:
        """Steps of all agents that one version plays, of one worker or of all of them."""
        rows = self.parts.source.num_envs * self.parts.actor.num_workers * self.num_agents
        return int(rows * self.config.steps_per_replay)

    def buffer(self, *, is_local: bool) -> BufferConfig:
        """Return the queue's settings: it holds all, be each segment one step."""
        steps = self.steps_per_version
        return BufferConfig(batch_steps=steps, capacity=steps, when_full="block")

    def trainer_factory(self, spaces: Spaces, module: nn.Module, **parts: Any) -> Any:
        """Return what makes the trainer."""
        assert isinstance(module, MAPPOPolicy), "`policy` made it"
        return partial(MAPPOTrainer, module, self.config, **parts)

    def turn(self, buffer: Any) -> Turn:
        """Return the turns of a local run: a replay is played, then trained on."""
        return Turn(steps=self.config.steps_per_replay * self.num_agents)

    def clock(self, holds: BufferConfig | ReplayConfig, num_ranks: int) -> ReplayClock:
        """Return the recorded steps by the trainer's replays."""
        return ReplayClock(frames_per_replay=self.steps_per_version)
