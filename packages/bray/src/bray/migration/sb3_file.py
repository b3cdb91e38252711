"""Read the file that a model of Stable-Baselines3 saves, without running anything of it.

Such a file is a zip with settings as JSON (`data`) and weights (`policy.pth`). Parts of the JSON
hold pickled objects beside a readable form; only the readable form is looked at, and weights are
loaded by torch's loader of tensors alone.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from bray_core.errors import ConfigError, NotFoundError

Kind: TypeAlias = Literal["ppo", "a2c", "sac", "td3", "dqn"]
"""Name of bray's algorithm that has such a policy."""

_SETTINGS, _WEIGHTS, _VARIABLES = "data", "policy.pth", "pytorch_variables.pth"
_UNSCALED = "_last_original_obs"
"""Setting that holds the observation before `VecNormalize`; SAC, TD3 and DQN fill it always."""
_MOST_BYTES = 4 << 30
"""Bytes of a member, unpacked, above which it is not read."""
_CLASS = re.compile(r"<class '[\w.]*?(\w+)'>")


@dataclass(frozen=True, kw_only=True, slots=True)
class SB3File:
    """What a saved model of Stable-Baselines3 says."""

    path: Path
    """The file."""
    kind: Kind
    """Name of bray's algorithm with such a policy; `td3` for DDPG, too."""
    weights: Mapping[str, Tensor]
    """Weights of policy and critics, by their names there."""
    log_alpha: float | None
    """Logarithm of SAC's learnt temperature; None where it was fixed, or of other algorithms."""
    activation: str
    """Name of the class of its activation, such as `Tanh`."""
    gamma: float | None
    """Discount per step; None where the file does not say it."""
    was_normalized: bool = False
    """Whether it was surely trained behind `VecNormalize`: of PPO and A2C the file tells."""

    @classmethod
    def read(cls, path: Path) -> SB3File:
        """Read a file.

        Raises:
            NotFoundError: there is no file.
            ConfigError: it is no saved model, or has a policy that bray has no equal of; says why.
        """
        if not path.is_file():
            raise NotFoundError(f"{path}: expected a file that model.save(…) wrote, found none")
        try:
            with zipfile.ZipFile(path) as archive:
                settings = json.loads(_member(archive, path, _SETTINGS))
                weights = _tensors(_member(archive, path, _WEIGHTS))
                variables = _tensors(_member(archive, path, _VARIABLES, needed=False))
        except ConfigError:
            raise
        except (zipfile.BadZipFile, ValueError, RuntimeError, pickle.UnpicklingError) as error:
            raise ConfigError(
                f"{path}: expected a zip that model.save(…) of Stable-Baselines3 wrote: "
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ) from error
        if not isinstance(settings, dict):
            raise ConfigError(f"{path}: expected settings by name in {_SETTINGS!r}")
        if settings.get("use_sde"):
            raise ConfigError(
                f"{path}: expected a policy without state-dependent exploration (use_sde=False), "
                "which bray has none of: train it without, or train anew with bray"
            )
        kind = _kind(path, settings, weights)
        log_alpha = variables.get("log_ent_coef")
        gamma = settings.get("gamma")
        return cls(
            path=path,
            kind=kind,
            weights=weights,
            log_alpha=None if log_alpha is None else float(log_alpha.detach().reshape(-1)[0]),
            activation=_activation(settings, kind),
            gamma=float(gamma) if isinstance(gamma, int | float) and 0 <= gamma <= 1 else None,
            was_normalized=kind in ("ppo", "a2c") and settings.get(_UNSCALED) is not None,
        )

    def layers(self, prefix: str) -> list[tuple[Tensor, Tensor]]:
        """Return weight and bias of the layers of one network, in their order.

        Args:
            prefix: beginning of their names, such as `mlp_extractor.policy_net`.
        """
        name = re.compile(rf"{re.escape(prefix)}\.(\d+)\.weight")
        places = sorted(int(found[1]) for key in self.weights if (found := name.fullmatch(key)))
        return [self.layer(f"{prefix}.{place}") for place in places]

    def layer(self, name: str) -> tuple[Tensor, Tensor]:
        """Return weight and bias of a layer.

        Raises:
            ConfigError: there is none.
        """
        found = [self.weights.get(f"{name}.{part}") for part in ("weight", "bias")]
        weight, bias = found
        if weight is None or bias is None:
            raise ConfigError(f"{self.path}: expected a layer {name} with weight and bias")
        return weight, bias


def _member(archive: zipfile.ZipFile, path: Path, name: str, *, needed: bool = True) -> bytes:
    try:
        found = archive.getinfo(name)
    except KeyError:
        if not needed:
            return b""
        names = ", ".join(sorted(archive.namelist())[:6])
        raise ConfigError(
            f"{path}: expected a zip of Stable-Baselines3 with {name!r}, it holds: {names}"
        ) from None
    if found.file_size > _MOST_BYTES:
        raise ConfigError(
            f"{path}: {name}: expected at most {_MOST_BYTES:,} bytes, got {found.file_size:,}"
        )
    return archive.read(found)


def _tensors(content: bytes) -> dict[str, Tensor]:
    if not content:
        return {}
    loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    found = loaded if isinstance(loaded, Mapping) else {}
    return {str(name): value for name, value in found.items() if isinstance(value, Tensor)}


def _kind(path: Path, settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Kind:
    names = weights.keys()
    lstm = [name for name in names if "lstm" in name]
    if lstm:
        raise ConfigError(
            f"{path}: expected a policy without memory, got one with {lstm[0]}: train it anew with "
            "bray (model.memory_size)"
        )
    if "action_net.weight" in names:
        return "ppo" if "clip_range" in settings else "a2c"
    if "actor.log_std.weight" in names:
        return "sac"
    if "actor.mu.0.weight" in names:
        return "td3"
    if any(name.startswith("q_net.q_net.") for name in names):
        if any(name.startswith("quantile_net.") for name in names):
            raise ConfigError(f"{path}: expected DQN, got QR-DQN: train dqn with distributional=qr")
        return "dqn"
    raise ConfigError(
        f"{path}: expected a policy of PPO, A2C, SAC, TD3, DDPG or DQN, got weights "
        f"{', '.join(list(names)[:4])}…"
    )


def _activation(settings: Mapping[str, Any], kind: Kind) -> str:
    keywords = settings.get("policy_kwargs")
    said = keywords.get("activation_fn") if isinstance(keywords, Mapping) else None
    if said is None:
        return "Tanh" if kind in ("ppo", "a2c") else "ReLU"
    found = _CLASS.search(str(said))
    return found[1] if found else str(said)
