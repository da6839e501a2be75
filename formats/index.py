"""The index: everything `list` shows, and where each frame stands (FORMAT.md 6)."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nvckpt.formats import dtypes
from nvckpt.formats.allowance import ARCHIVE, DIMENSION, EXTENT, FRAME, LISTED, STREAM, VIEW, Allowance
from nvckpt.formats.cursor import Cursor, string, varint
from nvckpt.formats.errors import CorruptArchiveError, UnsupportedArchiveError
from nvckpt.formats.groups import GROUPS
from nvckpt.formats.layout import (
    FRAME_PREFIX_SIZE,
    HEADER_SIZE,
    LARGE_ALIGNMENT,
    FrameHeader,
    frame_header_size,
    parse_frame_header,
)
from nvckpt.formats.segments import Segment, View

FILE, FRAMES, SEGMENTS, BASES, WRITER = 1, 2, 3, 4, 5
MANDATORY = 1
XXH3_128 = 1
MAX_RANK = 64

_SECTION = struct.Struct("<HHIQ")
_FILE = struct.Struct("<QB7s16s")

_BIG_ENDIAN = 1
_HAS_SHAPE, _HAS_STRIDES = 1, 2


@dataclass(frozen=True, slots=True)
class PlacedFrame:
    """A frame and where it starts in the archive; `packed` is its header, byte for byte."""

    offset: int
    packed: bytes
    header: FrameHeader

    @property
    def end(self) -> int:
        """Return the first byte behind its payload."""
        return self.offset + len(self.packed) + self.header.payload_size


@dataclass(frozen=True, slots=True)
class Index:
    """What decoding needs of an archive: the original's size and hash, and the frames in file order."""

    original_size: int
    original_hash: bytes
    source_format: str
    frames: tuple[PlacedFrame, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """What an archive says for people and for partial reading: segments in the original's order, and its writer."""

    segments: tuple[Segment, ...]
    writer: str = ""


def pack(index: Index, description: Description) -> bytes:
    """Return the index before it is compressed."""
    file = _FILE.pack(index.original_size, XXH3_128, bytes(7), index.original_hash) + string(index.source_format)
    return b"".join(
        (
            _section(FILE, MANDATORY, file),
            _section(FRAMES, MANDATORY, _pack_frames(index.frames)),
            _section(SEGMENTS, 0, _pack_segments(description.segments)),
            _section(WRITER, 0, string(description.writer)),
        )
    )


def parse(data: bytes, frames_end: int, memory: Allowance | None = None) -> Index:
    """Read a decoded index, which stands at `frames_end`; the frames' windows are the reader's to check."""
    sections = dict(_sections(data))
    if FILE not in sections or FRAMES not in sections:
        raise CorruptArchiveError("the index lacks a section")
    cursor = Cursor(sections[FILE])
    size, hash_id, reserved, digest = _FILE.unpack(cursor.take(_FILE.size))
    if hash_id != XXH3_128:
        raise UnsupportedArchiveError(
            f"the archive uses hash id {hash_id}, unknown to this nvckpt: install a newer one"
        )
    if any(reserved):
        raise CorruptArchiveError("the index breaks the format")
    source_format = _last_string(cursor)
    return Index(
        size,
        digest,
        source_format,
        tuple(_parse_frames(Cursor(sections[FRAMES]), frames_end, memory or Allowance(ARCHIVE))),
    )


def parse_description(data: bytes, original_size: int, memory: Allowance | None = None) -> Description:
    """Read the sections of an index that decoding does without, so that a flaw in them never costs the file."""
    sections = dict(_sections(data))
    memory = memory or Allowance(ARCHIVE)
    return Description(
        tuple(_parse_segments(Cursor(sections[SEGMENTS]), original_size, memory)) if SEGMENTS in sections else (),
        _last_string(Cursor(sections[WRITER])) if WRITER in sections else "",
    )


def _section(tag: int, flags: int, content: bytes) -> bytes:
    return _SECTION.pack(tag, flags, 0, len(content)) + content


def _sections(data: bytes) -> Iterable[tuple[int, bytes]]:
    cursor = Cursor(data)
    last = 0
    while cursor.left:
        tag, flags, reserved, size = _SECTION.unpack(cursor.take(_SECTION.size))
        if tag <= last or flags > MANDATORY or reserved:
            raise CorruptArchiveError("the index breaks the format")
        if flags & MANDATORY and tag not in (FILE, FRAMES, SEGMENTS, WRITER):
            raise UnsupportedArchiveError(f"the archive needs index section {tag}: install a newer nvckpt")
        last = tag
        yield tag, cursor.take(size)


def _last_string(cursor: Cursor) -> str:
    text = cursor.string()
    if cursor.left:
        raise CorruptArchiveError("the index has bytes left over")
    return text


def _pack_frames(frames: Sequence[PlacedFrame]) -> bytes:
    out = bytearray(varint(len(frames)))
    position = HEADER_SIZE
    for frame in frames:
        out += varint(frame.offset - position) + frame.packed
        position = frame.end
    return bytes(out)


def _parse_frames(cursor: Cursor, frames_end: int, memory: Allowance) -> Iterable[PlacedFrame]:
    """Each frame must have room before `frames_end`, so that a packed index cannot list more than the file holds."""
    count = cursor.varint()
    position = HEADER_SIZE
    for _ in range(count):
        gap = cursor.varint()
        if gap >= LARGE_ALIGNMENT:
            raise CorruptArchiveError("the index leaves a part of the archive out")
        prefix = cursor.take(FRAME_PREFIX_SIZE)
        packed = prefix + cursor.take(frame_header_size(prefix) - FRAME_PREFIX_SIZE)
        header = parse_frame_header(packed)
        parts = STREAM * (len(header.streams) + len(header.references)) + EXTENT * len(header.extents)
        memory.spend(FRAME + len(packed) + parts)
        frame = PlacedFrame(position + gap, packed, header)
        position = frame.end
        if position > frames_end:
            raise CorruptArchiveError("the index does not stand behind the last frame")
        yield frame
    if cursor.left:
        raise CorruptArchiveError("the index has bytes left over")


def _pack_segments(segments: Sequence[Segment]) -> bytes:
    out = bytearray(varint(len(segments)))
    for segment in segments:
        out += varint(segment.length)
        if segment.dtype is None:
            out.append(0)
            continue
        flags = _BIG_ENDIAN if segment.big_endian else 0
        out += bytes((1, segment.dtype.id, GROUPS.index(segment.group), flags)) + varint(len(segment.views))
        for view in segment.views:
            out += _pack_view(view)
    return bytes(out)


def _pack_view(view: View) -> bytes:
    shape = view.shape if view.shape is not None and len(view.shape) <= MAX_RANK else None
    strides = view.strides if shape is not None else None
    out = string(view.name)
    out += bytes((view.dtype.id, (shape is not None) * _HAS_SHAPE | (strides is not None) * _HAS_STRIDES))
    if shape is not None:
        out += varint(len(shape)) + b"".join(map(varint, shape)) + b"".join(map(varint, strides or ()))
    return out + varint(view.offset)


def _parse_segments(cursor: Cursor, original_size: int, memory: Allowance) -> Iterable[Segment]:
    position, before = 0, 1
    for _ in range(cursor.varint()):
        length = cursor.varint()
        kind = cursor.byte()
        if length == 0 or kind > 1 or not (kind or before):
            raise CorruptArchiveError("the index describes an impossible segment")
        before = kind
        memory.spend(LISTED)
        yield _parse_tensor(cursor, position, length, memory) if kind else Segment(position, length)
        position += length
    if position != original_size or cursor.left:
        raise CorruptArchiveError("the segments do not cover the original")


def _parse_tensor(cursor: Cursor, offset: int, length: int, memory: Allowance) -> Segment:
    dtype, group, flags = cursor.byte(), cursor.byte(), cursor.byte()
    views = tuple([_parse_view(cursor, memory) for _ in range(cursor.varint())])
    name = GROUPS[group] if group < len(GROUPS) else "other"
    return Segment(offset, length, _dtype(dtype), name, views, bool(flags & _BIG_ENDIAN))


def _parse_view(cursor: Cursor, memory: Allowance) -> View:
    name, dtype, flags = cursor.string(), cursor.byte(), cursor.byte()
    shape = strides = None
    memory.spend(VIEW + len(name))
    if flags & _HAS_SHAPE:
        rank = cursor.varint()
        if rank > MAX_RANK:
            raise CorruptArchiveError("the index describes a tensor of impossible rank")
        memory.spend(2 * DIMENSION * rank)
        shape = tuple([cursor.varint() for _ in range(rank)])
        if flags & _HAS_STRIDES:
            strides = tuple([cursor.varint() for _ in range(rank)])
    return View(name, _dtype(dtype), shape, strides, cursor.varint())


def _dtype(dtype_id: int) -> dtypes.DType:
    return dtypes.BY_ID.get(dtype_id, dtypes.UNKNOWN)
