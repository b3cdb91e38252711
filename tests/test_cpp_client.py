"""The C++ client of clients/cpp, built here and run against servers, good and bad."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray_core import codec
from bray_core.errors import CodecError
from bray_core.nested import Nested
from bray_server import Limits, ServerThread
from bray_server.wire.frames import Frame, FrameParser, Kind, pack, pack_error

ROOT = Path(__file__).parent.parent
CPP = ROOT / "clients" / "cpp"
VECTORS = Path(__file__).parent / "vectors"
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", f"-I{CPP / 'include'}"]
SANITIZED = ["-std=c++17", "-O1", "-g1", "-fsanitize=address,undefined"]
SANITIZED += ["-fno-sanitize-recover=all"]  # else undefined behaviour is only told on stderr
PROGRAMS: dict[str, tuple[list[str], list[str]]] = {
    "client_test": (["tests/client_test.cpp"], SANITIZED),
    "async_test": (["tests/async_test.cpp"], SANITIZED),
    "frames_test": (["tests/frames_test.cpp"], SANITIZED),
    "message_test": (["tests/message_test.cpp"], [*SANITIZED, "-Wshadow", "-Wconversion"]),
    "async_test_threads": (["tests/async_test.cpp"], ["-std=c++17", "-O1", "-fsanitize=thread"]),
    "odr": (
        ["tests/odr_main.cpp", "tests/odr_other.cpp"],
        ["-std=c++20", "-O0", "-Wshadow", "-Wconversion"],
    ),
    "game": (["examples/game.cpp"], ["-std=c++17", "-O0", "-Wshadow", "-Wconversion"]),
}
"""Sources and flags of each; the longest first."""

pytestmark = [
    pytest.mark.long,  # the compiler takes a minute
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]

Programs = Callable[[str], Path]
Address = tuple[str, int]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Compile all programs side by side; hands out one as soon as it is there."""
    folder = tmp_path_factory.mktemp("cpp")

    def compile_one(name: str) -> Path:
        sources, flags = PROGRAMS[name]
        target = folder / name
        command = ["g++", *flags, *STRICT, *(str(CPP / s) for s in sources), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return target

    with ThreadPoolExecutor(2) as pool:
        futures = {name: pool.submit(compile_one, name) for name in PROGRAMS}
        yield lambda name: futures[name].result()


class Actor:
    """Does as the body of a tick says; otherwise returns it."""

    def __init__(self, session: str) -> None:
        self.session = session

    async def start(self, body: bytes) -> bytes:
        return b"started"

    async def tick(self, body: bytes) -> bytes:
        if body.startswith(b"sleep "):
            await asyncio.sleep(float(body[6:]))
            return b"slept"
        if body == b"die":  # as a machine dies: without a word
            os.kill(os.getpid(), signal.SIGKILL)
        if body == b"fail":
            raise ValueError('no "tick" säule 🎮')
        return self.session.encode() if body == b"who" else body

    async def end(self, body: bytes) -> bytes:
        return b"ended"

    async def abort(self, reason: str) -> None:
        pass


class Echo:
    async def tick(self, body: bytes) -> bytes:
        return body


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    thread = ServerThread(Actor)
    yield port_of(thread)
    thread.close(0)


def port_of(thread: ServerThread) -> int:
    return int(thread.addresses[0].rpartition(":")[2])


def free_port() -> int:
    """Return a port that no system hands out by itself, so that none takes it in between."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def run(program: Path, *arguments: object, stdin: str = "") -> None:
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Talk:
    """A program that tells when it has reached a point, and waits for an answer there."""

    def __init__(self, program: Path, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [str(program), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self, word: str) -> None:
        assert self.process.stdout is not None
        heard = self.process.stdout.readline().strip()
        assert heard == word, (heard, self.process.stderr and self.process.stderr.read())

    def answer(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None:
            self.process.kill()
        errors = self.process.communicate(timeout=60)[1]
        if kind is None:
            assert self.process.returncode == 0, errors


def test_vectors(built: Programs) -> None:
    lines = []
    refused = json.loads((VECTORS / "frames_refused.json").read_text())["frames"]
    for vector in json.loads((VECTORS / "frames.json").read_text()) + refused:
        if "error" in vector:
            lines.append(f"refused {vector['error']} {vector['hex']}")
            continue
        kind, session = int(Kind[vector["kind"]]), vector["session"].encode().hex()
        fields = [vector["request_id"], session or "-", vector["body_hex"] or "-", vector["hex"]]
        lines.append(f"frame {kind} {' '.join(map(str, fields))}")
    run(built("frames_test"), stdin="\n".join(lines) + "\n")


def read_by(program: Path, lines: list[tuple[str, bytes]]) -> list[str]:
    stdin = "".join(f"{kind} {body.hex()}\n" for kind, body in lines)
    done = subprocess.run(
        [program], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "a sanitizer found something"
    return [line.strip() for line in done.stdout.splitlines()]


def test_messages_of_a_policy_in_both_directions(built: Programs) -> None:
    integers = [0, 127, 128, 255, 65535, 2**31, 2**63 - 1, -1, -32, -33, -129, -(2**31), -(2**63)]
    before: Nested = {"a": [1, {"b": None, "c": 1.5}], "d": b"xy", "e": "é" * 40, "f": [0] * 20}
    lines = [("integer", codec.encode({**before, "action": number})) for number in integers]
    lines.append(("float", codec.encode({"action": np.array([0.5, -2], np.float32)})))
    lines.append(("int64", codec.encode({"action": np.array([[3], [4]])})))
    message, *answers = read_by(built("message_test"), lines)
    assert answers == [*map(str, integers), "0.5 -2", "3 4"]

    decoded: Any = codec.decode(bytes.fromhex(message))
    assert decoded["reward"] == -0.25
    assert decoded["terminated"] is True
    arrays = {
        "own": np.array([0.5, -1], np.float32),
        "cards": np.array([-1, 2**40]),
        "none": np.array([], np.float64),
        "image": np.array([[[0, 1, 2], [3, 4, 255]]], np.uint8),
        "seen": np.array([True, False, True]),
        "grid": np.array([[True, False], [False, True]]),
        "half": np.array([0.5], np.float16),
        "waves": np.array([0.5 - 1j], np.complex64),
    }
    assert decoded["observation"].pop("item") == -7
    assert tell_of(decoded["observation"]) == tell_of(arrays)
    *plain, array = decoded["list"]
    assert plain == [None, True, -1, 2**64 - 1, 1.5, "text", b"\0\xff"]
    assert array.tolist() == [-1, 2**40]
    assert decoded["spaces"] == {"camera": {"shape": [8, 8]}, "item": {"discrete": 4}}


def tell_of(value: Any) -> str:
    """Return what message_test.cpp shows of a value."""
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return f"number {value:.17g}"
        case str():
            return f"text:{value.encode().hex()}"
        case bytes():
            return f"bytes:{value.hex()}"
        case np.ndarray():
            shape = "".join(f"{length} " for length in value.shape)
            return f"array {value.dtype.str} ({shape}):{value.tobytes().hex()}"
        case list():
            return f"[{''.join(f'{tell_of(child)}, ' for child in value)}]"
        case _:
            items = (f"{key.encode().hex()}: {tell_of(child)}, " for key, child in value.items())
            return f"{{{''.join(items)}}}"


DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


def tree_of(rng: random.Random, levels: int) -> Nested:
    """Return a value of any kind, with lists and maps of at most so many levels."""
    size = rng.choice([0, 1, 2, 3, 15, 16, 17]) if levels > 1 else rng.choice([0, 31, 32, 256])
    kind = rng.randrange(9 if levels else 7)
    if kind == 7:
        return [tree_of(rng, levels - 1) for _ in range(size)]
    if kind == 8:
        return {f"é{at}": tree_of(rng, levels - 1) for at in range(size)}
    if kind == 6:
        dtype, shape = np.dtype(rng.choice(DTYPES)), rng.choices(range(4), k=rng.randrange(4))
        raw = rng.randbytes(int(np.prod(shape)) * dtype.itemsize)
        if dtype.kind == "b":
            raw = bytes(byte & 1 for byte in raw)
        return np.frombuffer(raw, dtype).reshape(shape)
    integer = rng.randrange(-(2**63), 2**64) >> rng.randrange(64)
    leaves: list[Nested] = [None, rng.random() < 0.5, integer, rng.gauss(0, 1e6)]
    return [*leaves, "é" * size, rng.randbytes(size)][kind]


def trees() -> list[Nested]:
    rng = random.Random(1)
    deep: Nested = 1
    for _ in range(32):
        deep = [deep]
    return [deep, "x" * 70_000, [0] * 65_535, *(tree_of(rng, 2) for _ in range(300))]


def test_any_value_is_read_and_written_as_in_python(built: Programs) -> None:
    bodies = [codec.encode(tree) for tree in trees()]
    vectors = json.loads((VECTORS / "codec.json").read_text())
    bodies += [bytes.fromhex(vector["hex"]) for vector in vectors]
    lines = [("again", body) for body in bodies] + [("shown", body) for body in bodies]
    answers = read_by(built("message_test"), lines)[1:]
    assert answers[: len(bodies)] == [body.hex() for body in bodies]
    assert answers[len(bodies) :] == [tell_of(codec.decode(body)) for body in bodies]


LONGER_FORMS = {  # one value in all of MessagePack's forms of it, which other encoders may write
    "5": "05 cc05 cd0005 ce00000005 cf0000000000000005 d005 d10005 d200000005 d30000000000000005",
    "-2": "fe d0fe d1fffe d2fffffffe d3fffffffffffffffe",
    "number 0.5": "ca3f000000 cb3fe0000000000000",
    "text:61": "a161 d90161 da000161 db0000000161",
    "bytes:61": "c40161 c5000161 c60000000161",
    "[1, ]": "9101 dc000101 dd0000000101",
    "{61: 1, }": "81a16101 de0001a16101 df00000001a16101 81d9016101",
    "array |b1 ():01": "c70601037c62310001 c8000601037c62310001 c90000000601037c62310001",
}


def test_all_forms_of_a_value_are_read(built: Programs) -> None:
    wanted = {form: shown for shown, forms in LONGER_FORMS.items() for form in forms.split()}
    answers = read_by(built("message_test"), [("shown", bytes.fromhex(form)) for form in wanted])
    assert answers[1:] == list(wanted.values())
    assert [tell_of(codec.decode(bytes.fromhex(form))) for form in wanted] == answers[1:]


def test_replies_that_are_none_are_refused(built: Programs) -> None:
    good = codec.encode({"x": {"y": np.zeros(3)}, "action": np.array([0.5], np.float32)})
    lines = [("float", good[:cut]) for cut in range(len(good))]
    lines += [(kind, good) for kind in ("integer", "int64")]
    refused = json.loads((VECTORS / "codec_refused.json").read_text())
    lines += [("integer", bytes.fromhex(vector["hex"])) for vector in refused]
    deep = b"\x82\xa1x" + b"\x91" * 100_000 + b"\xc0\xa6action\x01"
    lines += [("integer", deep), ("integer", b"\x81\xa6action\xcf" + b"\xff" * 8)]
    lines += [("again", bytes.fromhex(vector["hex"])) for vector in refused]
    leaves = [None, True, -1, 2.5, "é" * 40, b"x", np.zeros((2, 2), np.int16), 2**64 - 1]
    whole = codec.encode({"settings": {"wind": 0.5, "names": ["a"]}, "leaves": leaves})
    lines += [("again", whole[:cut]) for cut in range(len(whole))]
    answers = read_by(built("message_test"), lines)[1:]
    assert answers == ["bad_message"] * len(lines)


CLAIMS = {
    "a list of 2^32 - 1": "ddffffffff",
    "a map of 2^32 - 1": "dfffffffff",
    "a map of more values than it has bytes": "820101",
    "a text of 4 GiB": "dbffffffff",
    "bytes of 4 GiB": "c6ffffffff",
    "an array of 4 GiB": "c9ffffffff01",
    "a shape beyond 64 bits": "c71501033c663404" + "ffffffff" * 4,
    "lists of lists that claim all that is left": "dd00010000" * 31 + "c0" * 2**17,
    "a million values": "dd000f4240" + "c0" * 1_000_000,
    "100,000 lists in each other": "91" * 100_000 + "c0",
    "100,000 maps in each other": "81a178" * 100_000 + "c0",
    "more than 16 MiB": "c601000000" + "00" * 2**24,
    "a byte that begins no value": "c1",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_message_that_claims_too_much_is_refused(built: Programs, claim: str) -> None:
    body = bytes.fromhex(CLAIMS[claim])
    with pytest.raises(CodecError):
        codec.decode(body)
    assert read_by(built("message_test"), [("again", body)])[1:] == ["bad_message"]


def test_what_was_changed_on_the_way_is_refused_as_in_python(built: Programs) -> None:
    rng, bodies, wanted = random.Random(2), [], []
    for tree in [trees()[at] for at in range(3, 103)]:
        good = codec.encode(tree)
        for _ in range(20):
            body = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                body[rng.randrange(len(body))] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256)])
            bodies.append(bytes(body))
            try:
                wanted.append(codec.encode(codec.decode(bodies[-1])).hex())
            except CodecError:
                wanted.append("bad_message")
    answers = read_by(built("message_test"), [("again", body) for body in bodies])[1:]
    once = [answer if answer == "bad_message" else as_in_python(answer) for answer in answers]
    assert once == wanted
    assert 0 < wanted.count("bad_message") < len(wanted)


def as_in_python(body: str) -> str:
    """Return a body that says each name of a map once, the last time, as Python's dicts do."""
    return codec.encode(codec.decode(bytes.fromhex(body))).hex()


@pytest.mark.parametrize("scenario", ["life", "errors", "exchange", "timeout", "big"])
def test_against_a_server(built: Programs, port: int, scenario: str) -> None:
    run(built("client_test"), scenario, port)


ASYNC = ["flight", "threads", "busy", "close", "close_in_callback", "timeout", "big"]


@pytest.mark.parametrize("scenario", ASYNC)
def test_async_against_a_server(built: Programs, port: int, scenario: str) -> None:
    run(built("async_test"), scenario, port)


@pytest.mark.parametrize("scenario", ["flight", "threads", "busy", "close", "close_in_callback"])
def test_threads_do_not_race(built: Programs, port: int, scenario: str) -> None:
    program = built("async_test_threads")
    probe = subprocess.run([program], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in probe.stderr:
        pytest.skip("ThreadSanitizer does not run with this kernel's address layout")
    run(program, scenario, port)


@pytest.mark.parametrize("program", ["client_test", "async_test"])
def test_tokens(built: Programs, program: str) -> None:
    thread = ServerThread(Actor, tokens=["secret"])
    run(built(program), "token", port_of(thread))
    thread.close(0)


@pytest.mark.parametrize("scenario", ["stateless", "options"])
def test_a_stateless_service(built: Programs, scenario: str) -> None:
    thread = ServerThread(Echo())
    run(built("client_test"), scenario, port_of(thread))
    thread.close(0)


def test_ipv6(built: Programs) -> None:
    try:
        thread = ServerThread(Echo(), host="::1")
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    run(built("client_test"), "ipv6", port_of(thread))
    thread.close(0)


@pytest.mark.parametrize("program", ["client_test", "async_test"])
def test_nobody_there(built: Programs, program: str) -> None:
    run(built(program), "unreachable", free_port())


def test_two_translation_units(built: Programs) -> None:
    run(built("odr"))


SERVER = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_cpp_client import Actor
from bray_server import ServerThread
thread = ServerThread(Actor, tcp_port=int(sys.argv[1]))
print("up", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def server_process(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a process of its own, which ends with a tick of `die` or with the block."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["client_test", "async_test"])
def test_the_server_is_killed_and_comes_back(built: Programs, name: str) -> None:
    program, port = built(name), free_port()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(server_process(port))
        talk = stack.enter_context(Talk(program, "killed", port))
        talk.hear("lost")
        assert first.wait(10) == -signal.SIGKILL
        with server_process(port):
            talk.answer()
            talk.hear("rest")
        with server_process(port):
            talk.answer()
            talk.process.wait(30)


def test_the_server_comes_later(built: Programs) -> None:
    port = free_port()
    with Talk(built("async_test"), "early", port) as talk:
        talk.hear("waiting")
        thread = ServerThread(Actor, tcp_port=port)
        talk.answer()
        talk.process.wait(30)
        thread.close(0)


class RawServer:
    """A server that is as bad as its `serve` makes it; called for one connection after the other.

    Args:
        serve: gets a connection's frames and its socket, and the number of the connection; it
            returns when it has done its worst.
    """

    def __init__(self, serve: Callable[[Iterator[Frame], socket.socket, int], None]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.frames: list[Frame] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self._serve(self._read(connection), connection, number)
                except OSError:
                    pass  # the client was faster
            number += 1

    def _read(self, connection: socket.socket) -> Iterator[Frame]:
        parser = FrameParser(1 << 20, 256)
        while data := connection.recv(65536):
            for frame in parser.feed(data):
                self.frames.append(frame)
                yield frame

    @property
    def requests(self) -> list[Frame]:
        """What came but for pings."""
        return [frame for frame in self.frames if frame[0] != Kind.PING]

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def pong(frame: Frame) -> bytes:
    return pack(Kind.PONG, frame[2], "", frame[4])


def header(magic: bytes = b"BRY\x01", kind: int = 5, flags: int = 0, size: int = 0) -> bytes:
    """A header with the request id of the tick, behind those of two pings."""
    return struct.pack("<4sBBHII", magic, kind, flags, 0, 3, size)


BAD: dict[str, tuple[bytes, str]] = {
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "bad_frame"),
    "zeros": (bytes(64), "bad_frame"),
    "another magic": (header(magic=b"BRX\x01"), "bad_frame"),
    "another version": (header(magic=b"BRY\x02"), "bad_frame"),
    "an unknown kind": (header(kind=99), "bad_frame"),
    "a request": (header(kind=2), "bad_frame"),
    "an unknown flag": (header(flags=1), "bad_frame"),
    "a body without end": (header(size=2**32 - 1), "body_too_large"),
    "a reply to no request": (pack(Kind.REPLY, 4711, "", b""), "bad_frame"),
    "a pong for a tick": (header(kind=9), "bad_frame"),
    "nothing": (b"", "connection_lost"),
    "half a header": (header()[:9], "connection_lost"),
    "half a body": (header(size=100) + b"x" * 50, "connection_lost"),
    "an error of the connection": (pack_error(0, "", "deadline", "too slow"), "connection_lost"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_server_is_an_error_of_the_connection(built: Programs, name: str) -> None:
    answer, code = BAD[name]

    def serve(frames: Iterator[Frame], connection: socket.socket, number: int) -> None:
        connection.sendall(pong(next(frames)))
        connection.sendall(pong(next(frames)))  # the constructor's own
        next(frames)
        connection.sendall(answer)

    with RawServer(serve) as server:
        run(built("client_test"), "hostile", server.port, code)
    assert len(server.requests) == 1, "what may have been executed is not sent again"


def drain(frames: Iterator[Frame]) -> None:
    for _ in frames:
        pass


@pytest.mark.parametrize("program", ["client_test", "async_test"])
def test_a_server_that_never_answers(built: Programs, program: str) -> None:
    def serve(frames: Iterator[Frame], connection: socket.socket, number: int) -> None:
        connection.sendall(pong(next(frames)))
        if program == "client_test":
            connection.sendall(pong(next(frames)))
        drain(frames)

    with RawServer(serve) as server:
        run(built(program), "silent", server.port)
    assert len(server.requests) == (1 if program == "client_test" else 2)


GREETINGS: dict[str, tuple[bytes | None, str]] = {
    "silence": (None, "unreachable"),
    "closed at once": (b"", "unreachable"),
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "bad_frame"),
    "a pong to nothing": (pack(Kind.PONG, 4711, "", b""), "bad_frame"),
}


@pytest.mark.parametrize("name", GREETINGS)
def test_a_bad_greeting(built: Programs, name: str) -> None:
    answer, code = GREETINGS[name]

    def serve(frames: Iterator[Frame], connection: socket.socket, number: int) -> None:
        next(frames)
        if answer is None:
            drain(frames)
        else:
            connection.sendall(answer)

    with RawServer(serve) as server:
        run(built("client_test"), "no_greeting", server.port, code)


def test_a_request_of_which_nothing_was_written_is_sent_again(built: Programs) -> None:
    """The server closes while the client rests: each request arrives once nevertheless."""
    closed = [threading.Event() for _ in range(3)]

    def serve(frames: Iterator[Frame], connection: socket.socket, number: int) -> None:
        for frame in frames:
            if frame[0] == Kind.CALL:
                connection.sendall(pack(Kind.REPLY, frame[2], "", frame[4]))
                connection.close()
                closed[number].set()
                return
            connection.sendall(pong(frame))

    program = built("client_test")
    with RawServer(serve) as server, Talk(program, "one_answer", server.port) as talk:
        for event in closed[:2]:
            talk.hear("rest")
            assert event.wait(10)
            talk.answer()
        talk.process.wait(30)
    assert [frame[4] for frame in server.requests] == [b"1", b"2"]


def test_a_ping_is_sent_again(built: Programs) -> None:
    def serve(frames: Iterator[Frame], connection: socket.socket, number: int) -> None:
        for index, frame in enumerate(frames):
            if number == 0 and index == 2:
                return
            connection.sendall(pong(frame))

    with RawServer(serve) as server:
        run(built("client_test"), "repeated_ping", server.port)


def test_the_example_plays(built: Programs) -> None:
    class Policy(Actor):
        async def tick(self, body: bytes) -> bytes:
            _, angle = map(float, body.split()[:2])
            return b"1" if angle > 0 else b"-1"

    thread = ServerThread(Policy, limits=Limits(max_sessions=10))
    program = built("game")
    command = [str(program), "127.0.0.1", str(port_of(thread)), "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("episode") == 3, done.stdout
    thread.close(0)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_finds_the_library(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.14)\n"
        "project(game CXX)\n"
        f"add_subdirectory({CPP} bray)\n"
        f"add_executable(game {CPP / 'tests' / 'odr_main.cpp'} {CPP / 'tests' / 'odr_other.cpp'})\n"
        "target_link_libraries(game PRIVATE bray::client)\n"
    )
    for command in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    run(tmp_path / "build" / "game")


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_builds_the_examples(tmp_path: Path) -> None:
    folder = str(tmp_path)
    subprocess.run(["cmake", "-S", str(CPP), "-B", folder], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", folder], check=True, capture_output=True)
    for example in (CPP / "examples").glob("*.cpp"):
        assert os.access(tmp_path / example.stem, os.X_OK), example
