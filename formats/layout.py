"""The fixed structures of the container: header, frame header, footer (FORMAT.md 4, 5 and 6.1)."""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from nvckpt.formats.checksum import checksum
from nvckpt.formats.cursor import Cursor, varint
from nvckpt.formats.errors import (
    CorruptArchiveError,
    NotAnArchiveError,
    TruncatedArchiveError,
    UnsupportedArchiveError,
)

MAGIC = b"\x89NVCKPT\n"
END_MAGIC = b"\x89NVCEND\n"
FRAME_MAGIC = b"NVFR"
VERSION = 1

ALIGNMENT = 16
LARGE_ALIGNMENT = 4096
LARGE_FRAME = 4 << 20

MAX_WINDOW = 256 << 20
MAX_FRAME_HEADER = 32 << 20
MAX_STREAMS = 16
MAX_EXTENTS = 1 << 20
MAX_REFERENCES = 255
MAX_INDEX = 4 << 30
MAX_INDEX_EXPANSION = 16
INDEX_ALLOWANCE = 4 << 20

_HEADER = struct.Struct("<8sHHIII")
_FOOTER = struct.Struct("<QQQQI")
_FRAME = struct.Struct("<4sIBBBBIQQQQ")
_STREAM = struct.Struct("<BBHIQQ")
_REFERENCE = struct.Struct("<IIQQ")
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")

HEADER_SIZE = _HEADER.size + 8
FOOTER_SIZE = _FOOTER.size + 12
FRAME_PREFIX_SIZE = 8
"""Magic and header size: enough to know how much of a frame header to read."""


