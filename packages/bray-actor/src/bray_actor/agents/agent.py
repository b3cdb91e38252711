"""One of the agents that together answer a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bray_actor.agents.tick_state import TickState


class Agent:
    """Answers its part of every tick. Subclass it and write `on_tick`."""

    async def on_tick(self, state: TickState) -> Any:
        """Return this agent's result; others get it by `await state.wait(name)`."""
        raise TypeError(f"{type(self).__name__}.on_tick: not written: override it")

    async def on_episode(self, episode: Sequence[Any], done: bool) -> None:
        """Take the results of an episode's ticks, or of a part of `episode_length` ticks.

        Runs beside the next ticks, one call at a time and in order. It shares the event loop with
        all ticks of the worker: give heavy computation to `asyncio.to_thread`.

        Args:
            episode: Results of `on_tick`, one a tick; None where it failed.
            done: Whether the session has ended.
        """
