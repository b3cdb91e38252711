"""ES: candidates around the parameters → their returns → a step of the parameters, no gradient.

Salimans et al. 2017, "Evolution strategies as a scalable alternative to reinforcement learning".
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from bray.goal import Goal, Outcome
from bray.policies.config import TrunkConfig
from bray.policies.first_weights import begin_policy
from bray.policies.flattening import split_mask
from bray.policies.heads import ActionHead
from bray.policies.many_weights import ManyWeights, check_many_weights
from bray.policies.networks import example_inputs
from bray.policies.normalisation import ObservationNorm, find_norm
from bray.policies.trunks import make_network
from bray.run import Run
from bray.sources.environments import make_environments, read_spaces
from bray.training.algorithm import Algorithm, Takes
from bray.training.combination import check_combination
from bray.training.deploy import keep_spaces
from bray.training.evaluation import evaluate_latest
from bray.training.loop import Loop, Turn
from bray_actor import Played
from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.spaces import to_arrays
from bray_algo.evolution import EvolutionStrategy, Key, candidate, pair_seed
from bray_algo.networks.normalisation import Moments, merge
from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.files.saved_file import check_format, write_atomic
from bray_core.nested import Nested
from bray_core.settings.ranges import NonNegativeFloat, PositiveFloat, Range, check_fields
from bray_core.settings.schedule import ScheduledPositiveFloat, value_at
from bray_core.spaces import Spaces
from bray_model import ModelConfig

_FORMAT = 1
"""Format number of a checkpoint; format 0 is the same without the number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ESConfig:
    """The hyperparameters of evolution strategies.

    Candidates are compared by rank, so the scale of rewards does not matter. Where observations are
    normalised, all candidates of a generation share the statistics of the generations before.
    """

    population: Annotated[int, Range(minimum=2, multiple_of=2)] = 64
    """Candidates of a generation, of which each plays one episode. More of them make a steadier
    step and cost more episodes. 16 to 1,000."""
    sigma: PositiveFloat = 0.1
    """Standard deviation of the noise on the parameters. Too small and all candidates do the same;
    too large and none does anything sensible. 0.02 to 0.2."""
    learning_rate: ScheduledPositiveFloat = 0.05
    """Adam's step size. 0.01 to 0.1."""
    weight_decay: NonNegativeFloat = 0.005
    """Pull of the parameters to 0, without which they grow until the noise says nothing."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateSourceConfig(EnvironmentSpec):
    """What the candidates play: each an episode, in an environment of its own."""


class ESPolicy(nn.Module):
    """A network from an observation to what says the action."""

    def __init__(self, spaces: Spaces, config: TrunkConfig) -> None:
        super().__init__()
        self._space = spaces.observation
        self.normalize = ObservationNorm(spaces, config)
        self.actions = ActionHead(spaces)
        if self.actions.num_reals:  # not searched: candidates take the mean
            log_std = self.actions.log_std.detach()
            del self.actions.log_std
            self.actions.register_buffer("log_std", log_std)
        # Small outputs: noise on the parameters changes what is done.
        self.body = make_network(spaces, config, self.actions.num_numbers, output_gain=0.01)

    def forward(self, observation: Nested) -> dict[str, Any]:
        """Map observations, leaves `[B, *shape]`, to the action's outputs."""
        seen, mask = split_mask(self.normalize(observation), self._space)
        outputs: dict[str, Any] = self.actions(self.body(seen), mask)
        return outputs


