"""Networks of action values: plain, duelling, noisy, and of whole distributions of returns.

Shapes: B rows, A actions, K atoms, quantiles or levels of a distribution, F features, M draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bray.policies.config import MemoryConfig
from bray.policies.trunks import make_trunk
from bray_algo.distributions import categorical
from bray_algo.losses import c51, dqn, qr_dqn
from bray_algo.networks.initialisation import orthogonal_
from bray_algo.networks.noisy import NoisyLinear, factorised_noise_
from bray_algo.networks.quantiles import LevelEmbedding
from bray_algo.returns.value_rescaling import unrescale
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.settings.ranges import PositiveInt
from bray_core.spaces import Spaces

NUM_DRAWS = 16
"""Draws M of the noise that travel with the weights of a noisy network."""
_GRAIN = 1e-5
"""Least difference of two means of `c51`, as a share of its range: ten times that of rounding."""
RESCALING = 1e-3
"""ε of the transform h of returns (Pohlen et al. 2018), where it is wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QNetworkConfig(MemoryConfig):
    """A network from observations of any space to action values, with a memory if it is wanted."""

    dueling: bool = False
    """Whether the value of a state and the advantages of its actions are layers of their own, whose
    sum is the action values: what all actions have in common is learnt from each of them. It helps
    where many actions hardly matter; it costs one layer."""
    noisy: bool = False
    """Whether the last layers have learnt noise, which explores in the place of ε (then 0): it is
    large where little is known, and vanishes by itself. Evaluations and exports act without."""
    distributional: Literal["none", "c51", "qr", "iqn"] = "none"
    """What is learnt of an action's return. `none`: its mean. `c51`: the chances of `num_atoms`
    values from `value_min` to `value_max`. `qr`: `num_atoms` quantiles, for which no range need be
    known. `iqn`: the quantile at any level, of which `num_atoms` are drawn a row; the dearest."""
    num_atoms: PositiveInt = 51
    """Atoms, quantiles or levels K of a distribution. Few are coarse; many cost time, of `iqn` the
    most. 51 of `c51`, 50 to 200 of `qr`, 8 to 64 of `iqn`."""
    value_min: float = -10.0
    """Least return that `c51` can tell; with `value_rescaling` the transformed one. Returns beyond
    the range are cut; a range far too wide leaves few atoms for what comes. -10 for Atari games."""
    value_max: float = 10.0
    """Greatest return that `c51` can tell."""
    value_rescaling: bool = False
    """Whether the network learns h(return), about the root of it (Pohlen et al. 2018), so that
    returns of 1 and of 1,000 can be learnt side by side without being clipped."""

    def __post_init__(self) -> None:
        MemoryConfig.__post_init__(self)
        if self.memory_size and (
            self.noisy or self.distributional != "none" or self.value_rescaling
        ):
            raise ConfigError(
                f"memory_size: expected noisy=false, distributional=none and value_rescaling=false "
                f"with a memory, got {self.memory_size} with noisy={self.noisy}, "
                f"distributional={self.distributional}, value_rescaling={self.value_rescaling}"
            )
        if not self.value_min < self.value_max:
            raise ConfigError(
                f"value_max: expected more than value_min={self.value_min}, got {self.value_max}"
            )
        if self.distributional == "c51" and self.num_atoms < 2:
            raise ConfigError(f"num_atoms: expected 2 or more of c51, got {self.num_atoms}")

    @property
    def is_plain(self) -> bool:
        """Whether one layer gives the means."""
        return not (self.dueling or self.noisy) and self.distributional == "none"


