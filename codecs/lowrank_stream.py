"""The records of the codec `lowrank`: writing, checking and reading them (FORMAT.md 19.1 and 19.2)."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import lowrank_fit, lowrank_grid
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.content import Content, Matrix
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_codec import Float
from nvckpt.codecs.lowrank_grid import CONTEXTS, KINDS, Grid, Kind

_HEAD = struct.Struct("<IIIHBBB15x8i7I")
_STRIP = 1 << 17
"""Numbers of a strip, rounded down to whole rows."""
_MOST_GROUPS = 8
_GROUP_ENTRIES = 6000
_MOST_SHIFT = 32
_BYTES, _PAIRS = Content(1), Content(2)
# Matrices of a stack that are asked whether they have a part of low rank.
_ASKED = 4
_BITMAP, _SCALES, _FACTORS = range(3)
_AFTER_FACTORS = CONTEXTS + 3

Words = npt.NDArray[np.unsignedinteger]
Ints = npt.NDArray[np.int64]
Entries = npt.NDArray[np.signedinteger]


def _align(size: int) -> int:
    return -(-size // 16) * 16


def encode(data: Buffer, word: int, matrices: Sequence[Matrix], inner: Float) -> bytes | None:
    """Code matrices of `word`-byte numbers; None unless one of the first ones has a part of low rank."""
    words = np.frombuffer(data, f"<u{word}")
    kind = KINDS[word]
    pieces, position = [], 0
    for rows, cols in matrices:
        pieces.append(words[position : position + rows * cols].reshape(rows, cols))
        position += rows * cols
    if not any(lowrank_fit.promises(piece, kind) for piece in pieces[:_ASKED]):
        return None
    return b"".join(encode_matrix(piece, kind, inner) for piece in pieces)


@dataclass(slots=True)
class _Parts:
    """What the strips of a matrix give."""

    symbols: list[list[bytes]] = field(default_factory=lambda: [[] for _ in range(CONTEXTS)])
    below: list[bytes] = field(default_factory=list)
    escapes: list[bytes] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)


def encode_matrix(words: Words, kind: Kind, inner: Float, model: lowrank_fit.Model | None = None) -> bytes:
    """Return the record of a matrix, coded by a model of its rows that are not all zero; one is fitted if not given."""
    kept = words.any(1)
    held = words[kept]
    bitmap = np.packbits(kept, bitorder="little").tobytes()
    if not len(held):
        return _record(words.shape, kind, 0, 0, [0] * 8, 0, [bitmap, b""], [b""] * _AFTER_FACTORS, [0] * 7)
    model = model or lowrank_fit.fit(held, kind)
    parts = _Parts()
    for rows in _strips(len(held), words.shape[1]):
        grid = _grid(model.rows[rows], model.cols, model.left[rows], model.right, model.multipliers, model.shift, kind)
        strip = lowrank_grid.code(held[rows].reshape(-1), grid, kind)
        for context, found in enumerate(parts.symbols):
            found.append(strip.symbols[grid.context == context].tobytes())
        parts.below.append(strip.below.tobytes())
        parts.escapes.append(strip.escapes.tobytes())
        parts.raw.append(strip.raw)
    streams = [b"".join(found) for found in (*parts.symbols, parts.below, parts.escapes)]
    counts = [len(stream) for stream in streams]
    counts[-1] //= kind.word
    sections = [_coded(stream, _BYTES, inner) for stream in streams[:-1]]
    raw = struct.pack(f"<{len(parts.raw)}I", *map(len, parts.raw)) + b"".join(parts.raw)
    rank = model.left.shape[1]
    groups = max(1, min(_MOST_GROUPS, rank, rank * sum(model.left.shape[:1] + words.shape[1:]) // _GROUP_ENTRIES))
    groups = groups if rank else 0
    scales = np.concatenate([model.rows, model.cols]).astype("<i2")
    before = [bitmap, _coded(scales.tobytes(), _PAIRS, inner)]
    before += [_coded(_group(model, columns), _PAIRS, inner) for columns in _groups(rank, groups)]
    multipliers = [int(m) for m in model.multipliers]
    return _record(
        words.shape, kind, rank, groups, multipliers, model.shift, before, [*sections, streams[-1], raw], counts
    )


def _record(
    shape: tuple[int, ...],
    kind: Kind,
    rank: int,
    groups: int,
    multipliers: Sequence[int],
    shift: int,
    before: Sequence[bytes],
    after: Sequence[bytes],
    counts: Sequence[int],
) -> bytes:
    sections = [*before, *after]
    table = struct.pack(f"<{len(sections)}I", *map(len, sections))
    body = bytearray(_align(_HEAD.size + len(table)))
    body[_HEAD.size : _HEAD.size + len(table)] = table
    for section in sections:
        body += section + bytes(-len(section) % 16)
    _HEAD.pack_into(body, 0, len(body), *shape, rank, kind.word, groups, shift, *multipliers, *counts)
    return bytes(body)


def _coded(data: bytes, content: Content, inner: Float) -> bytes:
    return bytes(inner.encode_values(data, content, "default")) if data else b""


def _groups(rank: int, groups: int) -> list[slice]:
    return [slice(rank * i // groups, rank * (i + 1) // groups) for i in range(groups)]


def _group(model: lowrank_fit.Model, columns: slice) -> bytes:
    """Return some columns of the left factor, each followed by that of the right one, signs folded in."""
    entries = np.concatenate([model.left[:, columns], model.right[:, columns]]).T
    return np.where(entries < 0, -2 * entries - 1, 2 * entries).astype("<u2").tobytes()


def _strips(rows: int, cols: int) -> Iterator[slice]:
    step = max(1, _STRIP // cols)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def _grid(rows: Ints, cols: Ints, left: Entries, right: Entries, multipliers: Ints, shift: int, kind: Kind) -> Grid:
    """Return the grid of a strip. The product is a sum of whole numbers below 2^53: exact in any order."""
    products = (left.astype(np.float64) @ right.astype(np.float64).T).astype(np.int64)
    scale = (rows[:, None] + cols).reshape(-1)
    return lowrank_grid.make_grid(scale, products.reshape(-1), multipliers, shift, kind)


@dataclass(slots=True)
class _Record:
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
        return self.rows * self.cols * self.kind.word

    @property
    def held(self) -> int:
        return int(self.kept.sum())


def _records(stream: memoryview, size: int) -> Iterator[_Record]:
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


def _parse(stream: memoryview) -> tuple[_Record, int]:
    if len(stream) < _HEAD.size or any(stream[17:32]):
        raise CorruptChunkError("the head of a lowrank record is damaged")
    length, rows, cols, rank, word, groups, shift, *numbers = _HEAD.unpack_from(stream)
    multipliers, counts = numbers[:8], numbers[8:]
    sound = rows and cols and word in KINDS and length <= len(stream) and shift <= _MOST_SHIFT
    sound = sound and 2 * rank * (rows + cols) <= rows * cols and rank <= lowrank_fit.MOST_RANK
    if not sound or groups > min(rank, _MOST_GROUPS) or bool(rank) != bool(groups):
        raise CorruptChunkError("the head of a lowrank record contradicts itself")
    if not all(0 <= m < 1 << 30 for m in multipliers):
        raise CorruptChunkError("the head of a lowrank record contradicts itself")
    sections = _sections(stream[:length], 2 + groups + _AFTER_FACTORS)
    bitmap = sections[_BITMAP]
    if len(bitmap) != -(-rows // 8):
        raise CorruptChunkError("the bitmap of a lowrank record does not fit its rows")
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    if bits[rows:].any():
        raise CorruptChunkError("the bitmap of a lowrank record does not fit its rows")
    kept = bits[:rows].astype(bool)
    kind = KINDS[word]
    made = _Record(
        rows, cols, rank, groups, shift, kind, np.array(multipliers, np.int64), tuple(counts), kept, sections
    )
    return made, length


def _sections(record: memoryview, count: int) -> list[memoryview]:
    start = _align(_HEAD.size + 4 * count)
    if len(record) < start or any(record[_HEAD.size + 4 * count : start]):
        raise CorruptChunkError("the sections of a lowrank record do not fit it")
    found = []
    for size in struct.unpack_from(f"<{count}I", record, _HEAD.size):
        end = start + size
        if end > len(record) or any(record[end : _align(end)]):
            raise CorruptChunkError("the sections of a lowrank record do not fit it")
        found.append(record[start:end])
        start = _align(end)
    if start != len(record):
        raise CorruptChunkError("the sections of a lowrank record do not fit it")
    return found


def check(stream: memoryview, size: int, inner: Float) -> None:
    """CorruptChunkError unless the stream can hold matrices of `size` bytes; nothing is decoded."""
    for record in _records(stream, size):
        _check_record(record, inner)


def _check_record(record: _Record, inner: Float) -> None:
    *symbols, below, escapes = record.counts
    held = record.held
    numbers = held * record.cols
    if sum(symbols) != numbers or below > numbers or escapes > numbers:
        raise CorruptChunkError("the numbers of a lowrank record do not add up")
    expected = [2 * (held + record.cols) if held else 0]
    expected += [2 * (c.stop - c.start) * (held + record.cols) for c in _groups(record.rank, record.groups)]
    expected += [*symbols, below]
    if record.rank and not held:
        raise CorruptChunkError("the numbers of a lowrank record do not add up")
    for section, size in zip(record.sections[_SCALES:-2], expected, strict=True):
        if size:
            inner.check(section, size)
        elif len(section):
            raise CorruptChunkError("a section of a lowrank record has bytes for nothing")
    strips = len(list(_strips(held, record.cols)))
    raw = record.sections[-1]
    if len(record.sections[-2]) != escapes * record.kind.word or len(raw) < 4 * strips:
        raise CorruptChunkError("the sections of a lowrank record do not fit it")
    if sum(struct.unpack_from(f"<{strips}I", raw)) != len(raw) - 4 * strips:
        raise CorruptChunkError("the raw bits of a lowrank record do not add up")


def decode(stream: memoryview, out: memoryview, inner: Float) -> None:
    """Fill `out`; the stream was found right by `check`, what it decodes to may still contradict it."""
    position = 0
    for record in _records(stream, len(out)):
        target = np.frombuffer(out[position : position + record.size], f"<u{record.kind.word}")
        _decode_matrix(record, target.reshape(record.rows, record.cols), inner)
        position += record.size


class _Taken:
    """A row of symbols that strips take from, one after the other."""

    def __init__(self, values: Words) -> None:
        self._values = values
        self._position = 0

    def take(self, count: int) -> Words:
        self._position += count
        if self._position > len(self._values):
            raise CorruptChunkError("a lowrank record has too few symbols")
        return self._values[self._position - count : self._position]

    def check_end(self) -> None:
        if self._position != len(self._values):
            raise CorruptChunkError("a lowrank record has symbols left over")


def _decoded(section: memoryview, count: int, word: int, inner: Float) -> Words:
    values = np.empty(count, f"<u{word}")
    if count:
        inner.decode(section, values.view(np.uint8).data)
    return values


def _decode_matrix(record: _Record, out: Words, inner: Float) -> None:
    out[~record.kept] = 0
    held, cols, kind = record.held, record.cols, record.kind
    if not held:
        return
    scales = _decoded(record.sections[_SCALES], held + cols, 2, inner).view("<i2").astype(np.int64)
    left, right = _factors(record, held, inner)
    after = record.sections[2 + record.groups :]
    pairs = zip(after, record.counts[:-1], strict=False)
    *contexts, below = (_Taken(_decoded(section, count, 1, inner)) for section, count in pairs)
    escapes = _Taken(np.frombuffer(after[-2], f"<u{kind.word}"))
    words = np.empty((held, cols), out.dtype)
    strips = list(_strips(held, cols))
    sizes = struct.unpack_from(f"<{len(strips)}I", after[-1])
    position = 4 * len(strips)
    for rows, size in zip(strips, sizes, strict=True):
        grid = _grid(scales[:held][rows], scales[held:], left[rows], right, record.multipliers, record.shift, kind)
        raw = after[-1][position : position + size]
        words[rows] = _decode_strip(grid, contexts, below, escapes, raw, kind).reshape(-1, cols)
        position += size
    for taken in (*contexts, below, escapes):
        taken.check_end()
    out[record.kept] = words


def _factors(record: _Record, held: int, inner: Float) -> tuple[Entries, Entries]:
    columns = []
    for number, part in enumerate(_groups(record.rank, record.groups)):
        count = part.stop - part.start
        section = record.sections[_FACTORS + number]
        columns.append(_decoded(section, count * (held + record.cols), 2, inner).reshape(count, -1))
    if not columns:
        return np.zeros((held, 0), np.int16), np.zeros((record.cols, 0), np.int16)
    folded = np.concatenate(columns).T
    if folded.max() > 2 * lowrank_fit.MOST_FACTOR:
        raise CorruptChunkError("a factor of a lowrank record is out of range")
    entries = (folded >> 1).astype(np.int16) ^ -(folded & 1).astype(np.int16)
    return entries[:held], entries[held:]


def _decode_strip(
    grid: Grid, contexts: Sequence[_Taken], below: _Taken, escapes: _Taken, raw: memoryview, kind: Kind
) -> Ints:
    symbols = np.empty(len(grid.steps), np.uint8)
    for context, taken in enumerate(contexts):
        mine = np.flatnonzero(grid.context == context)
        symbols[mine] = taken.take(len(mine))
    numbers = lowrank_grid.numbers_of(symbols, grid)
    small = below.take(int(numbers.small.sum())).astype(np.uint8, copy=False)
    widths = lowrank_grid.widths_of(numbers, small, kind)
    if lowrank_grid.packed_size(widths) != len(raw):
        raise CorruptChunkError("the raw bits of a lowrank record do not fit its symbols")
    words = lowrank_grid.words_of(numbers, small, lowrank_grid.unpack(raw, widths), grid, kind)
    odd = np.flatnonzero(~numbers.coded)
    words[odd] = escapes.take(len(odd))
    return words
