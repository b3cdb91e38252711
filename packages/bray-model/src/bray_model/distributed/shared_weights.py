"""Weights in shared memory: one process writes versions, any number on the node read them.

A file below /dev/shm, mapped by all:

    header    magic, nbytes, and for each of three slots: its stamp, begun, done
    slots     a version's packed block each

The writer takes the slots in turn. It counts a publish in the slot's `begun`, copies, and counts it
in `done`: a reader that finds both unchanged after its own copy has one version whole (a sequence
lock). Readers never block the writer; a reader is overtaken only by two publishes within one copy,
and then takes the newer. An open file, not `multiprocessing.shared_memory`: on Python 3.11 that is
unlinked by the first reader that exits.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import mmap
import os
import secrets
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np

from bray_core.errors import ClosedError, ConfigError, NotFoundError, SpecError
from bray_core.files.shared_file import FOLDER, fence, up_to_page
from bray_core.layout import Block
from bray_model.versions.weights import WeightsStamp

_PREFIX = "bray-weights-"
_MAGIC = b"BRAYWT02"
_SLOTS = 3
_PAGE = 4096
_HEADER = struct.Struct("<8sQ")
_TRIES = 1000
"""A reader that is overtaken so often in a row is not slow but stopped."""


class _Mapped:
    """The file as both sides map it."""

    def __init__(self, file: int, path: Path, nbytes: int, protection: int) -> None:
        self.path = path
        self.nbytes = nbytes
        size = _PAGE + _SLOTS * up_to_page(nbytes)
        self._map = mmap.mmap(file, size, mmap.MAP_SHARED, protection)
        self._file = file
        whole = np.frombuffer(self._map, np.uint8)
        counters = whole[_HEADER.size : _HEADER.size + 8 * (1 + 5 * _SLOTS)].view(np.int64)
        self._newest: Any = counters[:1]
        self._stamps: Any = counters[1 : 1 + 3 * _SLOTS].reshape(_SLOTS, 3)
        self._begun: Any = counters[1 + 3 * _SLOTS : 1 + 4 * _SLOTS]
        self._done: Any = counters[1 + 4 * _SLOTS :]
        self._slots = [
            whole[start : start + nbytes]
            for start in range(_PAGE, size, up_to_page(nbytes))
            if start + nbytes <= size
        ]

    @property
    def version(self) -> int:
        """The newest stamp's version; -1 before the first publish. Costs a read of memory."""
        return self._of_newest(1)

    @property
    def sequence(self) -> int:
        """The newest stamp's sequence; -1 before the first publish. Costs a read of memory."""
        return self._of_newest(0)

    def _of_newest(self, field: int) -> int:
        count = int(self._newest[0])
        return int(self._stamps[count % _SLOTS, field]) if count else -1

    def close(self) -> None:
        """Unmap the file; again is harmless."""
        if self._file < 0:
            return
        self._newest = self._stamps = self._begun = self._done = None
        self._slots = []
        os.close(self._file)
        self._file = -1
        with contextlib.suppress(BufferError):  # a view of it lives on: unmapped with that
            self._map.close()


class WeightsWriter(_Mapped):
    """Publishes versions of a packed block. One at a time has a file.

    Args:
        nbytes: Size of the block in bytes.

    Raises:
        ConfigError: `nbytes` is less than 1, or shared memory has no room: says how much is needed.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes < 1:
            raise ConfigError(f"nbytes: expected 1 or more, got {nbytes}")
        sweep()
        path = FOLDER / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        file = _locked(path)
        size = _PAGE + _SLOTS * up_to_page(nbytes)
        try:
            os.posix_fallocate(file, 0, size)  # now, or a full /dev/shm would kill us later
            super().__init__(file, path, nbytes, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            os.close(file)
            path.unlink()
            raise ConfigError(
                f"weights: {size} bytes of shared memory are needed in {FOLDER}: {error.strerror}"
            ) from error
        self._lock = threading.Lock()
        atexit.register(self.close)
        self._map[: _HEADER.size] = _HEADER.pack(_MAGIC, nbytes)

    def publish(self, stamp: WeightsStamp, block: Block) -> None:
        """Make a block the newest.

        Raises:
            SpecError: The block has another size.
            ConfigError: the stamp is not newer.
            ClosedError: the writer was closed.
        """
        if block.nbytes != self.nbytes:
            raise SpecError(f"block: expected {self.nbytes} bytes, got {block.nbytes}")
        with self._lock:
            if self._file < 0:
                raise ClosedError("weights: the writer was closed")
            if stamp.sequence <= self.sequence:
                raise ConfigError(f"stamp={stamp}: expected a sequence above {self.sequence}")
            count = int(self._newest[0]) + 1
            slot = count % _SLOTS
            self._begun[slot] = count
            fence()
            np.copyto(self._slots[slot], block.reshape(-1))
            self._stamps[slot] = stamp
            fence()
            self._done[slot] = count
            fence()
            self._newest[0] = count

    def close(self) -> None:
        """Remove the file; readers keep what they have mapped."""
        atexit.unregister(self.close)
        with self._lock:
            if self._file >= 0:
                self.path.unlink(missing_ok=True)
            super().close()


class WeightsReader(_Mapped):
    """Reads what a `WeightsWriter` of this node publishes.

    Args:
        path: File of the writer.

    Raises:
        NotFoundError: there is no such file, or it is no file of weights.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise NotFoundError(f"weights: {path}: {error.strerror}") from error
        try:
            head = os.pread(file, _HEADER.size, 0)
            magic, nbytes = _HEADER.unpack(head) if len(head) == _HEADER.size else (b"", 0)
            if magic != _MAGIC or os.fstat(file).st_size != _PAGE + _SLOTS * up_to_page(nbytes):
                raise NotFoundError(f"weights: {path}: not a file of weights")
            super().__init__(file, path, nbytes, mmap.PROT_READ)
        except BaseException:
            os.close(file)
            raise

    @property
    def is_orphaned(self) -> bool:
        """Whether the writer closed the file or died."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def read(self, out: Block | None = None) -> tuple[WeightsStamp, Block]:
        """Copy the newest block; return it with its stamp.

        Args:
            out: Block to copy to; None: a new one.

        Raises:
            NotFoundError: nothing was published yet.
        """
        if out is None:
            out = np.empty(self.nbytes, np.uint8)
        for _ in range(_TRIES):
            count = int(self._newest[0])
            if not count:
                raise NotFoundError(f"weights: {self.path}: nothing was published yet")
            slot = count % _SLOTS
            fence()
            stamp = WeightsStamp(*self._stamps[slot].tolist())
            np.copyto(out, self._slots[slot])
            fence()
            if int(self._begun[slot]) == count == int(self._done[slot]):
                return stamp, out
        raise NotFoundError(f"weights: {self.path}: overtaken {_TRIES} times in a row")


def sweep() -> None:
    """Remove the files of writers that died: their locks are free."""
    for path in FOLDER.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another process sweeps too, or it is another user's
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)


def _locked(path: Path) -> int:
    """Make a file that no sweep finds before it is locked."""
    hidden = path.with_name(f".{path.name}")
    file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    hidden.rename(path)
    return file
