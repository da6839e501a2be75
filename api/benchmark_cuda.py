"""The benchmark on a GPU: a group's blocks in one batch call, device to device, between two CUDA events."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Protocol, TypeVar

import numpy as np

from nvckpt import engines
from nvckpt.benchmark_codecs import CodecSpec
from nvckpt.benchmark_rows import Row
from nvckpt.codecs import nvcomp, nvcomp_formats
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.blocks import Choice
from nvckpt.codecs.content import Content
from nvckpt.codecs.errors import InvalidLevelError
from nvckpt.conditions import output_of
from nvckpt.errors import VerificationError
from nvckpt.samples import Part

Array = Any
"""Bytes in device memory: a one-dimensional CuPy array of uint8."""
Result = TypeVar("Result")
Seconds = tuple[float, ...]
_POISON = 0xA5
_CHUNK_STEP = 16
_WARM_UPS = 2
"""Calls before the measured ones: kernels are compiled and memory pools grow in them."""


class Device(Protocol):
    """The device memory and clock that a measurement needs; a test has one without a GPU."""

    def upload(self, data: Buffer) -> Array:
        """Copy bytes to the device."""

    def empty(self, size: int) -> Array:
        """Reserve `size` bytes."""

    def fill(self, array: Array, value: int) -> None:
        """Set every byte."""

    def equal(self, one: Array, other: Array) -> bool:
        """Compare every byte."""

    def place(self, data: Any) -> tuple[Array, memoryview]:
        """Return coded bytes, wherever they are, as a decoder takes them: aligned on the device, and on the host."""

    def timed(self, call: Callable[[], Result]) -> tuple[Result, float, float]:
        """Return the result, the seconds between events around the call, and the seconds by the host's clock."""

    def conditions(self) -> dict[str, Any]:
        """Return the GPU, its driver and the libraries."""


class Coder(Protocol):
    """`nvckpt.codecs.cuda_blocks`, which codes many blocks in one call."""

    def encode(self, arrays: list[Array], contents: list[Content], choice: Any) -> list[Any]:
        """Code each array; a block has streams, whose data stay on the device or, coded by a CPU, on the host."""

    def decode(self, coded: list[Any], outs: list[Array], heads: list[list[memoryview]]) -> None:
        """Fill each output from its block; `heads` are the streams on the host, where their tables are read."""


