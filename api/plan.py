"""From segments to the blocks that are coded: windows of the file, and pools of like tensors in them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nvckpt.codecs.content import BYTES, Content
from nvckpt.formats.layout import Extent
from nvckpt.formats.segments import Segment

WINDOW = 32 << 20
"""Bytes of the original worked on at a time; a few of them are in memory at once."""

# A tensor this large is a block of its own, so that it can be decoded alone; smaller ones of a kind share one.
_OWN_BLOCK = 256 << 10
# Below this a tensor costs more as an extent than it gains apart from the bytes around it.
_INLINE = 1 << 10


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Ranges of the original that are coded together, and what they hold."""

    extents: tuple[Extent, ...]
    content: Content

    @property
    def size(self) -> int:
        """Bytes in all extents."""
        return sum(length for _, length in self.extents)


@dataclass(frozen=True, slots=True)
class Window:
    """A range of the original and the blocks that tile it."""

    start: int
    end: int
    blocks: tuple[BlockPlan, ...]


def windows(segments: Iterable[Segment]) -> Iterator[Window]:
    """Cut a file's segments, in order, into windows of at most WINDOW bytes and plan each."""
    pending: list[Segment] = []
    size = 0
    for piece in _pieces(segments):
        if pending and size + piece.length > WINDOW:
            yield _window(pending)
            pending, size = [], 0
        pending.append(piece)
        size += piece.length
    if pending:
        yield _window(pending)


def content_of(segment: Segment) -> Content:
    """Return what the coder should know of a segment's bytes."""
    dtype = segment.dtype
    if dtype is None or dtype.kind in ("bytes", "packed"):
        return BYTES
    # A big-endian float has its exponent at the other end: its planes are those of a whole number.
    is_float = dtype.kind in ("float", "complex") and not segment.big_endian
    return Content(dtype.word, is_float)


def _pieces(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Cut segments longer than a window; the cuts are at multiples of every element size."""
    for segment in segments:
        if segment.length <= WINDOW:
            yield segment
            continue
        for offset in range(segment.offset, segment.end, WINDOW):
            length = min(WINDOW, segment.end - offset)
            yield Segment(offset, length, segment.dtype, segment.group, (), segment.big_endian)


def _window(pieces: Sequence[Segment]) -> Window:
    pools: dict[tuple[object, ...], list[Segment]] = {}
    for piece in pieces:
        pools.setdefault(_pool_key(piece), []).append(piece)
    blocks = [BlockPlan(_extents(pool), content_of(pool[0])) for key, pool in pools.items() if key]
    if () in pools:
        blocks.append(BlockPlan(_extents(pools[()]), BYTES))
    blocks.sort(key=lambda block: block.extents[0])
    return Window(pieces[0].offset, pieces[-1].end, tuple(blocks))


def _pool_key(piece: Segment) -> tuple[object, ...]:
    """Pieces with the same key share a block; the empty key is that of opaque bytes."""
    if piece.dtype is None or piece.length < _INLINE:
        return ()
    alone = piece.offset if piece.length >= _OWN_BLOCK else None
    return (piece.dtype.id, piece.group, piece.big_endian, alone)


def _extents(pool: Sequence[Segment]) -> tuple[Extent, ...]:
    """Ranges of the pieces, neighbours joined."""
    extents: list[Extent] = []
    for piece in pool:
        if extents and sum(extents[-1]) == piece.offset:
            extents[-1] = (extents[-1][0], extents[-1][1] + piece.length)
        else:
            extents.append((piece.offset, piece.length))
    return tuple(extents)
