"""Actors and agents that answer a simulator, in training and in production."""

from bray_actor.actor import Actor
from bray_actor.fleet import GamecoreFleet
from bray_actor.policy import PolicyActor, PolicyConfig
from bray_actor.segment import SegmentWriter, segment_spec
from bray_actor.step_budget import StepBudget

__all__ = [
    "Actor",
    "GamecoreFleet",
    "PolicyActor",
    "PolicyConfig",
    "SegmentWriter",
    "StepBudget",
    "segment_spec",
]
