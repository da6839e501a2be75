"""A bounded sample of a checkpoint's blocks, evenly spread over each group, and read without reading the rest."""

import bisect
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from nvckpt import files
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.content import Content, Matrix
from nvckpt.codecs.derived_blocks import Origin
from nvckpt.derivation import find_runs
from nvckpt.errors import NotARegularFileError
from nvckpt.formats.byte_source import FileBytes
from nvckpt.formats.layout import Extent
from nvckpt.formats.sniff import read_source
from nvckpt.matrices import merged
from nvckpt.plan import BlockPlan, windows
from nvckpt.results import STRUCTURE

# A group's sample is this many pieces, unless that made them smaller or larger than the limits below.
_PIECES = 16
_SMALLEST_PIECE = 1 << 20
_LARGEST_PIECE = 32 << 20
# With fewer rows the coder could not estimate what they have in common.
_LEAST_ROWS = 8


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes that are coded as one block; in a sample they stand for `represents` bytes of their group.

    Where they may follow from other bytes of the file, `origin` says how and `references` are those.
    """

    content: Content
    data: Buffer
    represents: float
    origin: Origin | None = None
    references: Buffer = b""


@dataclass(frozen=True, slots=True)
class Sample:
    """The parts of each group, and the bytes of all files together by group, sampled or not.

    `warnings` say what kept files from being understood.
    """

    parts: dict[str, list[Part]]
    sizes: dict[str, int]
    tensors: int
    warnings: tuple[str, ...] = ()

    def without_tensors(self, names: str) -> str:
        """Return the beginning of a sentence about files that hold none, with the reason where it is known."""
        why = f": {self.warnings[0]};" if self.warnings else ":"
        return f"no tensors were found in {names}{why}"

    @property
    def whole(self) -> bool:
        """Tell whether the parts are all there is of their groups."""
        return all(sum(len(p.data) for p in parts) == self.sizes[group] for group, parts in self.parts.items())


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A block of a file, or a stretch of it."""

    file: int
    plan: BlockPlan
    represents: float


def take(names: Sequence[str], budget: int, groups: Sequence[str] = (), *, derived: bool = False) -> Sample:
    """Read at most about `budget` bytes of each group (0: everything) of the files together; `groups` empty means all.

    What compressing would make a block of is kept whole or cut between rows, so that it is coded as it would be. With
    `derived` this holds for tensors that follow from others, too.
    """
    with contextlib.ExitStack() as stack:
        # A pipe is spooled into a temporary file when it is opened, so each input is opened once.
        sources = [_opened(name, stack) for name in names]
        plans: dict[str, list[tuple[int, BlockPlan]]] = {}
        tensors = 0
        warnings: list[str] = []
        for number, opened in enumerate(sources):
            source = read_source(opened.data, opened.path)
            segments = source.segments
            warnings += source.warnings
            runs = find_runs(segments, opened.data) if derived else {}
            tensors += sum(segment.dtype is not None for segment in segments)
            for window in windows(segments, runs):
                for plan in window.blocks:
                    plans.setdefault(plan.group or STRUCTURE, []).append((number, plan))
        wanted = {group: found for group, found in plans.items() if not groups or group in groups}
        sizes = {group: sum(plan.size for _, plan in found) for group, found in wanted.items()}
        parts = {
            group: [_part(sources[piece.file].data, piece) for piece in _spread(found, budget)]
            for group, found in wanted.items()
        }
    return Sample(parts, sizes, tensors, tuple(warnings))


def _opened(name: str, stack: contextlib.ExitStack) -> files.Input:
    """Open an input; the error of what is no file names it, as one of several."""
    try:
        return stack.enter_context(files.open_input(name, follow=True))
    except NotARegularFileError as error:
        raise NotARegularFileError(f"{files.show(name)} {error}") from error


def _part(data: FileBytes, piece: _Chosen) -> Part:
    plan, origin = piece.plan, piece.plan.origin
    references = _joined(data, origin.ranges) if origin else b""
    return Part(plan.content, _joined(data, plan.extents), piece.represents, origin, references)


def _joined(data: FileBytes, extents: Iterable[Extent]) -> bytes:
    return b"".join(data.read_at(offset, length) for offset, length in extents)


def _spread(found: Sequence[tuple[int, BlockPlan]], budget: int) -> list[_Chosen]:
    """Cut the group into strata of equal size and take a piece from the middle of each."""
    ends = list(accumulate(plan.size for _, plan in found))
    total = ends[-1]
    if not budget or total <= budget:
        return [_Chosen(number, plan, plan.size) for number, plan in found]
    step = min(max(budget // _PIECES, _SMALLEST_PIECE), _LARGEST_PIECE, budget)
    count = max(1, budget // step)
    chosen: dict[tuple[int, int], _Chosen] = {}
    for i in range(count):
        middle = (2 * i + 1) * total // (2 * count)
        index = bisect.bisect_right(ends, middle)
        number, plan = found[index]
        piece = plan if plan.size <= step else _cut(plan, middle - (ends[index] - plan.size) - step // 2, step)
        key = (index, piece.extents[0][0])
        # A small block may be the middle of several strata.
        before = chosen[key].represents if key in chosen else 0.0
        chosen[key] = _Chosen(number, piece, before + total / count)
    return list(chosen.values())


def _cut(plan: BlockPlan, start: int, length: int) -> BlockPlan:
    """Return a stretch of a block of about `length` bytes from `start` on, moved and widened to whole rows."""
    word = plan.content.word
    words = plan.size // word
    first = min(max(start, 0), plan.size - length) // word
    last = first + length // word
    taken: list[Matrix] = []
    begin, end, position = words, 0, 0
    for rows, cols in plan.content.matrices or ((words, 0),):
        unit = cols or 1
        low = max(0, (first - position) // unit)
        high = min(rows, -(-(last - position) // unit))
        if low < high:
            begin, end = min(begin, position + low * unit), position + high * unit
            flat = not cols or high - low < _LEAST_ROWS
            taken.append(((high - low) * unit, 0) if flat else (high - low, cols))
        position += rows * unit
    matrices = merged(taken) if plan.content.matrices else ()
    extents = tuple(_stretch(plan.extents, begin * word, end * word))
    origin = plan.origin and _cut_origin(plan.origin, plan.size, begin * word, end * word)
    return replace(plan, extents=extents, content=replace(plan.content, matrices=matrices), origin=origin)


def _cut_origin(origin: Origin, size: int, begin: int, end: int) -> Origin:
    """Return what the bytes [begin, end) of a block of `size` bytes follow from: each has an equal share of it."""
    there = sum(length for _, length in origin.ranges)
    return replace(origin, ranges=tuple(_stretch(origin.ranges, begin * there // size, end * there // size)))


def _stretch(extents: Iterable[Extent], begin: int, end: int) -> Iterable[Extent]:
    """Yield the extents of the bytes [begin, end) of what the extents hold together."""
    position = 0
    for offset, length in extents:
        low, high = max(begin - position, 0), min(end - position, length)
        if low < high:
            yield (offset + low, high - low)
        position += length
