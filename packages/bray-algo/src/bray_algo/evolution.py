"""Evolution strategies over flat parameters `[D]`: pure functions, and an ask/tell object.

Salimans et al. 2017, "Evolution strategies as a scalable alternative to reinforcement learning".
P candidates of a generation are P/2 pairs θ ± σ ε, and θ moves along the noise of those that did
well: no gradient of the policy is needed. A worker needs no candidate sent, only its number:
`candidate(parameters, key, index, sigma=…)` makes the same one anywhere.
"""

from __future__ import annotations

import copy
import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bray_algo.precision import wide
from bray_algo.validation.scalars import check_count, check_not_negative, check_positive
from bray_algo.validation.tensors import (
    check_floats,
    check_numbers,
    check_rank,
    check_shape,
)
from bray_algo.validation.values import check_finite

Key = Sequence[int]
"""Key of the noise, such as (seed, generation): whole numbers from 0, of any size."""

_WORD = 2**32


def pair_seed(key: Key, pair: int) -> np.random.SeedSequence:
    """Return the seed of a pair's noise: different keys and pairs give different ones.

    numpy splits numbers into words of 32 bits and puts them in a row, in which (2³², 0) and (0, 1)
    are the same, as are rows of zeros of any length. So only a key of two words with a pair of one
    is taken as it is; all others are hashed.

    Raises:
        ValueError: a number is not whole, or negative.
    """
    numbers = [*key, pair]
    for number in numbers:
        check_count("key, pair", number, 0)
    numbers = [operator.index(number) for number in numbers]
    if len(numbers) == 3 and max(numbers) < _WORD:
        return np.random.SeedSequence(numbers)
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return np.random.SeedSequence(int.from_bytes(digest, "little"))


def perturbation(key: Key, pair: int, size: int) -> Tensor:
    """Return ε of one pair, `[D]`, standard normal: the same for the same key and pair.

    Raises:
        ValueError: `pair_seed` refuses the key, or the size is not positive.
    """
    check_count("size", size)
    rng = np.random.default_rng(pair_seed(key, pair))
    return torch.from_numpy(rng.standard_normal(size, dtype=np.float32))


