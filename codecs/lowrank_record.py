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
_GROUP_ENTRIES = 6000
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


def group_count(rank: int, entries: int) -> int:
    """Return how many groups the encoder codes factors in whose components have so many entries each."""
    return max(1, min(MOST_GROUPS, rank, rank * entries // _GROUP_ENTRIES)) if rank else 0


def packed_head(
    shape: tuple[int, ...],
    kind: Kind,
    rank: int,
    groups: int,
    shift: int,
    multipliers: Sequence[int],
    counts: Sequence[int],
    sizes: Sequence[int],
) -> tuple[bytes, list[int]]:
    """Return what stands before the sections, whose `sizes` are given, where each begins, and where the record ends."""
    starts = [align(HEAD.size + 4 * len(sizes))]
    for size in sizes:
        starts.append(align(starts[-1] + size))
    head = HEAD.pack(starts[-1], *shape, rank, kind.word, groups, shift, *multipliers, *counts)
    return (head + struct.pack(f"<{len(sizes)}I", *sizes)).ljust(starts[0], b"\0"), starts


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
    sizes = [len(section) for section in sections]
    head, _ = packed_head(shape, kind, rank, groups, shift, multipliers, counts, sizes)
    return head + b"".join(section + bytes(-len(section) % 16) for section in sections)


@dataclass(slots=True)
class Record:
    """A record whose header and sections fit each other; `starts` tells where in the stream the sections begin."""

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
    starts: list[int]

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
        record, length = _parse(stream, position)
        position += length
        size -= record.size
        if size < 0:
            break
        yield record
    if size:
        raise CorruptChunkError("the matrices of a lowrank stream do not add up to its size")


def _parse(whole: memoryview, position: int) -> tuple[Record, int]:
    stream = whole[position:]
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
    starts, sections = _sections(stream[:length], 2 + groups + AFTER_FACTORS)
    bitmap = sections[BITMAP]
    if len(bitmap) != -(-rows // 8):
        raise CorruptChunkError("the bitmap of a lowrank record does not fit its rows")
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    if bits[rows:].any():
        raise CorruptChunkError("the bitmap of a lowrank record does not fit its rows")
    kept = bits[:rows].astype(bool)
    kind = KINDS[word]
    given, places = np.array(multipliers, np.int64), [position + start for start in starts]
    return Record(rows, cols, rank, groups, shift, kind, given, tuple(counts), kept, sections, places), length


def _sections(record: memoryview, count: int) -> tuple[list[int], list[memoryview]]:
    start = align(HEAD.size + 4 * count)
    if len(record) < start or any(record[HEAD.size + 4 * count : start]):
        raise CorruptChunkError("the sections of a lowrank record do not fit it")
    starts, found = [], []
    for size in struct.unpack_from(f"<{count}I", record, HEAD.size):
        end = start + size
        if end > len(record) or any(record[end : align(end)]):
            raise CorruptChunkError("the sections of a lowrank record do not fit it")
        starts.append(start)
        found.append(record[start:end])
        start = align(end)
    if start != len(record):
        raise CorruptChunkError("the sections of a lowrank record do not fit it")
    return starts, found


def check(stream: memoryview, size: int, inner: Float) -> None:
    """CorruptChunkError unless the stream can hold matrices of `size` bytes; nothing is decoded."""
    for record in records(stream, size):
        for section, expected in zip(record.sections[SCALES:-2], float_sizes(record), strict=True):
            if expected:
                inner.check(section, expected)


def float_sizes(record: Record) -> list[int]:
    """Return the original bytes of each `float` section; CorruptChunkError where the record contradicts itself."""
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
        if len(section) and not size:
            raise CorruptChunkError("a section of a lowrank record has bytes for nothing")
    count = -(-held // max(1, STRIP // record.cols))
    raw = record.sections[-1]
    if len(record.sections[-2]) != escapes * record.kind.word or len(raw) < 4 * count:
        raise CorruptChunkError("the sections of a lowrank record do not fit it")
    if sum(struct.unpack_from(f"<{count}I", raw)) != len(raw) - 4 * count:
        raise CorruptChunkError("the raw bits of a lowrank record do not add up")
    return expected
