"""The engine that streams a file's windows through a GPU.

Three threads work on a few batches at a time: one reads into pinned memory (with a pool for the reads and the
checksums), one drives the device, and the caller's writes. The order is kept, and a batch's memory is used again when
the caller asks for the next one, so that nothing grows with the file.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from nvckpt.codecs import blocks
from nvckpt.codecs.blocks import Block
from nvckpt.codecs.content import BYTES
from nvckpt.codecs.cuda_coder import Bytes, Part, host_bytes, put_bytes
from nvckpt.codecs.derived_blocks import Origin
from nvckpt.codecs.errors import CodecError, DeviceMemoryError, DeviceMismatchError
from nvckpt.codecs.memory import same_bytes
from nvckpt.codecs.registry import GPU_ONLY
from nvckpt.engines import Coded, EncodeJob, Restored, assembled, encode_by_origin, shortened
from nvckpt.errors import VerificationError
from nvckpt.formats.checksum import checksum
from nvckpt.formats.container import ArchiveReader, payload_checksum
from nvckpt.formats.errors import FormatError
from nvckpt.formats.layout import FrameHeader
from nvckpt.frames import Frame, as_format_error, block_of, check_original, decode_frame, frame_of
from nvckpt.plan import BlockPlan, Window
from nvckpt.references import References
from nvckpt.stages import Stages
from nvckpt.streaming import Coder, Output, Slots, batches, read_into, stages_of
from nvckpt.turns import turn

# Streams begin at multiples of 16 in the file, and the device wants them there in memory, too.
_ALIGNMENT = 16
# 8 threads read 32 GB/s from an H200's page cache and 16 read 39 (sample_data/runs), where writing takes about 3.
_READERS = 8


@dataclass(slots=True)
class _Encoding:
    """A batch on its way out: `memory` and `room` are the slots that `data` and the coded streams lie in."""

    windows: list[Window]
    memory: Bytes
    data: Bytes
    plans: list[BlockPlan]
    parts: list[Part]
    hashed: "Future[None]"
    sums: "list[Future[int]]"
    derived: "dict[int, Future[Block | None]]"
    room: Bytes | None = None
    coded: "Sequence[tuple[Block, Origin | None]]" = ()
    payload_sums: "Sequence[Future[int]]" = ()

    def frames(self) -> list[Frame]:
        """Wait for the checksums; the frames of all windows."""
        made = []
        for plan, payload, original, (block, origin) in zip(
            self.plans, self.payload_sums, self.sums, self.coded, strict=True
        ):
            made.append(frame_of(block, plan.extents, payload.result(), original.result(), origin))
        self.hashed.result()
        return made


@dataclass(slots=True)
class _Decoding:
    """A batch on its way back. `checked` gives payloads; where the device fails, `restored` stays empty.

    `sums` are the checksums of what the device decoded, by the place of the frame in the batch.
    """

    windows: list[range]
    memory: Bytes
    data: Bytes
    checked: "list[Future[memoryview]]"
    room: Bytes | None = None
    restored: Bytes | None = None
    sums: "Mapping[int, Future[int]]" = field(default_factory=dict)

    @property
    def numbers(self) -> range:
        """The frames of all windows."""
        return range(self.windows[0].start, self.windows[-1].stop)


class GpuEngine:
    """See `nvckpt.engines.Engine`. `batch` is the bytes worked on at a time, at least a window's."""

    def __init__(self, device: str, coder: Coder, pool: ThreadPoolExecutor, batch: int) -> None:
        self.device = device
        self._coder, self._pool, self._batch = coder, pool, batch
        self._sources = Slots(coder.pinned, batch + 2 * _ALIGNMENT)
        self._targets = Slots(coder.pinned, coder.room_for(batch))
        self._lock = threading.Lock()

    @contextmanager
    def _mine(self) -> Iterator[None]:
        """Have the device and the memory to oneself: files take turns, and so do processes of one user."""
        with self._lock, turn(self.device):
            self._sources.reset()
            self._targets.reset()
            yield

    def encode(self, job: EncodeJob) -> Iterator[Coded]:
        """See Engine."""
        stages = job.stages
        with ExitStack() as stack:
            stack.enter_context(self._mine())
            hasher = stack.enter_context(ThreadPoolExecutor(1, "nvckpt-hash"))

            def hash_file(data: Bytes) -> None:
                with stages.timed("hash", len(data)):
                    job.file_hash.update(data.data)

            def read(out: Output) -> None:
                for group in batches(job.windows, lambda w: w.end - w.start, self._batch):
                    start, size = group[0].start, group[-1].end - group[0].start
                    memory = self._sources.take(out.stop)
                    data = memory[:size]
                    with stages.timed("read", size):
                        if read_into(job.data, start, data, _READERS) < size:
                            raise shortened()
                    plans = [plan for window in group for plan in window.blocks]
                    parts = [
                        Part(tuple((offset - start, length) for offset, length in plan.extents), plan.content)
                        for plan in plans
                    ]
                    sums = [self._pool.submit(_sum, data, part) for part in parts]
                    # What follows from other tensors takes little work, which the CPU does meanwhile.
                    derived = {
                        i: self._pool.submit(_by_origin, job, plan, data, part)
                        for i, (plan, part) in enumerate(zip(plans, parts, strict=True))
                        if plan.origin
                    }
                    hashed = hasher.submit(hash_file, data)
                    out.put(_Encoding(group, memory, data, plans, parts, hashed, sums, derived))

            def code(source: Output, out: Output) -> None:
                for batch in source:
                    batch.room = self._targets.take(out.stop)
                    batch.coded = self._coded(batch, job)
                    batch.payload_sums = [self._pool.submit(_payload_sum, block) for block, _ in batch.coded]
                    out.put(batch)

            for batch in stack.enter_context(stages_of(read, code)):
                yield batch.windows[-1].end, batch.frames()
                self._sources.give(batch.memory)
                self._targets.give(batch.room)

    def _coded(self, batch: _Encoding, job: EncodeJob) -> list[tuple[Block, Origin | None]]:
        """Every block of a batch, in order, and what it was coded by."""
        by_origin = {i: block for i, future in batch.derived.items() if (block := future.result()) is not None}
        rest = [i for i in range(len(batch.parts)) if i not in by_origin]
        assert batch.room is not None
        by_device = self._encoded(batch.data, [batch.parts[i] for i in rest], batch.room, job) if rest else ()
        coded = by_origin | dict(zip(rest, by_device, strict=True))
        origins = {i: batch.plans[i].origin for i in by_origin}
        return [(coded[i], origins.get(i)) for i in range(len(batch.parts))]

    def _encoded(self, data: Bytes, parts: Sequence[Part], out: Bytes, job: EncodeJob) -> Sequence[Block]:
        """Code a batch; where the device's memory is too small, halves of it, and in the end on the CPU."""
        try:
            return self._coder.encode(data, parts, job.choice, out, job.verify, job.stages.add)
        except DeviceMismatchError as error:
            raise VerificationError(str(error)) from error
        except DeviceMemoryError:
            self._coder.release()
        if len(parts) == 1:
            if job.choice.codec in GPU_ONLY.values():
                raise DeviceMemoryError("the GPU has too little free memory for a single block; use another codec")
            original = host_bytes(data, parts[0])
            block = blocks.encode(original, parts[0].content, job.choice)
            if job.verify and not same_bytes(blocks.decode(block, len(original)), original):
                raise VerificationError(f"codec '{job.choice.codec}' did not give the same bytes back")
            return [block]
        middle = len(parts) // 2
        coded: list[Block] = []
        # Both halves are given all of `data`, since small parts are spread over it; they share `out` in proportion.
        first, both = (sum(part.size for part in some) for some in (parts[:middle], parts))
        share = (first + (len(out) - both) * first // both) // _ALIGNMENT * _ALIGNMENT
        for half, room in ((parts[:middle], out[:share]), (parts[middle:], out[share:])):
            coded += self._encoded(data, half, room, job)
        return coded

    def decode(self, reader: ArchiveReader, references: References, stages: Stages) -> Iterator[Restored]:
        """See Engine."""

        def read(out: Output) -> None:
            for group in batches(reader.windows(), lambda w: self._span(reader, w), self._batch):
                start = reader.start_of(group[0].start) // _ALIGNMENT * _ALIGNMENT
                size = reader.frames[group[-1].stop - 1].end - start
                memory = self._sources.take(out.stop)
                if size > len(memory) or self._original(reader, group) > self._batch:
                    out.put(_Decoding(group, memory, memory[:0], []))
                    continue
                data = memory[:size]
                with stages.timed("read", size):
                    got = read_into(reader.data, start, data, _READERS)
                view = data[:got].data
                checked = [
                    self._pool.submit(reader.check_payload, number, view, start)
                    for number in range(group[0].start, group[-1].stop)
                ]
                out.put(_Decoding(group, memory, data, checked))

        def code(source: Output, out: Output) -> None:
            for batch in source:
                batch.room = self._targets.take(out.stop)
                self._restore(reader, batch, stages)
                out.put(batch)

        with self._mine(), stages_of(read, code) as results:
            for batch in results:
                yield from self._windows(reader, references, batch)
                self._sources.give(batch.memory)
                self._targets.give(batch.room)

    def _span(self, reader: ArchiveReader, window: range) -> int:
        stored = reader.frames[window.stop - 1].end - reader.start_of(window.start)
        return max(stored, self._original(reader, [window]))

    def _original(self, reader: ArchiveReader, windows: Sequence[range]) -> int:
        return sum(reader.frames[n].header.original_size for window in windows for n in window)

    def _restore(self, reader: ArchiveReader, batch: _Decoding, stages: Stages) -> None:
        """Decode a batch on the device; on any doubt it is left to be decoded frame by frame."""
        if not batch.checked or batch.room is None:
            return
        headers = [reader.frames[number].header for number in batch.numbers]
        parts = _parts(headers)
        alone = [i for i, header in enumerate(headers) if not header.references]
        target = batch.room[: sum(part.size for part in parts)]
        try:
            coded = [block_of(h, payload.result()) for h, payload in zip(headers, batch.checked, strict=True)]
            mine = [parts[i] for i in alone]
            self._coder.decode(batch.data, [coded[i] for i in alone], mine, target, stages.add)
        except DeviceMemoryError:
            self._coder.release()
        except (CodecError, FormatError):
            pass
        else:
            batch.restored = target
            batch.sums = {i: self._pool.submit(_sum, target, parts[i]) for i in alone}

    def _windows(self, reader: ArchiveReader, references: References, batch: _Decoding) -> Iterator[Restored]:
        headers = [reader.frames[number].header for number in batch.numbers]
        if self._complete(reader, references, batch, headers) and batch.restored is not None:
            yield Restored(max(sum(h.extents[-1]) for h in headers), batch.restored.data)
            return
        for window in batch.windows:
            frames = list(self._pool.map(lambda number: self._frame_alone(reader, references, number), window))
            yield assembled(reader, window, frames)

    def _complete(
        self, reader: ArchiveReader, references: References, batch: _Decoding, headers: Sequence[FrameHeader]
    ) -> bool:
        """Compare checksums, and add the frames that follow from others, whose turn it is now; False on any doubt."""
        if batch.restored is None:
            return False
        if any(future.result() != headers[i].original_checksum for i, future in batch.sums.items()):
            return False
        parts, rest = _parts(headers), [i for i in range(len(headers)) if i not in batch.sums]
        first = batch.numbers.start
        try:
            decoded = list(self._pool.map(lambda i: decode_frame(reader, first + i, references), rest))
        except FormatError:
            return False
        for i, data in zip(rest, decoded, strict=True):
            put_bytes(batch.restored, parts[i], data)
        return True

    def _frame_alone(self, reader: ArchiveReader, references: References, number: int) -> memoryview | FormatError:
        """Decode one frame by the CPU, or, where only the GPU can, there."""
        header = reader.frames[number].header
        try:
            if all(s.codec_id not in GPU_ONLY for s in header.streams):
                return decode_frame(reader, number, references)
            payload = reader.read_payload(number)
            data, out = self._coder.pinned(len(payload)), self._coder.pinned(header.original_size)
            data[:] = payload
            part = Part(((0, header.original_size),), BYTES)
            self._coder.decode(data, [block_of(header, data.data)], [part], out, lambda *_: None)
            check_original(header, checksum(out.data))
            return out.data
        except FormatError as error:
            return error
        except CodecError as error:
            return as_format_error(error)


def _payload_sum(block: Block) -> int:
    return payload_checksum([stream.data for stream in block.streams])


def _sum(data: Bytes, part: Part) -> int:
    return checksum(host_bytes(data, part))


def _by_origin(job: EncodeJob, plan: BlockPlan, data: Bytes, part: Part) -> Block | None:
    return encode_by_origin(job, plan, memoryview(host_bytes(data, part)))


def _parts(headers: Sequence[FrameHeader]) -> list[Part]:
    """The ranges of frames that tile a stretch of the original, as ranges of the stretch."""
    start = min(header.extents[0][0] for header in headers)
    return [Part(tuple((offset - start, length) for offset, length in h.extents), BYTES) for h in headers]
