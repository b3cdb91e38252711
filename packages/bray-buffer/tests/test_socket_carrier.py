"""Segments through a real socket into the rows of batches."""

import socket
import threading

import numpy as np
import pytest

from bray_buffer.shared.socket_carrier import SegmentListener, SegmentSender

TOKEN = "secret-of-this-test"
NBYTES = 64
SOON_S = 20.0


class Rows:
    """A place for rows with so much room; what a connection wrote half is seen as an error."""

    def __init__(self, room=10**9):
        self.room = room
        self.taken = []
        self.broken = threading.Event()
        self.waited = []

    def receive(self, count, wait_s, read_into):
        self.waited.append(wait_s)
        fits = min(count, self.room)
        try:
            for index in range(count):
                row = np.zeros((1, NBYTES), np.uint8)
                read_into(row)
                if index < fits:
                    self.taken.append(row[0])
        except OSError:
            self.broken.set()
            raise
        self.room -= fits
        return fits, self.room


@pytest.fixture
def serve():
    listeners = []

    def serve(rows):
        listeners.append(SegmentListener("127.0.0.1", TOKEN, NBYTES, rows.receive))
        return listeners[-1].address

    yield serve
    for listener in listeners:
        listener.close()


@pytest.fixture
def connect():
    senders = []

    def connect(address, token=TOKEN):
        senders.append(SegmentSender(address, token))
        return senders[-1]

    yield connect
    for sender in senders:
        sender.close()


def test_rows_arrive_whole_and_the_answers_carry_credits(serve, connect):
    rows = Rows(room=70)
    sender = connect(serve(rows))
    sent = np.random.default_rng(0).integers(0, 255, (96, NBYTES), np.uint8)
    for first in range(0, 96, 32):
        sender.send(sent[first : first + 32], 0.0)
    assert sender.unanswered == 96
    assert sender.settle(1) == 64
    assert sender.credits == 6
    assert sender.settle(0) == 6
    assert (sender.credits, sender.unanswered) == (0, 0)
    assert np.array_equal(rows.taken, sent[:70])


def test_how_long_to_wait_goes_along(serve, connect):
    rows = Rows()
    sender = connect(serve(rows))
    for wait_s in (0.0, 1.5, None):
        sender.send(np.zeros((1, NBYTES), np.uint8), wait_s)
    sender.settle(0)
    assert rows.waited == [0.0, 1.5, 1e9]


def test_many_producers_at_a_time(serve, connect):
    rows = Rows()
    address = serve(rows)

    def produce(number):
        sender = connect(address)
        for _ in range(50):
            sender.send(np.full((4, NBYTES), number, np.uint8), 0.0)
        sender.settle(0)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    got = np.array(rows.taken)
    assert (got == got[:, :1]).all()
    assert np.bincount(got[:, 0]).tolist() == [200] * 4


def test_a_producer_that_hangs_up_in_the_middle_ends_its_own_push_only(serve, connect):
    rows = Rows()
    address = serve(rows)
    broken = connect(address)
    broken._socket.sendall(
        (4).to_bytes(4, "little") + bytes(4) + (4 * NBYTES).to_bytes(8, "little")
    )
    broken._socket.sendall(bytes(NBYTES + 7))
    broken.close()
    assert rows.broken.wait(SOON_S)
    sender = connect(address)
    sender.send(np.ones((2, NBYTES), np.uint8), 0.0)
    assert sender.settle(0) == 2


@pytest.mark.parametrize(
    "bad",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(64),
        b"BRAYPSH1" + b"x" * len(TOKEN),
    ],
)
def test_who_does_not_know_the_token_is_cut_off(serve, bad):
    rows = Rows()
    with socket.create_connection(serve(rows), SOON_S) as stranger:
        stranger.sendall(bad)
        assert _is_hung_up(stranger)
    assert rows.waited == []


@pytest.mark.parametrize(
    ("count", "nbytes"), [(1, NBYTES + 1), (0, 0), (2**32 - 1, (2**32 - 1) * NBYTES), (1, 2**60)]
)
def test_a_push_of_another_size_is_refused(serve, connect, count, nbytes):
    rows = Rows()
    sender = connect(serve(rows))
    head = count.to_bytes(4, "little") + bytes(4) + nbytes.to_bytes(8, "little")
    sender._socket.sendall(head + bytes(200))
    sender._socket.settimeout(SOON_S)
    assert _is_hung_up(sender._socket)
    assert rows.waited == []


def _is_hung_up(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_close_ends_every_connection(serve, connect):
    rows = Rows()
    listener = SegmentListener("127.0.0.1", TOKEN, NBYTES, rows.receive)
    sender = connect(listener.address)
    sender.send(np.zeros((1, NBYTES), np.uint8), 0.0)
    sender.settle(0)
    listener.close()
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        _send_for_ever(sender)
    with pytest.raises(ConnectionRefusedError):
        SegmentSender(listener.address, TOKEN)


def _send_for_ever(sender):
    while True:
        sender.send(np.zeros((1, NBYTES), np.uint8), 0.0)
        sender.settle(0)
