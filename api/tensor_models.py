"""Which model each tensor of an archive was coded with, and what following from another tensor saved."""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from nvckpt.codecs import registry
from nvckpt.formats.index import Index, PlacedFrame
from nvckpt.formats.layout import FrameHeader
from nvckpt.formats.segments import Segment
from nvckpt.results import TensorInfo, describe, touched

HEAD = 48 + 16 * 256
"""Bytes of a payload that tell how a `float` stream models: its header, and enough of its matrices."""

_FLOAT_HEAD = struct.Struct("<BBBBI")
_MATRIX = struct.Struct("<IIHH4x")
_LAYOUTS = ("bytes", "rotated", "log")
_ZEROS_REMOVED, _ROWCOL = 1, 1
_TRANSFORMS = {0: "", 1: "byte planes", 2: "float planes"}
_NARROWED = {1: "FP16 in FP32", 2: "FP32 in FP64"}
_NARROWED_HEAD = 16
_RANK = slice(12, 14)
_WORDS = {registry.COPY: "copy of", registry.ROUNDED: "rounded from", registry.REMAINDER: "low bits beside"}


def with_models(
    index: Index, segments: Sequence[Segment], read_head: Callable[[PlacedFrame], bytes]
) -> list[TensorInfo]:
    """Describe an archive's segments as `describe` does, with `model` and `saved`.

    `read_head` gives the first HEAD bytes of a frame's payload, or fewer where there are fewer.
    """
    tensors = describe(index, segments)
    models = [""] * len(tensors)
    saved: list[int | None] = [None] * len(tensors)
    for frame in index.frames:
        if not frame.header.references:
            model = _model(frame.header, read_head(frame))
            for number, _ in touched(segments, frame.header.extents):
                models[number] = model
            continue
        for number, length, sources in _followers(frame.header, segments):
            cost = sum((tensors[i].bytes_out + (saved[i] or 0)) * taken / tensors[i].bytes_in for i, taken in sources)
            saved[number] = (saved[number] or 0) + _saved(frame.header, cost, length)
            models[number] = _derived_model(frame.header, [segments[i] for i, _ in sources])
    return [replace(t, model=m, saved=s) for t, m, s in zip(tensors, models, saved, strict=True)]


def _model(header: FrameHeader, head: bytes) -> str:
    """Return the model in words; only a hint, since the bytes are not checked against their checksum."""
    stream = header.streams[0]
    if stream.codec_id == registry.FLOAT.id:
        return _float_model(head)
    if stream.codec_id == registry.NARROWED.id and len(head) > _NARROWED_HEAD:
        return f"{_NARROWED.get(head[0], 'narrowed')}, {_float_model(head[_NARROWED_HEAD:])}"
    if stream.codec_id == registry.LOW_RANK.id and len(head) >= _RANK.stop:
        return f"lowrank of rank {int.from_bytes(head[_RANK], 'little')}"
    codecs = "+".join(sorted({registry.name_of(each.codec_id) for each in header.streams}))
    return " ".join(filter(None, (_TRANSFORMS.get(header.transform_id, ""), codecs)))


def _float_model(head: bytes) -> str:
    if len(head) < 48 or head[1] >= len(_LAYOUTS):
        return "float"
    _, layout, _, flags, count = _FLOAT_HEAD.unpack_from(head)
    seen = min(count, (len(head) - 48) // _MATRIX.size)
    is_rowcol = any(_MATRIX.unpack_from(head, 48 + _MATRIX.size * i)[3] == _ROWCOL for i in range(seen))
    words = ["float", _LAYOUTS[layout], "rowcol" if is_rowcol else "", "zeros" if flags & _ZEROS_REMOVED else ""]
    return " ".join(filter(None, words))


def _followers(header: FrameHeader, segments: Sequence[Segment]) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield each segment that a frame restores a part of, the part's length, and the segments that it follows from."""
    over, under = registry.SOURCE_SIZES.get(header.streams[0].codec_id, (1, 1))
    position = 0
    for number, length in touched(segments, header.extents):
        yield number, length, list(_sources(header, segments, position * over // under, length * over // under))
        position += length


def _saved(header: FrameHeader, cost: float, length: int) -> int:
    """Return what was saved, told by what the source cost.

    A copy would cost as much; a rounded copy as much less the two bytes a value that rounding drops; a master
    beside its copy as much and two bytes a value more, which it costs here, too.
    """
    return max(0, round(cost) - (length if header.streams[0].codec_id == registry.ROUNDED else 0))


def _derived_model(header: FrameHeader, sources: Sequence[Segment]) -> str:
    words = _WORDS.get(header.streams[0].codec_id, "follows from")
    if not sources:
        return words
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    name = sources[0].views[0].name if sources[0].views else f"bytes at {sources[0].offset}"
    return f"{words} {name}{more}"


def _sources(header: FrameHeader, segments: Sequence[Segment], start: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield the segments, with lengths, that bytes [start, start + length) of the referenced ones lie in."""
    position, end = 0, start + length
    for _, offset, size in header.references:
        first, last = max(start, position), min(end, position + size)
        if first < last and offset + size <= segments[-1].end:
            yield from touched(segments, [(offset + first - position, last - first)])
        position += size
