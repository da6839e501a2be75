"""The float codec in NumPy: the readable oracle, and the last resort where no compiler ran.

One function for each step of FORMAT.md 16, vectorised over chunks and lanes. It favours being evidently
right over speed: a few MB/s.
"""

import struct
from dataclasses import dataclass

import numpy as np

from nvckpt.codecs.base import Buffer
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_decisions import Choices, Entry, choose
from nvckpt.codecs.float_quantum import Words
from nvckpt.codecs.float_spec import (
    END_SIZE,
    HEADER_SIZE,
    MATRIX_SIZE,
    MAX_SIZE,
    VERSION,
    Flag,
    FloatSpec,
    Layout,
    LevelName,
    align,
)
from nvckpt.codecs.float_words import (
    join_words,
    patched,
    predicted,
    raw_plane_sizes,
    raw_planes,
    symbols_of,
    transform,
    untransform,
)
from nvckpt.codecs.rans_reference import decode_plane, encode_plane, plane_size

_HEADER = struct.Struct("<BBBBIQQB7x16s")
_MATRIX = struct.Struct("<IIHHI")


def encode(data: Buffer, spec: FloatSpec, level: LevelName = "default") -> bytes:
    """Return the stream of `data`; the same bytes as every other implementation."""
    view = memoryview(data).cast("B")
    words, tail = _words(view, spec.word), bytes(view[len(view) // spec.word * spec.word :])
    choices = choose(words, spec, level)
    moved = transform(words, predicted(choices.matrices, choices.side, len(words)), choices.layout)
    remaining = words != 0 if choices.zeros else np.ones(len(words), bool)
    coded = moved[remaining]
    flags, planes = raw_planes(coded, choices.layout)
    flags |= (Flag.ZEROS_REMOVED if choices.zeros else 0) | (Flag.SIDE_PLANE if len(choices.side) else 0)
    parts = [_pack_header(choices, spec, flags, len(words), len(coded), tail), *planes]
    for symbols, values in symbols_of(coded, choices.layout):
        parts.append(encode_plane(symbols, values, 16 // spec.word if choices.layout else 16, choices.sampling))
    if len(choices.side):
        parts.append(encode_plane(choices.side.astype(np.uint16), choices.side, 16, 1))
    if choices.zeros:
        bitmap = np.packbits(remaining, bitorder="little")
        parts.append(encode_plane(bitmap.astype(np.uint16), bitmap, 16, 1))
    return b"".join(part.ljust(align(len(part)), b"\0") for part in parts) + bytes(END_SIZE)


def _words(view: memoryview, word: int) -> Words:
    return np.frombuffer(view[: len(view) // word * word], f"<u{word}")


def _pack_header(choices: Choices, spec: FloatSpec, flags: int, n: int, m: int, tail: bytes) -> bytes:
    head = _HEADER.pack(
        VERSION, choices.layout, spec.word, flags, len(choices.matrices), n, m, len(tail), tail.ljust(16, b"\0")
    )
    return head + b"".join(
        _MATRIX.pack(entry.rows, entry.cols, entry.base, entry.cols > 0, 0) for entry in choices.matrices
    )


@dataclass(frozen=True, slots=True)
class _Parsed:
    choices: Choices
    word: int
    flags: int
    n: int
    m: int
    tail: bytes
    position: int


def check(stream: memoryview, size: int) -> None:
    """CorruptChunkError unless header, matrices and planes account for the stream; nothing is decoded."""
    parsed = _parse(stream, size)
    position = align(parsed.position)
    for length in raw_plane_sizes(parsed.m, parsed.word, parsed.choices.layout, parsed.flags):
        position = align(position + length)
    for count, value_size in _coded_planes(parsed):
        position += plane_size(stream[position:], count, value_size)
    if position + END_SIZE != len(stream):
        raise CorruptChunkError("the float stream is longer or shorter than its sections")


def decode(stream: memoryview, out: memoryview) -> None:
    """Fill `out` with the original bytes; CorruptChunkError names what is wrong."""
    check(stream, len(out))
    parsed = _parse(stream, len(out))
    layout, flags = parsed.choices.layout, parsed.flags
    position = align(parsed.position)
    raw = []
    for length in raw_plane_sizes(parsed.m, parsed.word, layout, flags):
        raw.append(np.frombuffer(stream[position : position + length], np.uint8))
        position = align(position + length)
    decoded = []
    for number, (count, value_size) in enumerate(_coded_planes(parsed)):
        main = number < (1 if layout else parsed.word)
        lane_values = 16 // parsed.word if main and layout else 16
        size = plane_size(stream[position:], count, value_size)
        decoded.append(decode_plane(stream[position : position + size], count, value_size, lane_values))
        position += size
    coded = join_words(decoded[: 1 if layout else parsed.word], raw, parsed.word, layout, flags)
    rest = decoded[1 if layout else parsed.word :]
    side = patched(rest.pop(0)) if flags & Flag.SIDE_PLANE else np.zeros(0, np.uint8)
    remaining = np.ones(parsed.n, bool)
    if flags & Flag.ZEROS_REMOVED:
        bits = np.unpackbits(patched(rest.pop(0)), bitorder="little")
        remaining = bits[: parsed.n].astype(bool)
        if remaining.sum() != parsed.m or bits[parsed.n :].any():
            raise CorruptChunkError("the bitmap of zeros does not fit the number of words")
    prediction = predicted(parsed.choices.matrices, side, parsed.n)
    words = np.zeros(parsed.n, f"<u{parsed.word}")
    words[remaining] = untransform(coded, prediction[remaining], layout)
    whole = parsed.n * parsed.word
    out[:whole] = words.view(np.uint8).data
    out[whole:] = parsed.tail


def _coded_planes(parsed: _Parsed) -> list[tuple[int, int]]:
    """Symbols and bytes of an exception's value, for each coded plane in order."""
    layout = parsed.choices.layout
    planes = [(parsed.m, parsed.word if layout == Layout.LOG else 1)] * (1 if layout else parsed.word)
    if parsed.flags & Flag.SIDE_PLANE:
        planes.append((sum(entry.rows + entry.cols for entry in parsed.choices.matrices if entry.cols), 1))
    if parsed.flags & Flag.ZEROS_REMOVED:
        planes.append((-(-parsed.n // 8), 1))
    return planes


def _parse(stream: memoryview, size: int) -> _Parsed:
    """Read header and matrices; every rule of 16.2 and 16.3 is checked here."""
    if len(stream) < HEADER_SIZE + END_SIZE or size > MAX_SIZE:
        raise CorruptChunkError("the float stream is cut short")
    version, layout, word, flags, count, n, m, tail_size, tail = _HEADER.unpack_from(stream)
    if version != VERSION or layout > Layout.LOG or word not in (1, 2, 4, 8) or any(stream[25:32]):
        raise CorruptChunkError("the float stream has an unknown header")
    if (layout and word == 1) or (layout == Layout.ROTATED and word == 8) or not _flags_fit(layout, word, flags, count):
        raise CorruptChunkError("the float stream's header contradicts itself")
    if tail_size >= word or n * word + tail_size != size or any(tail[tail_size:]):
        raise CorruptChunkError("the float stream has another size than the archive says")
    if layout == Layout.LOG and n and not count:
        raise CorruptChunkError("the float stream's header contradicts itself")
    if m > n or (m < n and not flags & Flag.ZEROS_REMOVED):
        raise CorruptChunkError("the float stream's header contradicts itself")
    end = HEADER_SIZE + MATRIX_SIZE * count
    if end > len(stream):
        raise CorruptChunkError("the float stream is cut short")
    matrices = _parse_matrices(stream[HEADER_SIZE:end], n, flags)
    choices = Choices(Layout(layout), matrices, np.zeros(0, np.uint8), bool(flags & Flag.ZEROS_REMOVED), 1)
    return _Parsed(choices, word, flags, n, m, tail[:tail_size], end)


def _flags_fit(layout: int, word: int, flags: int, matrices: int) -> bool:
    allowed = Flag.ZEROS_REMOVED | (Flag.SIDE_PLANE if matrices else 0)
    if layout == Layout.LOG:
        allowed |= Flag.SIGN_CONSTANT | Flag.NO_NIBBLES | (Flag.SIGN_VALUE if flags & Flag.SIGN_CONSTANT else 0)
    if layout and word > 2:
        allowed |= Flag.NO_LOW
    return not flags & ~allowed and not (layout == Layout.BYTES and matrices)


def _parse_matrices(table: memoryview, n: int, flags: int) -> tuple[Entry, ...]:
    entries = []
    for rows, cols, base, kind, reserved in _MATRIX.iter_unpack(table):
        fits = rows > 0 and (cols > 0) == (kind == 1) and (not kind or flags & Flag.SIDE_PLANE)
        if kind > 1 or reserved or not fits:
            raise CorruptChunkError("the float stream describes an impossible matrix")
        entries.append(Entry(rows, cols, base))
    if sum(entry.words for entry in entries) != n and entries:
        raise CorruptChunkError("the float stream's matrices do not add up to its words")
    return tuple(entries)
