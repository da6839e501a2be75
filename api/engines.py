"""What codes the windows of a file: threads on the CPU, or a GPU with threads around it. Both give the same frames."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from nvckpt.codecs import blocks, derived_blocks, device, nvcomp_formats, registry
from nvckpt.codecs.errors import CodecUnavailableError, InvalidLevelError
from nvckpt.codecs.memory import same_bytes, unfilled
from nvckpt.errors import SourceChangedError, VerificationError
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.checksum import FileHash, checksum
from nvckpt.formats.container import ArchiveReader, payload_checksum
from nvckpt.formats.errors import FormatError, MalformedCheckpointError
from nvckpt.frames import Frame, decode_frame, frame_of
from nvckpt.limits import memory_limit
from nvckpt.pipeline import affordable_threads, ordered_map, thread_count
from nvckpt.plan import WINDOW, BlockPlan, Window
from nvckpt.references import References
from nvckpt.stages import Stages

# Bytes a GPU works on at a time where memory allows. Not swept: its stages were busy for a fifth of the time with it.
_BATCH = 128 << 20


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """A file to code. `file_hash` is fed with all of it in order; `verify` decodes every block after coding it."""

    data: ByteSource
    windows: Iterable[Window]
    choice: blocks.Choice
    verify: bool
    file_hash: FileHash = field(default_factory=FileHash)
    stages: Stages = field(default_factory=Stages)


@dataclass(frozen=True, slots=True)
class Restored:
    """A window of the original: its end, its bytes, and the frames that are damaged, without which `data` is None.

    `data` is good until the next window is asked for.
    """

    end: int
    data: memoryview | None
    damage: tuple[tuple[int, FormatError], ...] = ()


Coded = tuple[int, list[Frame]]
"""Where in the original the windows end, and their frames."""


class Engine(Protocol):
    """Codes and decodes windows, in order, in bounded memory."""

    device: str

    def encode(self, job: EncodeJob) -> Iterator[Coded]:
        """Yield the frames of some windows at a time, in order; their bytes are good until the next are asked for."""

    def decode(self, reader: ArchiveReader, references: References, stages: Stages) -> Iterator[Restored]:
        """Yield each window's bytes, checked frame by frame."""


def engine_for_encoding(wanted: str, size: int, choice: blocks.Choice, threads: int, max_memory: int) -> Engine:
    """Choose the engine for `size` bytes; raises what `device.resolve` raises, and for choices that a GPU cannot do."""
    chosen = device.resolve(wanted, size, gpu_only=choice.codec in registry.GPU_ONLY.values())
    if chosen == "cpu":
        if choice.codec in registry.GPU_ONLY.values():
            registry.by_name(choice.codec)
        return CpuEngine(affordable_threads(threads, memory_limit(max_memory), WINDOW))
    problem = cannot_on_gpu(choice)
    if problem and wanted == "auto":
        return CpuEngine(affordable_threads(threads, memory_limit(max_memory), WINDOW))
    if problem:
        raise problem
    return _gpu_engine(chosen, threads, max_memory)


def engine_for_decoding(wanted: str, reader: ArchiveReader, threads: int, max_memory: int) -> Engine:
    """Choose the engine for an archive; one with parts that only a GPU decodes needs a GPU whatever its size."""
    gpu_only = any(s.codec_id in registry.GPU_ONLY for frame in reader.frames for s in frame.header.streams)
    chosen = device.resolve(wanted, reader.index.original_size, gpu_only=gpu_only)
    if chosen != "cpu":
        return _gpu_engine(chosen, threads, max_memory)
    largest = max((_size(reader, window) for window in reader.windows()), default=0)
    return CpuEngine(affordable_threads(threads, memory_limit(max_memory), largest))


def _size(reader: ArchiveReader, window: range) -> int:
    return sum(reader.frames[number].header.original_size for number in window)


def cannot_on_gpu(choice: blocks.Choice) -> Exception | None:
    """Tell why the GPU cannot do what was asked for: nvCOMP has no levels of its own for the standard codecs."""
    if choice.codec not in nvcomp_formats.FORMATS or choice.codec in registry.GPU_ONLY.values():
        return None
    if nvcomp_formats.installed() is None:
        return CodecUnavailableError(
            f"codec '{choice.codec}' on a GPU needs nvCOMP: install nvckpt's extra cu12 or cu13, or use --device cpu"
        )
    if choice.level not in ("fast", "default"):
        return InvalidLevelError(f"codec '{choice.codec}' has levels fast and default on a GPU; use --device cpu")
    return None


