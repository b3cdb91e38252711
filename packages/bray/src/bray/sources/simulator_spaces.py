"""What a run's simulators show and take: declared, kept from before, or told by a first `start`."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack
from typing import Any

from bray.run import Run
from bray.sources.config import GamecoreSourceConfig, ServingActorConfig
from bray.sources.simulator_evaluation import LOGS
from bray.sources.simulator_ports import SimulatorPorts, how_to_connect, http_port_of
from bray_actor.policy.session_start import SessionStart, told_spaces
from bray_core import nested
from bray_core.cli import check_interrupted
from bray_core.errors import DeadlineError, ServiceError
from bray_core.files.json_file import read_object
from bray_core.files.saved_file import write_atomic
from bray_core.protocols import ActorProtocol
from bray_core.spaces import Spaces
from bray_server import ServerThread

FILE = "spaces.json"
_MOST = {"pixels": 1 << 20, "numbers": 1 << 18}
"""What an observation or action may hold of which a `start` makes the network: that has tens or
hundreds of weights for each."""
_LOOK_S = 0.25
_SILENCE_S, _LONGEST_S = 0.2, 2.0
"""How long no `start` must have come before the lobby closes, and how long it waits for that. Who
was told `not_ready` pauses half a second, and then finds the run's own actors."""
_FIRST_START_S = 300.0
"""How long a simulator that bray starts may take until its first `start`."""
_SAYS_S = 5.0
"""How long that is waited for without a word."""


def simulator_spaces(
    run: Run, source: GamecoreSourceConfig, actor: ServingActorConfig
) -> Spaces | None:
    """Return what the simulators of a run show and take; None where environments play.

    Args:
        run: has the trial that keeps what was told.
        source: settings of the simulators.
        actor: says the ports.

    Raises:
        ConfigError: the trial's file cannot be read.
        DeadlineError: a simulator that bray starts does not start a session.
    """
    if not getattr(source, "is_simulator", False):
        return None
    if source.spaces is not None:
        return Spaces.parse("source.spaces", source.spaces)
    kept = run.experiment.path / FILE
    if (content := read_object(kept)) is not None:
        return Spaces.parse(str(kept), content)
    told = _ask(run, source, SimulatorPorts.of(source, actor))
    write_atomic(kept, json.dumps(told.described(), indent=1).encode())
    return Spaces(str(kept), told.observation, told.action)


def _ask(run: Run, source: GamecoreSourceConfig, ports: SimulatorPorts) -> Spaces:
    """Return what the first `start` at the run's ports tells."""
    lobby = Lobby()
    with ExitStack() as stack:
        server = ServerThread(lobby, tcp_port=ports.tcp, http_port=ports.http)
        stack.callback(server.close, drain_s=0.0)
        fleet: Any = None
        if source.command is None:
            say(f"{how_to_connect(server.addresses)}; the first start tells its spaces")
        else:
            fleet = run.simulators(
                source.command,
                lambda: server.worker_addresses,
                num_processes=1,
                lanes=source.lanes,
                http_port=http_port_of(server.addresses),
                logs=run.experiment.path / LOGS,
            )
            stack.callback(fleet.stop)
            fleet.start()
        began, has_said = time.monotonic(), False
        while (told := lobby.wait(_LOOK_S)) is None:
            check_interrupted()
            if fleet is None:
                continue
            fleet.check()
            waited_s = time.monotonic() - began
            if waited_s > _SAYS_S and not has_said:
                has_said = True
                say(
                    f"waits for the first start of {source.title}, which tells its spaces; what it "
                    f"prints is in {run.experiment.path / LOGS}"
                )
            if waited_s > _FIRST_START_S:
                raise DeadlineError(
                    f"source.command: expected a `start` that tells spaces within "
                    f"{_FIRST_START_S:g} s, got none: declare source.spaces, or see what the "
                    f"simulator says: {fleet.last_words(0)}"
                )
        lobby.wait_for_silence()
        return told


def say(line: str) -> None:
    """Show a line before there are figures to show."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Lobby:
    """Hears what the first `start` tells, and asks everybody to come again: no model is there yet.

    It makes the actors of sessions, as a server calls it.
    """

    makes_way = True
    """The run's own actors take its place."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._told: Spaces | None = None
        self._heard_s = 0.0
        """When the last `start` came."""

    def wait_for_silence(self) -> None:
        """Wait until nobody is starting: a connection that is cut then was told to come again."""
        until = time.monotonic() + _LONGEST_S
        while (now := time.monotonic()) < min(until, self._heard_s + _SILENCE_S):
            time.sleep(min(until, self._heard_s + _SILENCE_S) - now)

    def wait(self, timeout_s: float) -> Spaces | None:
        """Wait for a `start` that tells spaces, and return them; None: there was none yet."""
        with self._changed:
            self._changed.wait_for(lambda: self._told is not None, timeout_s)
            return self._told

    def __call__(self, session: str) -> ActorProtocol:
        """Return the actor of a session."""
        return _Guest(self, session)

    def hear(self, session: str, start: SessionStart) -> None:
        """Take what a `start` says.

        Raises:
            ServiceError: always: `not_ready`, or `bad_spaces`.
        """
        self._heard_s = time.monotonic()
        if start.spaces is None:
            if self._told is not None:
                raise _not_ready()
            raise ServiceError(
                "bad_spaces",
                "spaces: missing: this run does not know what the simulator shows and takes: send "
                "spaces in start, or declare source.spaces in the template",
            )
        told = told_spaces(f"start of session {session[:100]!r}", start.spaces)
        _check_network(told)
        with self._changed:
            if self._told is None:
                self._told = told
                self._changed.notify_all()
            difference = self._told.difference(told)
        if difference is not None:
            raise ServiceError("bad_spaces", difference)
        raise _not_ready()


def _check_network(told: Spaces) -> None:
    """Refuse spaces of which a far larger network would be made than a policy has.

    Raises:
        ServiceError: `bad_spaces`: names what is too large, and the cure.
    """
    for name, space in (("observation", told.observation), ("action", told.action)):
        sizes = {"pixels": 0, "numbers": 0}
        for leaf in nested.flatten(space).values():
            sizes["pixels" if leaf.kind == "image" else "numbers"] += leaf.num_numbers
        for what, size in sizes.items():
            if size > (most := _MOST[what]):
                wanted = f"{name}: expected at most {most:,} {what}, got {size:,}"
                raise ServiceError("bad_spaces", f"{wanted}: declare source.spaces")


def _not_ready() -> ServiceError:
    return ServiceError("not_ready", "the policy is being made: start again in a second")


class _Guest:
    """A session that is sent away."""

    def __init__(self, lobby: Lobby, session: str) -> None:
        self._lobby = lobby
        self._session = session

    async def start(self, body: bytes) -> bytes:
        self._lobby.hear(self._session, await SessionStart.of_body(body))
        return b""

    async def tick(self, body: bytes) -> bytes:
        raise ServiceError("unknown_session", "nothing was started")

    async def end(self, body: bytes) -> bytes:
        raise ServiceError("unknown_session", "nothing was started")

    async def abort(self, reason: str) -> None:
        pass
