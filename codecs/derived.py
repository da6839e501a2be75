"""Streams that are decoded with the help of other bytes of the original: copies, roundings, remainders (FORMAT.md 17).

An encoder proves its claim word by word and gives up (None) where it does not hold; a decoder gets the referenced
bytes and trusts nothing in the stream. `param` of a stream is the kind of the 16-bit words, see `rounding`.
"""

import struct

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import derived_native, registry
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.content import Content
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.registry import COPY, REMAINDER, ROUNDED
from nvckpt.codecs.rounding import BF16, ROUNDINGS, Words

_HEAD = struct.Struct("<IB11x")
# Words worked on at a time: the arrays of a step stay in a core's cache.
_STEP = 1 << 16
# A word that does not follow costs up to 8 bytes; with more of them than one in 64 the claim is not worth making.
_EXCEPTIONS_ONE_IN = 64
_INT16 = Content(2)
_INNER = (registry.STORE.id, registry.FLOAT.id)
# A remainder whose sample does not shrink by this is stored: low bits of a trained weight are noise.
_WORTH = 0.98
_SAMPLE = 1 << 16

Positions = npt.NDArray[np.uint32]


def reference_size(codec_id: int, param: int, size: int) -> int:
    """Bytes that a stream of `size` original bytes refers to; CorruptChunkError for what is not defined."""
    if codec_id == COPY and param == 0:
        return size
    if codec_id == ROUNDED and param in ROUNDINGS and size % 2 == 0:
        return 2 * size
    if codec_id == REMAINDER and param in ROUNDINGS and size % 4 == 0:
        return size // 2
    raise CorruptChunkError(f"a {registry.name_of(codec_id)} stream has an impossible size or parameter")


def encode(codec_id: int, param: int, data: Buffer, references: Buffer) -> bytes | None:
    """Code `data` by what it follows from; None where it does not, or for too few words."""
    if len(references) != reference_size(codec_id, param, len(data)):
        return None
    if codec_id == COPY:
        return b"" if memoryview(data) == memoryview(references) else None
    if codec_id == ROUNDED:
        return _encode_rounded(param, np.frombuffer(data, "<u2"), np.frombuffer(references, "<u4"))
    return _encode_remainder(param, np.frombuffer(data, "<u4"), np.frombuffer(references, "<u2"))


