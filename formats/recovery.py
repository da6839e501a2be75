"""What is left of a damaged archive: its index if that is anywhere, and the frames that can still be tried."""

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from nvckpt.formats import index as index_format
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.checksum import checksum
from nvckpt.formats.container import check_frames, read_index
from nvckpt.formats.errors import (
    CorruptArchiveError,
    FormatError,
    NotAnArchiveError,
    TruncatedArchiveError,
    UnsupportedArchiveError,
)
from nvckpt.formats.frame_scan import MAX_PAYLOAD, Found, read_frame, scan
from nvckpt.formats.index import Index, PlacedFrame
from nvckpt.formats.layout import (
    FOOTER_SIZE,
    HEADER_SIZE,
    MAGIC,
    Extent,
    Footer,
    check_header,
    parse_footer,
)
from nvckpt.formats.lockless import cached_property
from nvckpt.formats.references import ReferenceMap
from nvckpt.formats.segments import Segment

# A header of one stream and one extent.
_LEAST_FRAME = 96

Numbers = np.ndarray[tuple[int], np.dtype[np.uint64]]


class FoundFrames(Sequence[PlacedFrame]):
    """Frames at known offsets, each read when asked for: their headers may be far larger than what is kept of them."""

    def __init__(self, data: ByteSource, offsets: Sequence[int]) -> None:
        self._data = data
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, number: int) -> PlacedFrame: ...
    @overload
    def __getitem__(self, number: slice) -> "FoundFrames": ...
    def __getitem__(self, number: int | slice) -> "PlacedFrame | FoundFrames":
        if isinstance(number, slice):
            return FoundFrames(self._data, self._offsets[number])
        return read_frame(self._data, self._offsets[number])


@dataclass(frozen=True)
class Remains:
    """What can be said of an archive that need not be sound; a FrameReader.

    `problems` are sentences on what is wrong around the frames. `index` is None when it is lost; then `size` is the
    greatest end of any range, and `size_is_known` tells whether the original surely ends there. `gaps` are the ranges
    of the original that no frame was found for, in order.
    """

    data: ByteSource
    problems: tuple[str, ...]
    index: Index | None
    segments: tuple[Segment, ...]
    frames: Sequence[PlacedFrame]
    size: int
    size_is_known: bool
    gaps: tuple[Extent, ...] = ()
    shift: int = 0
    places: Mapping[bytes, int] = field(default_factory=dict)

    @cached_property
    def reference_map(self) -> ReferenceMap:
        """Which of the frames there are restore the ranges that others refer to."""
        return ReferenceMap(self.frames)

    def read_payload(self, number: int) -> memoryview:
        """Return a frame's payload from where its checksum is right; CorruptArchiveError if that is nowhere.

        It may have been moved: by `shift`, or to where the search found the same header.
        """
        frame = self.frames[number]
        size = frame.header.payload_size
        offsets = (frame.offset, frame.offset + self.shift, self.places.get(frame.packed[-8:], frame.offset))
        starts = [offset + len(frame.packed) for offset in dict.fromkeys(offsets)]
        starts = [start for start in starts if 0 <= start <= self.data.size - size]
        if not starts:
            raise TruncatedArchiveError("the archive ends before this part of it")
        for start in starts if size <= MAX_PAYLOAD else ():
            payload = self.data.read_at(start, size)
            if checksum(payload) == frame.header.payload_checksum:
                return memoryview(payload)
        raise CorruptArchiveError("compressed bytes are damaged")


def find_remains(data: ByteSource) -> Remains:
    """Look for everything that can still be used.

    NotAnArchiveError when there is nothing of an archive, UnsupportedArchiveError when it is one of a later version.
    """
    problems = _header_problems(data)
    found = Found()
    located = _index_before(data, data.size)
    if located is None or located.shift:
        found = scan(data)
        located = _find_index(data, found)
        problems += ["the index is lost" if located is None else "bytes are missing, or were added"]
    if located is not None:
        return _with_index(data, located, found, problems)
    if not found.offsets and problems[0] == _NO_MAGIC:
        raise NotAnArchiveError("not an nvckpt archive, and no part of one was found in it")
    return _without_index(data, found, problems)


_NO_MAGIC = "the archive's first bytes are not those of an archive"


def _header_problems(data: ByteSource) -> list[str]:
    try:
        check_header(data.read_at(0, min(HEADER_SIZE, data.size)))
    except UnsupportedArchiveError:
        raise
    except NotAnArchiveError:
        return [_NO_MAGIC]
    except FormatError as error:
        return [str(error)]
    return []


@dataclass(frozen=True, slots=True)
class _Located:
    """A sound index, and by how much what is behind the lost or added bytes was moved."""

    index: Index
    packed: bytes
    shift: int


def ends_as_archive(data: ByteSource) -> bool:
    """Tell whether a file that does not begin as one ends as an archive."""
    return _footer_before(data, data.size) is not None


def _footer_before(data: ByteSource, end: int) -> Footer | None:
    """Return the footer that ends at `end`; it may be of an archive that does not begin at 0."""
    if end < FOOTER_SIZE:
        return None
    packed = data.read_at(end - FOOTER_SIZE, FOOTER_SIZE)
    offset, size = struct.unpack_from("<QQ", packed)
    try:
        footer = parse_footer(packed, offset + size + FOOTER_SIZE)
    except FormatError:
        return None
    return footer if footer.index_size <= end - FOOTER_SIZE else None


def _index_before(data: ByteSource, end: int) -> _Located | None:
    """Return the index whose footer ends at `end`, None if there is no sound one."""
    footer = _footer_before(data, end)
    if footer is None:
        return None
    offset = end - FOOTER_SIZE - footer.index_size
    try:
        packed = read_index(data, footer, offset)
        index = index_format.parse(packed, footer.index_offset)
        check_frames(index, footer.index_offset)
    except UnsupportedArchiveError:
        if offset == footer.index_offset:
            raise
        return None
    except FormatError:
        return None
    return _Located(index, packed, offset - footer.index_offset)


