"""Policies that learn from one source: what answers their agents, and what they are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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


def plans_by_name(seats: Mapping[str, SeatPlan]) -> dict[str, SeatPlan]:
    """Return the plans of all patterns by the policies' names.

    Raises:
        ConfigError: there is no seat, or two different ones have a name.
    """
    if not seats:
        raise ConfigError("seats: expected one or more patterns of agents, got none")
    plans: dict[str, SeatPlan] = {}
    for pattern, plan in seats.items():
        if plans.setdefault(plan.name, plan) is not plan:
            raise ConfigError(f"seats: {pattern}: another seat is named {plan.name!r}, too")
    return plans


def check_shares(seats: Mapping[str, SeatPlan], num_workers: int) -> None:
    """Refuse steps of a version that cannot be shared out to the workers.

    Raises:
        ConfigError: names the policy.
    """
    for plan in seats.values():
        if plan.quota is not None and plan.quota % num_workers:
            raise ConfigError(
                f"seats: {plan.name}: expected a multiple of the {num_workers} workers "
                f"(actor.num_workers) as the steps of a version, got {plan.quota}"
            )
