"""The directory of a zip, read from its end; checksums are not looked at and nothing is inflated.

Torch writes local headers without sizes, so only the central directory tells where records are.
Layout: PKWARE's APPNOTE.TXT, sections 4.3 and 4.5.
"""

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nvckpt.formats.allowance import RECORD, Allowance
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.errors import MalformedCheckpointError, MemoryLimitError
from nvckpt.formats.windows import Windows

LOCAL_MAGIC = b"PK\x03\x04"
STORED = 0
CENTRAL_MAGIC = b"PK\x01\x02"
END_MAGIC = b"PK\x05\x06"
END64_MAGIC = b"PK\x06\x06"
LOCATOR_MAGIC = b"PK\x06\x07"
# The end record, and the zip64 record and locator that torch always writes before it.
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_EXTRA = struct.Struct("<HH")
_U64 = struct.Struct("<Q")
_ZIP64_EXTRA = 1
_ENCRYPTED = 1
_FULL32 = 0xFFFFFFFF
# A comment can be this long, and so can junk behind the end record.
_TAIL = (1 << 16) + _END.size
# Junk may hold the magic by chance, but hardly a whole end record that fits the file.
_MAX_CANDIDATES = 32
_MAX_PARSED = 4
_MAX_ENTRY = 256
# Memory for 2 million records is some 500 MB; real archives have under 100,000.
MAX_RECORDS = 2_000_000


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of the directory. `header` is an offset in the file; `stored` is its size in the file."""

    name: bytes
    method: int
    flags: int
    stored: int
    size: int
    header: int

    @property
    def is_plain(self) -> bool:
        """Whether the bytes in the file are the record itself."""
        return self.method == STORED and self.stored == self.size and not self.flags & _ENCRYPTED


@dataclass(frozen=True, slots=True)
class Directory:
    """One zip: it takes [start, end) of the file, and its records end at `limit`."""

    start: int
    limit: int
    end: int
    records: tuple[Record, ...]

    def ambiguous_names(self) -> frozenset[bytes]:
        """Names that more than one record has; readers disagree which of them counts."""
        counts = Counter(record.name for record in self.records)
        return frozenset(name for name, count in counts.items() if count > 1)


def find_directory(data: ByteSource, memory: Allowance) -> Directory:
    """The last zip of the file, allowing for a comment or junk behind it.

    Raises MalformedCheckpointError when no end record with a directory is in the last 64 KiB, MemoryLimitError when
    the directory would take more than `memory` allows.
    """
    tail_start = max(0, data.size - _TAIL)
    tail = data.read_at(tail_start, data.size - tail_start)
    position = len(tail)
    parsed = 0
    for _ in range(_MAX_CANDIDATES):
        position = tail.rfind(END_MAGIC, 0, position + len(END_MAGIC) - 1)
        if position < 0 or parsed >= _MAX_PARSED:
            break
        try:
            bounds = _bounds_at(data, tail_start + position)
            parsed += 1
            return _parse(data, bounds, memory)
        except MemoryLimitError:
            raise
        except MalformedCheckpointError:
            continue
    raise MalformedCheckpointError("the zip directory is missing: the file is cut short")


def directory_ending_at(data: ByteSource, end: int, memory: Allowance) -> Directory:
    """The zip whose end record, without a comment, ends at `end`; MalformedCheckpointError when there is none."""
    return _parse(data, _bounds_at(data, end - _END.size), memory)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Where an end record says that its zip and its directory are, in the file."""

    start: int
    directory: int
    size: int
    count: int
    end: int


def _bounds_at(data: ByteSource, position: int) -> _Bounds:
    """What the end record at `position` says; cheap, and checked against the file's size."""
    before = min(position, _LOCATOR.size + _END64.size)
    if position < 0:
        raise MalformedCheckpointError("the zip directory is damaged")
    raw = data.read_at(position - before, before + _END.size)
    magic, _, _, _, count, size, offset, _ = _END.unpack_from(raw, before)
    if magic != END_MAGIC:
        raise MalformedCheckpointError("the zip directory is damaged")
    limit = position
    wide = _end64(raw) if before == _LOCATOR.size + _END64.size else None
    if wide is not None:
        count, size, offset = wide
        limit = position - before
    elif _FULL32 in {size, offset}:
        raise MalformedCheckpointError("the zip directory is damaged")
    start = limit - size - offset
    if start < 0 or count * _CENTRAL.size > size:
        raise MalformedCheckpointError("the zip directory is damaged")
    return _Bounds(start, start + offset, size, count, position + _END.size)


