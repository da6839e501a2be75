"""Restore a file from an archive, or check that it could be restored."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvckpt import files
from nvckpt.codecs import blocks, device
from nvckpt.codecs.errors import CodecError, CorruptChunkError
from nvckpt.errors import InvalidRequestError, OutputTooLargeError
from nvckpt.formats.atomic import AtomicFile, OutputFile
from nvckpt.formats.byte_source import FileBytes
from nvckpt.formats.checksum import FileHash, checksum
from nvckpt.formats.container import ArchiveReader, FrameReader
from nvckpt.formats.errors import CorruptArchiveError, FormatError, NotAnArchiveError, UnsupportedArchiveError
from nvckpt.formats.layout import Extent, FrameHeader
from nvckpt.formats.segments import Segment
from nvckpt.limits import check_memory
from nvckpt.pipeline import ordered_map, thread_count
from nvckpt.references import References
from nvckpt.results import Damage, DecompressResult, touched

Progress = Callable[[int, int], None]

# A frame of zeros shrinks by far more than this, one of numbers by far less.
_HOLES_SHRINK = 64


@dataclass(frozen=True, slots=True)
class DecompressOptions:
    """How to decompress; `remove` deletes the archive after success, `sparse` leaves holes for zeros.

    `max_memory` is in bytes, 0 for half of the machine's. An archive that restores to more than `max_output` bytes is
    refused, 0 for no bound.
    """

    device: str = "auto"
    threads: int = 0
    force: bool = False
    remove: bool = False
    max_memory: int = 0
    max_output: int = 0
    sparse: bool = True

    def __post_init__(self) -> None:
        """Raise the sentence for a device that cannot be used."""
        device.resolve(self.device)
        check_memory(self.max_memory)


def default_output(archive: str) -> str:
    """Return the name without `.nvckpt`; InvalidRequestError when there is no such suffix to take off."""
    if archive == files.PIPE:
        return files.PIPE
    if not archive.endswith(files.SUFFIX) or Path(archive).name == files.SUFFIX:
        raise InvalidRequestError(f"the name does not end in {files.SUFFIX}; name the output with -o")
    return archive.removesuffix(files.SUFFIX)


def decompress(
    archive: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    options: DecompressOptions | None = None,
    progress: Progress | None = None,
) -> DecompressResult:
    """Restore the original of `archive` as `output` (default: the name without `.nvckpt`), bit for bit.

    `-` stands for standard input and output. Raises one of `nvckpt.errors.KNOWN_ERRORS`; then nothing
    new exists under the output's name (a pipe may have received a part, and the error says so by failing).
    """
    options = options or DecompressOptions()
    started = time.perf_counter()
    name = os.fspath(archive)
    target_name = os.fspath(output) if output is not None else default_output(name)
    with files.transfer(name, target_name, force=options.force, remove=options.remove) as (opened, target):
        reader = ArchiveReader(opened.data)
        check_size(reader.index.original_size, options.max_output)
        with files.open_output(target, sparse=options.sparse) as file:
            if isinstance(file, AtomicFile):
                files.check_space(file.descriptor, _least_size(reader, options.sparse))
            decode_all(reader, options.threads, file, progress)
            opened.check_unchanged()
            if isinstance(file, AtomicFile):
                file.commit(opened.attributes, overwrite=options.force)
    return _result(reader, name, target_name, started, options.device)


def check_size(size: int, most: int) -> None:
    """OutputTooLargeError when an output of `size` bytes is more than `most`; 0 allows any."""
    if most and size > most:
        raise OutputTooLargeError(
            f"the archive restores to {size} bytes, more than the {most} allowed; --max-output allows more"
        )


def _least_size(reader: ArchiveReader, sparse: bool) -> int:
    """Return the bytes that the original takes on a disk at least, as far as the index tells.

    With `sparse`, what shrank to next to nothing may be holes.
    """
    headers = (frame.header for frame in reader.frames)
    if not sparse:
        return reader.index.original_size
    return sum(h.original_size for h in headers if h.payload_size * _HOLES_SHRINK > h.original_size)


def verify(
    archive: str | os.PathLike[str],
    options: DecompressOptions | None = None,
    progress: Progress | None = None,
) -> DecompressResult:
    """Decode everything and write nothing; `damage` of the result has an entry for each damaged part.

    FormatError when the archive cannot be opened at all.
    """
    options = options or DecompressOptions()
    started = time.perf_counter()
    name = os.fspath(archive)
    with files.open_input(name, follow=True) as opened:
        try:
            reader = ArchiveReader(opened.data)
        except (CorruptArchiveError, NotAnArchiveError) as error:
            from nvckpt.recovery import examine

            return examine(opened.data, name, error, options)
        damage: list[Damage] = []
        try:
            decode_all(reader, options.threads, None, progress, damage.append)
        except CorruptArchiveError as error:
            damage.append(Damage((), 0, reader.index.original_size, str(error)))
        return _result(reader, name, "", started, options.device, tuple(damage))


def decode_all(
    reader: ArchiveReader,
    threads: int,
    sink: OutputFile | None = None,
    progress: Progress | None = None,
    on_damage: Callable[[Damage], None] | None = None,
    known: FileBytes | None = None,
) -> bytes:
    """Decode every frame in order into `sink`, and return the hash of the original.

    `known` is a file with the original's bytes, where there is one: what frames refer to is then read from it.
    CorruptArchiveError names the first damaged part; with `on_damage` each is reported there instead,
    and the rest is still decoded. UnsupportedArchiveError names what this version cannot decode.
    """
    index = reader.index
    file_hash = FileHash()
    damaged = False
    references = references_of(reader)
    written = FileBytes(sink.descriptor) if isinstance(sink, AtomicFile) and on_damage is None else None
    references.restored = known or written

    def decode(number: int) -> memoryview | FormatError:
        try:
            return decode_frame(reader, number, references)
        except FormatError as error:
            return error

    for window, frames in ordered_map(reader.windows(), lambda numbers: numbers, decode, thread_count(threads)):
        for number, result in zip(window, frames, strict=True):
            if isinstance(result, FormatError):
                damage = damage_of(reader, number, str(result))
                if on_damage is None or isinstance(result, UnsupportedArchiveError):
                    raise type(result)(damage.sentence()) from result
                on_damage(damage)
                damaged = True
        restored = _assemble(reader, window, [f for f in frames if not isinstance(f, FormatError)])
        if restored is not None:
            file_hash.update(restored)
            if sink is not None:
                sink.write(restored)
            if written is not None:
                written.size += len(restored)
        if progress:
            progress(_end(reader, window), index.original_size)
    reader.check_tail()
    digest = file_hash.digest()
    if not damaged and digest != index.original_hash:
        raise CorruptArchiveError("the restored file does not have the hash of the original")
    return digest


def references_of(reader: FrameReader) -> References:
    """Return what resolves the references of an archive's frames; share it between calls of `decode_frame`."""
    references = References(reader, lambda number: decode_frame(reader, number, references))
    return references


