"""What a trainer draws, such as the order of minibatches, goes on where its checkpoint stood."""

from __future__ import annotations

from typing import Any

import torch

from bray_trainer.hooks import TrainerHooks


class KeepsGenerator(TrainerHooks):
    """A trainer whose checkpoints hold `generator`, which its constructor makes."""

    generator: torch.Generator

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state."""
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        super().load_state_dict(state)
        self.generator.set_state(state["generator"])
