"""Workers that share one port on a host: who has which session, and how to reach it.

The kernel keeps the directory: a session is claimed by a symbolic link, made atomically in a
folder that the workers share, which points to its owner's name. The link's name is a hash of the
session's id, never the id itself. A tick that arrives at another worker is sent on to the owner's
Unix socket. A worker that was killed leaves its links behind, so that its sessions can be told
from sessions that never were.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bray_core.errors import ConfigError, ServiceError
from bray_server.sessions.pages import PageReply, PageRequest
from bray_server.wire.frame_transport import FrameTransport
from bray_server.wire.frames import Kind
from bray_server.wire.requests import Reply

logger = logging.getLogger(__name__)

METRICS_KEY = b"figures"
"""Session id of a ping by which a worker asks another for its metrics."""

PAGE_KEY = b"page "
"""Beginning of the session id of a ping that carries the request for a page."""
_METRICS_TIMEOUT_S = 2.0
_MAX_PATH_BYTES = 100
"""Longest path of a Unix socket; the kernel takes 107 bytes."""


class WorkerGroup:
    """This worker among those that share its port.

    Args:
        folder: Folder that the workers share, private to the user.
        forget_after_s: Seconds for which the sessions of a dead worker are remembered as lost.
    """

    def __init__(self, folder: Path, forget_after_s: float) -> None:
        if len(os.fsencode(folder)) > _MAX_PATH_BYTES - 20:
            raise ConfigError(f"group: expected a shorter path than {str(folder)!r}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sessions = folder / "sessions"
        self._sessions.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._forget_after_s = forget_after_s
        self.name = secrets.token_hex(4)
        """Name of this worker; a worker that replaces another has a new name."""
        self._links: dict[str, FrameTransport] = {}
        self._server: asyncio.Server | None = None

    async def start(self, connect: Callable[[], asyncio.BaseProtocol]) -> None:
        """Listen for the other workers; `connect` makes the protocol of each connection."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(connect, str(self._socket(self.name)))

    async def stop(self) -> None:
        """Close the connections to the other workers, and leave the folder."""
        for link in self._links.values():
            await link.close()
        self._links.clear()
        if self._server is not None:
            self._server.close()
            self._socket(self.name).unlink(missing_ok=True)
            self._server = None

    def _socket(self, worker: str) -> Path:
        return self._folder / f"{worker}.sock"

    def _claim(self, session: bytes) -> Path:
        return self._sessions / hashlib.blake2b(session, digest_size=16).hexdigest()

    def claim(self, session: bytes) -> None:
        """Claim a session for this worker.

        Raises:
            ServiceError: `session_exists`: another worker has it.
        """
        claim = self._claim(session)
        while True:
            try:
                os.symlink(self.name, claim)
                return
            except FileExistsError:
                owner = self._owner(claim)
            if owner is not None and self._is_alive(owner):
                name = session[:100].decode(errors="replace")
                raise ServiceError("session_exists", f"session {name!r} was started already")
            self._clear(claim, owner)

    def release(self, session: bytes) -> None:
        """Give up the claim to a session."""
        claim = self._claim(session)
        if self._owner(claim) == self.name:
            claim.unlink(missing_ok=True)

    def _clear(self, claim: Path, owner: str | None) -> None:
        """Remove the claim of a worker that died, unless somebody else has claimed it since."""
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._owner(claim) == owner:
                claim.unlink(missing_ok=True)

    @staticmethod
    def _owner(claim: Path) -> str | None:
        try:
            return os.readlink(claim)
        except FileNotFoundError:
            return None

    def _is_alive(self, worker: str) -> bool:
        """Return whether a worker accepts connections."""
        if worker == self.name:
            return True
        return _answers(self._socket(worker))

    async def forward(self, kind: int, session: bytes, body: bytes) -> bytes:
        """Let the owner of a session answer.

        Raises:
            ServiceError: The error of the owner; `unknown_session`: nobody owns the session;
                `worker_lost`: the owner died.
        """
        claim = self._claim(session)
        owner = self._owner(claim)
        if owner is None or owner == self.name:
            name = session[:100].decode(errors="replace")
            raise ServiceError("unknown_session", f"session {name!r} is not open")
        try:
            link = await self._link(owner)
            reply: Reply = await link.send(Kind(kind), session, body)
        except ServiceError as error:
            if error.code not in ("connection_lost", "unreachable"):
                raise
            name = session[:100].decode(errors="replace")
            if self._is_alive(owner):
                raise ServiceError(
                    "overloaded", f"the worker of session {name!r} does not take its request"
                ) from None
            self._clear(claim, owner)
            raise ServiceError(
                "worker_lost", f"session {name!r} is lost, its worker died: start it again"
            ) from None
        if isinstance(reply, ServiceError):
            raise reply
        return reply

    async def forward_page(self, key: bytes, request: PageRequest) -> PageReply:
        """Let the owner of a page's key answer: see `bray_server.sessions.pages.PageOwners`."""
        return PageReply.from_bytes(await self.forward(Kind.PING, key, request.to_bytes()))

    async def _link(self, worker: str) -> FrameTransport:
        link = self._links.get(worker)
        if link is None or link.is_closed:
            link = await FrameTransport.connect_unix(self._socket(worker))
            other = self._links.get(worker)
            if other is not None and not other.is_closed:  # two at the same time: one is enough
                await link.close()
                return other
            self._links[worker] = link
        return link

    async def gather_metrics(self) -> dict[str, dict[str, Any]]:
        """Ask the other workers for their metrics; one that does not answer is left out."""
        others = [path.stem for path in self._folder.glob("*.sock") if path.stem != self.name]
        replies = await asyncio.gather(*map(self._ask_metrics, others))
        return {worker: metrics for worker, metrics in zip(others, replies, strict=True) if metrics}

    async def _ask_metrics(self, worker: str) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(_METRICS_TIMEOUT_S):
                link = await self._link(worker)
                reply = await link.send(Kind.PING, METRICS_KEY, b"")
        except (ServiceError, TimeoutError):
            return None
        return json.loads(reply) if isinstance(reply, bytes) else None

    async def sweep(self) -> None:
        """Forget workers that died a while ago, and their sessions. Call it from time to time."""
        for path in [*self._folder.glob("*.sock"), *self._folder.glob("*.dead")]:
            if path.stem == self.name:
                continue
            with contextlib.suppress(FileNotFoundError):  # another worker sweeps too
                if path.suffix == ".sock":
                    if not _answers(path):
                        path.rename(path.with_suffix(".dead"))  # its time of change begins to count
                elif time.time() - path.stat().st_ctime > self._forget_after_s:
                    self._forget(path.stem)
                    path.unlink()

    def _forget(self, worker: str) -> None:
        with os.scandir(self._sessions) as entries:
            for entry in entries:
                if self._owner(Path(entry.path)) == worker:
                    os.unlink(entry.path)


def _answers(path: Path) -> bool:
    """Return whether somebody listens at a Unix socket, without waiting."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # its queue is full: it is busy, not dead
            return True
        except OSError:
            return False
    return True