class QHead(nn.Module):
    """The last layers: from features to `[B, A, K]`, duelling and noisy where that is wanted."""

    def __init__(self, size: int, num_actions: int, num_atoms: int, config: QNetworkConfig) -> None:
        super().__init__()
        self._shape = num_actions, num_atoms
        sizes = {"advantage": num_actions * num_atoms}
        if config.dueling:
            sizes["value"] = num_atoms
        self.layers = nn.ModuleDict({name: _last(size, n, config) for name, n in sizes.items()})
        for name, n in sizes.items() if config.noisy else ():
            self.register_buffer(f"{name}_input_noise", torch.empty(NUM_DRAWS, size))
            self.register_buffer(f"{name}_output_noise", torch.empty(NUM_DRAWS, n))
        self.redraw()

    def redraw(self) -> None:
        """Draw the noise anew by which the policy acts, from torch's own generator."""
        for noise in self.buffers(recurse=False):
            factorised_noise_(noise)

    def forward(self, features: Tensor) -> Tensor:
        """Map features `[B, F]` to `[B, A, K]`."""
        return self._joined({name: layer(features) for name, layer in self.layers.items()})

    def draws(self, features: Tensor) -> Tensor:
        """Map features `[B, F]` to `[B, M, A, K]`, by each draw of the noise."""
        drawn = {}
        for name, layer in self.layers.items():
            assert isinstance(layer, NoisyLinear)
            noise = getattr(self, f"{name}_input_noise"), getattr(self, f"{name}_output_noise")
            drawn[name] = layer.draws(features, *noise).flatten(0, 1)
        joined = self._joined(drawn)
        return joined.reshape(-1, NUM_DRAWS, *self._shape)

    def _joined(self, streams: dict[str, Tensor]) -> Tensor:
        advantage = streams["advantage"].reshape(-1, *self._shape)
        return dqn.duelling(streams["value"], advantage) if "value" in streams else advantage


def _last(size: int, outputs: int, config: QNetworkConfig) -> nn.Module:
    if not config.noisy:
        return orthogonal_(nn.Linear(size, outputs), 0.01)
    layer = NoisyLinear(size, outputs)
    layer.weight.data.mul_(0.01)  # values begin near 0, as those of other networks do
    layer.bias.data.zero_()
    return layer


class QNetwork(nn.Module):
    """A trunk and a `QHead`: from observations to numbers `[B, A]`, or `[B, A, K]`.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings.
        num_actions: number A of actions.
    """

    def __init__(self, spaces: Spaces, config: QNetworkConfig, num_actions: int) -> None:
        super().__init__()
        self.trunk = make_trunk(spaces, config, nn.ReLU)
        self._is_mean = config.distributional == "none"
        self._num_atoms = config.num_atoms
        self.levels = LevelEmbedding(self.trunk.size) if config.distributional == "iqn" else None
        num_outputs = 1 if self.levels is not None or self._is_mean else config.num_atoms
        self.head = QHead(self.trunk.size, num_actions, num_outputs, config)

    def forward(self, seen: Nested, levels: Tensor | None = None) -> Tensor:
        """Map observations to numbers, those of quantiles at levels `[B, K]`.

        Without levels the quantiles are those in the middle of K equal parts.
        """
        features = self.trunk(seen)
        if self.levels is None:
            return self._numbers(self.head(features))
        rows = self._at(features, levels)
        numbers: Tensor = self.head(rows.flatten(0, 1))  # [B * K, A, 1]
        return numbers.reshape(*rows.shape[:2], -1).transpose(1, 2)

    def with_draws(self, seen: Nested) -> tuple[Tensor, Tensor]:
        """Return the numbers without noise, and by each draw of the noise, `[B, M, A, …]`."""
        features = self.trunk(seen)
        if self.levels is None:
            return self._numbers(self.head(features)), self._numbers(self.head.draws(features))
        rows = self._at(features, None)
        flat = rows.flatten(0, 1)
        mean = self.head(flat).reshape(*rows.shape[:2], -1).transpose(1, 2)
        drawn = self.head.draws(flat).reshape(*rows.shape[:2], NUM_DRAWS, -1)  # [B, K, M, A]
        return mean, drawn.permute(0, 2, 3, 1)

    def _numbers(self, atoms: Tensor) -> Tensor:
        return atoms.squeeze(-1) if self._is_mean else atoms

    def _at(self, features: Tensor, levels: Tensor | None) -> Tensor:
        """Return features of each level, `[B, K, F]`."""
        assert self.levels is not None
        if levels is None:
            middle = qr_dqn.midpoints(self._num_atoms).to(features)
            levels = middle.expand(features.shape[0], -1)
        rows: Tensor = self.levels(features, levels)
        return rows


