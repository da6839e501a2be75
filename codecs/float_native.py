"""The float codec in C, through ctypes: the same bytes as float_reference.py, some three hundred times faster.

The library is built when nvckpt is installed, if there is a C compiler; `available` says why it is not there, and
callers fall back to NumPy. ctypes releases the interpreter's lock for the length of a call.
"""

import ctypes
import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.base import Buffer
from nvckpt.codecs.errors import CodecUnavailableError, CorruptChunkError
from nvckpt.codecs.float_spec import FloatSpec, Kind, LevelName

Simd = Literal["auto", "plain", "avx2"]
"""Which instructions: the best there are, plain C, or AVX2 where the processor has it. Same bytes."""

SIMD: dict[Simd, int] = {"auto": -1, "plain": 0, "avx2": 1}
_KINDS: dict[Kind, int] = {"bytes": 0, "bf16": 1, "fp16": 2, "fp32": 3, "fp64": 4}
_LEVELS: dict[LevelName, int] = {"fast": 0, "default": 1, "max": 2}

# In the order of the numbers in kernels/float_cpu.h; the sentences are the oracle's.
_SENTENCES = (
    "",
    "the float stream is cut short",
    "the float stream has an unknown header",
    "the float stream's header contradicts itself",
    "the float stream has another size than the archive says",
    "the float stream describes an impossible matrix",
    "the float stream's matrices do not add up to its words",
    "the float stream is longer or shorter than its sections",
    "a coded plane is cut short",
    "the blocks of a coded plane are not in order",
    "a block record is longer or shorter than its chunks",
    "a raw chunk has words or exceptions",
    "a chunk's description is impossible",
    "a frequency table is cut short",
    "the frequencies of a table do not add up",
    "the exceptions of a chunk are not in order",
    "a state of a chunk is outside its range",
    "a chunk has too few words",
    "a chunk does not end as it should",
    "the bitmap of zeros does not fit the number of words",
)
_NO_MEMORY, _BAD_ARGUMENT, _NO_ROOM = range(len(_SENTENCES), len(_SENTENCES) + 3)


def available() -> str | None:
    """Return None if the C codec can be used, else the reason why not."""
    loaded = _load()
    return loaded if isinstance(loaded, str) else None


def has_avx2() -> bool:
    """Return whether "avx2" differs from "plain" here; CodecUnavailableError without the library."""
    return bool(library().nvckpt_float_has_avx2())


def encode(data: Buffer, spec: FloatSpec, level: LevelName = "default", *, simd: Simd = "auto") -> memoryview:
    """Return the stream of `data`, any contiguous buffer of at most 256 MiB, as a view of memory of its own.

    ValueError if word, kind and matrices of `spec` do not fit the data.
    """
    native, source = library(), _bytes_of(data)
    matrices = np.array(spec.matrices, np.uint32).reshape(-1, 2)
    shape = (spec.word, _KINDS[spec.kind])
    bound = native.nvckpt_float_max_encoded_size(source.size, *shape, matrices.ctypes.data, len(matrices))
    out = np.empty(bound, np.uint8)
    size = native.nvckpt_float_encode(
        source.ctypes.data,
        source.size,
        *shape,
        _LEVELS[level],
        matrices.ctypes.data,
        len(matrices),
        out.ctypes.data,
        out.size,
        SIMD[simd],
    )
    if size < 0:
        _fail(-size)
    return out.data[:size]  # a copy would cost as much as a tenth of the encoding


def decode(stream: Buffer, out: memoryview | bytearray, *, simd: Simd = "auto") -> None:
    """Fill `out`, whose length is the original size; CorruptChunkError names what is wrong with the stream."""
    source, target = _bytes_of(stream), _bytes_of(out)
    if not target.flags.writeable:
        raise ValueError("the memory to decode into is read-only")
    error = library().nvckpt_float_decode(source.ctypes.data, source.size, target.ctypes.data, target.size, SIMD[simd])
    if error:
        _fail(error)


def check(stream: Buffer, size: int) -> None:
    """CorruptChunkError unless the stream's sections account for its length and for `size` bytes."""
    source = _bytes_of(stream)
    if size < 0:
        raise ValueError("sizes are not negative")
    error = library().nvckpt_float_check(source.ctypes.data, source.size, size)
    if error:
        _fail(error)


def _bytes_of(data: Buffer) -> npt.NDArray[np.uint8]:
    """View a contiguous buffer as bytes; the array keeps it alive."""
    view = memoryview(data).cast("B")
    return np.frombuffer(view, np.uint8) if len(view) else np.empty(0, np.uint8)


def _fail(error: int) -> None:
    if error == _NO_MEMORY:
        raise MemoryError("no memory for the float codec's working space")
    if error in (_BAD_ARGUMENT, _NO_ROOM):
        raise ValueError("the float codec's words and matrices do not fit the data")
    raise CorruptChunkError(_SENTENCES[error])


def library() -> ctypes.CDLL:
    """Return the loaded library; CodecUnavailableError where there is none."""
    loaded = _load()
    if isinstance(loaded, str):
        raise CodecUnavailableError(loaded)
    return loaded


@cache
def _load() -> ctypes.CDLL | str:
    """Return the library, or the reason why there is none."""
    if sys.byteorder != "little":
        return "the C float codec is for little-endian machines"
    paths = [Path(__file__).with_name(f"_float{suffix}") for suffix in EXTENSION_SUFFIXES]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return "the C float codec is not built; install a C compiler and then nvckpt again"
    try:
        return _declare(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        return f"the C float codec cannot be loaded: {error}"


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number, size, count = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint32
    signatures: dict[str, tuple[type, list[type]]] = {
        "nvckpt_float_has_avx2": (number, []),
        "nvckpt_float_max_encoded_size": (size, [size, number, number, pointer, count]),
        "nvckpt_float_encode": (
            ctypes.c_int64,
            [pointer, size, number, number, number, pointer, count, pointer, size, number],
        ),
        "nvckpt_float_decode": (number, [pointer, size, pointer, size, number]),
        "nvckpt_float_check": (number, [pointer, size, size]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
