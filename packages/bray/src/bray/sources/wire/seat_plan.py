"""Who answers the agents of one source: policies that learn, with what they are trained on, and
seats that never do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from bray_actor import PolicyConfig
from bray_actor.multi_agent.seat import Seat
from bray_core.errors import ConfigError
from bray_core.protocols import BufferProtocol, ModelProtocol


class SeatPlan(NamedTuple):
    """A policy that learns from a source of several: what answers its agents, and what for."""

    name: str
    """Name of the policy."""
    model: ModelProtocol
    """Answers observations."""
    config: PolicyConfig
    """How the policy acts."""
    buffer: BufferProtocol
    """Where its segments go."""
    quota: int | None = None
    """Steps that it is trained on at a time; on Ray those of each version. None sets no bound."""

    @property
    def seat(self) -> Seat:
        """Who plays an agent of this policy."""
        return Seat(name=self.name, model=self.model, config=self.config, buffer=self.buffer)


AnySeat: TypeAlias = SeatPlan | Seat
"""Who answers an agent: a policy that learns, or a script or frozen policy without a buffer."""


def plans_by_name(seats: Mapping[str, AnySeat]) -> dict[str, SeatPlan]:
    """Return the plans of those who learn, of all patterns, by the policies' names.

    Raises:
        ConfigError: there is no seat, nobody learns, or two different seats have a name.
    """
    if not seats:
        raise ConfigError("seats: expected one or more patterns of agents, got none")
    named: dict[str, AnySeat] = {}
    for pattern, seat in seats.items():
        if named.setdefault(seat.name, seat) is not seat:
            raise ConfigError(f"seats: {pattern}: another seat is named {seat.name!r}, too")
    plans = {name: seat for name, seat in named.items() if isinstance(seat, SeatPlan)}
    if not plans:
        raise ConfigError(f"seats: expected one that learns, got {', '.join(named)}")
    return plans


def check_shares(seats: Mapping[str, AnySeat], num_workers: int) -> None:
    """Refuse steps of a version that cannot be shared out to the workers.

    Raises:
        ConfigError: names the policy.
    """
    for plan in plans_by_name(seats).values():
        if plan.quota is not None and plan.quota % num_workers:
            raise ConfigError(
                f"seats: {plan.name}: expected a multiple of the {num_workers} workers "
                f"(actor.num_workers) as the steps of a version, got {plan.quota}"
            )