@dataclass(slots=True)
class CudaCoder:
    """Measures on one device; what a group's upload costs is in no figure, and is paid once for all codecs."""

    device: Device
    coder: Coder
    runs: int
    name: str = "cuda:0"
    vendor: Any = nvcomp
    _uploads: dict[str, list[Array]] = field(default_factory=dict)

    def conditions(self) -> dict[str, Any]:
        """Return what the figures depend on besides the host."""
        return self.device.conditions()

    def measure(self, spec: CodecSpec, group: str, parts: Sequence[Part]) -> Sequence[Row]:
        """Encode and decode all parts in a call each, `runs` times; VerificationError unless every byte comes back.

        For nvCOMP's algorithms a second row has nvCOMP's own calls alone, on the bytes as they are and into memory
        that is there, as one would measure it without nvckpt.
        """
        choice = spec.choice()
        problem = engines.cannot_on_gpu(choice)
        if problem:
            raise problem
        if choice.chunk and choice.chunk % _CHUNK_STEP and choice.codec in nvcomp_formats.FORMATS:
            raise InvalidLevelError(f"a chunk on a GPU is a multiple of {_CHUNK_STEP} bytes, not {choice.chunk}")
        rows = [self._whole(spec, choice, group, parts)]
        if choice.codec in nvcomp_formats.FORMATS:
            rows.append(self._alone(spec, choice, group, parts))
        return rows

    def _alone(self, spec: CodecSpec, choice: Choice, group: str, parts: Sequence[Part]) -> Row:
        arrays = self._uploaded(group, parts)
        form = nvcomp_formats.FORMATS[choice.codec]
        level = choice.level if isinstance(choice.level, str) else "default"
        elements = [form.element(part.content, len(part.data)) for part in parts]
        settings = (form.name, elements, level, choice.chunk or 0)
        calls = self.vendor.encoding_calls(arrays, *settings)
        coded, encode_runs, host_encode = self._repeated(lambda: [call.encode() for _, call in calls])
        size = sum(
            int(np.minimum(np.array(batch.buffer_sizes), call.sizes).sum())
            for (_, call), batch in zip(calls, coded, strict=True)
        )
        outs = self._poisoned(parts)
        results = [(element, call, batch) for (element, call), batch in zip(calls, coded, strict=True)]
        back = self.vendor.decoding_calls(results, outs, *settings)
        _, decode_runs, host_decode = self._repeated(lambda: [call.decode() for call in back])
        name = f"{spec.text}, nvCOMP alone"
        self._compare(name, group, outs, arrays)
        return self._row(name, group, parts, size, (encode_runs, decode_runs, host_encode, host_decode))

    def _whole(self, spec: CodecSpec, choice: Choice, group: str, parts: Sequence[Part]) -> Row:
        arrays = self._uploaded(group, parts)
        contents = [part.content for part in parts]
        coded, encode_runs, host_encode = self._repeated(lambda: self.coder.encode(arrays, contents, choice))
        size = sum(len(stream.data) for block in coded for stream in block.streams)
        coded, heads = self._placed(coded)
        outs = self._poisoned(parts)
        _, decode_runs, host_decode = self._repeated(lambda: self.coder.decode(coded, outs, heads))
        self._compare(spec.text, group, outs, arrays)
        return self._row(spec.text, group, parts, size, (encode_runs, decode_runs, host_encode, host_decode))

    def _poisoned(self, parts: Sequence[Part]) -> list[Array]:
        outs = [self.device.empty(len(part.data)) for part in parts]
        for out in outs:
            self.device.fill(out, _POISON)
        return outs

    def _compare(self, codec: str, group: str, outs: Sequence[Array], arrays: Sequence[Array]) -> None:
        if not all(self.device.equal(out, array) for out, array in zip(outs, arrays, strict=True)):
            raise VerificationError(f"codec '{codec}' did not give the bytes of group '{group}' back")

    def _row(
        self, codec: str, group: str, parts: Sequence[Part], size: int, runs: tuple[Seconds, Seconds, Seconds, Seconds]
    ) -> Row:
        before = sum(len(part.data) for part in parts)
        values = sum(len(part.data) // part.content.word for part in parts)
        return Row(codec, group, self.name, before, size, values, *runs)

    def _placed(self, coded: Sequence[Any]) -> tuple[list[Any], list[list[memoryview]]]:
        """Put every stream where a decoder finds it after a file was read; that is no part of its time."""
        placed: list[Any] = []
        heads = []
        for block in coded:
            places = [self.device.place(stream.data) for stream in block.streams]
            heads.append([head for _, head in places])
            streams = zip(block.streams, places, strict=True)
            moved = tuple(replace(stream, data=array) for stream, (array, _) in streams)
            placed.append(replace(block, streams=moved))
        return placed, heads

    def _uploaded(self, group: str, parts: Sequence[Part]) -> list[Array]:
        # A tiled group holds the same parts many times, and each copy has memory of its own, as tensors have.
        if group not in self._uploads:
            self._uploads[group] = [self.device.upload(part.data) for part in parts]
        return self._uploads[group]

    def _repeated(self, call: Callable[[], Result]) -> tuple[Result, tuple[float, ...], tuple[float, ...]]:
        """Call some times more than is measured; the last result, and the seconds by event and by the host."""
        events: list[float] = []
        host: list[float] = []
        for number in range(_WARM_UPS + self.runs):
            result, event_seconds, host_seconds = self.device.timed(call)
            if number >= _WARM_UPS:
                events.append(event_seconds)
                host.append(host_seconds)
        return result, tuple(events), tuple(host)


class CupyDevice:
    """An NVIDIA GPU through CuPy."""

    def __init__(self, index: int = 0) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device(index)
        self._device.use()

    def upload(self, data: Buffer) -> Array:
        """Copy bytes to the device."""
        return self._cupy.asarray(np.frombuffer(data, np.uint8))

    def empty(self, size: int) -> Array:
        """Reserve `size` bytes."""
        return self._cupy.empty(size, self._cupy.uint8)

    def fill(self, array: Array, value: int) -> None:
        """Set every byte."""
        array.fill(value)

    def equal(self, one: Array, other: Array) -> bool:
        """Compare every byte, on the device."""
        return bool((one == other).all())

    def place(self, data: Any) -> tuple[Array, memoryview]:
        """Return coded bytes as a decoder takes them: aligned on the device, and on the host."""
        if not hasattr(data, "get"):
            return self.upload(data), memoryview(data)
        array = data if int(data.data.ptr) % 16 == 0 else data.copy()
        return array, memoryview(array.get())

    def timed(self, call: Callable[[], Result]) -> tuple[Result, float, float]:
        """Return the result, the seconds between events around the call, and the seconds by the host's clock."""
        cuda = self._cupy.cuda
        begin, end = cuda.Event(), cuda.Event()
        cuda.runtime.deviceSynchronize()
        started = time.perf_counter()
        begin.record()
        result = call()
        # Codecs have streams of their own, on which an event of this one would not wait.
        cuda.runtime.deviceSynchronize()
        end.record()
        end.synchronize()
        return result, cuda.get_elapsed_time(begin, end) / 1e3, time.perf_counter() - started

    def conditions(self) -> dict[str, Any]:
        """Return the GPU, its driver and the libraries."""
        properties = self._cupy.cuda.runtime.getDeviceProperties(self._device.id)
        return {
            "gpu": properties["name"].decode(),
            "driver": output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
            "cuda_runtime": self._cupy.cuda.runtime.runtimeGetVersion(),
            "cupy": self._cupy.__version__,
        }


def connect(name: str, runs: int) -> CudaCoder:
    """Return the coder of a device that `nvckpt.codecs.device` resolved: `cuda` or `cuda:1`."""
    coder: Any = import_module("nvckpt.codecs.cuda_blocks")
    index = name.partition(":")[2]
    return CudaCoder(CupyDevice(int(index or 0)), coder, runs, name)
