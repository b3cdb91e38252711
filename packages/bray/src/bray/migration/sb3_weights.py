"""Weights of Stable-Baselines3 by the names that bray's networks have for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bray.migration.actor_and_critic import ACTIVATIONS, ActorAndCritic
from bray.migration.sb3_file import SB3File
from bray_core.errors import ConfigError

Layer: TypeAlias = tuple[Tensor, Tensor]
"""Weight `[outputs, inputs]` and bias `[outputs]`."""

_CNN = "features_extractor.cnn"
_OWN = f"{ActorAndCritic.__module__}:{ActorAndCritic.__name__}"
_ACTIVATIONS = {made.__name__: name for name, made in ACTIVATIONS.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Migrated:
    """What of a file goes into a trial of bray."""

    settings: Mapping[str, Any]
    """Settings of the run by dotted name, such as `{"model.hidden": [64, 64]}`."""
    weights: Mapping[str, Tensor]
    """Weights by the names of what the algorithm trains."""
    left_out: Sequence[str] = ()
    """What could not be taken over and begins anew, in words."""


def migrated(file: SB3File) -> Migrated:
    """Return the settings and weights of bray's algorithm of a file's kind.

    Raises:
        ConfigError: bray has no network of that form; says which.
    """
    if any(name.startswith("features_extractor.extractors") for name in file.weights):
        raise ConfigError(
            f"{file.path}: expected a policy of one observation, got MultiInputPolicy with an "
            "image among its observations, which bray has no equal of: train anew with bray"
        )
    if any(name.startswith("features_extractor") for name in file.weights):
        if file.kind not in ("ppo", "a2c"):
            raise ConfigError(
                f"{file.path}: expected a policy without convolutions or an extractor of its own "
                f"(MlpPolicy) of {file.kind}"
            )
        return _of_images(file)
    makers = {"ppo": _actor_critic, "a2c": _actor_critic, "sac": _sac, "td3": _td3, "dqn": _dqn}
    return makers[file.kind](file)


def _actor_critic(file: SB3File) -> Migrated:
    if file.layers("mlp_extractor.shared_net"):
        raise ConfigError(
            f"{file.path}: expected a policy without layers shared with the value function, which "
            "Stable-Baselines3 has had none of since 1.8"
        )
    policy = [*file.layers("mlp_extractor.policy_net"), file.layer("action_net")]
    value = [*file.layers("mlp_extractor.value_net"), file.layer("value_net")]
    weights = {**_named("policy", policy), **_named("value", value), **_spread(file)}
    hidden, of_value = _sizes(policy), _sizes(value)
    if hidden and hidden == of_value and file.activation == "Tanh":
        return Migrated(settings={"model.hidden": hidden}, weights=weights)
    settings = {"policy": hidden, "value": of_value, "activation": _activation(file)}
    return Migrated(settings={"model.network": _OWN, "model.settings": settings}, weights=weights)


def _of_images(file: SB3File) -> Migrated:
    convolutions = file.layers(_CNN)
    behind = file.layers("mlp_extractor.policy_net") + file.layers("mlp_extractor.value_net")
    if len(convolutions) != 3 or behind:
        raise ConfigError(
            f"{file.path}: expected the convolutions of CnnPolicy with one layer of features "
            "behind and no further ones (net_arch=[]), got others"
        )
    features = file.layer("features_extractor.linear.0")
    weights = _placed("encoder", [0, 2, 4, 7], [*convolutions, features])
    weights |= _placed("", ["policy", "value"], [file.layer("action_net"), file.layer("value_net")])
    return Migrated(settings={"model.hidden": [len(features[1])]}, weights=weights | _spread(file))


def _sac(file: SB3File) -> Migrated:
    mean, spread = file.layer("actor.mu"), file.layer("actor.log_std")
    last = torch.cat([mean[0], spread[0]]), torch.cat([mean[1], spread[1]])
    policy = [*file.layers("actor.latent_pi"), last]
    found = _with_critics(file, policy)
    weights = dict(found.weights)
    if file.log_alpha is not None:
        weights["temperature.log_alpha"] = torch.tensor(file.log_alpha)
    return Migrated(settings=found.settings, weights=weights, left_out=found.left_out)


def _td3(file: SB3File) -> Migrated:
    return _with_critics(file, file.layers("actor.mu"))


def _with_critics(file: SB3File, policy: list[Layer]) -> Migrated:
    hidden = _hidden_by_relu(file, policy)
    weights = _named("policy.body", policy)
    critics = [file.layers(f"critic.qf{number}") for number in range(2)]
    if all(_sizes(critic) == hidden for critic in critics):
        for number, critic in enumerate(critics):
            weights |= _named(f"critics.members.{number}", critic)
        return Migrated(settings={"model.hidden": hidden}, weights=weights)
    layers = [_sizes(critic) for critic in critics if critic]
    said = f"the critics ({len(layers)} with layers {layers[0] if layers else []}): bray trains two"
    return Migrated(
        settings={"model.hidden": hidden},
        weights=weights,
        left_out=[f"{said} with those of the policy, {hidden}"],
    )


def _dqn(file: SB3File) -> Migrated:
    layers = file.layers("q_net.q_net")
    hidden = _hidden_by_relu(file, layers)
    # A share of random actions of 1, with which training begins, would leave no best action.
    weights = {**_named("q", layers), "epsilon": torch.zeros(())}
    return Migrated(settings={"model.hidden": hidden}, weights=weights)


def _hidden_by_relu(file: SB3File, layers: list[Layer]) -> list[int]:
    hidden = _sizes(layers)
    if file.activation != "ReLU" or not hidden:
        raise ConfigError(
            f"{file.path}: expected hidden layers with ReLU of {file.kind}, got {hidden} with "
            f"{file.activation}: train it so, or train anew with bray"
        )
    return hidden


def _activation(file: SB3File) -> str:
    if file.activation not in _ACTIVATIONS:
        raise ConfigError(
            f"{file.path}: expected one of the activations {', '.join(_ACTIVATIONS)}, got "
            f"{file.activation}"
        )
    return _ACTIVATIONS[file.activation]


def _sizes(layers: Sequence[Layer]) -> list[int]:
    """Return the units of all layers but the last."""
    return [len(bias) for _, bias in layers[:-1]]


def _named(prefix: str, layers: Sequence[Layer]) -> dict[str, Tensor]:
    """Name layers that have an activation between each two."""
    return _placed(prefix, range(0, 2 * len(layers), 2), layers)


def _placed(prefix: str, places: Sequence[Any], layers: Sequence[Layer]) -> dict[str, Tensor]:
    named: dict[str, Tensor] = {}
    for place, (weight, bias) in zip(places, layers, strict=True):
        name = f"{prefix}.{place}" if prefix else str(place)
        named |= {f"{name}.weight": weight, f"{name}.bias": bias}
    return named


def _spread(file: SB3File) -> dict[str, Tensor]:
    spread = file.weights.get("log_std")
    return {} if spread is None else {"actions.log_std": spread}
