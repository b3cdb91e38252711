"""An actor made of agents that run concurrently and wait for each other's results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from bray_actor.actor import Actor
from bray_actor.agent import Agent
from bray_actor.state import State
from bray_core import codec
from bray_core.errors import BrayError, ConfigError

logger = logging.getLogger(__name__)


class AgentError(BrayError):
    """One or more agents failed in a tick; the message names each with its error."""


class AgentActor(Actor):
    """Runs the agents of one session at each tick and answers with all their results.

    By default bodies are in bray's codec: the request's becomes `state.observation`, the reply is
    `{agent: result}`. Override `parse` and `reply` for other formats.

    If an agent fails, those that wait for it fail at once, the others finish, their results are
    kept in their episodes, and the tick is answered with an error that names each that failed.

    Args:
        agents: by name; results bear these names.
        episode_length: ticks after which a part of the episode is handed to `on_episode`; 0
            hands over whole episodes.
        timeout_s: how long `state.wait` waits by default.
    """

    def __init__(
        self, agents: Mapping[str, Agent], *, episode_length: int = 0, timeout_s: float = 10.0
    ) -> None:
        if not agents:
            raise ConfigError("agents: expected one or more, got none")
        if episode_length < 0:
            raise ConfigError(f"episode_length: expected 0 or more, got {episode_length}")
        self._agents = dict(agents)
        self._episode_length = episode_length
        self._timeout_s = timeout_s
        self._episodes: dict[str, list[Any]] = {name: [] for name in agents}
        self._handover: dict[str, asyncio.Task[None]] = {}

    def parse(self, body: bytes) -> Any:
        """Return what the agents see as `state.observation`."""
        return codec.decode(body)

    def reply(self, state: State, results: dict[str, Any]) -> bytes:
        """Return the reply's body from the agents' results."""
        return codec.encode(results)

    async def tick(self, body: bytes) -> bytes:
        """Run all agents; raises AgentError if one failed."""
        state = State(self.parse(body), self._timeout_s)
        outcomes = await asyncio.gather(
            *(self._run(name, agent, state) for name, agent in self._agents.items()),
            return_exceptions=True,
        )
        results, failures = {}, {}
        for name, outcome in zip(self._agents, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                failures[name] = outcome
            else:
                results[name] = outcome
            self._episodes[name].append(results.get(name))
        if self._episode_length and len(self._episodes[name]) >= self._episode_length:
            self._cut(done=False)
        if failures:
            raise self._explain(failures)
        return self.reply(state, results)

    async def _run(self, name: str, agent: Agent, state: State) -> Any:
        view = state.of(name)
        try:
            result = await agent.on_tick(view)
            view.set(name, result)
        except Exception as error:
            view.fail(error)
            raise
        return result

    def _explain(self, failures: dict[str, BaseException]) -> AgentError:
        for name, error in failures.items():
            logger.error("agent %s failed", name, exc_info=error)
        parts = [f"{name}: {type(error).__name__}: {error}" for name, error in failures.items()]
        return AgentError("agents failed: " + "; ".join(parts))

    async def end(self, body: bytes) -> bytes:
        """Hand over what is left of the episode and wait until the agents have taken it."""
        self._cut(done=True)
        await self._finish()
        return b""

    async def abort(self, reason: str) -> None:
        """The session is lost: hand over what is left, as not done."""
        self._cut(done=False)
        await self._finish()

    def _cut(self, *, done: bool) -> None:
        """Hand each agent its episode beside the next ticks, after its earlier ones."""
        for name, episode in self._episodes.items():
            if episode or done:
                before = self._handover.get(name)
                self._handover[name] = asyncio.create_task(
                    self._hand_over(name, episode, done, before)
                )
                self._episodes[name] = []

    async def _hand_over(
        self, name: str, episode: list[Any], done: bool, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await before
        try:
            await self._agents[name].on_episode(episode, done)
        except Exception:  # one agent's failure must not lose the others' episodes
            logger.exception("agent %s: on_episode failed", name)

    async def _finish(self) -> None:
        await asyncio.gather(*self._handover.values())
