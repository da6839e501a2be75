"""Coding what is on a CUDA device already: blocks out of device memory into host memory, and frames back into it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import cuda_blocks
from nvckpt.codecs.blocks import Block, Choice
from nvckpt.codecs.content import Content
from nvckpt.codecs.cuda_blocks import OnHost
from nvckpt.codecs.errors import DeviceMemoryError
from nvckpt.codecs.float_cuda_device import CupyDevice, Device

Bytes = npt.NDArray[np.uint8]
ALIGNMENT = 16


class StateCoder(Protocol):
    """What saving and loading need of a device: CUDA's, or the emulation of the tests."""

    device: Device

    def here(self) -> Any:
        """A context in which arrays are made and kernels launched; what was launched is done when it ends."""

    def encode(self, arrays: Sequence[Any], contents: Sequence[Content], choice: Choice) -> list[Block]:
        """Code device arrays, which begin at multiples of 16; their streams are in host memory afterwards."""

    def decode(self, coded: Sequence[Block], outs: Sequence[Any]) -> None:
        """Decode blocks, whose streams are in host memory, into device arrays that begin at multiples of 16."""

    def adopt(self, address: int, size: int) -> Any:
        """Device memory that belongs to somebody else as an array."""


class CudaStateCoder:
    """One CUDA device, with a stream of its own."""

    def __init__(self, number: int, run: OnHost = map) -> None:
        import cupy

        self._cupy = cupy
        self._cuda = cupy.cuda.Device(number)
        self._run = run
        with self._cuda:
            self.device: Device = CupyDevice()
            self._stream = cupy.cuda.Stream(non_blocking=True)

    @contextmanager
    def here(self) -> Iterator[None]:
        """See StateCoder; DeviceMemoryError when the device is full."""
        with self._cuda, self._stream:
            try:
                yield
            except self._cupy.cuda.memory.OutOfMemoryError as error:
                raise DeviceMemoryError(f"the GPU has too little free memory ({error})") from error
            finally:
                self._stream.synchronize()

    def encode(self, arrays: Sequence[Any], contents: Sequence[Content], choice: Choice) -> list[Block]:
        """See StateCoder; one copy from the device a stream, into pinned memory of exactly their size."""
        # Threads that code on the host fetch bytes by streams of their own.
        self._stream.synchronize()
        coded = cuda_blocks.encode(arrays, contents, choice, None, self._run)
        sizes = [len(s.data) for block in coded for s in block.streams if cuda_blocks.is_array(s.data)]
        out = self._pinned(sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes))
        copied, _ = cuda_blocks.copy_to_host(coded, out, self._stream)
        # The encoder's memory may only be used again when it was copied.
        self._stream.synchronize()
        return copied

    def decode(self, coded: Sequence[Block], outs: Sequence[Any]) -> None:
        """See StateCoder; the streams go up in one copy."""
        sizes = [len(s.data) for block in coded for s in block.streams]
        starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]).tolist()
        staged = self._pinned(starts[-1])
        flat = [s.data for block in coded for s in block.streams]

        def stage(number: int) -> None:
            staged[starts[number] : starts[number] + sizes[number]] = np.frombuffer(flat[number], np.uint8)

        list(self._run(stage, range(len(flat))))
        whole = self._cupy.empty(max(starts[-1], 1), np.uint8)
        if starts[-1]:
            whole[: starts[-1]].set(staged, self._stream)
        places = iter(zip(starts, sizes, strict=False))
        placed = []
        for block in coded:
            streams = []
            for stream in block.streams:
                start, size = next(places)
                streams.append(cuda_blocks.replaced(stream, whole[start : start + size]))
            placed.append(Block(block.transform_id, block.transform_param, tuple(streams)))
        heads = [[memoryview(s.data).cast("B") for s in block.streams] for block in coded]
        cuda_blocks.decode(placed, outs, heads)

    def adopt(self, address: int, size: int) -> Any:
        """See StateCoder."""
        memory = self._cupy.cuda.UnownedMemory(address, size, self)
        return self._cupy.ndarray((size,), np.uint8, self._cupy.cuda.MemoryPointer(memory, 0))

    def _pinned(self, size: int) -> Bytes:
        memory = self._cupy.cuda.alloc_pinned_memory(max(size, 1))
        return np.frombuffer(memory, np.uint8, max(size, 1))[:size]
