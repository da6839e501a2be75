"""Rescue what is left of a damaged archive: the undamaged ranges at their places, and a list of the lost ones."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from nvckpt import decompression, files
from nvckpt.decompression import DecompressOptions, Progress
from nvckpt.errors import InvalidRequestError
from nvckpt.formats.atomic import AtomicFile
from nvckpt.formats.byte_source import ByteSource, FileBytes
from nvckpt.formats.checksum import FileHash
from nvckpt.formats.errors import CorruptArchiveError, FormatError, NotAnArchiveError
from nvckpt.formats.layout import Extent, FrameHeader
from nvckpt.formats.opaque import SAFETENSORS
from nvckpt.formats.recovery import Remains, ends_as_archive, find_remains
from nvckpt.formats.segments import Segment
from nvckpt.formats.sniff import read_source
from nvckpt.frames import decode_frame, references_of
from nvckpt.pipeline import ordered_map, thread_count
from nvckpt.results import Damage, DecompressResult, RescueResult, touched

MARK = ".rescued"
"""What a rescued file's name ends in, so that nobody takes it for the whole."""

_DEVICE = "cpu"
_STEP = 32 << 20
_GONE = "its compressed bytes were not found"
_BEHIND = "the end of the archive is lost"
# Larger than any file: what a header promises is not cut to what was rescued.
_ENDLESS = 1 << 62


def default_output(archive: str) -> str:
    """Return the original's name with MARK; InvalidRequestError when the archive's name does not tell it."""
    if archive == files.PIPE:
        raise InvalidRequestError("name the output of a rescue from standard input with -o")
    return decompression.default_output(archive) + MARK


def rescue(
    archive: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    options: DecompressOptions | None = None,
    progress: Progress | None = None,
) -> RescueResult:
    """Write every range of the original that `archive` still holds to its place in `output`; the rest reads as zeros.

    The default name is the original's with `.rescued` added. `damage` of the result lists what was lost, and `is_whole`
    tells whether the output has the original's hash. Raises one of `nvckpt.errors.KNOWN_ERRORS`, and then nothing is
    written: CorruptArchiveError when nothing at all could be rescued.
    """
    options = options or DecompressOptions()
    if options.remove:
        raise InvalidRequestError("an archive that needed a rescue is not removed: drop --rm")
    if options.device not in ("auto", _DEVICE):
        raise InvalidRequestError("a rescue runs on the CPU: drop --device")
    started = time.perf_counter()
    name = os.fspath(archive)
    target_name = os.fspath(output) if output is not None else default_output(name)
    with files.transfer(name, target_name, force=options.force, remove=False) as (opened, target):
        if target is None:
            raise InvalidRequestError("--rescue needs an output file: lost ranges are left out of it")
        remains = find_remains(opened.data)
        decompression.check_size(remains.size, options.max_output)
        with files.open_output(target) as file:
            if not isinstance(file, AtomicFile):
                raise InvalidRequestError("--rescue needs an output file: lost ranges are left out of it")
            files.check_space(file.descriptor, min(remains.size, _good_size(remains)))
            salvage = restore(remains, options.threads, file, progress)
            if not salvage.good_frames and (remains.size or remains.index is None):
                _nothing_left(remains, salvage)
            os.ftruncate(file.descriptor, remains.size)
            contents = _contents(remains, FileBytes(file.descriptor))
            decompression.check_size(contents.size, options.max_output)
            os.ftruncate(file.descriptor, contents.size)
            if contents.size > remains.size:
                salvage.lost.append((remains.size, contents.size - remains.size, _BEHIND))
            damage = salvage.damage(contents)
            is_whole = remains.index is not None and not damage and _hash(file) == remains.index.original_hash
            if remains.index and not damage and not is_whole:
                damage = (Damage((), 0, contents.size, "the restored file does not have the hash of the original"),)
            opened.check_unchanged()
            file.commit(opened.attributes, overwrite=options.force)
    return RescueResult(
        name,
        target_name,
        contents.format,
        opened.data.size,
        contents.size,
        time.perf_counter() - started,
        _DEVICE,
        remains.index.original_hash.hex() if remains.index else None,
        damage,
        remains.problems,
        salvage.good_bytes,
        salvage.good_frames,
        remains.size_is_known,
        is_whole,
    )


def examine(data: ByteSource, name: str, error: FormatError, options: DecompressOptions) -> DecompressResult:
    """Tell what `verify` can of an archive that does not open, because of `error`.

    When the index is lost, the error is raised again and says what could be rescued. A file without any mark of an
    archive is not searched.
    """
    started = time.perf_counter()
    if isinstance(error, NotAnArchiveError) and not ends_as_archive(data):
        raise error
    remains = find_remains(data)
    salvage = restore(remains, options.threads)
    index = remains.index
    if index is None:
        if not salvage.good_frames:
            raise error
        frames = f"{salvage.good_frames} frame{'s' * (salvage.good_frames != 1)} of {salvage.good_bytes} bytes"
        raise type(error)(f"{error}; {frames} can still be rescued with decompress --rescue") from error
    contents = _Contents(remains.segments, index.source_format, index.original_size)
    lost = salvage.damage(contents)
    around = tuple(Damage((), 0, index.original_size, problem) for problem in remains.problems)
    return DecompressResult(
        name,
        "",
        index.source_format,
        data.size,
        index.original_size,
        time.perf_counter() - started,
        _DEVICE,
        index.original_hash.hex(),
        (*around, *lost) or (Damage((), 0, index.original_size, str(error)),),
    )


