"""Coding what is on a CUDA device already: blocks out of device memory into host memory, and frames back into it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import cuda_blocks
from nvckpt.codecs.blocks import Block, Choice
from nvckpt.codecs.content import Content
from nvckpt.codecs.cuda_blocks import OnHost
from nvckpt.codecs.cuda_transfer import ALIGNMENT, copy_to_host, is_array, placed
from nvckpt.codecs.errors import DeviceMemoryError
from nvckpt.codecs.float_cuda_device import CupyDevice, Device, prepare

Bytes = npt.NDArray[np.uint8]

_PINNED_UNIT = 16 << 20


class StateCoder(Protocol):
    """What saving and loading need of a device: CUDA's, or the emulation of the tests."""

    device: Device

    def here(self) -> Any:
        """A context in which arrays are made and kernels launched; what was launched is done when it ends.

        Threads may be in it at the same time.
        """

    def beside(self) -> Any:
        """A context in `here` for kernels that run beside the next ones there, one such context after the other."""

    def pinned(self, size: int) -> Bytes:
        """Host memory that the device copies fast."""

    def encode(self, arrays: Sequence[Any], contents: Sequence[Content], choice: Choice) -> list[Block]:
        """Code device arrays, which begin at multiples of 16; their streams are in host memory afterwards."""

    def send(self, data: Bytes) -> Any:
        """Begin to copy pinned bytes to the device, outside `here`; what it returns is for `decode`."""

    def decode(self, data: Bytes, sent: Any, coded: Sequence[Block], outs: Sequence[Any]) -> None:
        """Decode blocks, whose streams are views of `data`, into device arrays that begin at multiples of 16."""

    def adopt(self, address: int, size: int) -> Any:
        """Device memory that belongs to somebody else as an array."""


class CudaStateCoder:
    """One CUDA device, with streams that threads borrow.

    CuPy keeps freed memory by stream, so streams of their own, made anew by each save's threads, would hoard it.
    """

    def __init__(self, number: int, run: OnHost = map) -> None:
        import cupy

        self._cupy = cupy
        self._cuda = cupy.cuda.Device(number)
        self._run = run
        self._mine = threading.local()
        self._idle: list[Any] = []
        with self._cuda:
            self.device: Device = CupyDevice()
            self._side = cupy.cuda.Stream(non_blocking=True)
            self._sending = cupy.cuda.Stream(non_blocking=True)
            prepare()

    @contextmanager
    def _borrowed(self) -> Iterator[Any]:
        """A stream that is the calling thread's for a while."""
        try:
            stream = self._idle.pop()
        except IndexError:
            stream = self._cupy.cuda.Stream(non_blocking=True)
        self._mine.stream, self._mine.beside = stream, None
        try:
            with stream:
                yield stream
        finally:
            self._mine.stream = None
            self._idle.append(stream)

    @contextmanager
    def here(self) -> Iterator[None]:
        """See StateCoder; DeviceMemoryError when the device is full."""
        with self._cuda, self._borrowed() as stream:
            try:
                with self._memory_errors():
                    yield
            finally:
                stream.synchronize()
                # Memory of this stream is used again when it is dropped, whoever still reads it.
                if self._mine.beside is not None:
                    self._mine.beside.synchronize()

    @contextmanager
    def _memory_errors(self) -> Iterator[None]:
        try:
            yield
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise DeviceMemoryError(f"the GPU has too little free memory ({error})") from error

    @contextmanager
    def beside(self) -> Iterator[None]:
        """See StateCoder."""
        self._side.wait_event(self._mine.stream.record())
        with self._side:
            yield
            self._mine.beside = self._side.record()

    def pinned(self, size: int) -> Bytes:
        """See StateCoder."""
        # CuPy keeps pinned memory for requests of the same size, and pinning takes longer than everything else here.
        room = -(-size // _PINNED_UNIT) * _PINNED_UNIT if size > _PINNED_UNIT else max(size, 1)
        return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(room), np.uint8, room)[:size]

    def encode(self, arrays: Sequence[Any], contents: Sequence[Content], choice: Choice) -> list[Block]:
        """See StateCoder; one copy from the device a stream, into pinned memory of exactly their size."""
        # Threads that code on the host fetch bytes by streams of their own.
        self._mine.stream.synchronize()
        coded = cuda_blocks.encode(arrays, contents, choice, None, self._run)
        sizes = [len(s.data) for block in coded for s in block.streams if is_array(s.data)]
        out = self.pinned(sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes))
        copied, _ = copy_to_host(coded, out, self._mine.stream)
        # The encoder's memory may only be used again when it was copied.
        self._mine.stream.synchronize()
        return copied

    def send(self, data: Bytes) -> Any:
        """See StateCoder; DeviceMemoryError when the device is full."""
        with self._cuda, self._sending, self._memory_errors():
            whole = self._cupy.empty(max(len(data), 1), np.uint8)
            if len(data):
                whole[: len(data)].set(data, self._sending)
            return whole, self._sending.record()

    def decode(self, data: Bytes, sent: Any, coded: Sequence[Block], outs: Sequence[Any]) -> None:
        """See StateCoder."""
        whole, event = sent
        self._mine.stream.wait_event(event)
        heads = [[memoryview(s.data).cast("B") for s in block.streams] for block in coded]
        cuda_blocks.decode([placed(block, whole, data) for block in coded], outs, heads)

    def adopt(self, address: int, size: int) -> Any:
        """See StateCoder."""
        memory = self._cupy.cuda.UnownedMemory(address, size, self)
        return self._cupy.ndarray((size,), np.uint8, self._cupy.cuda.MemoryPointer(memory, 0))
