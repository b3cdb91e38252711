"""Networks as users write them: they rely on what the guide says, and on nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class RowTrunk(nn.Module):
    """Flattens each row of a batch `[B, …]` by hand, so that it needs the batch."""

    feature_size = 6

    def __init__(self, spaces: Any, settings: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(spaces.observation.num_numbers, 6)

    def forward(self, seen: Tensor) -> Tensor:
        """Return features `[B, F]`."""
        return torch.tanh(self.layer(seen.float().reshape(seen.shape[0], -1)))


class CountTrunk(nn.Module):
    """Looks a whole number up in a table, which takes no fractions."""

    feature_size = 6

    def __init__(self, spaces: Any, settings: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6)

    def forward(self, seen: Tensor) -> Tensor:
        """Return features `[B, F]`."""
        features: Tensor = self.table(seen)
        return features


class StepPolicy(nn.Module):
    """A whole policy with memory that knows one step alone."""

    state_size = 5

    def __init__(self, spaces: Any, settings: Any) -> None:
        super().__init__()
        self.cell = nn.GRUCell(spaces.observation.num_numbers, 5)
        self.heads = nn.Linear(5, spaces.action.sizes[0] + 1)

    def forward(self, seen: Tensor, state: Tensor) -> dict[str, Tensor]:
        """Return the outputs of a step, and the next state."""
        state = self.cell(seen.float(), state)
        heads = self.heads(state)
        return {"logits": heads[:, 1:], "value": heads[:, 0], "state": state}


@dataclass(frozen=True)
class NoSettings:
    """A network with these is not given those of `model`."""


class SettledTrunk(RowTrunk):
    """Sees its own settings alone."""

    Config = NoSettings


class SettledPolicy(StepPolicy):
    """A whole policy that sees its own settings alone."""

    Config = NoSettings


class WideTrunk(RowTrunk):
    """Returns features in float64."""

    def forward(self, seen: Tensor) -> Tensor:
        """Return features `[B, F]`."""
        return super().forward(seen).double()


class PairTrunk(RowTrunk):
    """Takes two rows and no other number."""

    def forward(self, seen: Tensor) -> Tensor:
        """Return features `[2, F]`."""
        return super().forward(seen).view(2, 6)


class KeepingTrunk(RowTrunk):
    """Keeps its last features, with their graph, as an attribute."""

    def forward(self, seen: Tensor) -> Tensor:
        """Return features `[B, F]`."""
        self.last = super().forward(seen)
        return self.last


class BranchingTrunk(RowTrunk):
    """Does this or that, as its features say: no graph holds both."""

    def forward(self, seen: Tensor) -> Tensor:
        """Return features `[B, F]`."""
        features = super().forward(seen)
        return features * 2 if features.sum() > 0 else features


class BranchingEncoder(BranchingTrunk):
    """Does the same for one leaf."""

    def __init__(self, leaf: Any, settings: Any) -> None:
        nn.Module.__init__(self)
        self.layer = nn.Linear(leaf.num_numbers, 6)


class FailingTrunk(RowTrunk):
    """Cannot be made."""

    def __init__(self, spaces: Any, settings: Any) -> None:
        raise RuntimeError("no kernels for this card")


class WidePolicy(StepPolicy):
    """Returns its value in float64."""

    def forward(self, seen: Tensor, state: Tensor) -> dict[str, Tensor]:
        """Return the outputs of a step, and the next state."""
        outputs = super().forward(seen, state)
        return {**outputs, "value": outputs["value"].double()}


class DetachedPolicy(StepPolicy):
    """Computes its outputs without gradients."""

    def forward(self, seen: Tensor, state: Tensor) -> dict[str, Tensor]:
        """Return the outputs of a step, and the next state."""
        with torch.no_grad():
            return super().forward(seen, state)


class ChangingPolicy(StepPolicy):
    """Changes the observations that it is given."""

    def forward(self, seen: Tensor, state: Tensor) -> dict[str, Tensor]:
        """Return the outputs of a step, and the next state."""
        seen *= 2
        return super().forward(seen, state)
