"""The wires between the parts of a template: what begins where, and leads whither."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bray.training.algorithm import Algorithm

EXPERIENCE = "experience"
"""Input of an algorithm that plays."""
DEMONSTRATIONS = "demonstrations"
"""Input of an algorithm that imitates."""


@dataclass(slots=True)
class Wires:
    """Every wire of a template, by the name of the part at which it begins."""

    model_of: dict[str, str] = field(default_factory=dict)
    """Model by trainer."""
    inputs_of: dict[str, dict[str, str]] = field(default_factory=dict)
    """Buffers by input, by trainer."""
    agents: dict[str, str | None] = field(default_factory=dict)
    """Model by agent; None for a script."""
    buffer_of: dict[str, dict[str, float]] = field(default_factory=dict)
    """Buffers by agent, where there are some that are named, with the shares of what it records."""
    players: dict[str, dict[str, str]] = field(default_factory=dict)
    """Agents by pattern, by source."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Kind by source."""
    actor_of: dict[str, str | None] = field(default_factory=dict)
    """Actor by source."""
    render_of: dict[str, str | None] = field(default_factory=dict)
    """Source by render."""

    def trainer_of(self, model: str | None) -> str | None:
        """Return the trainer of a model; None if nobody trains it."""
        return next((one for one, trained in self.model_of.items() if trained == model), None)

    @property
    def models(self) -> list[str]:
        """The models that are trained or answer."""
        answering = (model for model in self.agents.values() if model is not None)
        return list(dict.fromkeys([*self.model_of.values(), *answering]))

    def trainers_in(self, source: str) -> list[str]:
        """Return the trainers whose models play in a source."""
        playing = self.players[source].values() or self.agents
        found = (self.trainer_of(self.agents.get(agent)) for agent in playing)
        return list(dict.fromkeys(one for one in found if one is not None))

    def filled(self) -> set[str]:
        """Return the buffers that agents fill."""
        return {name for buffers in self.buffer_of.values() for name in buffers}

    def source_of(self, trainer: str) -> str | None:
        """Return the first source in which a trainer's model plays."""
        return next((one for one in self.players if trainer in self.trainers_in(one)), None)


def inputs_of(algorithm: type[Algorithm[Any]]) -> list[str]:
    """Return the names of what an algorithm learns from."""
    plays = [EXPERIENCE] if algorithm.pacing != "offline" else []
    return [*plays, *([DEMONSTRATIONS] if algorithm.takes.demonstrations else [])]
