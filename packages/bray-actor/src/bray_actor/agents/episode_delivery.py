"""Delivers parts of episodes to one agent, beside the ticks."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from bray_actor.agents.agent import Agent
from bray_core import metrics

logger = logging.getLogger(__name__)


class EpisodeDelivery:
    """Calls an agent's `on_episode` with one part after the other, in a task of its own.

    Args:
        name: Name of the agent.
        agent: Agent that takes the episodes.
        max_waiting: Number of parts that may wait; beyond it the oldest is dropped.
    """

    def __init__(self, name: str, agent: Agent, max_waiting: int) -> None:
        self._name = name
        self._agent = agent
        self._waiting: deque[tuple[list[Any], bool]] = deque()
        self._max_waiting = max_waiting
        self._task: asyncio.Task[None] | None = None
        self._dropped = 0

    def put(self, episode: list[Any], done: bool) -> None:
        """Queue one part; never waits."""
        if len(self._waiting) == self._max_waiting:
            self._waiting.popleft()
            self._dropped += 1
            metrics.record("actor/parts_dropped", 1, kind="count")
            if self._dropped == 1:
                logger.warning(
                    "agent %s: on_episode is slower than the ticks: parts of episodes are dropped",
                    self._name,
                )
        self._waiting.append((episode, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._waiting:
            episode, done = self._waiting.popleft()
            try:
                await self._agent.on_episode(episode, done)
            except Exception:  # one agent's failure must not lose the others' episodes
                logger.exception("agent %s: on_episode failed", self._name)

    async def finish(self) -> None:
        """Wait until the agent has taken all parts."""
        if self._task is not None:
            await self._task