def _find_index(data: ByteSource, found: Found) -> _Located | None:
    """Return the last index that is this archive's: it stands where it says, or lists the first frame there is.

    In a file that begins as an archive, that frame must hang together with the head: others may be of one inside.
    """
    begins_here = data.read_at(0, min(len(MAGIC), data.size)) == MAGIC
    is_own = bool(found.runs) and (found.runs[0].is_anchored or not begins_here)
    first = read_frame(data, found.offsets[0]).packed if is_own else None
    for end in dict.fromkeys((data.size, *reversed(found.footers))):
        located = _index_before(data, end)
        if located and (located.shift == 0 or any(frame.packed == first for frame in located.index.frames)):
            return located
    return None


def _with_index(data: ByteSource, located: _Located, found: Found, problems: list[str]) -> Remains:
    index = located.index
    segments: tuple[Segment, ...] = ()
    try:
        segments = index_format.parse_description(located.packed, index.original_size).segments
    except FormatError:
        problems = [*problems, "the names in the index are damaged"]
    return Remains(
        data,
        tuple(problems),
        index,
        segments,
        index.frames,
        index.original_size,
        True,
        shift=located.shift,
        places=found.places,
    )


def _without_index(data: ByteSource, found: Found, problems: list[str]) -> Remains:
    starts, ends = np.array(found.starts, np.uint64), np.array(found.ends, np.uint64)
    owners = np.array(found.owners, np.int64)
    is_last = _ends_at_index(data, found)
    if is_last:
        found.runs[-1].is_anchored = True
    kept = _without_conflicts(found, starts, ends, owners)
    if not found.is_complete:
        problems = [*problems, "the search for frames was given up before the end"]
    if not kept.all():
        problems = [*problems, "some frames contradict others"]
    used = kept[owners] if len(owners) else np.zeros(0, bool)
    order = np.argsort(starts[used])
    gaps = _gaps(starts[used][order], ends[used][order])
    size = int(ends[used].max()) if used.any() else 0
    is_whole = is_last and len(found.runs) == 1 and found.runs[0].is_anchored and not gaps and bool(kept.all())
    offsets = array("Q", (offset for offset, keep in zip(found.offsets, kept.tolist(), strict=True) if keep))
    return Remains(data, tuple(problems), None, (), FoundFrames(data, offsets), size, is_whole, gaps)


def _ends_at_index(data: ByteSource, found: Found) -> bool:
    """Tell whether the last frames stand right before a footer's index, which itself is damaged."""
    for end in {*found.footers[-1:], data.size}:
        footer = _footer_before(data, end)
        if footer and found.runs and end - FOOTER_SIZE - footer.index_size == footer.index_offset:
            gap = footer.index_offset - found.runs[-1].end
            # More could be a small frame that was overwritten with zeros.
            return 0 <= gap < _LEAST_FRAME and not any(data.read_at(found.runs[-1].end, gap))
    return False


def _gaps(starts: Numbers, ends: Numbers) -> tuple[Extent, ...]:
    """Return what sorted ranges leave out of everything up to their last end."""
    before = np.concatenate((np.zeros(1, np.uint64), ends[:-1]))[: len(starts)]
    holes = np.flatnonzero(starts > before)
    return tuple((int(before[hole]), int(starts[hole] - before[hole])) for hole in holes)


def _without_conflicts(found: Found, starts: Numbers, ends: Numbers, owners: np.ndarray) -> np.ndarray:
    """Tell for each frame whether it is kept: none that shares a byte of the original with another.

    Frames that hang together with the file's head or tail are of this archive; a run of others is left out whole
    when one of its frames contradicts these, or another such run.
    """
    count = len(found.offsets)
    kept = np.ones(count, bool)
    if not count:
        return kept
    firsts = np.array([run.first for run in found.runs])
    run_of = np.searchsorted(firsts, np.arange(count), side="right") - 1
    anchored = np.array([run.is_anchored for run in found.runs])[run_of]
    sure = anchored[owners]
    kept[owners[sure][_overlapping(starts[sure], ends[sure])]] = False
    bad_runs = np.zeros(len(found.runs), bool)
    bad_runs[run_of[owners[~sure][_touching(starts[~sure], ends[~sure], starts[sure], ends[sure])]]] = True
    stray = ~sure & ~bad_runs[run_of[owners]]
    bad_runs[run_of[owners[stray][_overlapping(starts[stray], ends[stray])]]] = True
    return kept & ~bad_runs[run_of]


def _overlapping(starts: Numbers, ends: Numbers) -> np.ndarray:
    """Tell which ranges share a byte with another: the one before reaches into it, or it into the next."""
    marked = np.zeros(len(starts), bool)
    if len(starts) > 1:
        order = np.argsort(starts, kind="stable")
        reach = np.maximum.accumulate(ends[order])
        marked[order[1:]] = starts[order][1:] < reach[:-1]
        marked[order[:-1]] |= starts[order][1:] < ends[order][:-1]
    return marked


def _touching(starts: Numbers, ends: Numbers, others: Numbers, others_ends: Numbers) -> np.ndarray:
    """Tell which ranges share a byte with one of `others`, which may overlap one another."""
    if not len(others):
        return np.zeros(len(starts), bool)
    order = np.argsort(others, kind="stable")
    reach = np.maximum.accumulate(others_ends[order])
    before = np.searchsorted(others[order], ends, side="left") - 1
    return (before >= 0) & (reach[np.maximum(before, 0)] > starts)
