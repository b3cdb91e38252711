"""Runners of a worker's environments, and the settings of the model that answers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from bray.sources.config import FrameSourceConfig
from bray.sources.environments import make_environments
from bray_actor import AlternatingRunners, Runner
from bray_actor.atari import AtariRewardTransform
from bray_model import ModelConfig
from bray_model.config import Device, Precision


class Compute(Protocol):
    """What computes the network, such as `bray.training.compute.ComputeConfig`."""

    @property
    def device(self) -> Device:
        """Where the network is trained; in a local run also where it plays."""
        ...

    @property
    def precision(self) -> Precision:
        """Precision of the network."""
        ...


class EnvironmentRunners:
    """Makes the runner of each worker, and says which batches its model answers.

    Atari games step in threads of their own, and others may step in processes: a worker has two
    halves of them, one of which steps while the model decides for the other. There are no halves of
    an odd number, nor where the model has all cores to itself while it decides: in a local run
    without a GPU.

    Args:
        source: settings of the environments, all decided.
        compute: what computes the network.
        is_local: whether one process does everything.
        gamma: discount of the recorded `discounted_return`, where the segments have it.
        reset_options: options that the first episodes begin with; None: none.
    """

    def __init__(
        self,
        source: FrameSourceConfig,
        compute: Compute,
        *,
        is_local: bool,
        gamma: float = 0.99,
        reset_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._gamma = gamma
        self._reset_options = reset_options
        self._make = source.located()
        self._is_atari = source.is_atari
        steps_beside = self._is_atari or source.stepping != "worker"
        self._device: Device = compute.device if is_local else "cpu"
        has_all_cores = is_local and self._device == "cpu"
        has_halves = steps_beside and not has_all_cores and source.num_envs % 2 == 0
        self._halves = 2 if has_halves else 1
        self._num_envs = source.num_envs // self._halves
        self._precision: Precision = compute.precision
        self._threads = source.env_threads or 1

    def model_config(self) -> ModelConfig:
        """Return the settings of the model: the observations of a half are one batch."""
        n, precision = self._num_envs, self._precision
        return ModelConfig(
            max_batch_size=n,
            pad_to=(n,),
            precision=precision,
            device=self._device,
            cuda_graphs=self._device == "cuda",
        )

    def runner(self, model: Any, buffer: Any, seed: int) -> Runner | AlternatingRunners:
        """Make a worker's runner, in the worker's process.

        Args:
            model: policy that acts.
            buffer: where the segments go.
            seed: seed of environments and draws.
        """
        halves = [self._half(model, buffer, seed + 500 * i) for i in range(self._halves)]
        return halves[0] if len(halves) == 1 else AlternatingRunners(halves)

    def _half(self, model: Any, buffer: Any, seed: int) -> Runner:
        environments = make_environments(self._make, self._num_envs, self._threads)
        transform = AtariRewardTransform() if self._is_atari else None
        return Runner(
            environments,
            model,
            buffer,
            seed=seed,
            reward_transform=transform,
            gamma=self._gamma,
            info_metrics=self._make.info_metrics,
            reset_options=self._reset_options,
        )