class Returns(nn.Module):
    """Reads a network's numbers as mean returns."""

    def __init__(self, config: QNetworkConfig) -> None:
        super().__init__()
        self._config = config
        atoms = c51.atoms(config.value_min, config.value_max, max(2, config.num_atoms))
        self.register_buffer("support", atoms, persistent=False)

    support: Tensor

    def forward(self, numbers: Tensor) -> Tensor:
        """Map numbers `[…, A]`, or `[…, A, K]`, to mean returns `[…, A]`."""
        kind, rescales = self._config.distributional, self._config.value_rescaling
        if kind == "c51":
            atoms = unrescale(self.support, RESCALING) if rescales else self.support
            means, grain = c51.q_values(numbers, atoms), (atoms[-1] - atoms[0]) * _GRAIN
            return _alike(means, atoms.mean(), grain)
        numbers = unrescale(numbers, RESCALING) if rescales else numbers
        return numbers if kind == "none" else numbers.mean(-1)


def _alike(means: Tensor, unknown: Tensor, grain: Tensor) -> Tensor:
    """Return means `[…, A]` of which those within a grain of each other are alike.

    So no rounding error, which differs from row to row and in an export, decides between actions of
    which nothing is known. That holds of what is near the mean of what nothing is known of, and of
    what is near the greatest.
    """
    known = unknown + _distance(means - unknown, grain)
    best = known.amax(-1, keepdim=True)
    return best - _distance(best - known, grain)


def _distance(exact: Tensor, grain: Tensor) -> Tensor:
    """Return differences of which those below a grain are 0, and those from two grains on exact.

    In between they grow without a jump: with one, or were means rounded to grains, an error in the
    last bits could move a mean by a whole grain, and an export would differ from its module.
    """
    size = exact.abs()
    return exact.sign() * torch.minimum(size, 2 * (size - grain).clamp(min=0))


def votes(drawn: Tensor, mean: Tensor) -> Tensor:
    """Return logits `[B, A]` of acting by one draw of the noise, chosen anew at each step.

    An action's chance is the share of the draws for which it is the best one. The best one by the
    mean is lifted to the most likely: so who takes the most likely actions, as evaluations and
    exports do, acts without noise.

    Args:
        drawn: values by each draw, `[B, M, A]`.
        mean: values without noise, `[B, A]`.
    """
    num_actions = mean.shape[-1]
    share = nn.functional.one_hot(drawn.argmax(-1), num_actions).float().mean(1)
    best = nn.functional.one_hot(mean.argmax(-1), num_actions)
    lifted = torch.where(best.bool(), share.amax(-1, keepdim=True) + 1e-3, share)
    return lifted.clamp(min=1e-9).log()


def allowed_actions(mask: Tensor | None) -> Tensor | None:
    """Return which actions are allowed by a mask, bool `[B, A]`.

    In what follows a last step nothing is: there all are.
    """
    if mask is None:
        return None
    allowed = mask.bool()
    return allowed | ~allowed.any(-1, keepdim=True)


def masked(values: Tensor, allowed: Tensor | None) -> Tensor:
    """Return values of which those of actions that are not allowed are least."""
    return values if allowed is None else categorical.mask(values, allowed)


def num_choices(spaces: Spaces) -> int:
    """Return the number A of actions of which one is chosen.

    Raises:
        ConfigError: an action is another one.
    """
    actions = ActionVector(spaces.action, spaces.origin)
    if not actions.is_one:
        raise ConfigError(
            f"environment: {spaces.origin}: expected actions that are one choice (Discrete), got "
            f"{len(actions.sizes)} choices and {actions.num_reals} reals: train PPO, or SAC for "
            "reals alone"
        )
    return actions.sizes[0]
