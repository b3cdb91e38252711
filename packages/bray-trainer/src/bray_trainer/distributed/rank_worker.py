"""One rank in a process of its own: its plain trainer, and its place in the group."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bray_core.errors import WorkerLostError
from bray_core.protocols import TrainerProtocol
from bray_trainer.distributed.process_group import Backend
from bray_trainer.distributed.ranks import Ranks, assign

RankState = Literal["new", "ready", "spoiled"]
RankOutcome = Literal["idle", "training", "paused", "lost"]

_LOOPBACK = "127.0.0.1"
_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of linux/sockios.h."""


class RankWorker:
    """Runs the trainer of one rank for a `RemoteTrainer`.

    Args:
        factory: Function that makes the trainer.
        rank: Number of this process, from 0.
        size: Number of ranks.
        backend: Transport of torch.distributed.
        timeout_s: Longest time that a rank waits for another.
    """

    def __init__(
        self,
        factory: Callable[[], TrainerProtocol],
        rank: int,
        size: int,
        backend: Backend | None,
        timeout_s: float,
    ) -> None:
        self._ranks = Ranks(rank, size)
        self._backend = backend
        self._timeout_s = timeout_s
        self._store: TCPStore | None = None
        self._is_started = False
        assign(self._ranks)
        self._trainer = factory()

    def state(self) -> tuple[RankState, int]:
        """Return whether this process can be started, and its id."""
        if self._ranks.size == 1:
            return "ready" if self._is_started else "new", os.getpid()
        if not self._ranks.is_connected:
            return ("spoiled" if self._store else "new"), os.getpid()
        return "ready", os.getpid()

    def offer(self, host: str) -> int:
        """Open the store of a new group at `host`, which nobody else reaches; return its port."""
        listener = socket.create_server((host, 0))
        port = int(listener.getsockname()[1])
        self._store = TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=self._timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return port

    def join(self, host: str, port: int, own_address: str) -> None:
        """Join the group whose store listens there; raises WorkerLostError if others do not."""
        if interface := _interface(own_address):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            if own_address == _LOOPBACK:  # else NCCL listens where other machines reach it
                os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        if self._store is None:
            wait = timedelta(seconds=self._timeout_s)
            self._store = TCPStore(host, port, timeout=wait, wait_for_workers=False)
        self._ranks.connect(self._store, self._backend, self._timeout_s)

    def start(self) -> RankOutcome:
        """Start the trainer; `lost` if another rank was lost meanwhile."""
        try:
            self._trainer.start()
        except WorkerLostError:
            if self._ranks.is_lost:
                return "lost"
            raise
        self._is_started = True
        return "training"

    def replace(self) -> RankOutcome:
        """`start` in the place of a trainer that was lost, which owes others a version."""
        owe_version = getattr(self._trainer, "owe_version", None)  # another kind may do without
        if owe_version is not None:
            owe_version()
        return self.start()

    def wait(self, timeout_s: float) -> RankOutcome:
        """Wait until the trainer pauses; `idle` if it was never started here."""
        if not self._is_started:
            return "idle"
        try:
            return "paused" if self._trainer.wait(timeout_s) else "training"
        except WorkerLostError:
            if self._ranks.is_lost:
                return "lost"
            raise

    def stop(self) -> RankOutcome:
        """Stop; `idle` if it was never started here."""
        try:
            self._trainer.stop()
        except WorkerLostError:
            if not self._ranks.is_lost:
                raise
        if self._ranks.is_lost:
            return "lost"
        return "paused" if self._is_started else "idle"

    def progress(self) -> tuple[dict[str, float], bool, bool]:
        """Return the trainer's figures, whether it was started here, and whether it owes others
        to begin anew."""
        owes_anew = getattr(self._trainer, "owes_anew", False)  # another kind may do without
        return self._trainer.progress(), self._is_started, owes_anew

    def call_own(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the user's trainer."""
        return getattr(self._trainer, method)(*args, **kwargs)


def _interface(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None if none has it."""
    wanted = address.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe, _GET_ADDRESS, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(reply[20:24]).encode() == wanted:
                return name
    return None
