from __future__ import annotations

import os
import signal

import pytest

from bray_core.errors import ConfigError, ServiceError
from bray_server import Client

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


class Pid:
    async def tick(self, body: bytes) -> bytes:
        return str(os.getpid()).encode()


def test_workers_answer_on_ports_of_their_own_and_are_replaced() -> None:
    from bray_server.remote import RemoteServer

    server = RemoteServer("pids", Pid, num_workers=2)
    try:
        one, other = server.addresses
        assert one != other
        pids = []
        for address in (one, other):
            with Client(address) as client:
                pids.append(int(client.call(b"")))
        assert sorted(pids) == sorted(server.pids())
        assert server.stats()["requests"] == 2
        with Client(other) as bystander:
            os.kill(pids[0], signal.SIGKILL)
            server.wait_ready()
            assert int(bystander.call(b"")) == pids[1]
        with Client(server.addresses[0]) as client:
            assert int(client.call(b"")) not in pids
    finally:
        server.close()
    with pytest.raises(ServiceError):
        Client(other)


def test_ports_beyond_the_last_are_refused() -> None:
    from bray_server.remote import RemoteServer

    with pytest.raises(ConfigError, match="tcp_port: 65535"):
        RemoteServer("none", Pid, num_workers=2, tcp_port=65535)
