"""The GPU behind the CUDA float codec: memory, compiled kernels, launches. CuPy is imported when one is opened."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

KERNELS = Path(__file__).parent / "kernels"
THREADS = 128
_COMPILERS = 8

_DECODE_SHARED = 4 * (4096 + 4 * 640 + 16)
_ENCODE_FIXED = 4 * (516 + 104 + 32 + 4 * 64)

# Per (word, layout): resident thread blocks a multiprocessor for encoding, bytes of words staged a warp, and resident
# blocks for decoding. Measured on an H200 (sample_data/runs).
TUNING = {
    (1, 0): (8, 5888, 8),
    (2, 1): (7, 4096, 8),
    (4, 1): (6, 4096, 8),
    (2, 2): (6, 4096, 8),
    (4, 2): (6, 4096, 6),
    (8, 2): (5, 9984, 6),
}


def encode_shared(word: int, layout: int) -> int:
    """Bytes of shared memory of an encoding thread block."""
    return _ENCODE_FIXED + 4 * TUNING[word, layout][1]


def decode_shared() -> int:
    """Bytes of shared memory of a decoding thread block."""
    return _DECODE_SHARED


def defines(word: int, layout: int) -> list[str]:
    """The compiler's options that make a kernel file fit one kind of plane."""
    encode, _, decode = TUNING[word, layout]
    return [f"-DWORD={word}", f"-DLAYOUT={layout}", f"-DENCODE_BLOCKS={encode}", f"-DDECODE_BLOCKS={decode}"]


class Device(Protocol):
    """What the codec needs: a CuPy device, or the emulation of the tests."""

    def empty(self, size: int) -> Any:
        """Memory of `size` bytes, 16-byte aligned."""

    def zeros(self, size: int) -> Any:
        """Memory of `size` zero bytes, 16-byte aligned."""

    def upload(self, table: npt.NDArray[Any]) -> Any:
        """A copy of the table in device memory."""

    def download(self, memory: Any, dtype: Any) -> npt.NDArray[Any]:
        """A copy of the memory in host memory; waits for everything launched before."""

    def address(self, memory: Any) -> int:
        """The device address of memory."""

    def resident(self, word: int, layout: int) -> int:
        """How many encoding thread blocks run at the same time."""

    def launch(
        self, name: str, kind: tuple[int, int], grid: int, threads: int, shared: int, arguments: list[Any]
    ) -> None:
        """Start kernel `file.function` for a kind (word, layout); arguments are memory, or integers of 32 bits."""


