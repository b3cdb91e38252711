"""The learners of a composition: each one's algorithm, settled for this run, and its components."""

from __future__ import annotations

from typing import Any

from bray.composition.roster import Roster
from bray.run import Run
from bray.templates.composition import BufferPart, Composition, LearnerPart
from bray.templates.part_settings import MixtureConfig
from bray.training.deploy import keep_spaces
from bray.training.learner import Learner, LearnerPlace
from bray.training.sampled_policy import SampledPolicy
from bray_buffer import ReplayConfig
from bray_core.errors import ConfigError
from bray_model import ModelConfig


def algorithm_of(run: Run, roster: Roster, part: LearnerPart) -> SampledPolicy[Any]:
    """Return a learner's algorithm, once its spaces are known to suit it."""
    algorithm = part.make()
    if not isinstance(algorithm, SampledPolicy):
        raise ConfigError(
            f"trainers.{part.name}.algorithm: {part.algorithm!r} does not learn side by side with "
            "others: it plays by itself; train it alone, or choose one that is sampled from, such "
            "as ppo, impala, dqn or sac"
        )
    spaces = roster.spaces_of(part.name)
    try:
        algorithm.check_spaces(spaces)
    except ConfigError as error:
        raise ConfigError(f"trainers.{part.name}: {error}") from error
    return algorithm.settled(run, spaces)


def make_learner(run: Run, roster: Roster, name: str, algorithm: SampledPolicy[Any]) -> Learner:
    """Make what trains a policy of a composition.

    Args:
        run: makes the components.
        roster: who plays what.
        name: name of the learner.
        algorithm: its algorithm, from `algorithm_of`.

    Raises:
        ConfigError: its buffers cannot be mixed.
    """
    composition = roster.composition
    part = composition.learners[name]
    spaces = roster.spaces_of(name)
    keep_spaces(run, spaces, part.model)
    holds = composition.buffers.get(part.inputs.get("experience", ""))
    is_mixture = holds is not None and isinstance(holds.config, MixtureConfig)
    return algorithm.learner(
        run,
        spaces,
        LearnerPlace(
            model=part.model,
            buffer=f"{name}-experience",
            trainer=f"{name}-trainer",
            label=name,
            checkpoints=run.experiment.checkpoints / name,
            batching=ModelConfig(max_batch_size=roster.rows_of(name)),
            seed=composition.seed + list(composition.learners).index(name),
            holds=None if holds is None or is_mixture else _settings(holds),
            mixture=_mixture(composition, holds) if holds is not None and is_mixture else {},
        ),
    )


def _settings(buffer: BufferPart) -> Any:
    """Return the settings of a buffer; None where its trainer's algorithm makes them."""
    return None if buffer.kind == "own" else buffer.config


def _mixture(
    composition: Composition, buffer: BufferPart
) -> dict[str, tuple[ReplayConfig | None, float]]:
    """Return the replays that a trainer draws from, with their settings and shares."""
    found: dict[str, tuple[ReplayConfig | None, float]] = {}
    for name, share in buffer.config.of.items():
        settings = _settings(composition.buffers[name])
        if not isinstance(settings, ReplayConfig | None):
            raise ConfigError(
                f"buffers.{buffer.name}.of.{name}: expected a replay, got a "
                f"{composition.buffers[name].kind}: a queue gives each step once"
            )
        found[name] = settings, float(share)
    return found
