"""Sessions of a server of several policies: each says in `start` which one answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bray_core import codec
from bray_core.errors import CodecError, ServiceError
from bray_core.protocols import ActorProtocol
from bray_core.settings.name_pattern import fits

MOST_START_BYTES = 1024**2
"""Bytes of the body of a `start`."""


class SeveralActors:
    """Makes the actors of sessions that name their policy, or an agent that one policy plays.

    Args:
        actors: what makes a session's actor from its id, by the policy's name.
        agents: returns the patterns of the agents that a policy plays, such as `hunter_*`, by its
            name.
    """

    def __init__(
        self,
        actors: Mapping[str, Callable[[str], ActorProtocol]],
        agents: Callable[[], Mapping[str, list[str]]],
    ) -> None:
        self._actors = actors
        self._agents = agents

    def __call__(self, session: str) -> ActorProtocol:
        """Return the actor of a session, which finds its policy with the `start`."""
        return ChosenActor(session, self._find)

    def _find(self, start: Mapping[str, Any]) -> Callable[[str], ActorProtocol]:
        policy, agent = start.get("policy"), start.get("agent")
        if isinstance(policy, str) and policy in self._actors:
            return self._actors[policy]
        if policy is None and isinstance(agent, str):
            for name, patterns in self._agents().items():
                if any(fits(agent, pattern) for pattern in patterns):
                    return self._actors[name]
        said = f"policy {policy!r:.100}" if policy is not None else f"agent {agent!r:.100}"
        raise ServiceError(
            "bad_request",
            f"start: several policies are served, {sorted(self._actors)}: expected "
            f'{{"policy": one of them}} or an agent that one of them plays '
            f"({self._shown_agents()}), got {said}",
        )

    def _shown_agents(self) -> str:
        patterns = [pattern for patterns in self._agents().values() for pattern in patterns]
        return ", ".join(patterns[:10]) or "none is known"


class ChosenActor:
    """The actor of a session that has not named its policy yet; from its `start` on, another's.

    Args:
        session: Id of the session.
        find: Returns what makes the actor that a `start` calls for.
    """

    tick: Any
    """Answers one tick; as `end` and `abort`, the method of the actor that was found."""
    end: Any
    abort: Any

    def __init__(
        self,
        session: str,
        find: Callable[[Mapping[str, Any]], Callable[[str], ActorProtocol]],
    ) -> None:
        self._session = session
        self._find = find
        self.abort = _nothing_to_free

    async def start(self, body: bytes) -> bytes:
        """Find the actor, and start it. Raises ServiceError: `bad_request`."""
        try:
            said = await codec.decode_async(body, max_bytes=MOST_START_BYTES) if body else {}
        except CodecError as error:
            raise ServiceError("bad_request", f"body: {error}") from error
        if not isinstance(said, dict):
            got = type(said).__name__
            raise ServiceError("bad_request", f"body: expected a mapping, got {got}")
        actor: Any = self._find(said)(self._session)
        self.tick, self.end, self.abort = actor.tick, actor.end, actor.abort
        reply: bytes = await actor.start(body)
        return reply


async def _nothing_to_free(reason: str) -> None:
    """Do nothing: no `start` came through."""