def policy(spaces: Spaces, config: TrunkConfig, seed: int) -> ESPolicy:
    """Make the policy, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = ESPolicy(spaces, config)
    begin_policy(made, config.begin_from)
    return made


class CandidatePlayer:
    """Plays candidates side by side, each in an environment of its own, in batched forwards.

    Args:
        environment: how an environment is made.
        module: the policy; its own parameters do not matter.
        count: candidates that play together.
        sigma: standard deviation of the noise.
    """

    def __init__(
        self, environment: EnvironmentSpec, module: ESPolicy, count: int, sigma: float
    ) -> None:
        self._envs = make_environments(EnvironmentSpec.of(environment).with_limit(), count)
        self._shapes = {name: leaf.shape for name, leaf in module.named_parameters()}
        self._sigma = sigma
        self._norm = module.normalize
        self._space = self._envs.single_observation_space
        self._actions = ActionVector(read_spaces(environment).action)
        self._forward = ManyWeights(module)

    def play(
        self, parameters: Any, key: Key, first: int, norm: Mapping[str, Tensor] | None = None
    ) -> tuple[list[float], int, list[Moments]]:
        """Play an episode with each candidate from number `first` on; those of a pair begin alike.

        Args:
            parameters: θ, `[D]`.
            key: key of the generation's noise.
            first: number of the first candidate, even.
            norm: state of the observations' statistics, which all candidates share; None leaves
                them as they are.

        Returns:
            The returns, the steps of all episodes together, and the statistics of what was seen in
            them, of each leaf that is normalised.
        """
        if norm is not None:
            self._norm.load_state_dict(norm)
        found: list[Moments] = []
        numbers = range(first, first + self._envs.num_envs)
        theta = torch.from_numpy(parameters)
        rows = [candidate(theta, key, number, sigma=self._sigma) for number in numbers]
        weights = self._unflatten(torch.stack(rows))
        seeds = [int(pair_seed(key, number // 2).generate_state(1)[0]) for number in numbers]
        observation, _ = self._envs.reset(seed=seeds)
        returns, lengths = np.zeros(len(numbers)), np.zeros(len(numbers), np.int64)
        is_going = np.ones(len(numbers), bool)
        while is_going.any():
            with torch.no_grad():
                seen = nested.map(torch.from_numpy, to_arrays(self._space, observation))
                more = self._norm.moments_of(seen, torch.from_numpy(is_going))
                found = [*map(merge, found, more)] if found else more
                drawn = self._forward(weights, seen).numpy()
            action = self._actions.assemble(drawn, from_start=True)
            observation, reward, terminated, truncated, _ = self._envs.step(action)
            returns += is_going * reward
            lengths += is_going
            is_going &= ~(terminated | truncated)
        return returns.tolist(), int(lengths.sum()), found

    def _unflatten(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the leaves `[P, …]` of parameters `[P, D]`."""
        leaves = torch.split(rows, [shape.numel() for shape in self._shapes.values()], 1)
        pairs = zip(self._shapes.items(), leaves, strict=True)
        return {name: leaf.view(-1, *shape) for (name, shape), leaf in pairs}

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()