def check(codec_id: int, param: int, stream: memoryview, size: int, references: int) -> None:
    """CorruptChunkError unless the stream can hold `size` bytes that follow from `references` bytes."""
    if references != reference_size(codec_id, param, size):
        raise CorruptChunkError("a frame refers to a range of the wrong length")
    if codec_id == COPY and len(stream):
        raise CorruptChunkError("a copy has bytes of its own")
    if codec_id == ROUNDED and (len(stream) % 6 or len(stream) // 6 > size // 2):
        raise CorruptChunkError("the exceptions of a rounded stream do not fit")
    if codec_id == REMAINDER:
        _, inner_id, inner = _parse_remainder(stream, size)
        registry.by_id(inner_id).check(inner, size // 2)


def decode(codec_id: int, param: int, stream: memoryview, references: Buffer, out: memoryview) -> None:
    """Fill `out` from a stream that `check` found right, and the bytes it refers to."""
    if codec_id == COPY:
        out[:] = memoryview(references).cast("B")
    elif codec_id == ROUNDED:
        halves = np.frombuffer(out, "<u2")
        _round_into(param, np.frombuffer(references, "<u4"), halves)
        _apply_exceptions(stream, len(stream) // 6, halves)
    else:
        _decode_remainder(param, stream, np.frombuffer(references, "<u2"), np.frombuffer(out, "<u4"))


def _encode_rounded(kind: int, data: Words, source: Words) -> bytes | None:
    found: list[Positions] = []
    allowed = len(data) // _EXCEPTIONS_ONE_IN
    rounded = np.empty(min(_STEP, len(data)), np.uint16)
    for start in range(0, len(data), _STEP):
        part = slice(start, start + _STEP)
        claimed = rounded[: len(data[part])]
        _round_into(kind, source[part], claimed)
        differ = np.flatnonzero(claimed != data[part])
        allowed -= len(differ)
        if allowed < 0:
            return None
        found.append((differ + start).astype("<u4"))
    return _pack_exceptions(found, data)


def _encode_remainder(kind: int, data: Words, source: Words) -> bytes | None:
    allowed = len(data) // _EXCEPTIONS_ONE_IN
    if kind == BF16 and derived_native.available():
        coded = derived_native.remainder_encode(data, source, allowed)
        return _pack_remainder(coded[0], [coded[1]], data) if coded else None
    widen = ROUNDINGS[kind].widen
    rest = np.empty(len(data), "<u2")
    found: list[Positions] = []
    for start in range(0, len(data), _STEP):
        part = slice(start, start + _STEP)
        difference = data[part] - widen(source[part].astype(np.uint16, copy=False))
        rest[part] = difference
        # In range, if the words are those of a number from -2^15 to 2^15 - 1, modulo 2^32.
        differ = np.flatnonzero((difference + np.uint32(0x8000)) >> np.uint32(16))
        allowed -= len(differ)
        if allowed < 0:
            return None
        rest[part][differ] = 0
        found.append((differ + start).astype("<u4"))
    return _pack_remainder(rest, found, data)


def _pack_remainder(rest: Words, found: list[Positions], data: Words) -> bytes:
    exceptions = _pack_exceptions(found, data)
    inner_id, inner = _encode_inner(rest.view(np.uint8).data)
    head = _HEAD.pack(len(exceptions) // 8, inner_id) + exceptions
    return b"".join((head, bytes(-len(head) % 16), inner))


def _encode_inner(rest: memoryview) -> tuple[int, Buffer]:
    """Code the differences, where a sample says that there is anything to gain."""
    middle = max(0, (len(rest) - _SAMPLE) // 4 * 2)
    sample = rest[middle : middle + _SAMPLE]
    if len(registry.FLOAT.encode_values(sample, _INT16, "default")) < _WORTH * len(sample):
        coded = registry.FLOAT.encode_values(rest, _INT16, "default")
        if len(coded) < len(rest):
            return registry.FLOAT.id, coded
    return registry.STORE.id, rest


def _parse_remainder(stream: memoryview, size: int) -> tuple[memoryview, int, memoryview]:
    """Return exceptions, inner codec and inner stream; CorruptChunkError unless they make up the stream."""
    if len(stream) < _HEAD.size or any(stream[5 : _HEAD.size]):
        raise CorruptChunkError("the head of a remainder stream is damaged")
    count, inner_id = _HEAD.unpack_from(stream)
    end = _HEAD.size + 8 * count
    start = end + -end % 16
    if count > size // 4 or start > len(stream) or any(stream[end:start]) or inner_id not in _INNER:
        raise CorruptChunkError("the parts of a remainder stream do not fit")
    return stream[_HEAD.size : end], inner_id, stream[start:]


def _decode_remainder(kind: int, stream: memoryview, source: Words, out: Words) -> None:
    exceptions, inner_id, inner = _parse_remainder(stream, 4 * len(out))
    rest = np.empty(len(out), "<i2")
    registry.by_id(inner_id).decode(inner, rest.view(np.uint8).data)
    widen = ROUNDINGS[kind].widen
    if kind == BF16 and derived_native.available():
        derived_native.remainder_decode(rest, source, out)
    else:
        for start in range(0, len(out), _STEP):
            part = slice(start, start + _STEP)
            out[part] = widen(source[part].astype(np.uint16, copy=False)) + rest[part].astype(np.int32).view(np.uint32)
    _apply_exceptions(exceptions, len(exceptions) // 8, out)


def _round_into(kind: int, source: Words, out: Words) -> None:
    if kind == BF16 and derived_native.available():
        derived_native.round_into(source, out)
        return
    round_ = ROUNDINGS[kind].round
    for start in range(0, len(out), _STEP):
        out[start : start + _STEP] = round_(source[start : start + _STEP].astype(np.uint32, copy=False))


def _pack_exceptions(found: list[Positions], data: Words) -> bytes:
    """All positions, then all words."""
    positions = np.concatenate(found) if found else np.empty(0, "<u4")
    packed: bytes = positions.tobytes() + data[positions].tobytes()
    return packed


def _apply_exceptions(packed: memoryview, count: int, out: Words) -> None:
    positions = np.frombuffer(packed[: 4 * count], "<u4")
    if count and (positions[-1] >= len(out) or (positions[1:] <= positions[:-1]).any()):
        raise CorruptChunkError("the exceptions of a stream are out of order")
    out[positions] = np.frombuffer(packed[4 * count :], out.dtype)
