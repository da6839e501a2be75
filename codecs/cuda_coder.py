"""Batches of host bytes through a CUDA device: up, coded, checked there, and back, into pinned memory.

Memory on the device is a few times the batch; CuPy's pool keeps it between calls.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import blocks, cuda_blocks
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.blocks import Block, Choice
from nvckpt.codecs.content import Content
from nvckpt.codecs.cuda_blocks import OnHost
from nvckpt.codecs.cuda_pieces import copy_pieces, piece_table
from nvckpt.codecs.cuda_transfer import copy_to_host, is_array, placed, replaced
from nvckpt.codecs.errors import DeviceMemoryError, DeviceMismatchError
from nvckpt.codecs.float_cuda_device import CupyDevice, prepare
from nvckpt.codecs.memory import same_bytes

Bytes = npt.NDArray[np.uint8]
Range = tuple[int, int]
"""Offset and length in a batch's bytes."""

Clock = Callable[[str, int, float], None]
"""Takes a stage's name, the bytes it handled and its seconds."""

_ALIGNMENT = 256
_OUT_SLACK = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A block of a batch: which ranges of the batch's bytes it holds, in order, and what they are."""

    ranges: tuple[Range, ...]
    content: Content

    @property
    def size(self) -> int:
        """Bytes in all ranges."""
        return sum(length for _, length in self.ranges)


