"""What one process that samples consists of, apart from where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bray.text.config import SamplingConfig, TextSourceConfig
from bray.text.samplers.players import make_players
from bray.text.samplers.shared_weights import FollowedWeights, HoldsNewest
from bray.text.samples import TextSample
from bray_core.errors import BrayError
from bray_model.text.config import TextModelConfig
from bray_model.text.text_model import TextModel

_ARRIVES_S = 120.0
_SEEDS_A_WORKER = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerRecipe:
    """All that a sampler is made of but its task and its weights; it reads no folder of a model."""

    architecture: Any
    """Configuration of the model, as transformers has it, with the tokens that end an answer."""
    tokenizer: Any
    """Tokenizer with its chat template."""
    generation: TextModelConfig
    """How the model generates."""
    agent: SamplingConfig
    """How answers are sampled."""
    source: TextSourceConfig
    """What is played."""
    logs: Path
    """Folder of what programs print, each sampler's in one of its own."""
    seed: int
    """Seed of the run."""
    threads: int
    """CPU threads of torch."""
    num_workers: int
    """Samplers that share the processes of a program."""


class SamplerWorker:
    """A model with its cache, what plays with it, and the endpoint where programs play.

    Args:
        recipe: what it is made of.
        task: what `load_task` returned.
        weights: where the trainer publishes to.
        worker: number of this sampler.
    """

    def __init__(
        self, recipe: SamplerRecipe, task: Any, weights: HoldsNewest, worker: int = 0
    ) -> None:
        torch.set_num_threads(recipe.threads)
        seed = recipe.seed + _SEEDS_A_WORKER * worker
        self._model = TextModel.create(
            recipe.architecture,
            recipe.tokenizer,
            replace(recipe.generation, seed=seed),
            name="policy",
        )
        self._weights = FollowedWeights(weights, self._model)
        source = recipe.source
        if source.program is not None:
            source = replace(source, count=source.count // recipe.num_workers)
        self._plays, self._held_out = make_players(
            self._model,
            recipe.agent,
            source,
            task,
            logs=recipe.logs / f"sampler-{worker}",
            seed=seed,
        )

    def play(self, groups: int, size: int, seed: int, version: int) -> list[TextSample]:
        """Return the samples of so many groups; see `Rounds`.

        Args:
            groups: number of groups.
            size: samples of each.
            seed: seed of what is drawn.
            version: version of the weights to wait for; newer ones are taken as they come.
        """
        self._weights.wait(version, _ARRIVES_S)
        return self._plays.play(groups, size, np.random.default_rng(seed))

    def evaluate(self, count: int, rng: np.random.Generator | None, version: int) -> list[float]:
        """Return the rewards of what training never asks; see `Rounds` and `play`."""
        self._weights.wait(version, _ARRIVES_S)
        if self._held_out is None:
            raise BrayError("evaluation: nothing plays one: the source names no class")
        return self._held_out.evaluate(count, rng)

    def figures(self) -> Mapping[str, int]:
        """Return the version of the weights, and the tokens that were sampled."""
        return {"version": self._model.version, "tokens": self._model.figures().tokens}

    def close(self) -> None:
        """End the programs and the endpoint, and let the memory go."""
        self._plays.close()
        self._weights.close()
        self._model.close()
