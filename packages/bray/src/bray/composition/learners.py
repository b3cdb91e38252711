"""The learners of a composition: each one's algorithm, settled for this run, and its components."""

from __future__ import annotations

from typing import Any, TypeAlias

from bray.composition.part_errors import PartNames, errors_of
from bray.composition.roster import Roster
from bray.run import Run
from bray.sources import data_sets
from bray.sources.data_set_replay import DataSetPlace
from bray.templates.composition import BufferPart, Composition, LearnerPart
from bray.templates.part_settings import DatasetConfig, MixtureConfig
from bray.training.deploy import keep_spaces
from bray.training.learner import Learner, LearnerPlace
from bray.training.off_policy.offline import Offline
from bray.training.recorded_policy import RecordedPolicy
from bray_core.errors import ConfigError
from bray_model import ModelConfig

AnyLearning: TypeAlias = RecordedPolicy[Any] | Offline[Any]
"""An algorithm that learns beside others: from what it plays, or from a data set alone."""


def algorithm_of(run: Run, roster: Roster, part: LearnerPart) -> AnyLearning:
    """Return a learner's algorithm, once its spaces are known to suit it."""
    algorithm = part.make()
    if not isinstance(algorithm, RecordedPolicy | Offline):
        raise ConfigError(
            f"trainers.{part.name}.algorithm: {part.algorithm!r} does not learn side by side with "
            "others: it plays by itself; train it alone, or choose one that is sampled from, such "
            "as ppo, impala, dqn or sac"
        )
    spaces = roster.spaces_of(part.name)
    try:
        algorithm.check_spaces(spaces)
    except ConfigError as error:
        words = str(error)
        if words.startswith(("environment: ", "algorithm: ")):  # what it is, not a setting
            words = f"trainers.{part.name}: {words}"
        raise ConfigError(words) from error
    return algorithm.settled(run, spaces)


def make_learner(run: Run, roster: Roster, name: str, algorithm: AnyLearning) -> Learner:
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


def check_data_sets(roster: Roster) -> None:
    """Refuse data sets that are not there, before anything is made.

    Raises:
        ConfigError: names the buffer; so does NotFoundError.
    """
    composition = roster.composition
    for name, part in composition.buffers.items():
        if not isinstance(part.config, DatasetConfig):
            continue
        readers = [
            (one, given)
            for one, learner in composition.learners.items()
            for given, buffer in learner.inputs.items()
            if name == buffer or name in _parts_of(composition, buffer)
        ]
        for learner, given in readers:
            is_played = given == "experience"
            leaves = data_sets.TRANSITION if is_played else data_sets.DEMONSTRATION
            key = PartNames(f"buffers.{name}.path")
            with errors_of(key):
                spaces = roster.spaces_of(learner)
                where = data_sets.located(part.config.where)
                data_sets.open_data_set(where, spaces, gamma=1.0, leaves=leaves)


def _parts_of(composition: Composition, buffer: str) -> set[str]:
    """Return the names of all buffers below a mixture."""
    config = composition.buffers[buffer].config
    if not isinstance(config, MixtureConfig):
        return set()
    inner = (_parts_of(composition, name) for name in config.of)
    return set(config.of).union(*inner)


def _settings(buffer: BufferPart) -> Any:
    """Return the settings of a buffer; None where its trainer's algorithm makes them."""
    return None if buffer.kind == "own" else buffer.config


def _mixture(composition: Composition, buffer: BufferPart) -> dict[str, tuple[Any, float]]:
    """Return what a trainer draws from, with settings and shares; mixtures of mixtures are one."""
    found: dict[str, tuple[Any, float]] = {}
    for name, share in buffer.config.of.items():
        one = composition.buffers[name]
        if isinstance(one.config, MixtureConfig):
            inner = _mixture(composition, one)
            whole = sum(part for _, part in inner.values())
            parts = {key: (held, share * part / whole) for key, (held, part) in inner.items()}
        else:
            parts = {name: (_held(buffer, one), float(share))}
        for key, (held, part) in parts.items():
            found[key] = held, part + (found[key][1] if key in found else 0.0)
    return found


def _held(mixture: BufferPart, buffer: BufferPart) -> Any:
    """Return the settings of a buffer that is mixed; a data set's place.

    Raises:
        ConfigError: it is a queue.
    """
    if isinstance(buffer.config, DatasetConfig):
        where = data_sets.located(buffer.config.where)
        return DataSetPlace(where=where, batch_size=buffer.config.batch_size)
    if buffer.kind == "queue":
        raise ConfigError(
            f"buffers.{mixture.name}.of.{buffer.name}: expected a replay or a data set, got a "
            "queue: a queue gives each step once"
        )
    return buffer.config