class Positioned(Protocol):
    """Where restored ranges go, in any order."""

    def write_at(self, data: memoryview, offset: int) -> object:
        """Put all of `data` at a position."""
        ...


@dataclass(frozen=True, slots=True)
class _Contents:
    """What the original is, as far as known."""

    segments: Sequence[Segment]
    format: str
    size: int


@dataclass(slots=True)
class Salvage:
    """What decoding gave: sums of the sound frames, and each lost range with its reason."""

    good_frames: int = 0
    good_bytes: int = 0
    lost: list[tuple[int, int, str]] = field(default_factory=list)

    def damage(self, contents: _Contents) -> tuple[Damage, ...]:
        """Return the lost ranges in order, neighbours of one reason joined, with the names of what lies in them."""
        joined: list[tuple[int, int, str]] = []
        for offset, length, reason in sorted(self.lost):
            if joined and joined[-1][0] + joined[-1][1] == offset and joined[-1][2] == reason:
                joined[-1] = (joined[-1][0], joined[-1][1] + length, reason)
            else:
                joined.append((offset, length, reason))
        return tuple(
            Damage(names_in(contents.segments, (offset, length)), offset, length, reason)
            for offset, length, reason in joined
        )


def names_in(segments: Sequence[Segment], extent: Extent) -> tuple[str, ...]:
    """Return every name of every tensor that a range touches."""
    names: list[str] = []
    for number, _ in touched(segments, (extent,)):
        segment = segments[number]
        if segment.dtype:
            names += [view.name for view in segment.views] or [f"tensor at {segment.offset}"]
    return tuple(names)


def restore(
    remains: Remains, threads: int, file: Positioned | None = None, progress: Progress | None = None
) -> Salvage:
    """Decode every frame there is, into its place in `file`."""
    salvage = Salvage(lost=[(offset, length, _GONE) for offset, length in remains.gaps])
    references = references_of(remains)

    def decode(number: int) -> tuple[FrameHeader, memoryview | FormatError]:
        header = remains.frames[number].header
        try:
            return header, decode_frame(remains, number, references)
        except FormatError as error:
            return header, error

    for _, [(header, data)] in ordered_map(
        range(len(remains.frames)), lambda number: [number], decode, thread_count(threads)
    ):
        if isinstance(data, FormatError):
            salvage.lost += [(offset, length, str(data)) for offset, length in header.extents]
            continue
        salvage.good_frames += 1
        salvage.good_bytes += header.original_size
        if file is not None:
            for offset, piece in _pieces(header.extents, data):
                file.write_at(piece, offset)
        if progress:
            progress(salvage.good_bytes, remains.size)
    return salvage


def _pieces(extents: Iterable[Extent], data: memoryview) -> Iterator[tuple[int, memoryview]]:
    position = 0
    for offset, length in extents:
        yield offset, data[position : position + length]
        position += length


def _good_size(remains: Remains) -> int:
    """Return the bytes that will be written at most: what is lost takes no room."""
    return remains.size - sum(length for _, length in remains.gaps)


def _nothing_left(remains: Remains, salvage: Salvage) -> NoReturn:
    reason = remains.problems[0] if remains.problems else salvage.lost[0][2]
    raise CorruptArchiveError(f"nothing could be rescued: {reason}")


class _Endless:
    """A rescued file, read as if it were not cut: its own header may tell what is missing behind its end."""

    size = _ENDLESS

    def __init__(self, data: ByteSource) -> None:
        self._data = data

    def read_at(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        return self._data.read_at(offset, length)


def _contents(remains: Remains, rescued: FileBytes) -> _Contents:
    """Return what the index says, or else what the rescued bytes say of themselves.

    The header of a safetensors file tells names and size even when the rest is gone.
    """
    if remains.segments and remains.index:
        return _Contents(remains.segments, remains.index.source_format, remains.size)
    source = read_source(rescued if remains.size_is_known else _Endless(rescued))
    if not remains.size_is_known:
        ends = [segment.end for segment in source.segments if segment.dtype]
        if source.format == SAFETENSORS and ends:
            return _Contents(source.segments[:-1], source.format, max(remains.size, *ends))
        source = read_source(rescued)
    return _Contents(source.segments, remains.index.source_format if remains.index else source.format, remains.size)


def _hash(file: AtomicFile) -> bytes:
    """Read what was written back, and return its hash."""
    data, file_hash = FileBytes(file.descriptor), FileHash()
    for offset in range(0, data.size, _STEP):
        file_hash.update(data.read_at(offset, min(_STEP, data.size - offset)))
    return file_hash.digest()
