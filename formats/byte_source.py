"""Random access to the bytes of a file, by position, safe to share between threads."""

import os
from typing import Protocol

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
