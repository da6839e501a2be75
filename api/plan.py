"""From segments to the blocks that are coded: windows of the file, and pools of like tensors in them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvckpt.codecs.content import BYTES, Content, Kind
from nvckpt.codecs.derived_blocks import Origin
from nvckpt.derivation import Run
from nvckpt.formats.layout import MAX_REFERENCES, Extent
from nvckpt.formats.segments import Segment
from nvckpt.matrices import Grid, grid_of, matrices_in, merged

WINDOW = 32 << 20
"""Bytes of the original worked on at a time; a few of them are in memory at once."""

# A tensor this large is a block of its own, so that it can be decoded alone; smaller ones of a kind share one.
_OWN_BLOCK = 256 << 10
# Below this a tensor costs more as an extent than it gains apart from the bytes around it.
_INLINE = 1 << 10

_KINDS: dict[str, Kind] = {
    "BF16": "bf16",
    "F16": "fp16",
    "F32": "fp32",
    "F64": "fp64",
    "C32": "fp16",
    "C64": "fp32",
    "C128": "fp64",
}


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Ranges of the original that are coded together, and what they hold; `group` is None for opaque bytes."""

    extents: tuple[Extent, ...]
    content: Content
    group: str | None
    origin: Origin | None = None

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


@dataclass(frozen=True, slots=True)
class _Piece:
    """A range of a segment, all of it or what fits in a window."""

    segment: Segment
    offset: int
    length: int
    grid: Grid | None
    run: Run | None = None

    @property
    def end(self) -> int:
        return self.offset + self.length


def windows(segments: Iterable[Segment], runs: Mapping[int, Sequence[Run]] | None = None) -> Iterator[Window]:
    """Cut a file's segments, in order, into windows of at most WINDOW bytes and plan each.

    `runs` are what `derivation.find` found, by the offset of the segment they lie in.
    """
    pending: list[_Piece] = []
    size = 0
    for piece in _pieces(segments, runs or {}):
        if pending and size + piece.length > WINDOW:
            yield _window(pending)
            pending, size = [], 0
        pending.append(piece)
        size += piece.length
    if pending:
        yield _window(pending)


def _pieces(segments: Iterable[Segment], runs: Mapping[int, Sequence[Run]]) -> Iterator[_Piece]:
    """Cut segments between their runs, and what is longer than a window."""
    for segment in segments:
        grid = grid_of(segment)
        position = segment.offset
        for run in runs.get(segment.offset, ()):
            yield from _cut(segment, grid, position, run.offset)
            yield from _cut(segment, grid, run.offset, run.end, run)
            position = run.end
        yield from _cut(segment, grid, position, segment.end)


def _cut(segment: Segment, grid: Grid | None, start: int, end: int, run: Run | None = None) -> Iterator[_Piece]:
    """Cut a range into pieces that fit in a window: at rows where there are any, else at multiples of every size."""
    step = WINDOW
    if grid and segment.dtype and end - start > WINDOW:
        row = grid.cols * segment.dtype.word
        step = WINDOW // row * row or WINDOW
    for offset in range(start, end, step):
        yield _Piece(segment, offset, min(step, end - offset), grid, run)


def _window(pieces: Sequence[_Piece]) -> Window:
    pools: dict[tuple[object, ...], list[_Piece]] = {}
    for piece in pieces:
        pool = pools.setdefault(_pool_key(piece), [])
        if piece.run and len(pool) == MAX_REFERENCES:
            # The full pool moves to a key that no piece has; later pieces begin the next one.
            pools[(*_pool_key(piece), pool[0].offset)] = pool
            pool = pools[_pool_key(piece)] = []
        pool.append(piece)
    opaque = pools.pop((), [])
    blocks = [
        BlockPlan(_extents(pool), _content(pool), pool[0].segment.group, _origin(pool)) for pool in pools.values()
    ]
    if opaque:
        blocks.append(BlockPlan(_extents(opaque), BYTES, None))
    # What a block refers to must stand before it.
    blocks.sort(key=lambda block: (block.origin.depth if block.origin else 0, block.extents[0]))
    return Window(pieces[0].offset, pieces[-1].end, tuple(blocks))


def _pool_key(piece: _Piece) -> tuple[object, ...]:
    """Pieces with the same key share a block; the empty key is that of opaque bytes."""
    segment, run = piece.segment, piece.run
    if segment.dtype is None or (piece.length < _INLINE and run is None):
        return ()
    # Odd bytes at the end of a tensor would shift the words of the next one.
    alone = piece.length >= _OWN_BLOCK or piece.length % segment.dtype.word
    kind = (run.codec_id, run.param, run.depth) if run else None
    return (segment.dtype.id, segment.group, segment.big_endian, piece.offset if alone else None, kind)


def _origin(pool: Sequence[_Piece]) -> Origin | None:
    """Return what a pool follows from; its pieces have runs of one kind, or none has."""
    run = pool[0].run
    if run is None:
        return None
    ranges: list[tuple[int, int]] = []
    for piece in pool:
        if piece.run is not None:
            offset, length = piece.run.source_of(piece.offset, piece.length)
            if ranges and sum(ranges[-1]) == offset:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + length)
            else:
                ranges.append((offset, length))
    return Origin(run.codec_id, run.param, tuple(ranges), run.depth)


def _extents(pool: Sequence[_Piece]) -> tuple[Extent, ...]:
    """Ranges of the pieces, neighbours joined."""
    extents: list[Extent] = []
    for piece in pool:
        if extents and sum(extents[-1]) == piece.offset:
            extents[-1] = (extents[-1][0], extents[-1][1] + piece.length)
        else:
            extents.append((piece.offset, piece.length))
    return tuple(extents)


def _content(pool: Sequence[_Piece]) -> Content:
    """Return what the coder should know of a pool, whose pieces have one dtype."""
    dtype = pool[0].segment.dtype
    if dtype is None or dtype.kind in ("bytes", "packed"):
        return BYTES
    # A big-endian float has its exponent at the other end: its planes are those of a whole number.
    if dtype.kind not in ("float", "complex") or pool[0].segment.big_endian:
        return Content(dtype.word)
    matrices = (
        matrix
        for piece in pool
        for matrix in matrices_in(piece.grid, dtype.word, piece.offset - piece.segment.offset, piece.length)
    )
    return Content(dtype.word, _KINDS.get(dtype.name, "fp8"), merged(matrices))
