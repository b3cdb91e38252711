"""A file in shared memory that the processes of one node map and lock (Linux).

Locks are the kernel's, on bytes of the file: byte 0 is a mutex, and each process that opens the
file holds one byte more for as long as it lives. So a process that is killed holds no lock, is
seen to be gone without a heartbeat, and a file that nobody belongs to is left over from a crash.
An open file, not `multiprocessing.shared_memory`: on Python 3.11 that is unlinked by the first
process that exits.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import threading
import time
import weakref
from pathlib import Path

from bray_core.errors import CapacityError, ClosedError, DeadlineError, NotFoundError

FOLDER = Path("/dev/shm")
_MAX_MEMBERS = 4096
_FLOCK = "hhqqi"
_LOCK = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 1, 0)
_UNLOCK = struct.pack(_FLOCK, fcntl.F_UNLCK, 0, 0, 1, 0)
_SPINS = 100
_PAUSE_S = 0.0001
_LOCK_TIMEOUT_S = 30.0
"""Time after which a lock counts as stuck: the work under it takes microseconds."""

_PAGE = 4096
_barrier = threading.Lock()

_open_files: weakref.WeakSet[SharedFile] = weakref.WeakSet()


class SharedFile:
    """A process's handle of a file in shared memory, made by `create` or `open`. Thread-safe."""

    def __init__(self, descriptor: int, path: Path, nbytes: int) -> None:
        self.path = path
        self.nbytes = nbytes
        self.map = mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._descriptor = descriptor
        self._thread_lock = threading.Lock()
        self.member = self._join()
        """Number of this process among those that have the file open, from 1."""
        _open_files.add(self)

    @classmethod
    def create(cls, name: str, nbytes: int, purpose: str) -> SharedFile:
        """Make a file of zeros.

        Args:
            name: Name in the folder of shared memory, not yet taken.
            nbytes: Bytes to reserve at once, since a full /dev/shm would kill a process later.
            purpose: What the memory is for, in the error message.

        Raises:
            CapacityError: Shared memory has no room; says how much is needed and how much is free.
        """
        path = FOLDER / name
        hidden = FOLDER / f".{name}"  # where no sweep looks, until somebody belongs to it
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        except OSError as error:
            os.close(descriptor)
            hidden.unlink(missing_ok=True)
            free = os.statvfs(FOLDER).f_bavail * os.statvfs(FOLDER).f_frsize
            raise CapacityError(
                f"{purpose}: {nbytes / 1e6:,.1f} MB of shared memory are needed in {FOLDER}, "
                f"{free / 1e6:,.1f} MB are free ({error.strerror}): make them fewer or smaller, "
                "or give /dev/shm more room (docker run --shm-size)"
            ) from error
        made = cls(descriptor, path, nbytes)
        hidden.rename(path)
        return made

    @classmethod
    def open(cls, path: Path) -> SharedFile:
        """Map a file that `create` made.

        Raises:
            NotFoundError: There is none.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise NotFoundError(f"shared memory: {path}: {error.strerror}") from error
        return cls(descriptor, path, os.fstat(descriptor).st_size)

    def _join(self) -> int:
        for member in range(1, _MAX_MEMBERS):
            if self._try_lock(struct.pack(_FLOCK, fcntl.F_WRLCK, 0, member, 1, 0)):
                return member
        raise CapacityError(f"shared memory: {self.path} is open in {_MAX_MEMBERS - 1} processes")

    def is_alive(self, member: int) -> bool:
        """Return whether the process with that number still has the file open."""
        return member == self.member or _is_locked(self._descriptor, member, 1)

    def locked(self) -> SharedFile:
        """Return a context that holds the file's lock, against threads and other processes.

        Raises:
            DeadlineError: Another process has held the lock for half a minute.
            ClosedError: The file was closed here.
        """
        return self

    def __enter__(self) -> None:
        self._thread_lock.acquire()
        try:
            self._lock()
        except BaseException:
            self._thread_lock.release()
            raise

    def __exit__(self, *exc_info: object) -> None:
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _UNLOCK)
        self._thread_lock.release()

    def _lock(self) -> None:
        if self._descriptor < 0:
            raise ClosedError(f"shared memory: {self.path} was closed")
        tries, deadline = 0, 0.0
        while not self._try_lock(_LOCK):
            tries += 1
            if tries < _SPINS:
                os.sched_yield()
                continue
            deadline = deadline or time.monotonic() + _LOCK_TIMEOUT_S
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"shared memory: the lock of {self.path} has been held for "
                    f"{_LOCK_TIMEOUT_S:g} s: is a process stopped?"
                )
            time.sleep(_PAUSE_S)

    def _try_lock(self, lock: bytes) -> bool:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, lock)
        except BlockingIOError:
            return False
        return True

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)

    def close(self) -> None:
        """Close the file; views of its memory stay valid, and a second call is harmless."""
        with self._thread_lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
        with contextlib.suppress(BufferError):  # unmapped with its last view
            self.map.close()

    def unlink(self) -> None:
        """Remove the file's name; processes that have it open keep it."""
        self.path.unlink(missing_ok=True)

    def _reopen(self) -> None:
        """Open the file anew in a forked child: the locks belong to the parent's handle."""
        self._thread_lock = threading.Lock()
        if self._descriptor < 0:
            return
        inherited = self._descriptor
        self._descriptor = os.open(f"/proc/self/fd/{inherited}", os.O_RDWR | os.O_CLOEXEC)
        os.close(inherited)
        self.member = self._join()


def sweep(prefix: str) -> None:
    """Remove the files whose name begins so and that no living process has open."""
    for path in FOLDER.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another process sweeps too, or it is another user's
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if not _is_locked(descriptor, 0, 0):
                    path.unlink()
            finally:
                os.close(descriptor)


def up_to_page(nbytes: int) -> int:
    """Return a number of bytes, rounded up to whole pages."""
    return -(-nbytes // _PAGE) * _PAGE


def fence() -> None:
    """Keep memory accesses in order, on every processor: a lock is taken and released."""
    with _barrier:
        pass


def _is_locked(descriptor: int, start: int, length: int) -> bool:
    """Return whether another process locks one of the bytes; length 0 means to the end."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, start, length, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def _after_fork() -> None:
    for file in list(_open_files):
        file._reopen()


os.register_at_fork(after_in_child=_after_fork)
