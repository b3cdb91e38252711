"""Samplers of language models in processes on Ray, beside a trainer that stays where it is.

driver: trainer ──weights──► store ──► samplers: model, tasks, rewards, endpoint
           ▲                                │
           └────────── samples ─────────────┘
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from ray import cloudpickle

from bray.text.samplers.sampler_worker import SamplerRecipe, SamplerWorker
from bray.text.samplers.shared_weights import WeightsCarrier, as_carried
from bray.text.samples import TextSample
from bray_core import metrics
from bray_core.errors import BrayError, DeadlineError, WorkerLostError
from bray_core.remote.calls import will_be_restarted
from bray_core.remote.health import explain_lost_workers
from bray_core.remote.pool import WorkerPool
from bray_core.remote.unpickling import unpickled
from bray_core.remote.worker_process import worker_index
from bray_model.remote import RemoteModel

logger = logging.getLogger(__name__)

_SLICE_S = 1.0
"""A long wait is several of this length, so that an interrupt ends it."""
_REPLACED_S = 120.0
_CLOSE_S = 30.0
_CONCURRENCY = 4
"""Evaluations are played while a round is."""


class RemoteWeights:
    """Weights that samplers on any node take from the models' store.

    Args:
        weights: tensors by name to begin with.
        version: their version.
    """

    def __init__(self, weights: Mapping[str, Any], version: int) -> None:
        example = np.zeros((1, 1), np.float32)
        self.handle = RemoteModel("policy", WeightsCarrier(weights, version), example)

    def give(self, weights: Mapping[str, Any], version: int) -> None:
        """Send newer weights to all samplers."""
        self.handle.publish(as_carried(weights, version))

    def close(self) -> None:
        """End the store."""
        self.handle.close()


class RemoteRounds:
    """Rounds played by samplers on Ray, which share the groups; see `Rounds`.

    A sampler that dies is made anew with the newest weights, and is asked its groups again: they
    are counted as lost, `text/lost_groups`.

    Args:
        recipe: what a sampler is made of.
        task: what `load_task` returned.
        weights: where samplers take weights from.
        version: the newest version; a sampler waits for it before it plays.
        num_gpus: GPUs that each sampler claims from Ray.
    """

    def __init__(
        self,
        recipe: SamplerRecipe,
        task: Any,
        weights: RemoteWeights,
        version: Callable[[], int],
        *,
        num_gpus: float = 0.0,
    ) -> None:
        self._version = version
        self._pool = WorkerPool(
            "samplers",
            _make_sampler,
            args=(recipe, cloudpickle.dumps(task), _Surroundings.here(), weights.handle),
            num_workers=recipe.num_workers,
            num_gpus=num_gpus,
            max_concurrency=_CONCURRENCY,
            spread=True,
        )

    def pids(self) -> list[int]:
        """Return the process ids of the samplers."""
        return self._pool.pids()

    def play(self, groups: int, size: int, rng: np.random.Generator) -> list[TextSample]:
        """Return the samples of so many groups, of all samplers together.

        Raises:
            Exception: what a sampler failed with.
            WorkerLostError: a sampler died too often; quotes its last words.
        """
        shares = _shares(groups, self._pool.size)
        seeds = rng.integers(2**63, size=len(shares)).tolist()
        with explain_lost_workers():
            asked = [
                _Call(self._pool, worker, "play", (share, size, seed), share)
                for worker, (share, seed) in enumerate(zip(shares, seeds, strict=True))
            ]
            for call in asked:
                call.submit(self._version())
            return _joined([call.result(self._version) for call in asked])

    def evaluate(self, count: int, rng: np.random.Generator | None) -> list[float]:
        """Return the rewards of what training never asks, of the first sampler; see `play`."""
        with explain_lost_workers():
            call = _Call(self._pool, 0, "evaluate", (count, rng), 0)
            call.submit(self._version())
            rewards: list[float] = call.result(self._version)
        return rewards

    def close(self) -> None:
        """End the programs of the samplers, then the samplers; again is harmless."""
        if self._pool.size:
            with contextlib.suppress(BrayError):  # one died, and with it its programs
                self._pool.call_all("close", timeout_s=_CLOSE_S)
        self._pool.close()


class _Call:
    """A call of one sampler, which is made again where it dies.

    Args:
        pool: the samplers.
        worker: number of the sampler.
        method: what is called.
        arguments: its arguments but the version.
        groups: groups that are lost with it.
    """

    def __init__(
        self, pool: WorkerPool, worker: int, method: str, arguments: tuple[Any, ...], groups: int
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._method = method
        self._arguments = arguments
        self._groups = groups
        self._ref: Any = None

    def submit(self, version: int) -> None:
        """Begin, with weights of a version at least."""
        self._ref = self._pool.submit(self._method, *self._arguments, version, worker=self._worker)

    def result(self, version: Callable[[], int]) -> Any:
        """Wait for the answer, of the sampler that takes a dead one's place if need be."""
        while True:
            try:
                return self._pool.result(self._ref, _SLICE_S)
            except DeadlineError as error:
                if error.__cause__ is not None:  # the sampler's own
                    raise
            except WorkerLostError as error:
                if not will_be_restarted(error):
                    raise
                self._note_lost(error)
                self._pool.wait_ready(_REPLACED_S)
                self.submit(version())

    def _note_lost(self, error: WorkerLostError) -> None:
        logger.warning(
            "samplers: sampler %d is made anew, and asked its %d groups again: %s",
            self._worker,
            self._groups,
            error,
        )
        metrics.record("actor/workers_lost", 1, kind="count")
        metrics.record("text/lost_groups", self._groups, kind="count")


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Where the driver finds code of yours, and programs."""

    folder: Path
    path: tuple[str, ...]

    @classmethod
    def here(cls) -> _Surroundings:
        return cls(Path.cwd(), tuple(sys.path))

    def enter(self) -> None:
        """Look there, too, and work in the driver's folder where there is one of its name."""
        if self.folder.is_dir():
            os.chdir(self.folder)
        sys.path.extend(folder for folder in self.path if folder not in sys.path)


def _make_sampler(
    recipe: SamplerRecipe, task: bytes, surroundings: _Surroundings, weights: RemoteModel
) -> SamplerWorker:
    surroundings.enter()
    return SamplerWorker(recipe, unpickled(task), weights, worker_index())


def _shares(groups: int, samplers: int) -> list[int]:
    """Return the groups of each sampler, as even as can be; none gets none."""
    each, more = divmod(groups, samplers)
    return [each + (number < more) for number in range(samplers) if each or number < more]


def _joined(played: Sequence[Sequence[TextSample]]) -> list[TextSample]:
    """Return the samples of several samplers, no group of one being that of another."""
    found: list[TextSample] = []
    first = 0
    for samples in played:
        found += [replace(one, group=first + one.group) for one in samples]
        first = 1 + max((one.group for one in found), default=first - 1)
    return found