def decode_frame(reader: FrameReader, number: int, references: References | None = None) -> memoryview:
    """Return the original bytes of one frame, checked at every step."""
    header = reader.frames[number].header
    try:
        block = _block(header, reader.read_payload(number))
        if header.references:
            blocks.check_derived(block, header.original_size, sum(r.length for r in header.references))
            source = (references or references_of(reader)).read(number)
            data = blocks.decode_derived(block, header.original_size, source)
        else:
            data = blocks.decode(block, header.original_size)
        if checksum(data) != header.original_checksum:
            raise CorruptArchiveError("the decoded bytes have another checksum than the original's")
    except CorruptChunkError as error:
        raise CorruptArchiveError(str(error)) from error
    except CodecError as error:
        raise UnsupportedArchiveError(str(error)) from error
    return data


def _block(header: FrameHeader, payload: memoryview) -> blocks.Block:
    streams = tuple(
        blocks.Stream(
            s.codec_id, s.original_size, payload[start : start + s.encoded_size], s.codec_param, s.library_version
        )
        for s, start in zip(header.streams, header.stream_starts(), strict=True)
    )
    return blocks.Block(header.transform_id, header.transform_param, streams)


def damage_of(reader: ArchiveReader, number: int, reason: str) -> Damage:
    """Tell what a frame would have restored: its tensors, where they can be told, and the range they lie in."""
    extents = reader.frames[number].header.extents
    first, end = extents[0][0], sum(extents[-1])
    try:
        names = tuple(_names(reader.description.segments, extents))
    except FormatError:
        names = ()
    return Damage(names, first, end - first, reason)


def _names(segments: Sequence[Segment], extents: Sequence[Extent]) -> Iterator[str]:
    for number, _ in touched(segments, extents):
        segment = segments[number]
        if segment.dtype:
            yield segment.views[0].name if segment.views else f"tensor at {segment.offset}"


def _assemble(reader: ArchiveReader, window: range, frames: list[memoryview]) -> memoryview | None:
    """Put the frames of a window in their places; None when one is missing."""
    if len(frames) < len(window):
        return None
    headers = [reader.frames[number].header for number in window]
    if len(headers) == 1:
        return frames[0]
    start = min(header.extents[0][0] for header in headers)
    restored = memoryview(bytearray(_end(reader, window) - start))
    for header, data in zip(headers, frames, strict=True):
        for (offset, length), piece in zip(header.extents, _cut(header.extents, data), strict=True):
            restored[offset - start : offset - start + length] = piece
    return restored


def _cut(extents: Iterable[Extent], data: memoryview) -> Iterator[memoryview]:
    position = 0
    for _, length in extents:
        yield data[position : position + length]
        position += length


def _end(reader: ArchiveReader, window: range) -> int:
    return max(sum(reader.frames[number].header.extents[-1]) for number in window)


def _result(
    reader: ArchiveReader, source: str, output: str, started: float, asked: str, damage: tuple[Damage, ...] = ()
) -> DecompressResult:
    return DecompressResult(
        source,
        output,
        reader.index.source_format,
        reader.size,
        reader.index.original_size,
        time.perf_counter() - started,
        device.resolve(asked),
        reader.index.original_hash.hex(),
        damage,
    )
