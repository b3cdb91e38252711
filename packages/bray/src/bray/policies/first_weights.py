"""The weights that training begins with: those of another trial, such as an offline one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bray_core.errors import ConfigError
from bray_trainer.checkpoints import checkpoint

logger = logging.getLogger(__name__)

_SETTING = "model.begin_from"
_FOLDER = "checkpoints"


def begin_policy(policy: nn.Module, trial: str) -> None:
    """Load the policy of a trial's newest checkpoint; nothing where `trial` is empty.

    Args:
        policy: the module that acts, of the same class and settings as the trial's.
        trial: folder of the trial.

    Raises:
        ConfigError: there is no checkpoint, or its policy has other weights; names the first.
    """
    if trial:
        saved, own = _saved(trial), policy.state_dict()
        found = _part(saved, "policy", own) or saved
        for name, weight in own.items():
            if name not in found:
                raise ConfigError(
                    f"{_SETTING}: {trial}: expected a policy with {name} "
                    f"{tuple(weight.shape)}, got one of another kind without: begin from a trial "
                    "of an algorithm with the same policy, or leave begin_from empty"
                )
            if found[name].shape != weight.shape:
                raise ConfigError(
                    f"{_SETTING}: {trial}: policy {name}: expected shape {tuple(weight.shape)}, "
                    f"got {tuple(found[name].shape)}: give model the settings of that trial, and "
                    "source an environment with the same spaces"
                )
        policy.load_state_dict({name: found[name] for name in own})


def begin_networks(networks: Mapping[str, nn.Module], trial: str) -> None:
    """Load the policy of a trial, and of the other networks those that match its own of that name.

    A network that does not match begins anew, which is logged.

    Args:
        networks: all that is trained, by name, with a `policy`.
        trial: folder of the trial; empty is none.

    Raises:
        ConfigError: there is no checkpoint, or its policy has other weights.
    """
    if not trial:
        return
    begin_policy(networks["policy"], trial)
    saved = _saved(trial)
    for name, network in networks.items():
        if name != "policy":
            own = network.state_dict()
            found = _part(saved, name, own)
            if _shapes(found) == _shapes(own):
                network.load_state_dict(found)
            else:
                logger.warning("%s: %s has no %s that fit: they begin anew", _SETTING, trial, name)


def located_weights(parts: Any) -> Any:
    """Return the settings of a run with `model.begin_from` as a worker finds it.

    A worker's working directory is another.

    Args:
        parts: settings of the run's parts.
    """
    trial = getattr(parts.model, "begin_from", "")
    if not trial:
        return parts
    return replace(parts, model=replace(parts.model, begin_from=str(Path(trial).resolve())))


def _saved(trial: str) -> dict[str, Tensor]:
    state = checkpoint.load_newest(Path(trial) / _FOLDER)
    if state is None:
        raise ConfigError(
            f"{_SETTING}: expected the folder of a trial with a checkpoint, got {trial}"
        )
    saved: dict[str, Tensor] = state.get("module", {})
    return saved


def _part(saved: Mapping[str, Tensor], name: str, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of one of several networks; none where only one was trained."""
    found = {
        key.removeprefix(f"{name}."): weight
        for key, weight in saved.items()
        if key.startswith(f"{name}.")
    }
    return found if set(own) & set(found) else {}


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in weights.items()}
