"""Writing and reading whole archives; sequential on the way out, by position on the way back."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from nvckpt.formats import index as index_format
from nvckpt.formats.allowance import ARCHIVE, Allowance
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.checksum import Buffer, checksum
from nvckpt.formats.collector import collector_paused
from nvckpt.formats.errors import (
    CorruptArchiveError,
    MalformedCheckpointError,
    TruncatedArchiveError,
    UnsupportedArchiveError,
)
from nvckpt.formats.index import Description, Index, PlacedFrame
from nvckpt.formats.layout import (
    ALIGNMENT,
    FOOTER_SIZE,
    HEADER_SIZE,
    INDEX_ALLOWANCE,
    LARGE_ALIGNMENT,
    LARGE_FRAME,
    MAGIC,
    MAX_INDEX_EXPANSION,
    MAX_WINDOW,
    Footer,
    FrameHeader,
    align,
    check_header,
    pack_header,
    parse_footer,
)
from nvckpt.formats.lockless import cached_property
from nvckpt.formats.references import ReferenceMap

# Below this an index stays readable to a person with a hex dump.
_COMPRESS_INDEX_FROM = 1024
_STORE, _ZSTD = 0, 1


class Sink(Protocol):
    """Where an archive goes, in order: a file or a pipe."""

    def write(self, data: Buffer, /) -> object:
        """Take all of `data`."""
        ...


def is_archive(head: bytes) -> bool:
    """Tell whether a file that starts with `head` is an archive."""
    return head.startswith(MAGIC)


class ArchiveWriter:
    """Writes an archive in one pass: frames as they come, then the index."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._position = 0
        self._frames: list[PlacedFrame] = []
        self._write(pack_header())

    def add_frames(self, frames: Iterable[tuple[FrameHeader, Sequence[Buffer]]]) -> None:
        """Append frames, in one write; each comes with its streams' bytes in order, padding is made here."""
        pieces: list[Buffer] = []
        position = self._position
        for header, parts in frames:
            packed = header.pack()
            size = len(packed) + header.payload_size
            start = align(position, LARGE_ALIGNMENT if size >= LARGE_FRAME else ALIGNMENT)
            self._frames.append(PlacedFrame(start, packed, header))
            pieces += (bytes(start - position), packed, *(piece for pair in pad_streams(parts) for piece in pair))
            position = start + size
        self._write(*pieces)

    def finish(
        self,
        original_size: int,
        original_hash: bytes,
        source_format: str,
        description: Description,
    ) -> Index:
        """Append index and footer; returns the index, `size` then tells the archive's size in bytes."""
        index = Index(original_size, original_hash, source_format, tuple(self._frames))
        raw = index_format.pack(index, description)
        stored, codec = _compress_index(raw)
        self._pad_to(ALIGNMENT)
        footer = Footer(self._position, len(stored), len(raw), checksum(stored), codec)
        self._write(stored)
        self._write(footer.pack())
        return index

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._position

    def _pad_to(self, alignment: int) -> None:
        self._write(bytes(align(self._position, alignment) - self._position))

    def _write(self, *parts: Buffer) -> None:
        write_all = getattr(self._sink, "write_all", None)
        if write_all:
            write_all(parts)
        else:
            for part in parts:
                self._sink.write(part)
        self._position += sum(len(part) for part in parts)


def pad_streams(parts: Sequence[Buffer]) -> Iterator[tuple[bytes, Buffer]]:
    """Pair each stream with the zeros that go before it in a payload."""
    position = 0
    for part in parts:
        yield bytes(align(position) - position), part
        position = align(position) + len(part)


def payload_checksum(parts: Sequence[Buffer]) -> int:
    """Checksum of a payload made of these streams."""
    return checksum(*(piece for pair in pad_streams(parts) for piece in pair))


def _compress_index(raw: bytes) -> tuple[bytes, int]:
    if len(raw) < _COMPRESS_INDEX_FROM:
        return raw, _STORE
    import zstandard

    packed = zstandard.ZstdCompressor(level=9).compress(raw)
    allowed = len(raw) <= MAX_INDEX_EXPANSION * len(packed) + INDEX_ALLOWANCE
    return (packed, _ZSTD) if allowed and len(packed) < len(raw) else (raw, _STORE)


class FrameReader(Protocol):
    """What decoding needs of an archive, sound or damaged."""

    @property
    def frames(self) -> Sequence[PlacedFrame]:
        """In the order of the file."""
        ...

    @property
    def reference_map(self) -> ReferenceMap:
        """Where the ranges are that frames refer to."""
        ...

    def read_payload(self, number: int) -> memoryview:
        """Return a frame's payload; CorruptArchiveError unless its checksum is right."""
        ...


