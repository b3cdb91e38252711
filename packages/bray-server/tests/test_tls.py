"""TLS on both ports, with certificates of an authority made for the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from server_services import Counter, Echo

from bray_core.errors import ConfigError, ServiceError
from bray_server import AsyncClient, Client, Limits, Server, ServerThread, Tls


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the authority's certificate, the server's and its key."""
    made = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(made / "authority.pem")
    server = authority.issue_cert("127.0.0.1", "localhost")
    server.private_key_pem.write_to_path(made / "key.pem")
    for part in server.cert_chain_pems:
        part.write_to_path(made / "certificate.pem", append=True)
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[ServerThread]:
    tls = Tls(certificate=folder / "certificate.pem", key=folder / "key.pem")
    limits = Limits(receive_timeout_s=0.5)
    thread = ServerThread(Counter, http_port=0, tls=tls, tokens=["t"], limits=limits)
    yield thread
    thread.close(0)


def test_both_protocols_over_tls(server: ServerThread, folder: Path) -> None:
    assert [address.partition(":")[0] for address in server.addresses] == ["tcps", "https"]
    for address in server.addresses:
        with Client(address, "t", 10, certificate_authority=folder / "authority.pem") as client:
            client.start("s")
            assert client.tick("s", b"x" * 300_000) == b"1"
            client.end("s")

    async def play() -> None:
        for address in server.addresses:
            async with await AsyncClient.connect(
                address, "t", 10, certificate_authority=folder / "authority.pem"
            ) as client:
                await client.start("s")
                assert await client.tick("s", b"x" * 300_000) == b"1"
                await client.end("s")

    asyncio.run(play())


def test_a_server_that_nobody_vouches_for_is_not_trusted(server: ServerThread) -> None:
    for address in server.addresses:
        with pytest.raises(ServiceError, match=r"unreachable.*certificate"):
            Client(address, "t", 10)


def test_plain_clients_at_a_tls_port_are_closed(server: ServerThread, folder: Path) -> None:
    tcp = server.addresses[0].replace("tcps:", "tcp:")
    with pytest.raises(ServiceError, match="connection_lost"):
        Client(tcp, "t", 10)
    http = Client(server.addresses[1].replace("https:", "http:"), "t", 10)
    with http, pytest.raises(ServiceError, match="connection_lost"):
        http.start("s")
    with Client(
        server.addresses[0], "t", 10, certificate_authority=folder / "authority.pem"
    ) as client:
        client.start("after")


def test_a_handshake_that_never_ends_is_ended(server: ServerThread) -> None:
    port = int(server.addresses[0].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 10) as raw:
        raw.sendall(b"\x16\x03\x01")
        assert raw.recv(100) == b""


async def test_clients_in_their_handshake_have_a_place_and_give_it_back(folder: Path) -> None:
    tls = Tls(certificate=folder / "certificate.pem", key=folder / "key.pem")
    server = Server(Counter, tls=tls, limits=Limits(max_connections=3, receive_timeout_s=60))
    await server.start()

    async def until_there_are(count: int) -> None:
        while len(server.connections) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async with asyncio.timeout(20):
        streams = [await asyncio.open_connection("127.0.0.1", server.tcp_port) for _ in range(3)]
        await until_there_are(3)
        late, writer = await asyncio.open_connection("127.0.0.1", server.tcp_port)
        with contextlib.suppress(ConnectionError):
            assert await late.read() == b"", "closed at once"
        streams.append((late, writer))
        streams[0][1].close()  # in mid-handshake
        streams[1][1].write(b"this is no handshake at all")
        await until_there_are(1)
        client = await AsyncClient.connect(
            server.addresses[0], certificate_authority=folder / "authority.pem"
        )
        await client.start("s")
        await until_there_are(2)
        await client.close()
        await until_there_are(1)
        assert server.sessions.metrics.refused_connections == 1
        assert not server.num_sessions
        await server.stop(0)
        assert not server.connections
        with contextlib.suppress(ConnectionError):
            assert await streams[2][0].read() == b"", "closed with the server"
    for _, writer in streams:
        writer.close()


def test_tls_clients_at_a_plain_port_get_an_error(folder: Path) -> None:
    thread = ServerThread(Echo(), http_port=0)
    for address in thread.addresses:
        secure = address.replace("tcp:", "tcps:").replace("http:", "https:")
        with pytest.raises(ServiceError, match="unreachable"):
            Client(secure, timeout_s=10, certificate_authority=folder / "authority.pem")
    thread.close(0)


def test_old_tls_is_refused(server: ServerThread, folder: Path) -> None:
    port = int(server.addresses[0].rpartition(":")[2])
    context = ssl.create_default_context(cafile=folder / "authority.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", port), 10) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
    ):
        assert wrapped.version() == "TLSv1.2", "the oldest that is accepted"


def test_nonsense_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="tls: cannot use certificate '/nowhere'"):
        ServerThread(Echo(), tls=Tls(certificate="/nowhere", key=folder / "key.pem"))
    with pytest.raises(ConfigError, match="tls: cannot use"):
        ServerThread(Echo(), tls=Tls(certificate=folder / "authority.pem", key=folder / "key.pem"))
    with pytest.raises(ConfigError, match="certificate_authority: expected a PEM file"):
        Client("tcps://127.0.0.1:1", certificate_authority="/nowhere")
    with pytest.raises(ConfigError, match="does not use TLS"):
        Client("tcp://127.0.0.1:1", certificate_authority=folder / "authority.pem")
