"""Compress one file: read its windows, code them in threads, write, verify, and only then name the result."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvckpt import files
from nvckpt.codecs import blocks, device, registry
from nvckpt.codecs.base import Buffer
from nvckpt.decompression import decode_all
from nvckpt.derivation import find_runs
from nvckpt.errors import InvalidRequestError, MalformedSourceError, SourceChangedError, VerificationError
from nvckpt.formats.atomic import AtomicFile, OutputFile
from nvckpt.formats.byte_source import ByteSource, FileBytes
from nvckpt.formats.checksum import FileHash, checksum
from nvckpt.formats.container import ArchiveReader, ArchiveWriter, is_archive, payload_checksum
from nvckpt.formats.errors import FormatError, MalformedCheckpointError
from nvckpt.formats.index import Description, Index
from nvckpt.formats.layout import Extent, FrameHeader, Reference, StreamRecord
from nvckpt.formats.segments import Source
from nvckpt.formats.sniff import read_source
from nvckpt.limits import check_memory
from nvckpt.pipeline import ordered_map, thread_count
from nvckpt.plan import WINDOW, BlockPlan, Window, windows
from nvckpt.results import CompressResult, describe, group_sizes
from nvckpt.version import __version__

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


@dataclass(frozen=True, slots=True)
class CompressOptions:
    """How to compress; checked when it is made, so that nothing is read for a request that cannot work.

    `codec` is a name of the registry, `level` fast, default, max or the codec's own number, `device`
    auto, cpu or cuda, `threads` 0 for one a core. `verify` decodes what was written before it gets its name, `strict`
    refuses files that are not sound checkpoints, `remove` deletes the source after a verified success.
    `max_memory` is in bytes, 0 for half of the machine's.
    """

    codec: str = registry.AUTO
    level: registry.Level = "default"
    device: str = "auto"
    threads: int = 0
    force: bool = False
    verify: bool = True
    strict: bool = False
    remove: bool = False
    max_memory: int = 0

    def __post_init__(self) -> None:
        """Raise the sentence for whatever cannot be."""
        device.resolve(self.device)
        blocks.Choice(self.codec, self.level)
        check_memory(self.max_memory)
        if self.remove and not self.verify:
            raise InvalidRequestError("a source is only removed after verification: drop --no-verify or --rm")


def default_output(source: str) -> str:
    """Return the archive's name for a source: the suffix is added, `-` stays a pipe."""
    return files.PIPE if source == files.PIPE else source + files.SUFFIX


def compress(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    options: CompressOptions | None = None,
    progress: Progress | None = None,
) -> CompressResult:
    """Compress `source` into the archive `output` (default: the name with `.nvckpt` added).

    `-` stands for standard input and output. The source is never touched, except by `remove`. Raises
    one of `nvckpt.errors.KNOWN_ERRORS`; then nothing new exists under the output's name, unless only the removal
    failed, which the sentence says.
    """
    options = options or CompressOptions()
    started = time.perf_counter()
    name = os.fspath(source)
    target_name = os.fspath(output) if output is not None else default_output(name)
    with files.transfer(name, target_name, force=options.force, remove=options.remove) as (opened, target):
        parsed = read_source(opened.data, opened.path)
        if options.strict and parsed.warnings:
            raise MalformedSourceError(parsed.warnings[0])
        with files.open_output(target) as file:
            index, size = write_archive(opened.data, parsed, file, options, progress)
            opened.check_unchanged()
            if isinstance(file, AtomicFile):
                if options.remove:
                    file.settle()
                if options.verify:
                    verify_written(file, index, options.threads, opened.data)
                file.commit(opened.attributes, overwrite=options.force)
        if options.remove:
            check_still(opened.data, index.original_hash)
    return CompressResult(
        name,
        target_name,
        parsed.format,
        parsed.size,
        size,
        time.perf_counter() - started,
        device.resolve(options.device),
        options.codec,
        index.original_hash.hex(),
        options.verify,
        group_sizes(describe(index, parsed.segments), size),
        parsed.warnings,
    )


def already_compressed(source: str) -> bool:
    """Tell whether a file is an archive already; False for pipes and what cannot be read."""
    path = Path(source)
    try:
        if source == files.PIPE or not path.is_file():
            return False
        with path.open("rb") as file:
            return is_archive(file.read(8))
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _Task:
    plan: BlockPlan
    window: bytes
    window_start: int
    choice: blocks.Choice
    verify: bool
    data: ByteSource


