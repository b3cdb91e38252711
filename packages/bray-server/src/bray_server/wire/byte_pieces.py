"""Joining bytes that arrive in pieces."""

from __future__ import annotations

_FEW = 64


class BytePieces:
    """Bytes in pieces: a few are joined in one copy, and many tiny ones cost only their bytes."""

    __slots__ = ("_few", "_many", "size")

    def __init__(self) -> None:
        self._few: list[bytes] = []
        self._many: bytearray | None = None
        self.size = 0
        """Number of bytes so far."""

    def add(self, piece: bytes) -> None:
        """Add a piece."""
        self.size += len(piece)
        if self._many is not None:
            self._many += piece
            return
        self._few.append(piece)
        if len(self._few) > _FEW:
            self._many = bytearray().join(self._few)
            self._few = []

    def take(self) -> bytes:
        """Return all bytes, and begin anew."""
        if self._many is not None:
            whole = bytes(self._many)
            self._many = None
        elif len(self._few) == 1:
            whole = self._few[0]
            self._few.clear()
        else:
            whole = b"".join(self._few)
            self._few.clear()
        self.size = 0
        return whole
