"""The records of the codec `lowrank`: their layout, reading and checking them (FORMAT.md 19.1)."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_codec import Float
from nvckpt.codecs.lowrank_grid import CONTEXTS, KINDS, Kind

HEAD = struct.Struct("<IIIHBBB15x8i7I")
STRIP = 1 << 17
"""Numbers of a strip, rounded down to whole rows."""
MOST_FACTOR = 2047
"""Bound of a factor's entries."""
MOST_RANK = 1024
MOST_GROUPS = 8
_MOST_SHIFT = 32
BITMAP, SCALES, FACTORS = range(3)
"""The first sections; behind the factors stand AFTER_FACTORS more: contexts, `below`, escapes, raw bits."""
AFTER_FACTORS = CONTEXTS + 3

Ints = npt.NDArray[np.int64]


def align(size: int) -> int:
    """Round up to a multiple of 16."""
    return -(-size // 16) * 16


def group_slices(rank: int, groups: int) -> list[slice]:
    """Return which components each group of columns of the factors holds."""
    return [slice(rank * i // groups, rank * (i + 1) // groups) for i in range(groups)]


def strips(rows: int, cols: int) -> Iterator[slice]:
    """Yield the rows of each strip."""
    step = max(1, STRIP // cols)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def packed(
    shape: tuple[int, ...],
    kind: Kind,
    rank: int,
    groups: int,
    shift: int,
    multipliers: Sequence[int],
    counts: Sequence[int],
    sections: Sequence[bytes],
) -> bytes:
    """Return a record."""
    table = struct.pack(f"<{len(sections)}I", *map(len, sections))
    body = bytearray(align(HEAD.size + len(table)))
    body[HEAD.size : HEAD.size + len(table)] = table
    for section in sections:
        body += section + bytes(-len(section) % 16)
    HEAD.pack_into(body, 0, len(body), *shape, rank, kind.word, groups, shift, *multipliers, *counts)
    return bytes(body)


@dataclass(slots=True)
class Record:
    """A record whose header and sections fit each other."""

    rows: int
    cols: int
    rank: int
    groups: int
    shift: int
    kind: Kind
    multipliers: Ints
    counts: tuple[int, ...]
    kept: npt.NDArray[np.bool_]
    sections: list[memoryview]

    @property
    def size(self) -> int:
        """Original bytes."""
        return self.rows * self.cols * self.kind.word

    @property
    def held(self) -> int:
        """Rows that are not all zero."""
        return int(self.kept.sum())


def records(stream: memoryview, size: int) -> Iterator[Record]:
    """Yield the records of a stream of `size` original bytes; CorruptChunkError unless they make up both."""
    position = 0
    while position < len(stream):
        record, length = _parse(stream[position:])
        position += length
        size -= record.size
        if size < 0:
            break
        yield record
    if size:
        raise CorruptChunkError("the matrices of a lowrank stream do not add up to its size")


def _parse(stream: memoryview) -> tuple[Record, int]:
    if len(stream) < HEAD.size or any(stream[17:32]):
        raise CorruptChunkError("the head of a lowrank record is damaged")
    length, rows, cols, rank, word, groups, shift, *numbers = HEAD.unpack_from(stream)
    multipliers, counts = numbers[:8], numbers[8:]
    sound = rows and cols and word in KINDS and length <= len(stream) and shift <= _MOST_SHIFT
    sound = sound and 2 * rank * (rows + cols) <= rows * cols and rank <= MOST_RANK
    if not sound or groups > min(rank, MOST_GROUPS) or bool(rank) != bool(groups):
        raise CorruptChunkError("the head of a lowrank record contradicts itself")
    if not all(0 <= m < 1 << 30 for m in multipliers):
        raise CorruptChunkError("the head of a lowrank record contradicts itself")
    sections = _sections(stream[:length], 2 + groups + AFTER_FACTORS)
    bitmap = sections[BITMAP]
    if len(bitmap) != -(-rows // 8):
        raise CorruptChunkError("the bitmap of a lowrank record does not fit its rows")
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    if bits[rows:].any():
        raise CorruptChunkError("the bitmap of a lowrank record does not fit its rows")
    kept = bits[:rows].astype(bool)
    kind = KINDS[word]
    made = Record(rows, cols, rank, groups, shift, kind, np.array(multipliers, np.int64), tuple(counts), kept, sections)
    return made, length


def _sections(record: memoryview, count: int) -> list[memoryview]:
    start = align(HEAD.size + 4 * count)
    if len(record) < start or any(record[HEAD.size + 4 * count : start]):
        raise CorruptChunkError("the sections of a lowrank record do not fit it")
    found = []
    for size in struct.unpack_from(f"<{count}I", record, HEAD.size):
        end = start + size
        if end > len(record) or any(record[end : align(end)]):
            raise CorruptChunkError("the sections of a lowrank record do not fit it")
        found.append(record[start:end])
        start = align(end)
    if start != len(record):
        raise CorruptChunkError("the sections of a lowrank record do not fit it")
    return found


def check(stream: memoryview, size: int, inner: Float) -> None:
    """CorruptChunkError unless the stream can hold matrices of `size` bytes; nothing is decoded."""
    for record in records(stream, size):
        _check_record(record, inner)


def _check_record(record: Record, inner: Float) -> None:
    *symbols, below, escapes = record.counts
    held = record.held
    numbers = held * record.cols
    if sum(symbols) != numbers or below > numbers or escapes > numbers:
        raise CorruptChunkError("the numbers of a lowrank record do not add up")
    expected = [2 * (held + record.cols) if held else 0]
    expected += [2 * (c.stop - c.start) * (held + record.cols) for c in group_slices(record.rank, record.groups)]
    expected += [*symbols, below]
    if record.rank and not held:
        raise CorruptChunkError("the numbers of a lowrank record do not add up")
    for section, size in zip(record.sections[SCALES:-2], expected, strict=True):
        if size:
            inner.check(section, size)
        elif len(section):
            raise CorruptChunkError("a section of a lowrank record has bytes for nothing")
    count = -(-held // max(1, STRIP // record.cols))
    raw = record.sections[-1]
    if len(record.sections[-2]) != escapes * record.kind.word or len(raw) < 4 * count:
        raise CorruptChunkError("the sections of a lowrank record do not fit it")
    if sum(struct.unpack_from(f"<{count}I", raw)) != len(raw) - 4 * count:
        raise CorruptChunkError("the raw bits of a lowrank record do not add up")
