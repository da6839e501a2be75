"""Find frames by what they say of themselves, when nothing else tells where they are (FORMAT.md 13)."""

import re
from array import array
from dataclasses import dataclass, field

from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.checksum import checksum
from nvckpt.formats.errors import FormatError
from nvckpt.formats.index import PlacedFrame
from nvckpt.formats.layout import (
    END_MAGIC,
    FRAME_MAGIC,
    FRAME_PREFIX_SIZE,
    HEADER_SIZE,
    LARGE_ALIGNMENT,
    MAGIC,
    MAX_WINDOW,
    FrameHeader,
    align,
    check_header,
    frame_header_size,
    parse_frame_header,
)

# A frame header begins so: magic, a size of at most 32 MiB and a multiple of 16, 1 to 16 streams.
_FRAME = (
    re.escape(FRAME_MAGIC)
    + b"["
    + b"".join(b"\\x%02x" % n for n in range(0, 256, 16))
    + rb"]..[\x00-\x02]..[\x01-\x10]"
)
_CANDIDATE = re.compile(b"|".join((_FRAME, re.escape(MAGIC), re.escape(END_MAGIC))), re.DOTALL)
_PATTERN_SIZE = 11
_STEP = 4 << 20

MAX_EXTENTS = 1 << 22
"""Ranges kept of one archive, 20 bytes each; many more than the tensors of any checkpoint."""
MAX_PAYLOAD = 2 * MAX_WINDOW
"""A payload larger than this restores less than it takes, and is none that a writer makes."""
MAX_GROWTH = 1 << 15
"""No codec gives more bytes for one, so no frame restores what lies further into the original."""
_MAX_ENDS = 64
# Headers up to this size are hashed wherever one seems to be; what larger ones and payloads cost is bounded.
_SMALL_HEADER = 4 << 10
_ALLOWANCE = 256 << 20


@dataclass(slots=True)
class Run:
    """Frames that follow one another without a gap; `is_anchored` when the run is sure to be of this archive."""

    is_anchored: bool
    first: int
    end: int


@dataclass(slots=True)
class Found:
    """What a search found, kept small: offsets and ranges in arrays, never the headers themselves.

    `starts` and `ends` are ranges of the original, `owners` the numbers of their frames in `offsets`; `footers` are the
    ends of what looks like a footer. `is_complete` is False when the search gave up before the end.
    """

    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    starts: "array[int]" = field(default_factory=lambda: array("Q"))
    ends: "array[int]" = field(default_factory=lambda: array("Q"))
    owners: "array[int]" = field(default_factory=lambda: array("I"))
    places: dict[bytes, int] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    footers: list[int] = field(default_factory=list)
    is_complete: bool = True


def scan(data: ByteSource) -> Found:
    """Search the whole of `data` for frames; time is linear in its size, and memory is bounded.

    Where frames follow one another only their headers are read. Frames behind the header of another archive, which was
    stored in this one or stands behind it, are not this one's and left out.
    """
    return _Scan(data).run()


def read_frame(data: ByteSource, offset: int) -> PlacedFrame:
    """Read the frame header at `offset`; FormatError unless there is a sound one."""
    prefix = data.read_at(offset, FRAME_PREFIX_SIZE)
    packed = data.read_at(offset, frame_header_size(prefix))
    return PlacedFrame(offset, packed, parse_frame_header(packed))


