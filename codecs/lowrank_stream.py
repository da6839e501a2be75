"""Coding and decoding the records of the codec `lowrank` (FORMAT.md 19): in C where that was built, else in NumPy."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import lowrank_fit, lowrank_grid, lowrank_native, lowrank_record
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.content import Content, Matrix
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_codec import Float
from nvckpt.codecs.lowrank_fit import Model
from nvckpt.codecs.lowrank_grid import CONTEXTS, KINDS, Grid, Kind
from nvckpt.codecs.lowrank_record import AFTER_FACTORS, FACTORS, MOST_FACTOR, SCALES, Record, strips

_BYTES, _PAIRS = Content(1), Content(2)
ASKED = 4
"""Matrices of a stack that are asked whether they have a part of low rank."""

Words = npt.NDArray[np.unsignedinteger]
Ints = npt.NDArray[np.int64]
Folded = npt.NDArray[np.uint16]


def encode(data: Buffer, word: int, matrices: Sequence[Matrix], inner: Float) -> bytes | None:
    """Code matrices of `word`-byte numbers; None unless one of the first ones has a part of low rank."""
    words = np.frombuffer(data, f"<u{word}")
    kind = KINDS[word]
    pieces, position = [], 0
    for rows, cols in matrices:
        pieces.append(words[position : position + rows * cols].reshape(rows, cols))
        position += rows * cols
    if not any(lowrank_fit.promises(piece, kind) for piece in pieces[:ASKED]):
        return None
    return b"".join(encode_matrix(piece, kind, inner) for piece in pieces)


def encode_matrix(words: Words, kind: Kind, inner: Float, model: Model | None = None) -> bytes:
    """Return the record of a matrix, coded by a model of its rows that are not all zero; one is fitted if not given."""
    kept = words.any(1)
    held = words if kept.all() else words[kept]
    bitmap = np.packbits(kept, bitorder="little").tobytes()
    if not len(held):
        sections = [bitmap, *[b""] * (1 + AFTER_FACTORS)]
        return lowrank_record.packed(words.shape, kind, 0, 0, 0, [0] * 8, [0] * 7, sections)
    model = model or lowrank_fit.fit(held, kind)
    folded = _folded(model)
    scales = np.concatenate([model.rows, model.cols]).astype("<i2")
    multipliers = [int(m) for m in model.multipliers]
    parts: Sequence[Buffer]
    if lowrank_native.available():
        matrix = lowrank_native.Matrix(len(held), held.shape[1], kind, model.shift, multipliers, scales, folded)
        parts = lowrank_native.encode(matrix, held)
    else:
        parts = _code(held, kind, model)
    *planes, escapes, raw = parts
    rank = len(folded)
    groups = lowrank_record.group_count(rank, sum(held.shape))
    sections = [bitmap, _coded(scales.tobytes(), _PAIRS, inner)]
    sections += [_coded(folded[part].tobytes(), _PAIRS, inner) for part in lowrank_record.group_slices(rank, groups)]
    sections += [*(_coded(plane, _BYTES, inner) for plane in planes), bytes(escapes), bytes(raw)]
    counts = [*map(len, planes), len(escapes) // kind.word]
    return lowrank_record.packed(words.shape, kind, rank, groups, model.shift, multipliers, counts, sections)


def _folded(model: Model) -> Folded:
    """Return the factors by component: entries of the left one, then of the right one, signs folded in."""
    entries = np.concatenate([model.left, model.right]).T
    return np.ascontiguousarray(np.where(entries < 0, -2 * entries - 1, 2 * entries), "<u2")


def _unfolded(folded: Folded) -> npt.NDArray[np.int16]:
    return (folded >> 1).astype(np.int16) ^ -(folded & 1).astype(np.int16)


def _coded(data: Buffer, content: Content, inner: Float) -> bytes:
    return bytes(inner.encode_values(data, content, "default")) if len(data) else b""


@dataclass(slots=True)
class _Parts:
    """What the strips of a matrix give."""

    symbols: list[list[bytes]] = field(default_factory=lambda: [[] for _ in range(CONTEXTS)])
    below: list[bytes] = field(default_factory=list)
    escapes: list[bytes] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)


def _code(held: Words, kind: Kind, model: Model) -> list[bytes]:
    """Return the symbols of each context, those of `below`, the escapes and the section of raw bits."""
    parts = _Parts()
    for rows in strips(*held.shape):
        grid = _grid(model.rows[rows], model.cols, model.left[rows], model.right, model.multipliers, model.shift, kind)
        strip = lowrank_grid.code(held[rows].reshape(-1), grid, kind)
        for context, found in enumerate(parts.symbols):
            found.append(strip.symbols[grid.context == context].tobytes())
        parts.below.append(strip.below.tobytes())
        parts.escapes.append(strip.escapes.tobytes())
        parts.raw.append(strip.raw)
    raw = struct.pack(f"<{len(parts.raw)}I", *map(len, parts.raw)) + b"".join(parts.raw)
    return [*(b"".join(found) for found in (*parts.symbols, parts.below, parts.escapes)), raw]


def _grid(
    rows: Ints,
    cols: Ints,
    left: npt.NDArray[np.signedinteger],
    right: npt.NDArray[np.signedinteger],
    multipliers: Ints,
    shift: int,
    kind: Kind,
) -> Grid:
    """Return the grid of a strip. The product is a sum of whole numbers below 2^53: exact in any order."""
    products = (left.astype(np.float64) @ right.astype(np.float64).T).astype(np.int64)
    scale = (rows[:, None] + cols).reshape(-1)
    return lowrank_grid.make_grid(scale, products.reshape(-1), multipliers, shift, kind)


def check(stream: memoryview, size: int, inner: Float) -> None:
    """CorruptChunkError unless the stream can hold matrices of `size` bytes; nothing is decoded."""
    lowrank_record.check(stream, size, inner)


def decode(stream: memoryview, out: memoryview, inner: Float) -> None:
    """Fill `out`; the stream was found right by `check`, what it decodes to may still contradict it."""
    position = 0
    for record in lowrank_record.records(stream, len(out)):
        target = np.frombuffer(out[position : position + record.size], f"<u{record.kind.word}")
        _decode_matrix(record, target.reshape(record.rows, record.cols), inner)
        position += record.size


def _decoded(section: memoryview, count: int, word: int, inner: Float) -> Words:
    values = np.empty(count, f"<u{word}")
    if count:
        inner.decode(section, values.view(np.uint8).data)
    return values


def _decode_matrix(record: Record, out: Words, inner: Float) -> None:
    held, cols = record.held, record.cols
    if not held:
        out[:] = 0
        return
    scales = _decoded(record.sections[SCALES], held + cols, 2, inner).view("<i2")
    folded = np.empty((record.rank, held + cols), "<u2")
    for number, part in enumerate(lowrank_record.group_slices(record.rank, record.groups)):
        section = record.sections[FACTORS + number]
        inner.decode(section, folded[part].reshape(-1).view(np.uint8).data)
    *sections, escapes, raw = record.sections[FACTORS + record.groups :]
    planes = [_decoded(s, count, 1, inner) for s, count in zip(sections, record.counts, strict=False)]
    odd = np.frombuffer(escapes, f"<u{record.kind.word}")
    if lowrank_native.available():
        multipliers = record.multipliers.tolist()
        matrix = lowrank_native.Matrix(held, cols, record.kind, record.shift, multipliers, scales, folded)
        lowrank_native.decode(matrix, [*planes, odd], raw, record.sections[0], out)
    else:
        out[~record.kept] = 0
        out[record.kept] = _decode_strips(record, scales.astype(np.int64), folded, planes, odd)


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


def _decode_strips(record: Record, scales: Ints, folded: Folded, planes: Sequence[Words], odd: Words) -> Words:
    """Return the kept rows."""
    if folded.size and folded.max() > 2 * MOST_FACTOR:
        raise CorruptChunkError("a factor of a lowrank record is out of range")
    held, cols, kind = record.held, record.cols, record.kind
    entries = _unfolded(folded).T
    *contexts, below = map(_Taken, planes)
    escapes = _Taken(odd)
    words = np.empty((held, cols), f"<u{kind.word}")
    raw = record.sections[-1]
    parts = list(strips(held, cols))
    position = 4 * len(parts)
    for rows, size in zip(parts, struct.unpack_from(f"<{len(parts)}I", raw), strict=True):
        left, right = entries[:held][rows], entries[held:]
        grid = _grid(scales[:held][rows], scales[held:], left, right, record.multipliers, record.shift, kind)
        found = _decode_strip(grid, contexts, below, escapes, raw[position : position + size], kind)
        words[rows] = found.reshape(-1, cols)
        position += size
    for taken in (*contexts, below, escapes):
        taken.check_end()
    return words


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
