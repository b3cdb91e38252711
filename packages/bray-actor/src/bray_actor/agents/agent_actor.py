"""An actor made of agents that run concurrently and wait for each other's results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from bray_actor.actor import Actor
from bray_actor.agents.agent import Agent
from bray_actor.agents.episode_delivery import EpisodeDelivery
from bray_actor.agents.tick_state import TickState
from bray_core import codec
from bray_core.errors import BrayError, CodecError, ConfigError, ServiceError, SpecError
from bray_server.limits.bounded_log import BoundedLog

logger = logging.getLogger(__name__)
_log = BoundedLog(logger)


class AgentError(BrayError):
    """One or more agents failed in a tick; the message names each with its error."""


class AgentActor(Actor):
    """Runs the agents of one session at each tick and answers with all their results.

    By default bodies are in bray's codec: the request's becomes `state.observation`, the reply is
    `{agent: result}`. Override `parse` and `reply` for other formats.

    If an agent fails, those that wait for it fail at once, the others finish, their results are
    kept in their episodes, and the tick is answered with an error that names each that failed.

    Args:
        agents: Agents by name; results bear these names.
        episode_length: Number of ticks after which a part of the episode is handed to
            `on_episode`; 0 hands over whole episodes.
        timeout_s: Time that `state.wait` waits by default.
        max_waiting: Number of parts of an agent's episode that may wait until its `on_episode` has
            taken those before. Beyond it the oldest that waits is dropped, logged, and counted in
            the metric `actor/parts_dropped`: a slow `on_episode` delays no tick and fills no
            memory.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent],
        *,
        episode_length: int = 0,
        timeout_s: float = 10.0,
        max_waiting: int = 8,
    ) -> None:
        if not agents:
            raise ConfigError("agents: expected one or more, got none")
        if episode_length < 0:
            raise ConfigError(f"episode_length: expected 0 or more, got {episode_length}")
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s: expected more than 0, got {timeout_s}")
        if max_waiting < 1:
            raise ConfigError(f"max_waiting: expected 1 or more, got {max_waiting}")
        self._agents = dict(agents)
        self._episode_length = episode_length
        self._timeout_s = timeout_s
        self._episodes: dict[str, list[Any]] = {name: [] for name in agents}
        self._ticks = 0  # since the last cut
        self._handovers = {
            name: EpisodeDelivery(name, agent, max_waiting) for name, agent in agents.items()
        }

    def parse(self, body: bytes) -> Any:
        """Return what the agents see as `state.observation`.

        Raises:
            CodecError: the body is not in the codec; the client is answered `bad_request`, as it
                is for a SpecError that an override raises.
        """
        return codec.decode(body)

    def reply(self, state: TickState, results: dict[str, Any]) -> bytes:
        """Return the reply's body from the agents' results."""
        return codec.encode(results)

    async def tick(self, body: bytes) -> bytes:
        """Run all agents.

        Raises:
            AgentError: one or more agents failed; the message names each with its error.
            ServiceError: `bad_request`: the body cannot be parsed.
        """
        state = TickState(await self._parsed(body), self._timeout_s)
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
        self._ticks += 1
        if self._ticks == self._episode_length:
            self._ticks = 0
            self._cut(done=False)
        if failures:
            raise self._explain(failures)
        return self.reply(state, results)

    async def _parsed(self, body: bytes) -> Any:
        try:
            if type(self).parse is AgentActor.parse:
                return await codec.decode_async(body, max_bytes=len(body))
            return self.parse(body)
        except (CodecError, SpecError) as error:
            raise ServiceError("bad_request", str(error)) from error

    async def _run(self, name: str, agent: Agent, state: TickState) -> Any:
        view = state.of(name)
        try:
            result = await agent.on_tick(view)
            view.set(name, result)
        except BaseException as error:  # a cancellation too: others wait for this agent
            view.fail(error)
            raise
        return result

    def _explain(self, failures: dict[str, BaseException]) -> AgentError:
        for name, error in failures.items():
            _log.error(f"agent {name} failed: {error}", error)
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
        """Hand each agent its episode beside the next ticks."""
        for name, episode in self._episodes.items():
            if episode or done:
                self._handovers[name].put(episode, done)
                self._episodes[name] = []

    async def _finish(self) -> None:
        await asyncio.gather(*(handover.finish() for handover in self._handovers.values()))