def align(offset: int, alignment: int = ALIGNMENT) -> int:
    """Return the next multiple of `alignment` at or after `offset`."""
    return -(-offset // alignment) * alignment


def pack_header() -> bytes:
    """Return the first 32 bytes of an archive."""
    fixed = _HEADER.pack(MAGIC, VERSION, 0, 0, 0, 0)
    return fixed + _U64.pack(checksum(fixed))


def check_header(data: bytes) -> None:
    """Raise what FORMAT.md 4 says unless `data` starts an archive that this version reads."""
    if data[: len(MAGIC)] != MAGIC:
        raise NotAnArchiveError("not an nvckpt archive")
    if len(data) < HEADER_SIZE:
        raise TruncatedArchiveError("the archive is cut short")
    _, version, reserved_1, mandatory, _, reserved_2 = _HEADER.unpack_from(data)
    if _U64.unpack_from(data, _HEADER.size)[0] != checksum(data[: _HEADER.size]):
        raise CorruptArchiveError("the archive header is damaged")
    if not 1 <= version <= VERSION:
        raise UnsupportedArchiveError(
            f"the archive has format version {version}, this nvckpt reads up to {VERSION}: install a newer nvckpt"
        )
    if mandatory:
        raise UnsupportedArchiveError(
            f"the archive needs feature bits {mandatory:#x}, unknown to this nvckpt: install a newer one"
        )
    if reserved_1 or reserved_2:
        raise CorruptArchiveError("the archive header breaks the format")


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """What a frame header says of one stream; sizes in bytes."""

    codec_id: int
    codec_param: int
    library_version: int
    original_size: int
    encoded_size: int


Extent = tuple[int, int]
"""Offset and length in the original."""


class Reference(NamedTuple):
    """A range that must be known before a frame is decoded; `base` 0 is the frame's own original."""

    base: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """One frame: how its payload is coded, and which ranges of the original it restores."""

    transform_id: int
    transform_param: int
    streams: tuple[StreamRecord, ...]
    extents: tuple[Extent, ...]
    payload_checksum: int
    original_checksum: int
    references: tuple[Reference, ...] = ()

    @property
    def original_size(self) -> int:
        """Bytes restored."""
        # As many as the extents', of which there may be a million: a test of the header compares the two.
        return sum(stream.original_size for stream in self.streams)

    @property
    def payload_size(self) -> int:
        """Bytes after the header, inner padding included."""
        starts = self.stream_starts()
        return starts[-1] + self.streams[-1].encoded_size

    def stream_starts(self) -> list[int]:
        """Return where each stream begins in the payload."""
        starts, position = [], 0
        for stream in self.streams:
            position = align(position)
            starts.append(position)
            position += stream.encoded_size
        return starts

    def pack(self) -> bytes:
        """Return the header as it stands in the file."""
        body = bytearray()
        for s in self.streams:
            body += _STREAM.pack(s.codec_id, s.codec_param, 0, s.library_version, s.original_size, s.encoded_size)
        for base, offset, length in self.references:
            body += _REFERENCE.pack(base, 0, offset, length)
        position = 0
        for offset, length in self.extents:
            body += varint(offset - position) + varint(length)
            position = offset + length
        size = align(_FRAME.size + len(body) + _U64.size)
        head = _FRAME.pack(
            FRAME_MAGIC,
            size,
            self.transform_id,
            self.transform_param,
            len(self.streams),
            len(self.references),
            len(self.extents),
            self.original_size,
            self.payload_size,
            self.payload_checksum,
            self.original_checksum,
        )
        data = (head + body).ljust(size - _U64.size, b"\0")
        return data + _U64.pack(checksum(data))


def frame_header_size(prefix: bytes) -> int:
    """Return the declared size of the frame header that starts with `prefix`."""
    if len(prefix) < FRAME_PREFIX_SIZE:
        raise CorruptArchiveError("a header or the index ends in the middle of a field")
    magic, size = struct.unpack("<4sI", prefix)
    if magic != FRAME_MAGIC:
        raise CorruptArchiveError("a frame does not begin where the archive says")
    if size % ALIGNMENT or not _FRAME.size < size <= MAX_FRAME_HEADER:
        raise CorruptArchiveError("a frame header has an impossible size")
    return int(size)


def parse_frame_header(data: bytes) -> FrameHeader:
    """Read a whole frame header; CorruptArchiveError unless it keeps every rule of FORMAT.md 5.1 and 5.2."""
    if frame_header_size(data[:FRAME_PREFIX_SIZE]) != len(data):
        raise CorruptArchiveError("a frame header has an impossible size")
    if _U64.unpack_from(data, len(data) - 8)[0] != checksum(data[:-8]):
        raise CorruptArchiveError("a frame header is damaged")
    _, _, transform, param, streams, references, extents, original, payload, *sums = _FRAME.unpack_from(data)
    if not 1 <= streams <= MAX_STREAMS or not 1 <= extents <= MAX_EXTENTS or not 1 <= original <= MAX_WINDOW:
        raise CorruptArchiveError("a frame header is outside the format's limits")
    cursor = Cursor(memoryview(data)[:-8], _FRAME.size)
    records = tuple(_parse_stream(cursor.take(_STREAM.size)) for _ in range(streams))
    ranges = tuple(_parse_reference(cursor.take(_REFERENCE.size)) for _ in range(references))
    header = FrameHeader(transform, param, records, _parse_extents(cursor, extents), sums[0], sums[1], ranges)
    if cursor.left >= ALIGNMENT or any(cursor.take(cursor.left)):
        raise CorruptArchiveError("a frame header is not padded with zeros")
    if header.original_size != original or sum(length for _, length in header.extents) != original:
        raise CorruptArchiveError("the parts of a frame do not add up to its size")
    if header.payload_size != payload:
        raise CorruptArchiveError("the streams of a frame do not add up to its payload")
    return header


def _parse_stream(data: bytes) -> StreamRecord:
    codec, param, reserved, library, original, encoded = _STREAM.unpack(data)
    if reserved:
        raise CorruptArchiveError("a stream record breaks the format")
    return StreamRecord(codec, param, library, original, encoded)


def _parse_reference(data: bytes) -> Reference:
    base, reserved, offset, length = _REFERENCE.unpack(data)
    if reserved:
        raise CorruptArchiveError("a reference breaks the format")
    return Reference(base, offset, length)


def _parse_extents(cursor: Cursor, count: int) -> tuple[Extent, ...]:
    extents = []
    position = 0
    for i in range(count):
        gap, length = cursor.varint(), cursor.varint()
        if length == 0 or (i and gap == 0):
            raise CorruptArchiveError("the ranges of a frame are not in order")
        extents.append((position + gap, length))
        position += gap + length
    return tuple(extents)


@dataclass(frozen=True, slots=True)
class Footer:
    """Where the index is and how it is stored."""

    index_offset: int
    index_size: int
    index_raw_size: int
    index_checksum: int
    index_codec: int

    def pack(self) -> bytes:
        """Return the last 48 bytes of an archive."""
        fixed = _FOOTER.pack(
            self.index_offset, self.index_size, self.index_raw_size, self.index_checksum, self.index_codec
        )
        return fixed + _U32.pack(checksum(fixed) & 0xFFFFFFFF) + END_MAGIC


def parse_footer(data: bytes, file_size: int) -> Footer:
    """Read the footer; its fields are checked against the file's size and FORMAT.md 6.1."""
    if data[-len(END_MAGIC) :] != END_MAGIC:
        raise TruncatedArchiveError("the archive is cut short, or something was appended to it")
    footer = Footer(*_FOOTER.unpack_from(data))
    if _U32.unpack_from(data, _FOOTER.size)[0] != checksum(data[: _FOOTER.size]) & 0xFFFFFFFF:
        raise CorruptArchiveError("the archive footer is damaged")
    if footer.index_offset + footer.index_size + FOOTER_SIZE != file_size or footer.index_offset < HEADER_SIZE:
        raise TruncatedArchiveError("the archive is cut short, or something was appended to it")
    paid_for = MAX_INDEX_EXPANSION * footer.index_size + INDEX_ALLOWANCE
    if footer.index_raw_size > min(paid_for, MAX_INDEX) or footer.index_offset % ALIGNMENT:
        raise CorruptArchiveError("the archive footer breaks the format")
    if footer.index_codec == 0 and footer.index_raw_size != footer.index_size:
        raise CorruptArchiveError("the archive footer breaks the format")
    return footer