class ArchiveReader:
    """An archive whose header, footer and index were read and found consistent.

    Opening reads nothing of the frames; FormatError subclasses tell what is wrong, MemoryLimitError that the index
    describes more than `memory` allows.
    """

    def __init__(self, data: ByteSource, memory: Allowance | None = None) -> None:
        self.data = data
        self._memory = memory or Allowance(ARCHIVE)
        self.size = data.size
        check_header(data.read_at(0, min(HEADER_SIZE, data.size)))
        if data.size < HEADER_SIZE + FOOTER_SIZE:
            raise TruncatedArchiveError("the archive is cut short")
        footer = parse_footer(data.read_at(data.size - FOOTER_SIZE, FOOTER_SIZE), data.size)
        # As it is stored, decoded, and its sections.
        self._memory.spend(footer.index_size + 2 * footer.index_raw_size)
        with collector_paused():
            self._packed_index = read_index(data, footer, footer.index_offset)
            self.index = index_format.parse(self._packed_index, footer.index_offset, self._memory)
        self.frames = self.index.frames
        self._end_of_frames = footer.index_offset
        check_frames(self.index, footer.index_offset)

    @cached_property
    def description(self) -> Description:
        """Segments and writer, read when first asked for; CorruptArchiveError if they break the format."""
        with collector_paused():
            return index_format.parse_description(self._packed_index, self.index.original_size, self._memory)

    @cached_property
    def reference_map(self) -> ReferenceMap:
        """Which frames restore the ranges that others refer to; made when first asked for."""
        return ReferenceMap(self.frames)

    def start_of(self, number: int) -> int:
        """Return where the padding before a frame begins: the end of what is before it in the file."""
        return self.frames[number - 1].end if number else HEADER_SIZE

    def read_payload(self, number: int) -> memoryview:
        """Return a frame's payload after checking its header, the padding before it, and its checksum."""
        start = self.start_of(number)
        try:
            data = memoryview(self.data.read_at(start, self.frames[number].end - start))
        except MalformedCheckpointError as error:
            raise _ended_early() from error
        return self.check_payload(number, data, start)

    def check_payload(self, number: int, data: memoryview, origin: int) -> memoryview:
        """Return a frame's payload out of `data`, bytes of the archive from `origin` on, after the same checks."""
        frame = self.frames[number]
        start, end = self.start_of(number) - origin, frame.end - origin
        if end > len(data):
            raise _ended_early()
        at = frame.offset - origin
        payload = data[at + len(frame.packed) : end]
        if any(data[start:at]) or data[at : at + len(frame.packed)] != frame.packed:
            raise CorruptArchiveError("a frame header is damaged")
        if checksum(payload) != frame.header.payload_checksum:
            raise CorruptArchiveError("compressed bytes are damaged")
        position = 0
        for stream, begin in zip(frame.header.streams, frame.header.stream_starts(), strict=True):
            if any(payload[position:begin]):
                raise CorruptArchiveError("the padding between streams is not zero")
            position = begin + stream.encoded_size
        return payload

    def check_tail(self) -> None:
        """Check the padding between the last frame and the index."""
        end = self.frames[-1].end if self.frames else HEADER_SIZE
        if any(self.data.read_at(end, self._end_of_frames - end)):
            raise CorruptArchiveError("the padding before the index is damaged")

    def windows(self) -> list[range]:
        """Return the frame numbers of each window, in order."""
        return list(_windows(self.index))


def _ended_early() -> TruncatedArchiveError:
    return TruncatedArchiveError("the archive ended early while it was read")


def read_index(data: ByteSource, footer: Footer, offset: int) -> bytes:
    """Return the decoded index, which stands at `offset`; CorruptArchiveError unless it is what the footer says."""
    stored = data.read_at(offset, footer.index_size)
    if checksum(stored) != footer.index_checksum:
        raise CorruptArchiveError("the index is damaged")
    if footer.index_codec == _STORE:
        return stored
    if footer.index_codec != _ZSTD:
        raise UnsupportedArchiveError(f"index codec {footer.index_codec} is unknown: install a newer nvckpt")
    import zstandard

    try:
        if zstandard.frame_content_size(stored) != footer.index_raw_size:
            raise CorruptArchiveError("the index has another size than the footer says")
        raw: bytes = zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptArchiveError("the index does not decode") from error
    return raw


def check_frames(index: Index, index_offset: int) -> None:
    """CorruptArchiveError unless frames stand close together up to the index, and their windows tile the original."""
    end = HEADER_SIZE
    for frame in index.frames:
        if frame.offset % ALIGNMENT:
            raise CorruptArchiveError("a frame is not aligned")
        end = frame.end
    if index_offset - end >= LARGE_ALIGNMENT:
        raise CorruptArchiveError("the index does not stand behind the last frame")
    for _ in _windows(index):
        pass


def _windows(index: Index) -> Iterator[range]:
    """Yield the frames of each window; CorruptArchiveError unless FORMAT.md 5.5 is kept."""
    start, first = 0, 0
    reach = covered = 0
    extents: list[tuple[int, int]] = []
    for number, frame in enumerate(index.frames):
        extents += frame.header.extents
        covered += frame.header.original_size
        reach = max(reach, frame.header.extents[-1][0] + frame.header.extents[-1][1])
        if reach - start > MAX_WINDOW or reach > index.original_size:
            raise CorruptArchiveError("a window is too large or reaches beyond the original")
        if start + covered < reach:
            continue
        extents.sort()
        position = start
        for offset, length in extents:
            if offset != position:
                raise CorruptArchiveError("the frames overlap or leave a part of the original out")
            position += length
        yield range(first, number + 1)
        start, first, covered, extents = reach, number + 1, 0, []
    if extents or start != index.original_size:
        raise CorruptArchiveError("the frames leave a part of the original out")
