"""Gamecore processes of one machine that play environments of several agents."""

from __future__ import annotations

from bray_actor.gamecores.lane_fleet import LaneFleet


class MultiAgentFleet(LaneFleet):
    """A `LaneFleet` whose lanes are games, made as `MultiAgentSpec.to_json` wrote."""

    _module = "bray_actor.gamecores.multi_agent_gamecore"
