"""DQN: ε-greedy rollouts → replay → double Q-learning → the next policy version.

Mnih et al. 2015, "Human-level control through deep reinforcement learning"; van Hasselt et al.
2016, "Deep reinforcement learning with double Q-learning"; n-step and prioritised by setting, as
are duelling and noisy layers and distributions of returns: all of them are Rainbow (Hessel et al.
2018, "Rainbow: combining improvements in deep reinforcement learning"). With a memory it learns
from sequences (Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement
learning").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bray.policies.first_weights import begin_policy
from bray.policies.flattening import split_mask
from bray.policies.normalisation import ObservationNorm
from bray.policies.recurrent_values import RecurrentDQNPolicy
from bray.policies.trunks import make_network
from bray.policies.values import (
    QNetwork,
    QNetworkConfig,
    Returns,
    allowed_actions,
    masked,
    num_choices,
    votes,
)
from bray.sources import atari
from bray.training.algorithm import Parts, Takes
from bray.training.off_policy.epsilon_ladder import WorkerEpsilon, exponent
from bray.training.off_policy.perceptron_dqn import PerceptronDQN, fits
from bray.training.off_policy.replay_learning import (
    NStepConfig,
    OffPolicy,
    OffPolicyConfig,
    ReplaySettings,
)
from bray.training.off_policy.sequence_learning import as_segments, sequence_loss
from bray.training.off_policy.value_learning import value_loss
from bray.training.off_policy.value_trainer import ValueTrainer
from bray_actor.spaces import ATARI
from bray_algo import schedules
from bray_algo.losses import dqn
from bray_algo.networks.noisy import redraw_noise_
from bray_algo.networks.polyak import polyak_
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.nested import Nested
from bray_core.settings.ranges import Fraction, NonNegativeInt, PositiveInt
from bray_core.settings.schedule import ScheduledFraction, ScheduledPositiveFloat
from bray_core.spaces import Spaces
from bray_trainer import to_torch
from bray_trainer.sequences import valid_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class EpsilonGreedyConfig(NStepConfig):
    """How an agent explores by random actions, and how its steps become transitions."""

    n_step: PositiveInt = 3
    """Rewards summed before the bootstrap. More of them carry a reward back faster, and judge old
    actions by what an older policy did after them. 1 to 5."""
    epsilon: ScheduledFraction | None = None
    """ε itself, in place of its fall in a line: a number, or `{start, end, frames, shape}` by the
    frames of the trial. None: as the next two say."""
    epsilon_end: Fraction = 0.05
    """Share ε of random actions after `epsilon_steps`; before, it falls from 1 in a line. Too small
    and nothing new is tried; too large and long tasks always fail somewhere. 0.01 to 0.1. With
    `noisy` there is none."""
    epsilon_steps: PositiveInt = 5_000
    """Optimiser steps over which ε falls: about a tenth of a run."""
    epsilon_per_worker: bool = False
    """Whether worker i of N on Ray acts with ε^(1 + 7 i / (N - 1)) (Ape-X, Horgan et al. 2018):
    some explore much, others play nearly as well as they can, and what they see is varied. A local
    run has one worker, and so ε itself; gamecores are answered with ε, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrioritizedReplaySettings(ReplaySettings):
    """What a replay holds, and how it is drawn from."""

    prioritized: bool = False
    """Whether transitions are drawn by their error, so that surprising ones come more often."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DQNConfig(OffPolicyConfig):
    """DQN's hyperparameters."""

    batch_size: PositiveInt = 128
    """Transitions of one step of the optimiser. 32 to 1,024. With `memory_size` these are whole
    segments, `batch_size / steps_per_collect` of them, rounded down, at least one."""
    learning_rate: ScheduledPositiveFloat = 6.3e-4
    """Adam's step size. Too large and the values run away; too small and they creep. 1e-4 to
    3e-3."""
    variant: Literal["dqn", "rainbow"] = "dqn"
    """Which settings are the defaults of the others. `rainbow`, of Hessel et al. 2018: double,
    `dueling`, `noisy`, `distributional=c51`, `prioritized`, `n_step=3`; each may still be set."""
    double: bool = True
    """Whether the network chooses the action whose value the target network tells, so that noise is
    not taken for value; without, values are too high."""
    target_every: PositiveInt = 250
    """Optimiser steps between two copies to the target network. Too few and the target chases the
    network; too many and a reward takes long to travel back. 100 to 10,000."""
    burn_in: NonNegativeInt = 4
    """With `memory_size`: first steps of a segment that only bring its stored state up to date
    (Kapturowski et al. 2019), where it goes on from an earlier one; at least its last step is
    trained on. Too few and values are learnt of states that no network has any more; many are steps
    not learnt from. A quarter to a half of `steps_per_collect`."""