def write_archive(
    data: ByteSource, source: Source, sink: OutputFile, options: CompressOptions, progress: Progress | None
) -> tuple[Index, int]:
    """Write the whole archive of `data`, which was understood as `source`; returns its index and size."""
    writer = ArchiveWriter(sink)
    file_hash = FileHash()
    choice = blocks.Choice(options.codec, options.level)
    # A pipe cannot be read back, so there each block is decoded right after it was coded.
    verify_blocks = options.verify and not isinstance(sink, AtomicFile)

    def tasks(window: Window) -> Iterator[_Task]:
        content = _read(data, window.start, window.end - window.start)
        file_hash.update(content)
        for plan in window.blocks:
            yield _Task(plan, content, window.start, choice, verify_blocks, data)

    with _shrinking_told():
        runs = find_runs(source.segments, data) if options.codec == registry.AUTO else {}
    coded = ordered_map(windows(source.segments, runs), tasks, _encode, thread_count(options.threads))
    for window, frames in coded:
        for header, streams in frames:
            writer.add_frame(header, streams)
        if progress:
            progress(window.end, source.size)
    description = Description(source.segments, f"nvckpt {__version__}")
    index = writer.finish(source.size, file_hash.digest(), source.format, description)
    return index, writer.size


@contextlib.contextmanager
def _shrinking_told() -> Iterator[None]:
    try:
        yield
    except MalformedCheckpointError as error:
        raise SourceChangedError("the file became shorter while it was read; nothing was written") from error


def _read(data: ByteSource, offset: int, length: int) -> bytes:
    with _shrinking_told():
        return data.read_at(offset, length)


def _encode(task: _Task) -> tuple[FrameHeader, list[Buffer]]:
    """Gather a block's bytes from its window, code them, and describe the result as a frame."""
    data = _gather(task)
    origin = task.plan.origin
    references = _read_ranges(task.data, origin.ranges) if origin else b""
    block = blocks.encode_derived(data, origin, references, task.plan.content, task.choice) if origin else None
    if block is not None:
        restored = blocks.decode_derived(block, len(data), references) if task.verify else None
    else:
        origin = None
        block = blocks.encode(data, task.plan.content, task.choice)
        restored = blocks.decode(block, len(data)) if task.verify else None
    if restored is not None and restored != data:
        raise VerificationError(f"codec '{task.choice.codec}' did not give the same bytes back")
    streams = [stream.data for stream in block.streams]
    header = FrameHeader(
        block.transform_id,
        block.transform_param,
        tuple(
            StreamRecord(s.codec_id, s.codec_param, s.library_version, s.original_size, len(s.data))
            for s in block.streams
        ),
        task.plan.extents,
        payload_checksum(streams),
        checksum(data),
        tuple(Reference(0, offset, length) for offset, length in origin.ranges) if origin else (),
    )
    return header, streams


def _read_ranges(data: ByteSource, ranges: Sequence[Extent]) -> bytes:
    pieces = [_read(data, offset, length) for offset, length in ranges]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _gather(task: _Task) -> memoryview:
    window = memoryview(task.window)
    pieces = [
        window[offset - task.window_start : offset - task.window_start + length] for offset, length in task.plan.extents
    ]
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


def check_still(data: FileBytes, expected: bytes) -> None:
    """SourceChangedError unless the source, read once more, has this hash: a write through a mapping moves no time."""
    file_hash = FileHash()
    for offset in range(0, data.size, WINDOW):
        file_hash.update(data.read_at(offset, min(WINDOW, data.size - offset)))
    if file_hash.digest() != expected:
        raise SourceChangedError(
            "the file changed while it was read; it was not removed, and its archive is out of date"
        )


def verify_written(file: AtomicFile, index: Index, threads: int, source: FileBytes | None = None) -> None:
    """Read an archive back from its file and decode it; VerificationError unless it gives the source's hash.

    What frames refer to is read from the source, if it is given: the hash tells that the archive restores the same.
    """
    try:
        reader = ArchiveReader(FileBytes(file.descriptor))
        digest = decode_all(reader, threads, known=source)
        _ = reader.description  # what cannot be listed is not kept either
    except FormatError as error:
        raise VerificationError(f"the archive did not verify and was not kept: {error}") from error
    if digest != index.original_hash or reader.index.original_hash != digest:
        raise VerificationError("the archive did not decode to the source and was not kept")
