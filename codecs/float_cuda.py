"""The float codec on NVIDIA GPUs: device to device, many tensors a call, the same bytes as the other implementations.

CuPy is imported when a function here needs it. The kernels are compiled for the machine on first use and kept in
CuPy's cache. All work goes to CuPy's current device and stream.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.float_cuda_decode import Decoding, Place, parse
from nvckpt.codecs.float_cuda_device import CupyDevice
from nvckpt.codecs.float_cuda_encode import encode_on, max_encoded_size
from nvckpt.codecs.float_spec import FloatSpec, LevelName

__all__ = ["available", "check", "decode", "encode", "max_encoded_size"]

_OLDEST = 70


def available(number: int = 0) -> str | None:
    """None where the codec works on GPU `number`, else the reason in a clause."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed (install nvckpt's extra cu12 or cu13: pip install '.[cu12]' in its checkout)"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        if number >= count:
            return f"there are {count} NVIDIA GPUs, numbered from 0" if count else "no NVIDIA GPU was found"
        capability = int(cupy.cuda.Device(number).compute_capability)
    except Exception as problem:  # noqa: BLE001 - a broken driver fails in many ways, and all mean: no GPU
        return f"no NVIDIA GPU or driver was found ({problem})"
    return None if capability >= _OLDEST else f"the GPU's compute capability is {capability}, below {_OLDEST}"


def encode(
    arrays: Sequence[Any], specs: Sequence[FloatSpec], level: LevelName = "default"
) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Encode CuPy arrays of bytes, each with its spec.

    Returns a CuPy array of bytes, and where in it each stream begins and how long it is. Streams begin at multiples
    of 16 and have room between them; they are the bytes that every other implementation writes.
    """
    device = _device(_current())
    held = [_aligned(array) for array in arrays]
    return encode_on(device, [_place(array) for array in held], specs, level)


def decode(streams: Sequence[Any], outs: Sequence[Any]) -> None:
    """Fill CuPy arrays of bytes, each of its stream's original size; CorruptChunkError if one does not fit."""
    import cupy

    device = _device(_current())
    held = [_aligned(stream) for stream in streams]
    targets = [
        out if out.data.ptr % 16 == 0 and out.flags.c_contiguous else cupy.empty(out.size, np.uint8) for out in outs
    ]
    Decoding(device, [_place(stream) for stream in held], [_place(target) for target in targets]).run()
    for out, target in zip(outs, targets, strict=True):
        if target is not out:
            out[...] = target


def check(streams: Sequence[Any], sizes: Sequence[int]) -> None:
    """CorruptChunkError unless headers and sections account for the streams; nothing is decoded."""
    held = [_aligned(stream) for stream in streams]
    parse(_device(_current()), [_place(stream) for stream in held], sizes)


def _current() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDevice())


@cache
def _device(_: int) -> CupyDevice:
    return CupyDevice()


def _aligned(array: Any) -> Any:
    """The array, or a copy of it, where the kernels' reads of 16 bytes are allowed."""
    import cupy

    if array.dtype != np.uint8 or array.ndim != 1:
        raise TypeError("arrays of bytes are needed: array.view(numpy.uint8).reshape(-1)")
    if array.size and (array.data.ptr % 16 or not array.flags.c_contiguous):
        return cupy.ascontiguousarray(array).copy()
    return array


def _place(array: Any) -> Place:
    return int(array.data.ptr), int(array.size)
