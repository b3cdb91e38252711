"""Episodes on disk: one file for each of some sessions, with all its requests and replies.

A file is `BRAYEP01` and then zlib-compressed bray codec: `{"session", "began_s", "outcome",
"is_whole", "requests": [[kind, at_s, body, reply], …]}`. Bodies are as they were on the wire;
those in JSON are in the codec, where the actor reads both.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import msgspec

from bray_core import codec, metrics
from bray_core.errors import ConfigError, RefusedFileError, SpecError
from bray_core.files.output_file import check_output_folder
from bray_core.files.regular_file import Opener, open_regular
from bray_core.files.saved_file import write_atomic
from bray_core.json_body import JsonBody
from bray_core.protocols import ActorProtocol
from bray_server.limits.bounded_log import BoundedLog

logger = logging.getLogger(__name__)

SUFFIX = ".episode"
_MAGIC = b"BRAYEP01"
_MAX_EPISODE_BYTES = 64 * 1024 * 1024
_MAX_MEMORY_BYTES = 1024**3
_MAX_FILE_BYTES = 2 * _MAX_EPISODE_BYTES
"""What a file may hold once it is decompressed: the bodies, and what the codec adds."""

MAX_REQUESTS = 100_000
"""Requests of one episode that are kept; later ones are left out."""
_MAX_READ = 2**20
"""Requests of files that were written before there was a limit."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a session, and what it was answered."""

    kind: str
    """`start`, `tick` or `end`."""
    at_s: float
    """Since the session began."""
    body: bytes
    reply: bytes | None
    """None: it failed."""


@dataclass(frozen=True, slots=True)
class Episode:
    """What a file holds."""

    session: str
    began_s: float
    """Seconds since 1970."""
    outcome: str
    """`end`, or why the session was lost."""
    is_whole: bool
    """Whether no request was left out because there were too many."""
    requests: tuple[RecordedRequest, ...]


class LongEpisodeError(SpecError):
    """A file holds more than its reader takes."""


class Recorder:
    """Records 1 in `every` of the sessions of one process, or a share of them by their names.

    Writing happens in a thread and delays no tick. A file that cannot be written, or for which the
    disk is too slow, is logged and counted (`actor/recordings_lost`); the session goes on.

    Args:
        folder: Folder of the files; made if it is absent.
        every: N; the first session is recorded.
        share: Share of the sessions that is recorded, 0 to 1, drawn by a hash of each session's
            name: every process draws the same.
        max_files: Number of files beyond which the oldest of the folder is deleted; meanwhile it
            may hold a hundredth more.
        max_waiting: Largest number of episodes in memory that wait for the disk.
        max_memory_bytes: Largest size of all requests in memory, of sessions under way and of
            those that wait; beyond it the rest of a session is left out.

    Examples:
        >>> import asyncio, tempfile
        >>> from bray_actor import Actor
        >>> class Echo(Actor):
        ...     def __init__(self, session: str) -> None: ...
        ...     async def tick(self, body: bytes) -> bytes:
        ...         return body
        >>> recorder = Recorder(tempfile.mkdtemp(), every=10)
        >>> async def play() -> None:
        ...     actor = recorder.record(Echo)("game-1")
        ...     await actor.start(b"")
        ...     await actor.tick(b"left")
        ...     await actor.end(b"")
        >>> asyncio.run(play())
        >>> recorder.close()
        >>> [request.body for request in read_episode(recorder.files()[0]).requests]
        [b'', b'left', b'']
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every: int = 1,
        share: float = 1.0,
        max_files: int = 1000,
        max_waiting: int = 4,
        max_memory_bytes: int = _MAX_MEMORY_BYTES,
    ) -> None:
        limits = (
            ("every", every),
            ("max_files", max_files),
            ("max_waiting", max_waiting),
            ("max_memory_bytes", max_memory_bytes),
        )
        for name, number in limits:
            if number < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {number}")
        if not 0 <= share <= 1:
            raise ConfigError(f"share: expected 0 to 1, got {share}")
        self._folder = Path(folder)
        self._log = BoundedLog(logger)
        check_output_folder("folder", self._folder)
        self._every = every
        self._share = share
        self._max_files = max_files
        self._look_every = 1 + max_files // 100  # to list ten thousand names takes 0.1 s
        self._max_waiting = max_waiting
        self._seen = 0
        self._written = 0
        self._waiting = 0
        self._memory = _Memory(max_memory_bytes)
        self._token = uuid4().hex[:8]  # other recorders write into the folder too
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="recorder")

    def record(self, make: Callable[[str], ActorProtocol]) -> Callable[[str], ActorProtocol]:
        """Return a maker of the same actors, of which some are recorded."""

        def maker(session: str) -> ActorProtocol:
            actor = make(session)
            self._seen += 1
            if (self._seen - 1) % self._every or not is_drawn(session, self._share):
                return actor
            return _Recorded(actor, session, self._memory, self._keep)

        return maker

    def files(self) -> list[Path]:
        """Return the folder's files, the oldest first."""
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        return [self._folder / name for name in sorted(names) if name.endswith(SUFFIX)]

    def close(self) -> None:
        """Wait until all is written."""
        self._writer.shutdown(wait=True)
        if self._written:
            try:
                self._delete_oldest()
            except OSError as error:
                self._log.error(f"old episodes are not deleted: {error}")

    def _keep(self, episode: Episode, size: int) -> None:
        if self._waiting >= self._max_waiting:
            self._memory.release(size)
            self._lose("the disk is too slow")
            return
        self._waiting += 1
        try:
            self._writer.submit(self._write, episode, size)
        except RuntimeError:  # closed meanwhile
            self._waiting -= 1
            self._memory.release(size)
            self._lose("the recorder was closed")

    def _write(self, episode: Episode, size: int) -> None:
        try:
            self._written += 1
            _write(self._folder, episode, f"{self._token}-{self._written:06d}")
            if self._written % self._look_every == 0:
                self._delete_oldest()
        except Exception as error:  # noqa: BLE001  whatever it is, it must not end the thread
            self._lose(str(error))
        finally:
            self._waiting -= 1
            self._memory.release(size)

    def _delete_oldest(self) -> None:
        for old in self.files()[: -self._max_files]:
            old.unlink(missing_ok=True)

    def _lose(self, reason: str) -> None:
        self._log.error(f"an episode is not recorded: {reason}")
        metrics.record("actor/recordings_lost", 1, kind="count")


