"""QMIX, VDN and independent Q-learning: joint transitions → replay → a mixed value → next version.

Rashid et al. 2018, "QMIX: monotonic value function factorisation for deep multi-agent reinforcement
learning"; Sunehag et al. 2018, "Value-decomposition networks for cooperative multi-agent learning";
Tan 1993, "Multi-agent reinforcement learning: independent vs. cooperative agents". Agents share one
network, which knows by a one-hot which of them it answers for; each acts by what it sees alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bray.goal import Goal, Outcome
from bray.policies.config import LayersConfig
from bray.run import Run
from bray.sources.cooperative_tasks import TeamSourceConfig, make_teams
from bray.training.algorithm import Parts, Takes
from bray.training.device import DeviceConfig
from bray.training.loop import Turn
from bray.training.off_policy.target import KeepsTarget, make_target
from bray.training.off_policy.value_trainer import value_trainer_config
from bray.training.on_policy import segment_layout
from bray.training.schedules.scheduled_trainer import FollowsSchedules, ReplayClock
from bray.training.team_learning import learn
from bray.training.team_policy import TeamPolicy, TeamShape
from bray_actor.runners.team_environments import TeamEnvironment
from bray_actor.runners.teams import TeamSizes
from bray_algo import mlp, schedules
from bray_algo.losses import dqn, qmix
from bray_algo.networks import mixers
from bray_algo.networks.polyak import polyak_
from bray_algo.returns import targets
from bray_buffer import BufferConfig, ReplayConfig
from bray_core.errors import ConfigError
from bray_core.layout import Layout, Packed
from bray_core.protocols import ModelProtocol
from bray_core.settings.ranges import (
    Fraction,
    PositiveInt,
    check_fields,
)
from bray_core.settings.schedule import ScheduledFraction, ScheduledPositiveFloat
from bray_core.spaces import Spaces
from bray_trainer import Trainer, to_torch


@dataclass(frozen=True, kw_only=True, slots=True)
class MixingConfig(LayersConfig):
    """The network of the agents, and how their values become the team's."""

    mixing: Literal["qmix", "vdn", "independent"] = "qmix"
    """How the agents' values become the team's: `qmix` mixes them by the state, `vdn` adds them up,
    with `independent` each learns as if it were alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplorationConfig:
    """How the agents explore by random actions."""

    epsilon: ScheduledFraction | None = None
    """ε itself, in place of its fall in a line: a number, or `{start, end, frames, shape}` by the
    frames of the trial. None: as the next two say."""
    epsilon_end: Fraction = 0.05
    """Share ε of random actions after `epsilon_steps`; before, it falls from 1 in a line. 0.01 to
    0.1."""
    epsilon_steps: PositiveInt = 5_000
    """Optimiser steps over which ε falls: about a tenth of a run."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class JointReplaySettings:
    """What the replay of joint transitions holds."""

    capacity: PositiveInt = 50_000
    """Joint transitions that the replay holds, the newest ones."""
    warmup_frames: PositiveInt = 1_000
    """Joint transitions played before the first training."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.warmup_frames > self.capacity:
            raise ConfigError(
                f"warmup_frames: expected at most the capacity={self.capacity}, "
                f"got {self.warmup_frames}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class QMIXConfig(DeviceConfig):
    """QMIX's hyperparameters."""

    learning_rate: ScheduledPositiveFloat = 1e-3
    """Adam's step size. Too large and the values run away; too small and they creep. 1e-4 to
    1e-3."""
    gamma: Fraction = 0.99
    """Discount per step: about 1 / (1 - γ) steps are looked ahead."""
    batch_size: PositiveInt = 128
    """Joint transitions of one step of the optimiser. 32 to 512."""
    target_every: PositiveInt = 100
    """Optimiser steps between two copies to the target networks. Too few and the target chases the
    network; too many and a reward takes long to travel back."""
    steps_per_collect: PositiveInt = 16
    """Steps of each team between two trainings."""
    replays_per_collect: PositiveInt = 32
    """Optimiser steps after these."""

    def __post_init__(self) -> None:
        check_fields(self)


class QMIXPolicy(nn.Module):
    """Each agent acts ε-greedily by its own values; ε lies in the weights, so it is published."""

    epsilon: Tensor

    def __init__(self, teams: TeamSizes, hidden: tuple[int, ...]) -> None:
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

    def __init__(self, teams: TeamSizes, mixing: str) -> None:
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


