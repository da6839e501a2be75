"""Compress one file: read its windows, code them in threads, write, verify, and only then name the result."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nvckpt import files
from nvckpt.codecs import blocks, device, registry
from nvckpt.decompression import decode_all
from nvckpt.derivation import find_runs
from nvckpt.engines import EncodeJob, Engine, engine_for_decoding, engine_for_encoding, shrinking_told
from nvckpt.errors import InvalidRequestError, MalformedSourceError, SourceChangedError, VerificationError
from nvckpt.formats.atomic import AtomicFile, OutputFile
from nvckpt.formats.byte_source import ByteSource, FileBytes
from nvckpt.formats.checksum import FileHash
from nvckpt.formats.container import ArchiveReader, ArchiveWriter, is_archive
from nvckpt.formats.errors import FormatError
from nvckpt.formats.index import Description, Index
from nvckpt.formats.segments import Source
from nvckpt.formats.sniff import read_source
from nvckpt.limits import check_memory, check_threads, reading_allowance
from nvckpt.pipeline import thread_count
from nvckpt.plan import WINDOW, windows
from nvckpt.results import CompressResult, describe, group_sizes
from nvckpt.stages import Stages
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
        check_threads(self.threads)
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
    work = Work(progress)
    name = os.fspath(source)
    target_name = os.fspath(output) if output is not None else default_output(name)
    with files.transfer(name, target_name, force=options.force, remove=options.remove) as (opened, target):
        parsed = read_source(opened.data, opened.path, reading_allowance(options.max_memory))
        if options.strict and parsed.warnings:
            raise MalformedSourceError(parsed.warnings[0])
        choice = blocks.Choice(options.codec, options.level)
        engine = engine_for_encoding(options.device, parsed.size, choice, options.threads, options.max_memory)
        with files.open_output(target) as file:
            if engine.device != "cpu":
                file.use_threads(thread_count(options.threads))
            index, size = write_archive(opened.data, parsed, file, engine, options, work)
            opened.check_unchanged()
            if isinstance(file, AtomicFile):
                if options.remove:
                    file.settle()
                # What a GPU coded was decoded there; before the source goes, the file is read back all the same.
                if options.verify and (engine.device == "cpu" or options.remove):
                    verify_written(file, index, options, work.stages, opened.data)
                file.commit(opened.attributes, overwrite=options.force)
        if options.remove:
            check_still(opened.data, index.original_hash)
    return result_of(name, target_name, parsed, index, size, engine, options, work)


def result_of(
    name: str,
    output: str,
    source: Source,
    index: Index,
    size: int,
    engine: Engine,
    options: CompressOptions,
    work: "Work",
) -> CompressResult:
    """Tell of a finished archive of `size` bytes."""
    return CompressResult(
        name,
        output,
        source.format,
        source.size,
        size,
        time.perf_counter() - work.started,
        engine.device,
        options.codec,
        index.original_hash.hex(),
        options.verify,
        group_sizes(describe(index, source.segments), size),
        source.warnings,
        work.stages.report(),
    )


@dataclass(frozen=True, slots=True)
class Work:
    """What is told about the work while it goes on, and afterwards."""

    progress: Progress | None
    stages: Stages = field(default_factory=Stages)
    started: float = field(default_factory=time.perf_counter)


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


def write_archive(
    data: ByteSource,
    source: Source,
    sink: OutputFile,
    engine: Engine,
    options: CompressOptions,
    work: Work,
    *,
    derive: bool = True,
) -> tuple[Index, int]:
    """Write the whole archive of `data`, which was understood as `source`; returns its index and size.

    `derive` looks for tensors that follow from others, which reads samples of all.
    """
    writer = ArchiveWriter(sink)
    # A pipe cannot be read back, so there each block is decoded right after it was coded, as a GPU always does.
    verify = options.verify and (engine.device != "cpu" or not isinstance(sink, AtomicFile))
    choice = blocks.Choice(options.codec, options.level)
    with shrinking_told():
        runs = find_runs(source.segments, data) if derive and options.codec == registry.AUTO else {}
    job = EncodeJob(data, windows(source.segments, runs), choice, verify, stages=work.stages)
    for end, frames in engine.encode(job):
        before = writer.size
        with work.stages.timed("write", 0):
            writer.add_frames(frames)
        work.stages.add("write", writer.size - before, 0.0)
        if work.progress:
            work.progress(end, source.size)
    description = Description(source.segments, f"nvckpt {__version__}")
    index = writer.finish(source.size, job.file_hash.digest(), source.format, description)
    return index, writer.size


def check_still(data: FileBytes, expected: bytes) -> None:
    """SourceChangedError unless the source, read once more, has this hash: a write through a mapping moves no time."""
    file_hash = FileHash()
    for offset in range(0, data.size, WINDOW):
        file_hash.update(data.read_at(offset, min(WINDOW, data.size - offset)))
    if file_hash.digest() != expected:
        raise SourceChangedError(
            "the file changed while it was read; it was not removed, and its archive is out of date"
        )


def verify_written(
    file: AtomicFile, index: Index, options: CompressOptions, stages: Stages, source: FileBytes | None = None
) -> None:
    """Read an archive back from its file and decode it; VerificationError unless it gives the source's hash.

    What frames refer to is read from the source, if it is given: the hash tells that the archive restores the same.
    """
    started = time.perf_counter()
    try:
        reader = ArchiveReader(FileBytes(file.descriptor))
        engine = engine_for_decoding(options.device, reader, options.threads, options.max_memory)
        digest = decode_all(reader, engine, known=source)
        _ = reader.description  # what cannot be listed is not kept either
    except FormatError as error:
        raise VerificationError(f"the archive did not verify and was not kept: {error}") from error
    if digest != index.original_hash or reader.index.original_hash != digest:
        raise VerificationError("the archive did not decode to the source and was not kept")
    stages.add("read back", reader.size, time.perf_counter() - started)
