"""Random access to the bytes of a file, by position, safe to share between threads."""

import os
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from threading import Lock
from typing import BinaryIO, Protocol

from nvckpt.formats.errors import MalformedCheckpointError, SourceReadError

# Linux returns at most 0x7ffff000 bytes from one read; smaller steps also keep signals responsive.
_MAX_READ = 64 << 20


class ByteSource(Protocol):
    """Anything of a known size that can be read at a position."""

    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; MalformedCheckpointError when the range is not in the file."""
        ...


class FileBytes:
    """The bytes of an open file; `size` is taken once, so a growing file keeps its first length."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        """See ByteSource; loops over short reads, and treats an early end as a changed file."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise MalformedCheckpointError(f"bytes {offset}..{offset + length} are not in the file")
        parts: list[bytes] = []
        while length:
            try:
                part = os.pread(self.descriptor, min(length, _MAX_READ), offset)
            except OSError as error:
                raise SourceReadError(error.errno, error.strerror) from error
            if not part:
                raise MalformedCheckpointError(f"the file ended early, at byte {offset}")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class StreamBytes:
    """A seekable file object from where it stands to its end; its position moves, and reads wait for one another."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = Lock()
        self._start = stream.tell()
        self.size = stream.seek(0, os.SEEK_END) - self._start

    def read_at(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise MalformedCheckpointError(f"bytes {offset}..{offset + length} are not in the file")
        with self._lock:
            self._stream.seek(self._start + offset)
            parts: list[bytes] = []
            while length:
                part = self._stream.read(length)
                if not part:
                    raise MalformedCheckpointError(f"the file ended early, at byte {offset}")
                parts.append(part)
                length -= len(part)
        return b"".join(parts)


class MemoryBytes:
    """Bytes already in memory, for tests and small files."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise MalformedCheckpointError(f"bytes {offset}..{offset + length} are not in the file")
        return self._data[offset : offset + length]


Part = ByteSource
"""A piece of a file that is put together."""


class JoinedBytes:
    """Several sources one after the other, read as if they were one; the empty ones are left out."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(part for part in parts if part.size)
        self.starts = tuple(accumulate((part.size for part in self.parts), initial=0))
        self.size = self.starts[-1]

    def read_at(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise MalformedCheckpointError(f"bytes {offset}..{offset + length} are not in the file")
        pieces: list[bytes] = []
        number = bisect_right(self.starts, offset) - 1
        while length:
            start = offset - self.starts[number]
            step = min(length, self.parts[number].size - start)
            pieces.append(self.parts[number].read_at(start, step))
            offset += step
            length -= step
            number += 1
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
