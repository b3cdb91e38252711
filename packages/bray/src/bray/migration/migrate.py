"""Make a trial of bray from a model that another library has saved."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bray.migration.observation_layers import as_bray_reads
from bray.migration.sb3_file import SB3File
from bray.migration.sb3_weights import migrated
from bray.run import init
from bray.sources.environments import read_spaces
from bray.templates.loading import compose
from bray.training.deploy import export_best, keep_spaces
from bray.training.learner import LearnerPlace
from bray.training.sampled_policy import SampledPolicy
from bray_core.errors import AlreadyExistsError, ConfigError
from bray_core.files.trial_folders import PROJECT, trial_name, trial_path
from bray_core.spaces import Spaces
from bray_model import ExportReport
from bray_trainer.checkpoints import checkpoint

_SEED = 1
_CHECKPOINTS = "checkpoints"
"""Folder of a trial that `model.begin_from` reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MigratedTrial:
    """A trial that was made from another library's model."""

    trial: Path
    """Its folder: `bray watch`, `bray serve`, `bray pack` and `bray.load` take it."""
    algorithm: str
    """Name of bray's algorithm that can go on with it."""
    left_out: Sequence[str]
    """What could not be taken over, in words."""
    was_normalized: bool
    """Whether the model saw observations that `VecNormalize` had scaled."""
    export: ExportReport
    """The exported policy, compared with torch's outputs."""


def migrate_sb3(
    path: str | Path,
    environment: str,
    *,
    project: str | Path = PROJECT,
    trial: str | None = None,
    settings: Sequence[str] = (),
) -> MigratedTrial:
    """Take over a model of Stable-Baselines3: PPO, A2C, SAC, TD3, DDPG or DQN.

    Nothing of the file is run or unpickled, and Stable-Baselines3 need not be installed. The trial
    holds policy, value function or critics, an export, and a checkpoint from which training goes
    on. Statistics of `VecNormalize` are in another file, which is not read.

    Args:
        path: the file that `model.save` wrote.
        environment: what the model was trained in, such as a Gymnasium id: the file does not say.
        project: folder of the trials.
        trial: name of the trial below the project, or with a slash a folder; None: the one that
            `bray train` would take.
        settings: settings of the run, such as `source.wrappers=[my_game:Scaled]`.

    Returns:
        The trial.

    Raises:
        NotFoundError: there is no file.
        ConfigError: the file is no saved model, bray has no equal network, or the environment has
            other spaces; says which.
        AlreadyExistsError: the trial exists.
    """
    file = SB3File.read(Path(path))
    taken = migrated(file)
    algorithm = file.kind
    given = [f"{name}={json.dumps(value)}" for name, value in taken.settings.items()]
    given.append("source.action_mask=false")  # of the info, which Stable-Baselines3 does not read
    if file.gamma is not None:
        given.append(f"trainer.gamma={file.gamma}")
    template = compose(algorithm, environment, [*given, *settings])
    folder = trial_path(trial or trial_name(algorithm, environment, _SEED), Path(project))
    if folder.exists():
        raise AlreadyExistsError(
            f"{folder}: expected a new folder for the trial, it exists: name another with --trial"
        )
    untaught = template.make()
    spaces = _checked_spaces(untaught)
    with tempfile.TemporaryDirectory() as scratch:
        beginning = Path(scratch)
        made = compose(
            algorithm,
            environment,
            [*given, *settings, f"model.begin_from={json.dumps(scratch)}"],
        ).make()
        weights = _whole(file, untaught, spaces, as_bray_reads(taken.weights, spaces))
        checkpoint.save(beginning / _CHECKPOINTS, 0, {"module": weights}, keep=1)
        torch.set_num_threads(1)
        with init(folder.parent, folder.name, config=template.to_mapping()) as run:
            assert isinstance(made, SampledPolicy), "all of these are"
            keep_spaces(run, spaces)
            place = LearnerPlace(
                buffer=made.buffer_name,
                checkpoints=run.experiment.checkpoints,
                batching=made.batching(is_local=True),
                seed=_SEED,
            )
            made.learner(run, spaces, place).with_trainer().trainer.run(0)
            report = export_best(run, type(made))
    assert report is not None, "there is a model"
    return MigratedTrial(
        trial=folder,
        algorithm=algorithm,
        left_out=tuple(taken.left_out),
        was_normalized=file.was_normalized,
        export=report,
    )


def _checked_spaces(algorithm: Any) -> Spaces:
    spaces: Spaces = read_spaces(algorithm.parts.source.located())
    algorithm.check_spaces(spaces)
    return spaces


def _whole(
    file: SB3File, algorithm: Any, spaces: Spaces, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the weights of the trial's policy, and of the rest what the file has.

    Raises:
        ConfigError: a layer of the file has another size than the environment's spaces ask for.
    """
    fresh = algorithm.policy(spaces, _SEED).state_dict()
    prefix = "policy." if "policy.body.0.weight" in weights else ""
    for name, own in fresh.items():
        found = weights.get(prefix + name)
        if found is None:
            if name.endswith(("weight", "bias")):
                raise ConfigError(f"{file.path}: expected a layer {name}, found none")
        elif found.shape != own.shape:
            raise ConfigError(
                f"{file.path}: expected {name} {list(own.shape)} for {spaces.origin}, whose "
                f"observations and actions it has to fit, got {list(found.shape)}: name the "
                "environment that the model was trained in, with its wrappers"
            )
    buffers = {prefix + name: own for name, own in fresh.items() if prefix + name not in weights}
    return {**buffers, **weights}
