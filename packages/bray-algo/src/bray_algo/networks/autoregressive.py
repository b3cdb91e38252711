"""Auto-regressive actions: several parts, each given those before.

The distribution is p(a) = Π_k p(a_k | features, a_1 … a_{k−1}).

Vinyals et al. 2019, "Grandmaster level in StarCraft II", Methods (action type, then its arguments).
Once the action is known, its K logits are those of a product of categoricals along its path:

    logits = head.logits(features, action, legal)
    multi_categorical.log_prob(logits, action)  # exact
    multi_categorical.entropy(logits)           # an unbiased estimate, if the action was drawn
    multi_categorical.kl(logits, others)        # likewise, with another head's logits of the action

The gradient of these estimates leaves out that earlier parts choose which later ones are met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bray_algo.distributions import categorical, multi_categorical
from bray_algo.networks.mlp import mlp
from bray_algo.validation.tensors import check_floats, check_shape
from bray_algo.validation.values import check_index

Legal = Sequence[Tensor | None]
"""Mask of each part: bool `[B, A_k]`, bool `[B, A_1, A_k]` where it depends on the first, or
None."""


class AutoRegressiveHead(nn.Module):
    """Chooses K parts one after the other; each choice is embedded and added to the features.

    Args:
        num_features: Number D of features.
        num_actions: Numbers A_1 … A_K of choices of each part.
        hidden: Units of each part's perceptron.

    Raises:
        ValueError: no part, or a number that is not positive.

    Examples:
        >>> head = AutoRegressiveHead(8, [3, 5])
        >>> head(torch.zeros(2, 8)).shape
        torch.Size([2, 2])
    """

    def __init__(self, num_features: int, num_actions: Sequence[int], hidden: int = 64) -> None:
        super().__init__()
        if min(num_actions, default=0) < 1:
            raise ValueError(f"num_actions: expected positive numbers, got {list(num_actions)}")
        self.num_actions = tuple(num_actions)
        self.parts = nn.ModuleList(
            mlp([num_features, hidden, num], nn.ReLU, output_gain=0.01) for num in num_actions
        )
        self.choices = nn.ModuleList(nn.Embedding(num, num_features) for num in num_actions[:-1])

    def forward(self, features: Tensor, legal: Legal | None = None) -> Tensor:
        """Return the greedy action `[B, K]`: each part the likeliest given those before.

        The likeliest whole action may be another one; to find it takes a search.
        """
        return self._walk(features, legal, lambda k, logits: categorical.mode(logits))[0]

    def sample(
        self,
        features: Tensor,
        legal: Legal | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Draw actions `[B, K]`, given with the K logits `[B, A_k]` that they were drawn from."""
        return self._walk(features, legal, lambda k, logits: categorical.sample(logits, generator))

    def logits(self, features: Tensor, action: Tensor, legal: Legal | None = None) -> list[Tensor]:
        """Return the K logits `[B, A_k]` along the path of these actions `[B, K]`.

        Raises:
            ValueError: shapes do not agree, an action does not exist, or a mask has a row of no
                legal action.
        """
        check_floats("features", features)
        check_shape("action", action, (features.shape[0], len(self.parts)))
        for k, num in enumerate(self.num_actions):
            check_index(f"action[:, {k}]", action[:, k], num)
        return self._walk(features, legal, lambda k, logits: action[:, k])[1]

    def log_prob(self, features: Tensor, action: Tensor, legal: Legal | None = None) -> Tensor:
        """Return log p of actions `[B, K]`, `[B]`."""
        return multi_categorical.log_prob(self.logits(features, action, legal), action)

    def _walk(
        self, features: Tensor, legal: Legal | None, choose: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        if legal is not None and len(legal) != len(self.parts):
            raise ValueError(f"legal: expected {len(self.parts)} masks, got {len(legal)}")
        state, actions, every = features, list[Tensor](), list[Tensor]()
        for k, part in enumerate(self.parts):
            logits = part(state)
            allowed = None if legal is None else legal[k]
            if allowed is not None:
                allowed = _given_first(allowed, actions)
                logits = categorical.mask(logits, allowed)
            chosen = choose(k, logits)
            actions.append(chosen)
            every.append(logits)
            if k < len(self.choices):
                # Later parts know what was chosen before by what is added to the features.
                state = state + self.choices[k](chosen.long())
        return torch.stack(actions, -1), every


def _given_first(allowed: Tensor, actions: Sequence[Tensor]) -> Tensor:
    """Return the mask `[B, A_k]`; from `[B, A_1, A_k]` it takes the rows of the first choice."""
    if allowed.ndim != 3:
        return allowed
    if not actions:
        raise ValueError(f"legal[0]: expected [B, A_1], got shape {tuple(allowed.shape)}")
    index = actions[0].long()[:, None, None].expand(-1, 1, allowed.shape[-1])
    return allowed.gather(1, index).squeeze(1)