class Evolution:
    """Generations as `Loop` drives them: it is the source and the trainer in one.

    Args:
        run: an existing trial goes on with the generation after its last one.
        module: its parameters are those at the start; it takes those of each generation.
        model: where they are published.
        workers: pool of `CandidatePlayer`s.
        config: settings of the algorithm.
        seed: seed of the noise and the environments.
    """

    def __init__(
        self, run: Run, module: ESPolicy, model: Any, workers: Any, config: ESConfig, seed: int
    ) -> None:
        self._module = module
        self._model = model
        self._workers = workers
        self._learning_rate = config.learning_rate
        self._frames = 0
        """Environment steps of the trial's generations, earlier launches included."""
        self._file = run.experiment.checkpoints / "evolution.pt"
        self._strategy = EvolutionStrategy(
            parameters=nn.utils.parameters_to_vector(module.parameters()),
            population=config.population,
            sigma=config.sigma,
            learning_rate=value_at(config.learning_rate, 0),
            weight_decay=config.weight_decay,
            seed=seed,
        )
        if self._file.exists():
            state = torch.load(self._file, weights_only=True)
            check_format(self._file, state, _FORMAT)
            self._module.normalize.load_state_dict(state.pop("normalize", {}))
            self._frames = state.pop("frames", 0)
            self._strategy.load_state_dict(state)
            self._publish()
        self._fitness: list[float] = []
        self._generation_frames = 0
        self._seen: list[list[Moments]] = []
        self._played = Played(0, [])
        self._figures: dict[str, float] = {}

    def collect(self, steps: int) -> None:
        """Play a generation, shared out to the workers."""
        parameters, key = self._strategy.parameters.numpy(), self._strategy.key
        share = self._strategy.population // self._workers.size
        firsts = range(0, self._strategy.population, share)
        norm = {name: leaf.clone() for name, leaf in self._module.normalize.state_dict().items()}
        parts = self._workers.map("play", [(parameters, key, first, norm) for first in firsts])
        self._fitness = [value for returns, _, _ in parts for value in returns]
        self._seen = [seen for _, _, seen in parts]
        frames = self._generation_frames = sum(frames for _, frames, _ in parts)
        self._played = Played(self._played.frames + frames, self._played.returns + self._fitness)

    def run(self, replays: int, checkpoint: bool = True) -> None:
        """Take the step that its returns call for, publish, and write a checkpoint: it is small."""
        if replays:
            self._strategy.learning_rate = value_at(self._learning_rate, self._frames)
            self._frames += self._generation_frames
            self._figures = self._strategy.tell(torch.tensor(self._fitness))
            for seen in self._seen:  # in the order of the candidates, not of the workers' answers
                self._module.normalize.train().update_with(seen)
            self._publish()
        content = io.BytesIO()
        state = {"format": _FORMAT, "frames": self._frames, **self._strategy.state_dict()}
        if find_norm(self._module) is not None:
            state["normalize"] = self._module.normalize.state_dict()
        torch.save(state, content)
        write_atomic(self._file, content.getvalue())

    def _publish(self) -> None:
        nn.utils.vector_to_parameters(self._strategy.parameters, self._module.parameters())
        self._model.publish({k: v.numpy().copy() for k, v in self._module.state_dict().items()})

    def start(self) -> None:
        """On Ray too it is driven by `wait`."""

    def wait(self, timeout_s: float) -> bool:
        """Play a generation and take its step."""
        self.collect(1)
        self.run(1)
        return False

    def stop(self) -> None:
        """Do nothing: each generation has written its checkpoint."""

    def close(self) -> None:
        """Do nothing: the run closes the workers."""

    def poll(self) -> Played:
        """Return what was played since the last call."""
        played, self._played = self._played, Played(0, [])
        return played

    def progress(self) -> dict[str, float]:
        """Return the figures of the last generation."""
        return {**self._figures, "version": self._model.version}


class ES(Algorithm[ESConfig]):
    """A generation of candidates plays; the parameters follow those that did well."""

    title = "ES"
    pacing = "population"
    takes = Takes(actions=("discrete", "multi_discrete", "box", "mixed"))
    configs: ClassVar[dict[str, type[Any]]] = {
        "model": TrunkConfig,
        "source": CandidateSourceConfig,
        "trainer": ESConfig,
    }

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return a small network: noise searches few parameters better than many."""
        return {"model.hidden": (16,)}

    def check(self) -> None:
        """Refuse a population that workers cannot share out in pairs."""
        population, workers = self.config.population, self.parts.actor.num_workers
        if population % (2 * workers):
            raise ConfigError(
                f"trainer.population: expected a multiple of 2 x num_workers={2 * workers}, of "
                f"pairs for each worker, got {population}"
            )

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Play and learn generation by generation; see `Algorithm`."""
        config, task = self.config, self.parts.source.located()
        num_workers = 1 if run.is_local else self.parts.actor.num_workers
        spaces = read_spaces(task)
        check_combination(self, spaces)
        keep_spaces(run, spaces)
        module = policy(spaces, self.parts.model, seed)
        check_many_weights(module, spaces, self.parts.model)
        model = run.model(
            "policy", module, example_inputs(spaces, 0), ModelConfig(max_batch_size=1)
        )
        share = config.population // num_workers
        workers = run.workers(
            "players",
            partial(CandidatePlayer, task, module, share, config.sigma),
            num_workers=num_workers,
        )
        evolution = Evolution(run, module, model, workers, config, seed)
        return Loop(
            run,
            f"ES on {task}",
            model=model,
            trainer=evolution,
            source=evolution,
            turn=Turn(steps=1),
            goal=goal,
            evaluate=partial(evaluate_latest, model, module, spaces, task, goal, seed=seed),
        ).until_goal()