class DQNPolicy(nn.Module):
    """Acts by its network's action values: ε-greedily, or by noise of its last layers.

    ε and draws of the noise lie in the weights, so they are published with them.
    """

    epsilon: Tensor

    def __init__(self, spaces: Spaces, config: QNetworkConfig) -> None:
        super().__init__()
        self._space = spaces.observation
        self.normalize = ObservationNorm(spaces, config)
        num_actions = num_choices(spaces)
        self.is_noisy = config.noisy
        if config.is_plain:
            # Values begin near 0: a bootstrap from large random ones does not recover (CartPole).
            self.q = make_network(spaces, config, num_actions, nn.ReLU, output_gain=0.01)
        else:
            self.q = QNetwork(spaces, config, num_actions)
        self.returns = Returns(config)
        self.register_buffer("epsilon", torch.zeros(()) if config.noisy else torch.ones(()))

    def numbers(
        self, observation: Nested, levels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the network's numbers, and which actions are allowed if there is a mask.

        Args:
            observation: batch of observations.
            levels: levels of the quantiles `[B, K]`, of a network that takes some.
        """
        seen, mask = split_mask(self.normalize(observation), self._space)
        numbers: Tensor = self.q(seen) if levels is None else self.q(seen, levels)
        return numbers, allowed_actions(mask)

    def values(self, observation: Nested) -> Tensor:
        """Return the action values `[B, A]`; those of actions that are not allowed are least."""
        numbers, allowed = self.numbers(observation)
        return masked(self.returns(numbers), allowed)

    def forward(self, observation: Nested) -> dict[str, Tensor]:
        """Map observations to `logits [B, A]` and `value [B]`."""
        seen, mask = split_mask(self.normalize(observation), self._space)
        allowed = allowed_actions(mask)
        if self.is_noisy:
            numbers, drawn = self.q.with_draws(seen)  # type: ignore[operator]
            q = masked(self.returns(numbers), allowed)
            drawn = self.returns(drawn)
            if allowed is not None:
                drawn = masked(drawn, allowed.unsqueeze(1).expand_as(drawn))
            logits = votes(drawn, q)
        else:
            q = masked(self.returns(self.q(seen)), allowed)
            logits = dqn.epsilon_greedy(q, self.epsilon)
        return {"logits": masked(logits, allowed), "value": q.amax(-1)}

    def redraw_noise(self) -> None:
        """Draw the noise anew by which the policy acts, if it has some."""
        if isinstance(self.q, QNetwork):
            self.q.head.redraw()


def make_policy(
    spaces: Spaces, config: QNetworkConfig, seed: int
) -> DQNPolicy | RecurrentDQNPolicy:
    """Make the policy, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        is_recurrent = bool(config.memory_size)
        policy = RecurrentDQNPolicy(spaces, config) if is_recurrent else DQNPolicy(spaces, config)
    begin_policy(policy, config.begin_from)
    return policy


class DQNTrainer(ValueTrainer):
    """One replay is one batch of transitions, or of segments with a memory, is one step."""

    settings: DQNConfig

    def __init__(self, spaces: Spaces, parts: Parts, *args: Any, **kwargs: Any) -> None:
        super().__init__(spaces, parts, *args, **kwargs)
        is_own = type(self).loss is DQNTrainer.loss and type(self.module) is DQNPolicy
        is_by_hand = is_own and fits(self.module, parts.model)
        self._by_hand = (
            PerceptronDQN(self.module, self.target, self.optimizer) if is_by_hand else None
        )

    @classmethod
    def networks(cls, spaces: Spaces, parts: Parts, seed: int) -> dict[str, nn.Module]:
        """Make the policy, the same for the same seed."""
        return {"policy": make_policy(spaces, parts.model, seed)}

    def handle(self, replay: Packed) -> Iterator[dict[str, Tensor]]:
        """Yield the batch; before it, what depends on the number of steps."""
        if self.steps % self.settings.target_every == 0:
            polyak_(self.target, self.module, tau=1.0)
        if self.parts.model.noisy:
            redraw_noise_(self.module)  # of the loss, for both networks apart
            redraw_noise_(self.target)
            if (self.replays + 1) % self.settings.replays_per_collect == 0:  # then it is published
                self.module.redraw_noise()
        else:
            self.module.epsilon.fill_(self._epsilon())
        has_memory = bool(self.parts.model.memory_size)
        batch = as_segments(replay, self.device) if has_memory else to_torch(replay, self.device)
        self.see(batch, valid_steps(batch) if has_memory else None)
        self.scale_reward(batch)
        yield batch

    def _epsilon(self) -> float:
        """Return the share of random actions at this point of the trial."""
        agent = self.parts.agent
        if agent.epsilon is not None:
            return self.now(agent.epsilon)
        end, num_steps = agent.epsilon_end, agent.epsilon_steps
        return schedules.linear(self.steps, start=1.0, end=end, num_steps=num_steps)

    def loss(self, batch: dict[str, Tensor], step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss towards the target of Q-learning, of means or distributions."""
        networks, double = (self.module, self.target), self.settings.double
        if self.parts.model.memory_size:
            loss, terms, priority = sequence_loss(
                *networks,
                batch,
                double=double,
                burn_in=self.settings.burn_in,
                n_step=self.parts.agent.n_step,
                gamma=self.settings.gamma,
            )
        else:
            loss, terms, priority = value_loss(*networks, batch, self.parts.model, double=double)
        self._update_priorities(batch, priority)
        return loss, terms

    def gradients(
        self, batch: dict[str, Tensor], step: int
    ) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Return the same by hand for the default perceptron, with all gradients."""
        if self._by_hand is None:
            return None
        found = self._by_hand(batch, double=self.settings.double)
        if found is None:
            return None
        loss, terms, priority = found
        self._update_priorities(batch, priority)
        return loss, terms

    def _update_priorities(self, batch: dict[str, Tensor], priority: Tensor) -> None:
        if "weight" in batch:  # of a replay that draws by priority
            rows = batch["key"].cpu().numpy(), priority.cpu().numpy()
            self.replay.update_priorities(*rows)


_GAMES = {
    "model.hidden": (512,),
    "source.num_envs": 8,
    "agent.epsilon_end": 0.01,
    "agent.epsilon_steps": 62_500,
    "buffer.warmup_frames": 20_000,
    "trainer.batch_size": 32,
    "trainer.learning_rate": 1e-4,
    "trainer.steps_per_collect": 8,
    "trainer.replays_per_collect": 16,
    "trainer.target_every": 2_000,
}
"""One step of the optimiser for four decisions, a copy of the network for 8,000 of them."""
_RAINBOW = {
    "agent.n_step": 3,
    "buffer.prioritized": True,
    "model.distributional": "c51",
    "model.dueling": True,
    "model.noisy": True,
}
_RAINBOW_OF_GAMES = {"trainer.learning_rate": 6.25e-5}
_RAINBOW_OF_OTHERS = {
    "model.value_rescaling": True,
    "model.value_min": -20.0,
    "model.value_max": 20.0,
}
"""Returns of ±420 are within the transformed range."""


class DQN(OffPolicy[DQNConfig]):
    """Acts ε-greedily, keeps what it saw, and learns the value of each action."""

    title = "DQN"
    takes: ClassVar[Takes] = Takes(memory=True, gamecores=True)
    configs: ClassVar[dict[str, type[Any]]] = {
        **OffPolicy.configs,
        "model": QNetworkConfig,
        "agent": EpsilonGreedyConfig,
        "buffer": PrioritizedReplaySettings,
        "trainer": DQNConfig,
    }
    trainer = DQNTrainer

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return a larger network than a policy needs, as values are harder to fit, and Atari's."""
        if not task.startswith(ATARI):
            return {"model.hidden": (256, 256), "source.num_envs": 8}
        return {
            **_GAMES,
            "buffer.capacity": atari.capacity(),
            "trainer.device": atari.device(),
        }

    @classmethod
    def variant_defaults(cls, variant: str, task: str) -> Mapping[str, Any]:
        """Return Rainbow's settings; returns of other tasks than Atari's are not clipped."""
        if variant != "rainbow":
            return {}
        return {**_RAINBOW, **(_RAINBOW_OF_GAMES if task.startswith(ATARI) else _RAINBOW_OF_OTHERS)}

    @property
    def is_prioritized(self) -> bool:  # type: ignore[override]
        """Whether transitions are drawn by their error."""
        return bool(self.parts.buffer.prioritized)

    def check(self) -> None:
        """Refuse two ways to explore at once."""
        super().check()
        if self.parts.agent.epsilon_per_worker and self.parts.model.noisy:
            raise ConfigError(
                "agent.epsilon_per_worker: a noisy network explores without ε: set noisy or "
                "epsilon_per_worker to false"
            )

    def acting_model(self, model: Any, worker: int) -> Any:
        """Return the model with the worker's own ε, if each has one."""
        if not self.parts.agent.epsilon_per_worker:
            return model
        return WorkerEpsilon(model, exponent(worker, self.parts.actor.num_workers))

    def policy(self, spaces: Spaces, seed: int) -> DQNPolicy | RecurrentDQNPolicy:
        """Return the policy, the same for the same seed."""
        return make_policy(spaces, self.parts.model, seed)
