"""Restore a file from an archive, or check that it could be restored."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nvckpt import files
from nvckpt.codecs import device
from nvckpt.engines import Engine, engine_for_decoding
from nvckpt.errors import InvalidRequestError, OutputTooLargeError
from nvckpt.formats.atomic import AtomicFile, OutputFile
from nvckpt.formats.byte_source import FileBytes
from nvckpt.formats.checksum import FileHash
from nvckpt.formats.container import ArchiveReader
from nvckpt.formats.errors import CorruptArchiveError, FormatError, NotAnArchiveError, UnsupportedArchiveError
from nvckpt.formats.layout import Extent
from nvckpt.formats.segments import Segment
from nvckpt.frames import references_of
from nvckpt.limits import archive_allowance, check_memory, check_threads
from nvckpt.pipeline import thread_count
from nvckpt.results import Damage, DecompressResult, touched
from nvckpt.stages import Stages

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
        check_threads(self.threads)


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
        reader = ArchiveReader(opened.data, archive_allowance(options.max_memory))
        check_size(reader.index.original_size, options.max_output)
        engine, stages = _engine(reader, options), Stages()
        with files.open_output(target, sparse=options.sparse) as file:
            if isinstance(file, AtomicFile):
                files.check_space(file.descriptor, _least_size(reader, options.sparse))
                if engine.device != "cpu":
                    file.use_threads(thread_count(options.threads))
            decode_all(reader, engine, file, progress, stages=stages)
            opened.check_unchanged()
            if isinstance(file, AtomicFile):
                file.commit(opened.attributes, overwrite=options.force)
    return _result(reader, name, target_name, started, engine.device, stages)


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
            reader = ArchiveReader(opened.data, archive_allowance(options.max_memory))
        except (CorruptArchiveError, NotAnArchiveError) as error:
            from nvckpt.recovery import examine

            return examine(opened.data, name, error, options)
        engine, stages = _engine(reader, options), Stages()
        damage: list[Damage] = []
        try:
            decode_all(reader, engine, None, progress, damage.append, stages)
        except CorruptArchiveError as error:
            damage.append(Damage((), 0, reader.index.original_size, str(error)))
        return _result(reader, name, "", started, engine.device, stages, tuple(damage))


def decode_all(
    reader: ArchiveReader,
    engine: Engine,
    sink: OutputFile | None = None,
    progress: Progress | None = None,
    on_damage: Callable[[Damage], None] | None = None,
    stages: Stages | None = None,
    known: FileBytes | None = None,
) -> bytes:
    """Decode every frame in order into `sink`, and return the hash of the original.

    `known` is a file with the original's bytes, where there is one: what frames refer to is then read from it.
    CorruptArchiveError names the first damaged part; with `on_damage` each is reported there instead,
    and the rest is still decoded. UnsupportedArchiveError names what this version cannot decode.
    """
    stages = stages or Stages()
    file_hash = FileHash()
    damaged = False
    references = references_of(reader)
    written = FileBytes(sink.descriptor) if isinstance(sink, AtomicFile) and on_damage is None else None
    references.restored = known or written

    def hash_window(data: memoryview) -> None:
        with stages.timed("hash", len(data)):
            file_hash.update(data)

    with ThreadPoolExecutor(1, "nvckpt-hash") as hasher:
        for window in engine.decode(reader, references, stages):
            for number, error in window.damage:
                damage = damage_of(reader, number, str(error))
                if on_damage is None or isinstance(error, UnsupportedArchiveError):
                    raise type(error)(damage.sentence()) from error
                on_damage(damage)
                damaged = True
            if window.data is not None:
                hashing = hasher.submit(hash_window, window.data)
                if sink is not None:
                    with stages.timed("write", len(window.data)):
                        sink.write(window.data)
                hashing.result()
                if written is not None:
                    written.size += len(window.data)
            if progress:
                progress(window.end, reader.index.original_size)
    reader.check_tail()
    digest = file_hash.digest()
    if not damaged and digest != reader.index.original_hash:
        raise CorruptArchiveError("the restored file does not have the hash of the original")
    return digest


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


def _engine(reader: ArchiveReader, options: DecompressOptions) -> Engine:
    return engine_for_decoding(options.device, reader, options.threads, options.max_memory)


def _result(
    reader: ArchiveReader,
    source: str,
    output: str,
    started: float,
    device: str,
    stages: Stages,
    damage: tuple[Damage, ...] = (),
) -> DecompressResult:
    return DecompressResult(
        source,
        output,
        reader.index.source_format,
        reader.size,
        reader.index.original_size,
        time.perf_counter() - started,
        device,
        reader.index.original_hash.hex(),
        damage,
        stages.report(),
    )
