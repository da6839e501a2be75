"""The engine for a state whose tensors are in a GPU's memory: only what is coded is copied from there.

Windows of the file that torch.save would write are put together in device memory, a batch at a time, from the
tensors' storages and the few bytes between them, and coded and hashed there.
"""

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvckpt.codecs.blocks import Block
from nvckpt.codecs.cuda_blocks import OnHost
from nvckpt.codecs.cuda_checksum import BLOCK, SHORTEST, Xxh3State, xxh3_64
from nvckpt.codecs.cuda_pieces import copy_pieces, piece_table
from nvckpt.codecs.cuda_state import StateCoder
from nvckpt.codecs.cuda_transfer import ALIGNMENT
from nvckpt.engines import Coded, EncodeJob, Restored
from nvckpt.formats.byte_source import JoinedBytes
from nvckpt.formats.checksum import checksum
from nvckpt.formats.container import ArchiveReader, payload_checksum
from nvckpt.frames import frame_of
from nvckpt.plan import BlockPlan, Window
from nvckpt.references import References
from nvckpt.stages import Stages
from nvckpt.streaming import batches

# The image, what is gathered from it, and the encoder's memory are a few times this, for each of the batches in work
# at a time, and stay below 1 GiB together.
BATCH = 64 << 20
# While one batch is on the device, another is coded where that is the CPU's part, and copied.
_AT_A_TIME = 2


@dataclass(frozen=True, slots=True)
class DevicePart:
    """A part of the file that lies in the coder's device memory: where in the file, where in memory."""

    offset: int
    size: int
    address: int


class StateEngine:
    """See `nvckpt.engines.Engine`; it only encodes, and only the file it was made for.

    `parts` are those in device memory, in the order of the file; all else is read from the job's data.
    """

    def __init__(
        self,
        device: str,
        coder: StateCoder,
        parts: Sequence[DevicePart],
        run: OnHost = map,
        batch: int = BATCH,
    ) -> None:
        self.device = device
        self._coder, self._parts, self._run, self._batch = coder, parts, run, batch
        self._offsets = [part.offset for part in parts]

    def encode(self, job: EncodeJob) -> Iterator[Coded]:
        """See Engine; the next batches are coded while the caller writes one. The hash is that of the file."""
        with self._coder.here():
            state = Xxh3State(self._coder.device)
        groups = batches(job.windows, lambda window: window.end - window.start, self._batch)
        ahead: deque[Future[Coded]] = deque()
        before = threading.Event()
        before.set()
        with ThreadPoolExecutor(_AT_A_TIME, "nvckpt-gpu") as workers:
            for group in groups:
                after = threading.Event()
                ahead.append(workers.submit(self._coded, job, group, _Turn(state, before, after)))
                before = after
                if len(ahead) > _AT_A_TIME:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        size = job.data.size
        folded = max(0, size - 1) // BLOCK * BLOCK
        start = max(0, folded - 64)
        with self._coder.here():
            job.file_hash.settle(state.digest128(size, job.data.read_at(start, size - start)))

    def decode(self, reader: ArchiveReader, references: References, stages: Stages) -> Iterator[Restored]:
        """Not what this engine is for."""
        raise NotImplementedError

    def _coded(self, job: EncodeJob, group: list[Window], turn: "_Turn") -> Coded:
        """Code one batch."""
        start, end = group[0].start // BLOCK * BLOCK, group[-1].end
        last = end == job.data.size
        plans = [plan for window in group for plan in window.blocks]
        assert isinstance(job.data, JoinedBytes)
        with job.stages.timed("encode", end - group[0].start, _AT_A_TIME), self._coder.here():
            with turn as state:
                image = self._image(job.data, start, end)
                # The file's last block is hashed at the end, even if it is whole.
                folded = (end - 1 if last else end) // BLOCK * BLOCK
                with self._coder.beside():
                    state.update(self._coder.device.address(image), max(0, folded - start))
            arrays = self._gathered(image, start, plans)
            sums = self._sums(arrays)
            coded = self._coder.encode(arrays, [plan.content for plan in plans], job.choice)
        payloads = self._run(_payload_sum, coded)
        described = zip(coded, plans, payloads, sums, strict=True)
        return end, [frame_of(block, plan.extents, *both) for block, plan, *both in described]

    def _image(self, data: JoinedBytes, start: int, end: int) -> Any:
        """The file from `start` to `end` in device memory."""
        image = self._coder.device.empty(end - start)
        base = self._coder.device.address(image) - start
        sources: list[int] = []
        targets: list[int] = []
        sizes: list[int] = []
        rest: list[tuple[int, int]] = []
        position = start
        first = max(0, bisect_right(self._offsets, start) - 1)
        for part in self._parts[first : bisect_left(self._offsets, end)]:
            low, high = max(part.offset, start), min(part.offset + part.size, end)
            if low >= high:
                continue
            if low > position:
                rest.append((position, low))
            sources.append(part.address + low - part.offset)
            targets.append(base + low)
            sizes.append(high - low)
            position = high
        if position < end:
            rest.append((position, end))
        host = self._coder.device.upload(np.frombuffer(b"".join(data.read_at(a, b - a) for a, b in rest), np.uint8))
        address = self._coder.device.address(host)
        for low, high in rest:
            sources.append(address)
            targets.append(base + low)
            sizes.append(high - low)
            address += high - low
        copy_pieces(self._coder.device, piece_table(sources, targets, sizes))
        return image

    def _gathered(self, image: Any, start: int, plans: Sequence[BlockPlan]) -> list[Any]:
        """Each block's bytes in one piece at a multiple of 16: in the image where they lie so, else copied."""
        arrays: list[Any] = []
        sources: list[int] = []
        targets: list[int] = []
        sizes: list[int] = []
        device = self._coder.device
        base = device.address(image) - start
        for plan in plans:
            first = plan.extents[0][0]
            if len(plan.extents) == 1 and (base + first) % ALIGNMENT == 0:
                arrays.append(image[first - start : first - start + plan.size])
                continue
            array = device.empty(plan.size)
            position = device.address(array)
            for offset, length in plan.extents:
                sources.append(base + offset)
                targets.append(position)
                sizes.append(length)
                position += length
            arrays.append(array[: plan.size])
        copy_pieces(device, piece_table(sources, targets, sizes))
        return arrays

    def _sums(self, arrays: Sequence[Any]) -> list[int]:
        """XXH3-64 of every block; of the few short ones on the host."""
        device = self._coder.device
        long = [i for i, array in enumerate(arrays) if len(array) >= SHORTEST]
        places = [(device.address(arrays[i]), len(arrays[i])) for i in long]
        found = dict(zip(long, xxh3_64(device, places), strict=True))
        for i, array in enumerate(arrays):
            if i not in found:
                found[i] = checksum(device.download(array, np.uint8).data)
        return [found[i] for i in range(len(arrays))]


def _payload_sum(block: Block) -> int:
    return payload_checksum([stream.data for stream in block.streams])


@dataclass(frozen=True, slots=True)
class _Turn:
    """Lets one batch after the other into the file's hash, also where one failed."""

    state: Xxh3State
    before: threading.Event
    after: threading.Event

    def __enter__(self) -> Xxh3State:
        self.before.wait()
        return self.state

    def __exit__(self, *_: object) -> None:
        self.after.set()
