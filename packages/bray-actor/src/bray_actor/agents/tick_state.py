"""Values that the agents of one session share during a tick."""

from __future__ import annotations

import asyncio
from typing import Any

from bray_core.errors import AlreadyExistsError, BrayError, DeadlineError, NotFoundError


class WaitCycleError(BrayError):
    """Agents wait for each other's results in a circle; the message names them."""


class TickState:
    """Named values of one tick, and a way to wait for each other's.

    `observation` is the decoded body of the tick. Each agent sees a view of its own (`of`), so
    that who waits for what is known.
    """

    def __init__(self, observation: Any = None, timeout_s: float = 10.0) -> None:
        self.observation = observation
        self._shared = _Shared(timeout_s)
        self._agent = "session"

    def of(self, agent: str) -> TickState:
        """Return the same state as `agent` sees it: what it sets is known to be its own."""
        view = TickState.__new__(TickState)
        view.observation = self.observation
        view._shared = self._shared
        view._agent = agent
        return view

    def set(self, name: str, value: Any) -> None:
        """Give a value to all who wait for it.

        Raises:
            AlreadyExistsError: the name was set in this tick already.
        """
        shared = self._shared
        if name in shared.values:
            raise AlreadyExistsError(
                f"state: {name!r} was set already, by {shared.setters[name]!r}"
            )
        shared.values[name] = value
        shared.setters[name] = self._agent
        for future in shared.waiting.pop(name, []):
            if not future.done():
                future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Tell all who wait for this agent's result that it will not come."""
        shared, name = self._shared, self._agent
        shared.failures[name] = f"{type(error).__name__}: {error}"
        for future in shared.waiting.pop(name, []):
            if not future.done():
                future.set_exception(self._lost(name))

    def _lost(self, name: str) -> NotFoundError:
        return NotFoundError(f"state: {name!r} failed: {self._shared.failures[name]}")

    def get(self, name: str) -> Any:
        """Return a value that was set.

        Raises:
            NotFoundError: the value was not set.
        """
        if name not in self._shared.values:
            raise NotFoundError(
                f"state: {name!r} is not set; set are {sorted(self._shared.values)}"
            )
        return self._shared.values[name]

    async def wait(self, name: str, timeout_s: float | None = None) -> Any:
        """Wait until a value is set and return it.

        An agent's result bears the agent's name: `AgentActor` sets it when `on_tick` returns. A
        cycle is found at once if it goes by such names; one that goes by other names ends at the
        deadline, whose message names all that wait.

        Raises:
            DeadlineError: the value was not set in time; the message says who waited for what.
            NotFoundError: the agent of that name failed.
            WaitCycleError: the agent that would set it waits, in the end, for this one.
        """
        shared = self._shared
        if name in shared.values:
            return shared.values[name]
        if name in shared.failures:
            raise self._lost(name)
        self._refuse_cycle(name)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        shared.waiting.setdefault(name, []).append(future)
        waits = shared.waits.setdefault(self._agent, [])
        waits.append(name)
        limit = shared.timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit):
                return await future
        except TimeoutError:
            others = "".join(
                f"; {agent!r} waits for {', '.join(map(repr, names))}"
                for agent, names in shared.waits.items()
                if names and agent != self._agent
            )
            raise DeadlineError(
                f"state: {self._agent!r} waited {limit:g} s for {name!r}; "
                f"set are {sorted(shared.values)}{others}"
            ) from None
        finally:
            waits.remove(name)

    def _refuse_cycle(self, name: str) -> None:
        """Follow who waits for whom; agents' results bear the agents' names."""
        if name == self._agent:
            raise WaitCycleError(f"state: {name!r} waits for itself")
        paths = [[self._agent, name]]
        seen = set()
        while paths:
            path = paths.pop()
            for following in self._shared.waits.get(path[-1], ()):
                if following == self._agent:
                    cycle = " → ".join([*path, following])
                    raise WaitCycleError(f"state: a cycle of waits: {cycle}")
                if following not in seen:
                    seen.add(following)
                    paths.append([*path, following])


class _Shared:
    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.values: dict[str, Any] = {}
        self.setters: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.waiting: dict[str, list[asyncio.Future[Any]]] = {}
        self.waits: dict[str, list[str]] = {}