class Arena:
    """Device memory in pieces of a larger allocation, as an allocation costs what planning several tensors does."""

    _WHOLE = 4 << 20

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: list[Any] = []
        self._at = self._end = 0

    def take(self, size: int) -> int:
        """Return the 16-byte aligned address of `size` bytes, which live as long as the arena."""
        size = -(-size // 16) * 16
        if size > self._WHOLE // 4:
            return self._allocate(size)
        if size > self._end - self._at:
            self._at = self._allocate(self._WHOLE)
            self._end = self._at + self._WHOLE
        self._at += size
        return self._at - size

    def _allocate(self, size: int) -> int:
        memory = self._device.empty(size)
        self._kept.append(memory)
        return self._device.address(memory)


class CupyDevice:
    """The current CUDA device and stream of CuPy."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._functions: dict[tuple[str, tuple[int, int]], Any] = {}
        self._multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]

    def empty(self, size: int) -> Any:
        """Return memory, 16-byte aligned."""
        return self._cupy.empty(max(size, 1), np.uint8)

    def zeros(self, size: int) -> Any:
        """Return cleared memory."""
        return self._cupy.zeros(max(size, 1), np.uint8)

    def upload(self, table: npt.NDArray[Any]) -> Any:
        """Return a copy in device memory."""
        data = table.reshape(-1).view(np.uint8)
        memory = self.empty(len(data))
        if len(data):
            memory.set(data)
        return memory

    def download(self, memory: Any, dtype: Any) -> npt.NDArray[Any]:
        """Return a copy in host memory."""
        host: npt.NDArray[Any] = memory.get()
        kind = np.dtype(dtype)
        return host[: len(host) // kind.itemsize * kind.itemsize].view(kind)

    def synchronize(self) -> None:
        """Wait for everything launched on the current stream."""
        self._cupy.cuda.get_current_stream().synchronize()

    def address(self, memory: Any) -> int:
        """Return the device address."""
        return int(memory.data.ptr)

    def resident(self, word: int, layout: int) -> int:
        """Return how many encoding thread blocks run at the same time."""
        return TUNING[word, layout][0] * int(self._multiprocessors)

    def launch(
        self, name: str, kind: tuple[int, int], grid: int, threads: int, shared: int, arguments: list[Any]
    ) -> None:
        """Start a kernel, compiled when it is first needed."""
        if not grid:
            return
        function = self._functions.get((name, kind))
        if function is None:
            function = self._compiled(name, kind)
            if shared > 48 << 10:
                function.max_dynamic_shared_size_bytes = shared
            self._functions[name, kind] = function
        values = tuple(np.uint32(a) if isinstance(a, int) else a for a in arguments)
        function((grid,), (threads,), values, shared_mem=shared)

    def _compiled(self, name: str, kind: tuple[int, int]) -> Any:
        file, function = name.split(".")
        return _module(self._cupy.cuda.runtime.getDevice(), file, kind).get_function(function)


_Key = tuple[int, str, tuple[int, int]]
"""The device's number, a kernel file, and a kind of plane."""

_modules: "dict[_Key, Future[Any]]" = {}
_lock = threading.Lock()

Modules = Sequence[tuple[str, tuple[int, int]]]
"""Kernel files and kinds of planes."""

_BYTES, _BF16, _FP32 = (1, 0), (2, 2), (4, 2)
USUAL: Modules = (
    *[(name, _BYTES) for name in ("pieces", "checksum", "float_sections")],
    *[(f"float_{name}", kind) for name in ("fit", "transform", "encode", "decode") for kind in (_BF16, _FP32)],
    *[("float_encode", _BYTES), ("float_decode", _BYTES)],
)
"""What saving and loading need of a state in BF16 and FP32."""
BY_FACTORS: Modules = (
    *[(f"lowrank_{name}", kind) for name in ("fit", "rows", "encode", "decode") for kind in (_BF16, _FP32)],
    *[(f"lowrank_{name}", _BYTES) for name in ("basis", "choice", "counts")],
)
"""What level max needs besides."""


def prepare(modules: Modules = USUAL) -> None:
    """Begin to compile what will be needed on the current device, all at once: one after the other takes 14 s.

    Later processes find it in CuPy's cache.
    """
    import cupy

    number = cupy.cuda.runtime.getDevice()
    pool = ThreadPoolExecutor(_COMPILERS, "nvckpt-compile")
    for file, kind in modules:
        key = (number, file, kind)
        future, mine = _claimed(key)
        if mine:
            pool.submit(_fulfil, key, future)
    pool.shutdown(wait=False)


def _module(device: int, file: str, kind: tuple[int, int]) -> Any:
    """One module a kernel file and kind of plane, compiled once in a process, whoever asks first."""
    key = (device, file, kind)
    future, mine = _claimed(key)
    if mine:
        _fulfil(key, future)
    return future.result()


def _claimed(key: _Key) -> "tuple[Future[Any], bool]":
    """A module to come, and whether it is the caller's turn to compile it."""
    with _lock:
        mine = key not in _modules
        return _modules.setdefault(key, Future()), mine


def _fulfil(key: _Key, future: "Future[Any]") -> None:
    try:
        future.set_result(_compile(*key))
    except BaseException as error:  # noqa: BLE001 - raised again where the module is needed
        with _lock:
            del _modules[key]
        future.set_exception(error)


def _compile(device: int, file: str, kind: tuple[int, int]) -> Any:
    """CuPy keeps the compiled code on disk, by source and options."""
    import cupy

    # NVRTC reads the headers from the folder, but CuPy's cache only looks at the source: so they are pasted in.
    with cupy.cuda.Device(device):
        module = cupy.RawModule(code=merged_source(file), options=("--std=c++17", *defines(*kind)), backend="nvrtc")
        module.compile()
    return module


@cache
def merged_source(file: str) -> str:
    """A kernel file with the headers it includes in their places, each once."""
    seen: set[str] = set()

    def merge(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        lines = (KERNELS / name).read_text().splitlines()
        return "\n".join(_included(line, merge) for line in lines if line.strip() != "#pragma once")

    return merge(f"{file}.cu")


def _included(line: str, merge: Any) -> str:
    if line.startswith('#include "'):
        return str(merge(line.split('"')[1]))
    return line