def write_episode(folder: str | Path, episode: Episode) -> Path:
    """Write one episode into a folder, which is made if it is absent; return the file.

    Args:
        folder: Folder of the files.
        episode: What it holds.

    Raises:
        OSError: The folder cannot be written.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    return _write(Path(folder), episode, f"one-{uuid4().hex[:15]}")


def _write(folder: Path, episode: Episode, end: str) -> Path:
    # No part of a name comes from the network. The time makes names sort by age.
    began = time.strftime("%Y%m%dT%H%M%S", time.gmtime(episode.began_s))
    file = folder / f"{began}-{end}{SUFFIX}"
    write_atomic(file, _MAGIC + zlib.compress(_encode(episode), 1))
    return file


def is_drawn(session: str, share: float) -> bool:
    """Return whether a session is of the share that is recorded, by its name alone.

    Args:
        session: Id of the session.
        share: Share of all sessions, 0 to 1.
    """
    digest = hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


class _Memory:
    """Bytes of requests that a recorder holds."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._lock = threading.Lock()

    def claim(self, size: int) -> bool:
        """Take so many bytes, if they are there."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def release(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._left += size


class _Recorded:
    """An actor that notes what it is asked and answers."""

    def __init__(
        self,
        actor: ActorProtocol,
        session: str,
        memory: _Memory,
        keep: Callable[[Episode, int], None],
    ) -> None:
        self._actor = actor
        self._memory = memory
        self._size = 0
        self._session = session
        self._keep = keep
        self._began_s = time.time()
        self._began = time.monotonic()
        self._requests: list[RecordedRequest] = []
        self._is_whole = True

    async def start(self, body: bytes) -> bytes:
        try:
            return await self._note("start", body, self._actor.start)
        except BaseException:  # there is no session then, and nobody ends it
            self._memory.release(self._size)
            self._requests, self._size = [], 0
            raise

    async def tick(self, body: bytes) -> bytes:
        return await self._note("tick", body, self._actor.tick)

    async def end(self, body: bytes) -> bytes:
        try:
            return await self._note("end", body, self._actor.end)
        finally:
            self._finish("end")

    async def abort(self, reason: str) -> None:
        self._finish(reason)
        abort = getattr(self._actor, "abort", None)  # an actor may do without
        if abort is not None:
            await abort(reason)

    async def _note(self, kind: str, body: bytes, answer: Callable[[bytes], Any]) -> bytes:
        at_s = time.monotonic() - self._began
        reply: bytes | None = None
        try:
            reply = await answer(body)
            return reply
        finally:
            body, reply = _kept(body), None if reply is None else _kept(reply)
            if self._is_whole and self._has_room(len(body) + len(reply or b"") + 64):
                self._requests.append(RecordedRequest(kind, at_s, body, reply))
            else:  # nothing later either: what is kept has no gap
                self._is_whole = False

    def _has_room(self, size: int) -> bool:
        """Claim the memory of a request, within the bounds of one session and of all."""
        is_short = len(self._requests) < MAX_REQUESTS
        if not is_short or self._size + size > _MAX_EPISODE_BYTES or not self._memory.claim(size):
            return False
        self._size += size
        return True

    def _finish(self, outcome: str) -> None:
        requests, size = tuple(self._requests), self._size
        self._requests, self._size = [], 0
        episode = Episode(self._session, self._began_s, outcome, self._is_whole, requests)
        self._keep(episode, size)


def _kept(body: bytes) -> bytes:
    """Return a body in the codec if it is JSON that the actor has read, any other as it is."""
    if type(body) is not JsonBody:
        return body
    return codec.encode(body.value) if body.is_read and not body.is_malformed else bytes(body)


def _encode(episode: Episode) -> bytes:
    return codec.encode(
        {
            "session": episode.session,
            "began_s": episode.began_s,
            "outcome": episode.outcome,
            "is_whole": episode.is_whole,
            "requests": [[r.kind, r.at_s, r.body, r.reply] for r in episode.requests],
        }
    )


class _Stored(msgspec.Struct):
    """What a file holds, checked as it is read: no value is made of what is none of ours."""

    session: str
    began_s: float
    outcome: str
    is_whole: bool
    requests: msgspec.Raw


_DECODER = msgspec.msgpack.Decoder(_Stored)
_REQUESTS = msgspec.msgpack.Decoder(
    list[tuple[Literal["start", "tick", "end"], float, bytes, bytes | None]]
)


def read_episode(
    path: str | Path,
    *,
    max_bytes: int = _MAX_FILE_BYTES,
    max_requests: int = _MAX_READ,
    opener: Opener = open_regular,
) -> Episode:
    """Read a recorded episode.

    Args:
        path: Path of the file.
        max_bytes: Largest size once it is decompressed; it is decompressed no further.
        max_requests: Largest number of requests.
        opener: Function that opens the file.

    Raises:
        LongEpisodeError: the file holds more than that.
        SpecError: the file is no recording, or damaged; the message names it.
        FileNotFoundError: the file is missing.
    """
    try:
        with opener(Path(path)) as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except RefusedFileError as error:
        raise SpecError(str(error)) from error
    if not data.startswith(_MAGIC):
        raise SpecError(f"{path}: expected an episode of bray, got {data[:8]!r}")
    try:
        unpacker = zlib.decompressobj()
        packed = unpacker.decompress(data[len(_MAGIC) :], max_bytes)
        if not unpacker.eof:
            if len(packed) >= max_bytes:
                raise LongEpisodeError(f"{path}: expected {max_bytes} bytes of requests at most")
            raise ValueError("cut short")
        stored = _DECODER.decode(packed)
        if _length(bytes(memoryview(stored.requests)[:5])) > max_requests:
            raise LongEpisodeError(f"{path}: expected {max_requests} requests at most")
        requests = tuple(RecordedRequest(*one) for one in _REQUESTS.decode(stored.requests))
        if not all(map(math.isfinite, (stored.began_s, *(r.at_s for r in requests)))):
            raise ValueError("expected seconds, got some that are not finite")
    except LongEpisodeError:
        raise
    except (ValueError, zlib.error, RecursionError) as error:  # msgspec's are ValueErrors
        raise SpecError(f"{path}: a damaged episode: {type(error).__name__}: {error}") from error
    return Episode(stored.session, stored.began_s, stored.outcome, stored.is_whole, requests)


def _length(head: bytes) -> int:
    """Return how long a list says it is that begins so; one of 15 or fewer says it elsewhere."""
    size = {0xDC: 2, 0xDD: 4}.get(head[0], 0)
    return int.from_bytes(head[1 : 1 + size], "big")