@cache
def _gpu_engine(chosen: str, threads: int, max_memory: int) -> Engine:
    """Make the engine of a GPU, once in a process: its pinned memory is worth keeping from file to file."""
    from nvckpt.codecs.cuda_coder import CudaCoder
    from nvckpt.gpu_engine import GpuEngine

    pool = ThreadPoolExecutor(thread_count(threads), "nvckpt")
    coder = CudaCoder(int(chosen.partition(":")[2]), pool.map)
    # Six times a batch is pinned, and the codecs that run on the CPU take some more.
    batch = max(WINDOW, min(_BATCH, memory_limit(max_memory) // 10))
    return GpuEngine(chosen, coder, pool, batch)


@dataclass(frozen=True, slots=True)
class _Task:
    plan: BlockPlan
    window: bytes
    window_start: int
    job: EncodeJob
    threads: int


class CpuEngine:
    """Blocks and frames in threads, as many windows ahead as there are threads."""

    device = "cpu"

    def __init__(self, threads: int) -> None:
        self._threads = thread_count(threads)

    def encode(self, job: EncodeJob) -> Iterator[Coded]:
        """See Engine."""

        def tasks(window: Window) -> Iterator[_Task]:
            with job.stages.timed("read", window.end - window.start):
                content = read_ranges(job.data, [(window.start, window.end - window.start)])
            with job.stages.timed("hash", len(content)):
                job.file_hash.update(content)
            for plan in window.blocks:
                yield _Task(plan, content, window.start, job, self._threads)

        for window, frames in ordered_map(job.windows, tasks, _encode, self._threads):
            yield window.end, frames

    def decode(self, reader: ArchiveReader, references: References, stages: Stages) -> Iterator[Restored]:
        """See Engine."""

        def work(number: int) -> memoryview | FormatError:
            with stages.timed("decode", reader.frames[number].header.original_size, self._threads):
                try:
                    return decode_frame(reader, number, references)
                except FormatError as error:
                    return error

        for window, frames in ordered_map(reader.windows(), lambda numbers: numbers, work, self._threads):
            yield assembled(reader, window, frames)


@contextmanager
def shrinking_told() -> Iterator[None]:
    """Turn the error of a file that ends before it did into SourceChangedError."""
    try:
        yield
    except MalformedCheckpointError as error:
        raise shortened() from error


def shortened() -> SourceChangedError:
    """Return the error for a file that ends before it did."""
    return SourceChangedError("the file became shorter while it was read; nothing was written")


def read_ranges(data: ByteSource, ranges: Sequence[tuple[int, int]]) -> bytes:
    """Read ranges of a file whose size was taken before; SourceChangedError when it has become shorter."""
    with shrinking_told():
        pieces = [data.read_at(offset, length) for offset, length in ranges]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _encode(task: _Task) -> Frame:
    """Gather a block's bytes from its window, code them, and describe the result as a frame."""
    data = _gather(task)
    job, plan = task.job, task.plan
    with job.stages.timed("encode", len(data), task.threads):
        coded = encode_by_origin(job, plan, data) if plan.origin else None
        block = coded or blocks.encode(data, plan.content, job.choice)
    if job.verify and not coded:
        with job.stages.timed("verify", len(data), task.threads):
            same = same_bytes(blocks.decode(block, len(data)), data)
        if not same:
            raise VerificationError(f"codec '{job.choice.codec}' did not give the same bytes back")
    origin = plan.origin if coded else None
    payload_sum = payload_checksum([s.data for s in block.streams])
    return frame_of(block, plan.extents, payload_sum, checksum(data), origin)


def encode_by_origin(job: EncodeJob, plan: BlockPlan, data: memoryview) -> blocks.Block | None:
    """Code a block by the bytes it is said to follow from, and with `job.verify` decode it; None where it does not."""
    if plan.origin is None:
        return None
    source = read_ranges(job.data, plan.origin.ranges)
    block = derived_blocks.encode(data, plan.origin, source, plan.content, job.choice)
    if block is not None and job.verify and not same_bytes(derived_blocks.decode(block, len(data), source), data):
        raise VerificationError(f"a {registry.name_of(plan.origin.codec_id)} stream did not give the same bytes back")
    return block


def _gather(task: _Task) -> memoryview:
    window = memoryview(task.window)
    pieces = [
        window[offset - task.window_start : offset - task.window_start + length] for offset, length in task.plan.extents
    ]
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


def assembled(reader: ArchiveReader, window: range, frames: Sequence[memoryview | FormatError]) -> Restored:
    """Put the frames of a window in their places, unless one is damaged."""
    headers = [reader.frames[number].header for number in window]
    end = max(sum(header.extents[-1]) for header in headers)
    damage = tuple((number, f) for number, f in zip(window, frames, strict=True) if isinstance(f, FormatError))
    sound = [f for f in frames if not isinstance(f, FormatError)]
    if damage:
        return Restored(end, None, damage)
    if len(headers) == 1:
        return Restored(end, sound[0])
    start = min(header.extents[0][0] for header in headers)
    restored = unfilled(end - start)  # the index has been checked: the frames of a window fill it
    for header, data in zip(headers, sound, strict=True):
        position = 0
        for offset, length in header.extents:
            restored[offset - start : offset - start + length] = data[position : position + length]
            position += length
    return Restored(end, restored)
