"""The target networks of a trainer are part of its checkpoints."""

from __future__ import annotations

from typing import Any

from bray_trainer.hooks import TrainerHooks


class KeepsTarget(TrainerHooks):
    """A trainer whose checkpoints hold `target`, the networks that its constructor copies."""

    target: Any

    def state_dict(self) -> dict[str, Any]:
        """Return the target networks' weights."""
        return {**super().state_dict(), "target": self.target.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        self.target.load_state_dict(state["target"])