def candidate(parameters: Tensor, key: Key, index: int, *, sigma: float) -> Tensor:
    """Return θ + σ ε for even indices and θ − σ ε for odd ones, `[D]` (antithetic, §2.1).

    Raises:
        ValueError: `perturbation` refuses the key, or σ is not positive.
    """
    check_rank("parameters", parameters, "D")
    check_floats("parameters", parameters)
    check_positive("sigma", sigma)
    check_count("index", index, 0)
    noise = perturbation(key, index // 2, len(parameters)).to(parameters)
    return parameters + (sigma if index % 2 == 0 else -sigma) * noise


def centred_ranks(fitness: Tensor) -> Tensor:
    """Return fitness `[P]` as ranks from −½ (worst) to ½ (best) (§2.1, after Wierstra et al. 2014).

    Equal fitness gets equal ranks, the mean of theirs. NaN counts as worst.

    Raises:
        ValueError: fewer than two.
    """
    check_numbers("fitness", fitness)
    fitness = wide(fitness)
    if fitness.ndim != 1 or len(fitness) < 2:
        raise ValueError(f"fitness: expected [P] of two or more, got shape {tuple(fitness.shape)}")
    fitness = fitness.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    place: Tensor
    count: Tensor
    _, place, count = torch.unique(fitness, return_inverse=True, return_counts=True)
    rank = count.cumsum(0) - (count + 1) / 2
    return (rank / (len(fitness) - 1) - 0.5)[place].to(torch.float32)


def gradient(key: Key, weight: Tensor, *, size: int, sigma: float) -> Tensor:
    """Return the estimate of ∇_θ E[F], 1 / (P σ) Σ F_i ε_i, `[D]` (equation of §2, Algorithm 1).

    The noise is drawn again, one pair at a time: memory is D, not P D.

    Args:
        key: Key that the candidates were drawn by.
        weight: Fitness F_i, or its `centred_ranks`, `[P]`.
        size: Number D of parameters.
        sigma: Standard deviation σ of the noise.

    Raises:
        ValueError: an odd number of weights, one that is not finite, or σ is not positive.
    """
    check_rank("weight", weight, "P")
    check_numbers("weight", weight)
    check_finite(weight=weight)
    weight = wide(weight)
    check_positive("sigma", sigma)
    if len(weight) % 2:
        raise ValueError(f"weight: expected an even number, of pairs, got {len(weight)}")
    total = torch.zeros(size, dtype=weight.dtype)
    # Both of a pair have the same noise with opposite signs, so only their difference counts.
    for pair, difference in enumerate((weight[::2] - weight[1::2]).tolist()):
        total += difference * perturbation(key, pair, size)
    return total / (len(weight) * sigma)


@dataclass(kw_only=True, eq=False)
class EvolutionStrategy:
    """Ask for candidates, tell their fitness: parameters climb, by Adam.

    `state_dict` and `load_state_dict` make a run go on exactly.

    Examples:
        >>> strategy = EvolutionStrategy(parameters=torch.zeros(2), population=20, sigma=0.1)
        >>> for _ in range(100):
        ...     _ = strategy.tell(-(strategy.ask() - 1).square().sum(-1))
        >>> bool((strategy.parameters - 1).abs().max() < 0.1)
        True

    Raises:
        ValueError: the population is odd or empty, or a number is not positive.
    """

    parameters: Tensor = field(repr=False)
    """Parameters θ, `[D]`, such as `torch.nn.utils.parameters_to_vector` gives; copied."""
    population: int
    """Number P of candidates of a generation, even, 20 to 10,000. The more parameters and the
    noisier the fitness, the more it takes; more than that is computed for nothing."""
    sigma: float = 0.02
    """Standard deviation σ of the noise, usually 0.01 to 0.1. Too small is drowned in the noise of
    the fitness; too large, and no candidate behaves like θ."""
    learning_rate: float = 0.05
    """Learning rate of Adam, usually 0.01 to 0.1: too large overshoots, too small takes
    generations. It may be changed between two of them."""
    weight_decay: float = 0.0
    """Pull of θ towards 0, added to the gradient; 0.005 in the paper's code. Without it weights may
    grow until σ changes nothing any more; too large, and nothing is learned."""
    seed: int = 0
    """Seed of all noise."""
    generation: int = field(default=0, init=False)
    """Number of times that `tell` was called."""

    def __post_init__(self) -> None:
        check_rank("parameters", self.parameters, "D")
        check_positive("sigma", self.sigma)
        check_positive("learning_rate", self.learning_rate)
        check_not_negative("weight_decay", self.weight_decay)
        check_count("seed", self.seed, 0)
        check_floats("parameters", self.parameters)
        check_finite(parameters=self.parameters)
        if self.population < 2 or self.population % 2:
            raise ValueError(
                f"population: expected an even number, two or more, got {self.population}"
            )
        self.parameters = self.parameters.detach().clone()
        self._adam = torch.optim.Adam([self.parameters], lr=self.learning_rate, maximize=True)

    @property
    def key(self) -> tuple[int, int]:
        """Key of this generation's noise, for `candidate` on workers."""
        return self.seed, self.generation

    def ask(self) -> Tensor:
        """Return this generation's candidates `[P, D]`; the same until `tell`."""
        return torch.stack(
            [
                candidate(self.parameters, self.key, index, sigma=self.sigma)
                for index in range(self.population)
            ]
        )

    def tell(self, fitness: Tensor) -> dict[str, float]:
        """Take a step up by the candidates' fitness `[P]`; return its `gradient_norm`.

        Raises:
            ValueError: not one fitness for each candidate.
        """
        check_shape("fitness", fitness, (self.population,))
        # Ranks, not fitness: one lucky candidate must not rule the step, nor the scale of rewards.
        weight = centred_ranks(fitness.detach().cpu())
        climb = gradient(self.key, weight, size=len(self.parameters), sigma=self.sigma)
        climb = climb.to(self.parameters) - self.weight_decay * self.parameters
        self.parameters.grad = climb
        self._adam.param_groups[0]["lr"] = self.learning_rate
        self._adam.step()
        self.generation += 1
        return {"gradient_norm": float(climb.norm())}

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, generation, seed and Adam's state."""
        return {
            "parameters": self.parameters.clone(),
            "generation": self.generation,
            "seed": self.seed,
            "adam": copy.deepcopy(self._adam.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises:
            ValueError: the number of parameters differs.
        """
        check_shape("parameters", state["parameters"], self.parameters.shape)
        self.parameters.copy_(state["parameters"])
        self.generation, self.seed = state["generation"], state["seed"]
        self._adam.load_state_dict(copy.deepcopy(state["adam"]))