class _Scan:
    def __init__(self, data: ByteSource) -> None:
        self._data = data
        self._found = Found()
        self._start, self._window = 0, b""
        self._budget = data.size + _ALLOWANCE
        self._max_reach = data.size * MAX_GROWTH
        # Where a frame would follow what was found last; -1 while nothing was.
        self._expected = -1
        self._is_foreign = False
        self._begins_here = data.read_at(0, min(len(MAGIC), data.size)) == MAGIC

    def run(self) -> Found:
        position = 0
        while (position := self._next(position)) >= 0:
            if len(self._found.starts) > MAX_EXTENTS:
                self._found.is_complete = False
                break
            position = self._look(position)
        return self._found

    def _next(self, position: int) -> int:
        """Return the next place at or after `position` that may be a header or a footer, -1 at the end."""
        while position < self._data.size:
            at = position - self._start
            if not 0 <= at <= len(self._window) - _PATTERN_SIZE:
                self._start, at = position, 0
                self._window = self._data.read_at(position, min(_STEP, self._data.size - position))
            if match := _CANDIDATE.search(self._window, at):
                return self._start + match.start()
            end = self._start + len(self._window)
            if end >= self._data.size:
                break
            position = end - _PATTERN_SIZE + 1
        return -1

    def _look(self, position: int) -> int:
        """Take what stands at `position`, if it is what it seems, and return where to go on."""
        kind = self._read(position, len(MAGIC))
        if kind.startswith(FRAME_MAGIC):
            return self._look_at_frame(position)
        if kind == END_MAGIC:
            self._found.footers = [*self._found.footers, position + len(END_MAGIC)][-_MAX_ENDS:]
        elif self._is_archive_header(position):
            # In a file that does not begin with one the first may be its own; all others are of archives inside.
            self._is_foreign = position > 0 and (self._begins_here or self._expected >= 0 or bool(self._found.runs))
            self._expected = position + HEADER_SIZE
        return position + 1

    def _is_archive_header(self, position: int) -> bool:
        try:
            check_header(self._data.read_at(position, min(HEADER_SIZE, self._data.size - position)))
        except FormatError:
            return False
        return True

    def _look_at_frame(self, position: int) -> int:
        header = self._parse(position)
        if header is None:
            return position + 1
        size = frame_header_size(self._read(position, FRAME_PREFIX_SIZE))
        end = position + size + header.payload_size
        is_chained = self._is_chained(position)
        if not is_chained:
            # Nothing behind what is damaged is believed on the word of a header alone: it may be a copy in the index.
            if not self._is_sound(header, position + size, end):
                return position + 1
            self._is_foreign = False
        digest = self._data.read_at(position + size - 8, 8)
        if not self._is_foreign and digest not in self._found.places and header.extents[-1][0] < self._max_reach:
            self._add(position, end, header, digest, is_chained)
        self._expected = end
        return end

    def _add(self, position: int, end: int, header: FrameHeader, digest: bytes, is_chained: bool) -> None:
        found = self._found
        number = len(found.offsets)
        if not (is_chained and found.runs):
            # The first frame is where a writer puts it, even when the header before it is gone.
            is_first = not found.runs and (is_chained or position in (HEADER_SIZE, LARGE_ALIGNMENT))
            found.runs.append(Run(is_first, number, end))
        found.runs[-1].end = end
        found.places[digest] = position
        found.offsets.append(position)
        found.starts.extend(offset for offset, _ in header.extents)
        found.ends.extend(offset + length for offset, length in header.extents)
        found.owners.extend([number] * len(header.extents))

    def _is_chained(self, position: int) -> bool:
        """Tell whether nothing but padding stands between what was found last and here."""
        gap = position - self._expected
        return self._expected >= 0 and 0 <= gap < LARGE_ALIGNMENT and not any(self._data.read_at(self._expected, gap))

    def _is_sound(self, header: FrameHeader, start: int, end: int) -> bool:
        """Tell whether the payload is right, or a frame header stands behind it."""
        if end > self._data.size:
            return False
        if self._afford(header.payload_size):
            payload = self._data.read_at(start, header.payload_size)
            if checksum(payload) == header.payload_checksum:
                self._budget += header.payload_size
                return True
        return any(self._parse(place) is not None for place in {end, align(end)})

    def _parse(self, position: int) -> FrameHeader | None:
        """Return the frame header at a place, None if there is no sound one."""
        try:
            size = frame_header_size(self._read(position, FRAME_PREFIX_SIZE))
            if position + size > self._data.size or (size > _SMALL_HEADER and not self._afford(size)):
                return None
            header = parse_frame_header(self._read(position, size))
        except FormatError:
            return None
        if header.payload_size > MAX_PAYLOAD:
            return None
        if size > _SMALL_HEADER:
            self._budget += size
        return header

    def _afford(self, size: int) -> bool:
        """Take `size` from what may be hashed in vain; forged headers must not make this take for ever."""
        if size > self._budget:
            self._found.is_complete = False
            return False
        self._budget -= size
        return True

    def _read(self, position: int, size: int) -> bytes:
        at = position - self._start
        if at >= 0 and at + size <= len(self._window):
            return self._window[at : at + size]
        return self._data.read_at(position, size)