class CudaCoder:
    """Codes batches on one CUDA device, by default with a stream of its own."""

    def __init__(self, number: int, run: OnHost = map) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device(number)
        self._run = run
        self._device.use()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        prepare()
        self._lock = threading.Lock()

    def pinned(self, size: int) -> Bytes:
        """Return host memory that the device copies from and to at full speed."""
        memory = self._cupy.cuda.alloc_pinned_memory(max(size, 1))
        return np.frombuffer(memory, np.uint8, max(size, 1))

    @staticmethod
    def room_for(size: int) -> int:
        """Bytes that the output of a batch of `size` bytes may take."""
        return size + size // 64 + _OUT_SLACK

    def encode(
        self, data: Bytes, parts: Sequence[Part], choice: Choice, out: Bytes, verify: bool, clock: Clock
    ) -> list[Block]:
        """Code every part of `data`; the blocks' streams lie in `out`, in `data`, or in memory of their own.

        DeviceMemoryError when the device is full, DeviceMismatchError when `verify` finds another result.
        """
        with self._lock, self._device, self._stream:
            try:
                return self._encode(data, parts, choice, out, verify, clock)
            except self._cupy.cuda.memory.OutOfMemoryError as error:
                raise DeviceMemoryError(f"the GPU has too little free memory ({error})") from error
            finally:
                self._stream.synchronize()

    def decode(self, data: Bytes, coded: Sequence[Block], parts: Sequence[Part], out: Bytes, clock: Clock) -> None:
        """Decode blocks, whose streams are views of `data`, to their parts' ranges of `out`.

        CorruptChunkError, UnknownCodecError or CodecUnavailableError for the first that cannot be decoded.
        """
        with self._lock, self._device, self._stream:
            try:
                self._decode(data, coded, parts, out, clock)
            except self._cupy.cuda.memory.OutOfMemoryError as error:
                raise DeviceMemoryError(f"the GPU has too little free memory ({error})") from error
            finally:
                self._stream.synchronize()

    def release(self) -> None:
        """Give cached device memory back, for a second try with less."""
        with self._device:
            self._cupy.get_default_memory_pool().free_all_blocks()

    def _encode(
        self, data: Bytes, parts: Sequence[Part], choice: Choice, out: Bytes, verify: bool, clock: Clock
    ) -> list[Block]:
        watch = _Watch(self._stream, clock)
        whole = self._upload(data)
        watch.stop("copy to device", len(data))
        arrays = self._gather(whole, parts)
        coded = cuda_blocks.encode(
            arrays, [p.content for p in parts], choice, lambda i: host_bytes(data, parts[i]), self._run
        )
        watch.stop("encode", len(data))
        if verify:
            self._check(coded, arrays, parts, data)
            watch.stop("verify", len(data))
        copied, size = copy_to_host(coded, out, self._stream)
        watch.stop("copy to host", size)
        return copied

    def _upload(self, data: Bytes) -> Any:
        whole = self._cupy.empty(len(data), np.uint8)
        whole.set(data, self._stream)
        return whole

    def _gather(self, whole: Any, parts: Sequence[Part]) -> list[Any]:
        """Lay each part's ranges one after the other, where the kernels' wide reads are allowed."""
        room, arrays, table = self._layout(parts)
        base = int(whole.data.ptr)
        sources = [base + offset for part in parts for offset, _ in part.ranges]
        copy_pieces(CupyDevice(), piece_table(sources, *table))
        del room
        return arrays

    def _layout(self, parts: Sequence[Part]) -> tuple[Any, list[Any], tuple[list[int], list[int]]]:
        """Reserve an array for each part; the addresses and sizes of all ranges in them."""
        starts = np.cumsum([0, *(-(-part.size // _ALIGNMENT) * _ALIGNMENT for part in parts)]).tolist()
        room = self._cupy.empty(starts[-1], np.uint8)
        arrays = [room[start : start + part.size] for start, part in zip(starts, parts, strict=False)]
        addresses, sizes = [], []
        for start, part in zip(starts, parts, strict=False):
            position = int(room.data.ptr) + start
            for _, length in part.ranges:
                addresses.append(position)
                sizes.append(length)
                position += length
        return room, arrays, (addresses, sizes)

    def _check(self, coded: Sequence[Block], arrays: Sequence[Any], parts: Sequence[Part], data: Bytes) -> None:
        """Decode every block where it was coded and compare."""
        here = [i for i, block in enumerate(coded) if _on_device(block)]
        outs = [self._cupy.empty(-(-arrays[i].size // 16) * 16, np.uint8)[: arrays[i].size] for i in here]
        cuda_blocks.decode([self._all_on_device(coded[i]) for i in here], outs)
        wrong = cuda_blocks.first_difference([arrays[i] for i in here], outs) is not None
        there = [i for i, block in enumerate(coded) if not _on_device(block)]

        def same(i: int) -> bool:
            return same_bytes(blocks.decode(coded[i], parts[i].size), host_bytes(data, parts[i]))

        if wrong or not all(self._run(same, there)):
            raise DeviceMismatchError("the GPU did not give the same bytes back")

    def _all_on_device(self, block: Block) -> Block:
        streams = [
            s if is_array(s.data) else replaced(s, self._cupy.asarray(np.frombuffer(s.data, np.uint8)))
            for s in block.streams
        ]
        return Block(block.transform_id, block.transform_param, tuple(streams))

    def _decode(self, data: Bytes, coded: Sequence[Block], parts: Sequence[Part], out: Bytes, clock: Clock) -> None:
        watch = _Watch(self._stream, clock)
        here = [i for i, block in enumerate(coded) if _for_device(block)]
        there = [i for i, block in enumerate(coded) if not _for_device(block)]
        whole = self._upload(data)
        watch.stop("copy to device", len(data))
        on_device = [placed(coded[i], whole, data) for i in here]
        mine = [parts[i] for i in here]
        room, arrays, table = self._layout(mine)
        heads = [[memoryview(s.data) for s in coded[i].streams] for i in here]
        cuda_blocks.decode(on_device, arrays, heads)
        restored = self._cupy.empty(len(out), np.uint8)
        origin = int(restored.data.ptr)
        targets = [origin + offset for part in mine for offset, _ in part.ranges]
        copy_pieces(CupyDevice(), piece_table(table[0], targets, table[1]))
        watch.stop("decode", len(out))
        restored.get(self._stream, out=out, blocking=False)
        watch.stop("copy to host", len(out))
        for i, decoded in zip(there, self._run(lambda i: blocks.decode(coded[i], parts[i].size), there), strict=True):
            put_bytes(out, parts[i], decoded)
        watch.stop("decode on CPU", sum(parts[i].size for i in there))
        del room


class _Watch:
    """Waits for the stream at the end of each stage, and tells the clock how long it took."""

    def __init__(self, stream: Any, clock: Clock) -> None:
        self._stream, self._clock = stream, clock
        self._last = time.perf_counter()

    def stop(self, stage: str, size: int) -> None:
        """End a stage."""
        self._stream.synchronize()
        now = time.perf_counter()
        self._clock(stage, size, now - self._last)
        self._last = now


def host_bytes(data: Bytes, part: Part) -> Buffer:
    """Return a part's bytes; a view where they lie in one range."""
    view = data.data
    pieces = [view[offset : offset + length] for offset, length in part.ranges]
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


def put_bytes(out: Bytes, part: Part, data: memoryview) -> None:
    """Write a part's bytes to its ranges of a batch."""
    position = 0
    for offset, length in part.ranges:
        out[offset : offset + length] = np.frombuffer(data[position : position + length], np.uint8)
        position += length


def _on_device(block: Block) -> bool:
    """Whether any stream was left in device memory."""
    return any(is_array(stream.data) for stream in block.streams)


# Standard streams come from anywhere, and nvCOMP's decoders are for sound data alone: the CPU's libraries read them.
_DECODED_HERE = frozenset({0, 16, 17, 18, 19, 32, 34})


def _for_device(block: Block) -> bool:
    return all(stream.codec_id in _DECODED_HERE for stream in block.streams)
