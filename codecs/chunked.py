"""The chunked stream that the standard codecs share (FORMAT.md 5.3).

A table of sizes, then one standard stream a chunk, each at a multiple of 16: what nvCOMP's RAW
mode reads and writes in a batch, and what a CPU library decodes chunk by chunk.
"""

import struct
from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from operator import add
from typing import ClassVar, Self

from nvckpt.codecs.base import Buffer, Codec
from nvckpt.codecs.errors import CorruptChunkError, InvalidLevelError

ALIGNMENT = 16
CHUNK_SIZE = 1 << 20
MAX_CHUNK_SIZE = 16 << 20

_HEAD = struct.Struct("<II")
HEAD_SIZE = _HEAD.size
"""Bytes that tell how long the table is."""


def align(offset: int) -> int:
    """The next multiple of 16 at or after `offset`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


class ChunkedCodec(Codec):
    """A codec whose stream is a table of independently encoded chunks."""

    max_expansion: ClassVar[int]
    """Original bytes that one encoded byte can stand for, at most; bounds allocation while decoding."""
    chunk_size: int = CHUNK_SIZE
    """Original bytes of each chunk that `encode` makes; a decoder takes any size."""

    def with_chunk_size(self, size: int) -> Self:
        """The same codec with chunks of `size` bytes; InvalidLevelError above what readers accept."""
        if not 1 <= size <= MAX_CHUNK_SIZE:
            raise InvalidLevelError(f"a chunk has 1 byte to {MAX_CHUNK_SIZE >> 20} MiB, not {size} bytes")
        other = copy(self)
        other.chunk_size = size
        return other

    @abstractmethod
    def encode_chunk(self, chunk: memoryview, level: int | None) -> bytes:
        """One standard stream."""

    @abstractmethod
    def decode_chunk(self, stream: memoryview, size: int) -> bytes:
        """At most `size` bytes back; any exception of the library means a damaged stream."""

    def encode(self, data: Buffer, level: int | None = None) -> bytes:
        """Cut into chunks and encode each; a chunk that does not shrink is kept as it is."""
        view = memoryview(data).cast("B")
        chunks: list[Buffer] = []
        for start in range(0, len(view), self.chunk_size):
            original = view[start : start + self.chunk_size]
            encoded = self.encode_chunk(original, level)
            chunks.append(encoded if len(encoded) < len(original) else original)
        sizes = [len(c) for c in chunks]
        parts: list[Buffer] = [pack_table(self.chunk_size, sizes)]
        for before, chunk in zip([0, *sizes], chunks, strict=False):
            parts += [bytes(align(before) - before), chunk]
        return b"".join(parts)

    def max_encoded_size(self, size: int) -> int:
        """Table, padding, and every chunk kept as it is."""
        count = -(-size // self.chunk_size)
        return align(_HEAD.size + 4 * count) + size + ALIGNMENT * count

    def check(self, stream: memoryview, size: int) -> None:
        """The table accounts for the stream, and no chunk claims more than it can expand to."""
        self._read_table(stream, size)

    def decode(self, stream: memoryview, out: memoryview) -> None:
        """Check the whole table, then decode chunk by chunk into `out`."""
        chunk_size, starts, sizes = self._read_table(stream, len(out))
        for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            target = out[i * chunk_size : (i + 1) * chunk_size]
            source = stream[start : start + size]
            target[:] = source if size == len(target) else self._decode_chunk_checked(source, len(target), i)

    def _read_table(self, stream: memoryview, original_size: int) -> tuple[int, list[int], list[int]]:
        """Chunk size, starts and encoded sizes, all believable."""
        chunk_size, starts, sizes = parse_table(stream, original_size)
        for i, size in enumerate(sizes):
            original = min(chunk_size, original_size - i * chunk_size)
            if size > original or original > size * self.max_expansion:
                raise CorruptChunkError(f"{self.name} chunk {i} cannot hold {original} bytes in {size}")
        return chunk_size, starts, sizes

    def _decode_chunk_checked(self, source: memoryview, size: int, index: int) -> bytes:
        try:
            decoded = self.decode_chunk(source, size)
        except CorruptChunkError:
            raise
        except Exception as error:
            raise CorruptChunkError(f"{self.name} chunk {index} does not decode") from error
        if len(decoded) != size:
            raise CorruptChunkError(f"{self.name} chunk {index} gives {len(decoded)} bytes instead of {size}")
        return decoded


def pack_table(chunk_size: int, sizes: Sequence[int]) -> bytes:
    """Return the table before the chunks, padded to where the first one begins."""
    table = _HEAD.pack(chunk_size, len(sizes)) + struct.pack(f"<{len(sizes)}I", *sizes)
    return table.ljust(align(len(table)), b"\0")


def parse_table(stream: memoryview, original_size: int) -> tuple[int, list[int], list[int]]:
    """Chunk size, starts and encoded sizes; CorruptChunkError unless they account for the stream exactly."""
    chunk_size, starts, sizes = read_table(stream, len(stream), original_size)
    ends = [HEAD_SIZE + 4 * len(sizes), *map(add, starts, sizes)]
    if any(any(stream[end:start]) for end, start in zip(ends, starts, strict=False)):
        raise CorruptChunkError("the padding between chunks is not zero")
    return chunk_size, starts, sizes


def read_table(head: memoryview, stream_size: int, original_size: int) -> tuple[int, list[int], list[int]]:
    """The same of the first bytes of a stream of `stream_size`, as far as its table goes; padding is not looked at."""
    if len(head) < HEAD_SIZE:
        raise CorruptChunkError("the chunk table is cut short")
    chunk_size, count = _HEAD.unpack_from(head)
    if not 1 <= chunk_size <= MAX_CHUNK_SIZE or count != -(-original_size // chunk_size):
        raise CorruptChunkError(f"{count} chunks of {chunk_size} bytes do not make {original_size} bytes")
    data_start = table_size(head)
    if data_start > len(head):
        raise CorruptChunkError("the chunk table is cut short")
    sizes = list(struct.unpack_from(f"<{count}I", head, HEAD_SIZE))
    starts = list(accumulate(sizes[:-1], lambda start, size: align(start + size), initial=align(data_start)))
    if not sizes or 0 in sizes or starts[-1] + sizes[-1] != stream_size:
        raise CorruptChunkError("the chunk table does not account for the stream")
    return chunk_size, starts, sizes


def table_size(head: memoryview) -> int:
    """Bytes of the table that begins with these; HEAD_SIZE of them are needed to tell."""
    return HEAD_SIZE + 4 * int(_HEAD.unpack_from(head)[1])
