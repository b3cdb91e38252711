"""What policies decided in a step of an episode, read from the replies of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bray.viewer.episodes import EpisodeStep

_MAX_AGENTS = 32
_MAX_CHOICES = 64
"""Choices, or reals, of one decision that are shown."""
_MAX_HEADS = 16
_MAX_NAME = 60
_REALS = ("mean", "std", "alpha", "beta")


def decisions_of(step: EpisodeStep) -> list[dict[str, object]]:
    """Return the decision of each agent that acted; none where the reply holds no action.

    Returns:
        `{"agent", "policy", "action", "value", "probabilities", "reals"}` of each: `agent` is None
        where there is one alone, `action` a list of numbers, `probabilities` a list for each of
        several choices, `reals` lists by what they are.
    """
    reply = step.reply
    if not isinstance(reply, Mapping):
        return []
    agents = reply.get("agents")
    if not isinstance(agents, Mapping):
        return [_decision(None, reply)] if "action" in reply else []
    several = [(str(name)[:_MAX_NAME], one) for name, one in list(agents.items())[:_MAX_AGENTS]]
    return [_decision(name, one) for name, one in several if isinstance(one, Mapping)]


def without_frame(body: Any) -> Any:
    """Return a request without the picture in it: that is shown as such."""
    if not (isinstance(body, Mapping) and isinstance(body.get("frame"), bytes | str)):
        return body
    return {name: value for name, value in body.items() if name != "frame"}


def _decision(agent: str | None, found: Mapping[str, Any]) -> dict[str, object]:
    value = _numbers(found.get("value"))
    policy = found.get("policy")
    chances = found.get("probabilities")
    heads = chances if isinstance(chances, list) else [] if chances is None else [chances]
    known = {name: _numbers(found.get(name)) for name in _REALS}
    return {
        "agent": agent,
        "policy": policy[:_MAX_NAME] if isinstance(policy, str) else None,
        "action": _numbers(found.get("action")),
        "value": value[0] if len(value) == 1 else None,
        "probabilities": [numbers for head in heads[:_MAX_HEADS] if (numbers := _numbers(head))],
        "reals": {name: numbers for name, numbers in known.items() if numbers},
    }


def _numbers(leaf: object) -> list[float]:
    """Return the first finite numbers of a leaf; none where it is no array of numbers."""
    if isinstance(leaf, str | bytes) or leaf is None or isinstance(leaf, Mapping):
        return []
    try:
        array = np.asarray(leaf)
    except ValueError:
        return []
    if array.dtype.kind not in "biuf":
        return []
    numbers = array.ravel()[:_MAX_CHOICES].astype(np.float64)
    return [float(f"{number:.5g}") if np.isfinite(number) else 0.0 for number in numbers]