def _parse(data: ByteSource, bounds: _Bounds, memory: Allowance) -> Directory:
    if bounds.count > MAX_RECORDS or bounds.size > MAX_RECORDS * _MAX_ENTRY:
        raise MalformedCheckpointError("the zip has more records than nvckpt looks into")
    memory.spend(RECORD * bounds.count + bounds.size)
    raw = data.read_at(bounds.directory, bounds.size)
    records = tuple(_records(raw, bounds.count, bounds.start))
    return Directory(bounds.start, bounds.directory, bounds.end, records)


def _end64(raw: bytes) -> tuple[int, int, int] | None:
    """Count, size and offset of the directory from the zip64 record before the end record."""
    magic, _, _, _, _, _, _, count, size, offset = _END64.unpack_from(raw, 0)
    if magic != END64_MAGIC or _LOCATOR.unpack_from(raw, _END64.size)[0] != LOCATOR_MAGIC:
        return None
    return count, size, offset


def _records(raw: bytes, count: int, start: int) -> Iterator[Record]:
    position = 0
    for _ in range(count):
        if position + _CENTRAL.size > len(raw):
            raise MalformedCheckpointError("the zip directory is damaged")
        fields = _CENTRAL.unpack_from(raw, position)
        magic, _, _, flags, method, _, _, _, stored, size, name_length, extra_length, comment_length = fields[:13]
        header = fields[16]
        name_start = position + _CENTRAL.size
        extra_start = name_start + name_length
        position = extra_start + extra_length + comment_length
        if magic != CENTRAL_MAGIC or position > len(raw):
            raise MalformedCheckpointError("the zip directory is damaged")
        if _FULL32 in (stored, size, header):
            extra = raw[extra_start : extra_start + extra_length]
            size, stored, header = _widened(extra, size, stored, header)
        yield Record(raw[name_start:extra_start], method, flags, stored, size, start + header)


def _widened(extra: bytes, *narrow: int) -> list[int]:
    """Replace each field that is full by the next 64-bit number of the zip64 extra field."""
    body = _zip64_body(extra)
    values = list(narrow)
    position = 0
    for index, value in enumerate(values):
        if value == _FULL32:
            if position + 8 > len(body):
                raise MalformedCheckpointError("a zip record has no 64-bit size")
            values[index] = _U64.unpack_from(body, position)[0]
            position += 8
    return values


def _zip64_body(extra: bytes) -> bytes:
    position = 0
    while position + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, position)
        position += _EXTRA.size
        if kind == _ZIP64_EXTRA:
            return extra[position : position + length]
        position += length
    return b""


class Payloads:
    """Finds where records' bytes start; quickest when asked in the order of the file."""

    def __init__(self, data: ByteSource, directory: Directory) -> None:
        self._windows = Windows(data)
        self._directory = directory

    def offset_of(self, record: Record) -> int | None:
        """The offset of the record's first byte; None when its local header is not what was promised."""
        header_end = record.header + _LOCAL.size + len(record.name)
        if record.header < self._directory.start or header_end > self._directory.limit:
            return None
        raw = self._windows.read_at(record.header, _LOCAL.size + len(record.name))
        fields = _LOCAL.unpack_from(raw)
        if fields[0] != LOCAL_MAGIC or fields[9] != len(record.name) or raw[_LOCAL.size :] != record.name:
            return None
        offset: int = header_end + fields[10]
        return offset if offset + record.stored <= self._directory.limit else None

    def read(self, record: Record, limit: int) -> bytes | None:
        """A stored record's bytes; None when it is compressed, damaged or longer than `limit`."""
        offset = self.offset_of(record)
        if offset is None or not record.is_plain or record.size > limit:
            return None
        return self._windows.read_at(offset, record.size)