def networks(teams: TeamSizes, config: MixingConfig, seed: int) -> dict[str, nn.Module]:
    """Make policy and mixer, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {"policy": QMIXPolicy(teams, config.hidden), "mixer": Mixer(teams, config.mixing)}


class QMixTrainer(KeepsTarget, FollowsSchedules, Trainer):
    """One replay is one batch of joint transitions is one step; the policy alone is published."""

    def __init__(
        self,
        modules: dict[str, nn.Module],
        parts: Parts,
        seed: int,
        model: ModelProtocol,
        buffer: Any,
        directory: Path | None = None,
    ) -> None:
        config: QMIXConfig = parts.trainer
        self.settings, self.exploration = config, parts.agent
        self.target = make_target(nn.ModuleDict(modules))
        models, trainer = {"policy": model}, value_trainer_config(config, seed)
        super().__init__(modules, buffer, model=models, config=trainer, directory=directory)
        self.target.to(self.device)

    def handle(self, replay: Packed) -> Iterator[dict[str, Any]]:
        """Yield the batch; before it, what depends on the number of steps."""
        if self.steps % self.settings.target_every == 0:
            polyak_(self.target, self.module, tau=1.0)
        self.module["policy"].epsilon.fill_(self._epsilon())
        yield to_torch(replay, self.device)

    def _epsilon(self) -> float:
        """Return the share of random actions at this point of the trial."""
        explores = self.exploration
        if explores.epsilon is not None:
            return self.now(explores.epsilon)
        end, num_steps = explores.epsilon_end, explores.epsilon_steps
        return schedules.linear(self.steps, start=1.0, end=end, num_steps=num_steps)

    def loss(self, batch: dict[str, Any], step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared error of the mixed value towards double Q-learning's target."""
        policy, mixer = self.module["policy"], self.module["mixer"]
        now, following = batch["observation"], batch["next_observation"]
        mixed = mixer(qmix.chosen(policy(now)["q"], batch["action"]), now["state"])
        with torch.no_grad():
            best = qmix.greedy(policy(following)["q"])
            next_q = qmix.chosen(self.target["policy"](following)["q"], best)
            next_mixed = self.target["mixer"](next_q, following["state"])
            reward = batch["reward"][:, None].expand_as(mixed)
            discount = batch["discount"][:, None].expand_as(mixed)
            target = targets.bootstrap(reward, discount, next_mixed)
        return qmix.joint_loss(mixed.flatten(), target.flatten())


class QMIX(TeamPolicy[QMIXConfig]):
    """Agents act by values of their own, which learn from the value of the team."""

    title = "QMIX"
    example = "two-step"
    pacing = "ratio"
    rows = "team"
    takes = Takes(plays="teams")
    serves = "function"
    configs: ClassVar[dict[str, type[Any]]] = {
        "model": MixingConfig,
        "source": TeamSourceConfig,
        "agent": ExplorationConfig,
        "buffer": JointReplaySettings,
        "trainer": QMIXConfig,
    }

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return fewer teams than agents that learn alone have: a joint step is worth several."""
        return {"source.num_envs": 8}

    @property
    def replay(self) -> ReplayConfig:
        """The replay's settings; on Ray it keeps playing and training in their proportion."""
        config, buffer = self.config, self.parts.buffer
        draws = config.replays_per_collect * config.batch_size
        return ReplayConfig(
            capacity=buffer.capacity,
            batch_size=config.batch_size,
            min_size=buffer.warmup_frames,
            unit="transition",
            gamma=config.gamma,
            samples_per_insert=draws / (self.parts.source.num_envs * config.steps_per_collect),
            error_margin=4 * draws,
        )

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Train a team; see `Algorithm`. Frames are steps of a team."""
        config, source = self.config, self.parts.source
        with closing(make_teams(source, source.num_envs)) as teams:
            modules = networks(teams, self.parts.model, seed)
        return learn(
            run,
            f"{self.parts.model.mixing} on {source.environment}",
            lambda count: TeamEnvironment(make_teams(source, count)),
            modules["policy"],
            partial(QMixTrainer, modules, self.parts, seed),
            self.buffer(is_local=run.is_local),
            self._turn(),
            by="q",
            num_envs=source.num_envs,
            num_workers=self.parts.actor.num_workers,
            lockstep=False,
            goal=goal,
            seed=seed,
            settings=config,
        )

    def _turn(self) -> Turn:
        config = self.config
        return Turn(
            steps=config.steps_per_collect,
            replays=config.replays_per_collect,
            warmup_frames=self.parts.buffer.warmup_frames,
        )

    # Beside other policies: each row is a team, as alone.

    def policy(self, spaces: Spaces, seed: int) -> nn.Module:
        """Return the policy to begin with."""
        return networks(TeamShape.of(spaces), self.parts.model, seed)["policy"]

    def layout(self, spaces: Spaces, state_size: int) -> Layout:
        """Return the layout of a segment."""
        return segment_layout(spaces, self.config.steps_per_collect, state_size)

    def buffer(self, *, is_local: bool) -> ReplayConfig:
        """Return the replay's settings; a local run takes turns."""
        if not is_local:
            return self.replay
        return replace(self.replay, samples_per_insert=None, error_margin=None)

    def trainer_factory(self, spaces: Spaces, module: nn.Module, **parts: Any) -> Any:
        """Return what makes the trainer."""
        mixer = networks(TeamShape.of(spaces), self.parts.model, parts["seed"])["mixer"]
        return partial(QMixTrainer, {"policy": module, "mixer": mixer}, self.parts, **parts)

    def turn(self, buffer: Any) -> Turn:
        """Return the turns of a local run; what was restored is not played again."""
        return self._turn().after(int(buffer.stats()["queued"]))

    def clock(self, holds: BufferConfig | ReplayConfig, num_ranks: int) -> ReplayClock:
        """Return the recorded steps by the trainer's replays."""
        frames = self.parts.source.num_envs * self.config.steps_per_collect
        return ReplayClock(
            frames_per_replay=frames / self.config.replays_per_collect,
            warmup_frames=self.parts.buffer.warmup_frames,
        )
