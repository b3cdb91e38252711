"""A model that remembers its last answer, so that a decision can be shown beside the action."""

from __future__ import annotations

from typing import Any

from bray_core.nested import Nested
from bray_core.protocols import Answer


class HeardModel:
    """Passes everything on to a model.

    Args:
        model: the model that answers.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.outputs: Nested = None
        """What it answered last; None before the first answer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def infer(self, *inputs: Nested, batch: bool = False) -> Answer:
        """Answer as the model does, and remember the outputs."""
        answer: Answer = await self._model.infer(*inputs, batch=batch)
        self.outputs = answer.outputs
        return answer
