"""Actors and agents that answer a simulator, in training and in production."""

from typing import TYPE_CHECKING

from bray_core import lazy

if TYPE_CHECKING:
    from bray_actor.actor import Actor
    from bray_actor.agents.agent import Agent
    from bray_actor.agents.agent_actor import AgentActor
    from bray_actor.agents.tick_state import TickState
    from bray_actor.gamecores.fleet import GamecoreFleet
    from bray_actor.policy.policy_actor import PolicyActor
    from bray_actor.policy.policy_config import PolicyConfig
    from bray_actor.policy.step_budget import StepBudget
    from bray_actor.recording import Recorder, read_episode
    from bray_actor.runners.alternating_runners import AlternatingRunners
    from bray_actor.runners.rollouts import Played, Rollouts
    from bray_actor.runners.runner import Runner
    from bray_actor.segment import SegmentWriter, segment_spec

__all__ = [
    "Actor",
    "Agent",
    "AgentActor",
    "AlternatingRunners",
    "GamecoreFleet",
    "Played",
    "PolicyActor",
    "PolicyConfig",
    "Recorder",
    "Rollouts",
    "Runner",
    "SegmentWriter",
    "StepBudget",
    "TickState",
    "read_episode",
    "segment_spec",
]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "Actor": "bray_actor.actor",
        "Agent": "bray_actor.agents.agent",
        "AgentActor": "bray_actor.agents.agent_actor",
        "GamecoreFleet": "bray_actor.gamecores.fleet",
        "AlternatingRunners": "bray_actor.runners.alternating_runners",
        "Played": "bray_actor.runners.rollouts",
        "PolicyActor": "bray_actor.policy.policy_actor",
        "PolicyConfig": "bray_actor.policy.policy_config",
        "Recorder": "bray_actor.recording",
        "Rollouts": "bray_actor.runners.rollouts",
        "Runner": "bray_actor.runners.runner",
        "SegmentWriter": "bray_actor.segment",
        "TickState": "bray_actor.agents.tick_state",
        "StepBudget": "bray_actor.policy.step_budget",
        "read_episode": "bray_actor.recording",
        "segment_spec": "bray_actor.segment",
    },
)
