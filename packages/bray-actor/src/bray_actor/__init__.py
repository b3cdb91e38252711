"""Actors and agents that answer a simulator, in training and in production."""

from typing import TYPE_CHECKING

from bray_core import lazy

if TYPE_CHECKING:
    from bray_actor.actor import Actor
    from bray_actor.agent import Agent
    from bray_actor.agent_actor import AgentActor
    from bray_actor.gamecores.fleet import GamecoreFleet
    from bray_actor.policy.policy_actor import PolicyActor, PolicyConfig
    from bray_actor.policy.step_budget import StepBudget
    from bray_actor.recording import Recorder, read_episode
    from bray_actor.runners.interleaved import Interleaved
    from bray_actor.runners.rollouts import Played, Rollouts
    from bray_actor.runners.runner import Runner
    from bray_actor.segment import SegmentWriter, segment_spec
    from bray_actor.state import State

__all__ = [
    "Actor",
    "Agent",
    "AgentActor",
    "GamecoreFleet",
    "Interleaved",
    "Played",
    "PolicyActor",
    "PolicyConfig",
    "Recorder",
    "Rollouts",
    "Runner",
    "SegmentWriter",
    "State",
    "StepBudget",
    "read_episode",
    "segment_spec",
]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "Actor": "bray_actor.actor",
        "Agent": "bray_actor.agent",
        "AgentActor": "bray_actor.agent_actor",
        "GamecoreFleet": "bray_actor.gamecores.fleet",
        "Interleaved": "bray_actor.runners.interleaved",
        "Played": "bray_actor.runners.rollouts",
        "PolicyActor": "bray_actor.policy.policy_actor",
        "PolicyConfig": "bray_actor.policy.policy_actor",
        "Recorder": "bray_actor.recording",
        "Rollouts": "bray_actor.runners.rollouts",
        "Runner": "bray_actor.runners.runner",
        "SegmentWriter": "bray_actor.segment",
        "State": "bray_actor.state",
        "StepBudget": "bray_actor.policy.step_budget",
        "read_episode": "bray_actor.recording",
        "segment_spec": "bray_actor.segment",
    },
)
