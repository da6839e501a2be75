"""What a codec is.

A codec turns a buffer into an encoded stream and back, on one device. Its `id` is written in
archives and means one thing for ever (the table stands in FORMAT.md): two implementations may
share an id only if each decodes the other's streams. The caller owns the memory that is decoded
into, and a decoder trusts nothing in the stream: it raises CorruptChunkError instead of reading
or allocating beyond what the stream itself has paid for.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes on the host."""


class Codec(ABC):
    """One stream format; instances are stateless and safe to share between threads."""

    id: ClassVar[int]
    name: ClassVar[str]

    @abstractmethod
    def encode(self, data: Buffer, level: int | None = None) -> bytes:
        """Encode `data`; `level` is the codec's own number, None its default. Same input, same bytes."""

    @abstractmethod
    def check(self, stream: memoryview, size: int) -> None:
        """CorruptChunkError unless the stream can hold `size` original bytes; done before memory is reserved."""

    @abstractmethod
    def decode(self, stream: memoryview, out: memoryview) -> None:
        """Fill `out`, whose length is the original size, from `stream`; CorruptChunkError if it does not fit."""

    @abstractmethod
    def max_encoded_size(self, size: int) -> int:
        """Upper bound of `len(encode(data))` for `size` bytes of data."""
