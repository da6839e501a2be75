"""The arithmetic of `lowrank` in C, through ctypes: the same bytes as NumPy, without holding the interpreter's lock."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import float_native
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_native import Simd
from nvckpt.codecs.lowrank_grid import CONTEXTS, Kind

Words = npt.NDArray[np.unsignedinteger]

SENTENCES = (
    "",
    "a lowrank record has too few symbols",
    "a lowrank record has symbols left over",
    "the raw bits of a lowrank record do not fit its symbols",
    "a factor of a lowrank record is out of range",
)
"""What is wrong with a record, in the order of the numbers in kernels/lowrank_cpu.h; as the oracle says it."""
_NO_MEMORY = len(SENTENCES)
_PARTS = CONTEXTS + 2


class _Matrix(ctypes.Structure):
    """`lowrank_matrix` of kernels/lowrank_cpu.h."""

    _fields_ = (
        ("rows", ctypes.c_uint64),
        ("cols", ctypes.c_uint64),
        ("all_rows", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
        ("word", ctypes.c_int32),
        ("mantissa", ctypes.c_int32),
        ("shift", ctypes.c_int32),
        ("multipliers", ctypes.c_int32 * 8),
        ("scales", ctypes.c_void_p),
        ("factors", ctypes.c_void_p),
        ("bitmap", ctypes.c_void_p),
    )


class _Model(ctypes.Structure):
    """`lowrank_model` of kernels/lowrank_fit.c."""

    _fields_ = (
        ("scales", ctypes.c_void_p),
        ("factors", ctypes.c_void_p),
        ("multipliers", ctypes.c_int64 * 8),
        ("gain", ctypes.c_int64),
        ("rank", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted model: scales of rows, then of columns; of each component the rows' entries, then the columns'."""

    scales: npt.NDArray[np.int32]
    factors: npt.NDArray[np.int16]
    multipliers: Sequence[int]
    gain: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """Kept rows and their model, as records have it: `folded` holds rows' and columns' entries of each component."""

    rows: int
    cols: int
    kind: Kind
    shift: int
    multipliers: Sequence[int]
    scales: npt.NDArray[np.int16]
    folded: npt.NDArray[np.uint16]

    def native(self, all_rows: int, bitmap: int | None) -> _Matrix:
        """Return the C structure; it holds addresses of this object's arrays."""
        kind = self.kind
        head = (self.rows, self.cols, all_rows, len(self.folded), kind.word, kind.mantissa, self.shift)
        numbers = (ctypes.c_int32 * 8)(*self.multipliers)
        return _Matrix(*head, numbers, self.scales.ctypes.data, self.folded.ctypes.data, bitmap)


def available() -> bool:
    """Tell whether the C functions are there."""
    return float_native.available() is None


def fit(words: Words, kind: Kind, most: int, passes: int, *, simd: Simd = "auto") -> Fitted:
    """Fit a matrix, whose rank is `most` at most; `gain` is what the last pass saw (lowrank_choice.py)."""
    held = np.ascontiguousarray(words)
    rows, cols = held.shape
    scales, factors = np.empty(rows + cols, np.int32), np.empty((most, rows + cols), np.int16)
    model = _Model(scales.ctypes.data, factors.ctypes.data)
    _check(
        _library().nvckpt_lowrank_fit(
            held.ctypes.data, rows, cols, kind.word, passes, ctypes.byref(model), float_native.SIMD[simd]
        )
    )
    return Fitted(scales, factors[: model.rank], list(model.multipliers), model.gain)


def encode(matrix: Matrix, words: Words, *, simd: Simd = "auto") -> list[memoryview]:
    """Return the symbols of each context, those of `below`, the escapes and the section of raw bits."""
    held, strips = np.ascontiguousarray(words), -(-matrix.rows // max(1, (1 << 17) // matrix.cols))
    # Reserved for the worst case; what is not written to takes no memory.
    outs = [np.empty(words.size, np.uint8) for _ in range(CONTEXTS + 1)] + [np.empty(words.nbytes, np.uint8)]
    raw = np.empty(36 * strips + 3 * words.size, np.uint8)
    sizes, raw_size = (ctypes.c_uint64 * _PARTS)(), ctypes.c_uint64()
    error = _library().nvckpt_lowrank_encode(
        ctypes.byref(matrix.native(matrix.rows, None)),
        held.ctypes.data,
        _addresses(outs),
        sizes,
        raw.ctypes.data,
        ctypes.byref(raw_size),
        float_native.SIMD[simd],
    )
    _check(error)
    return [out[:size].data for out, size in zip([*outs, raw], [*sizes, raw_size.value], strict=True)]


def decode(
    matrix: Matrix, values: Sequence[Words], raw: Buffer, bitmap: Buffer, out: Words, *, simd: Simd = "auto"
) -> None:
    """Fill `out` with all rows, kept or not, from symbols, escapes and raw bits; CorruptChunkError if these differ."""
    section, kept = np.frombuffer(raw, np.uint8), np.frombuffer(bitmap, np.uint8)
    sizes = (ctypes.c_uint64 * _PARTS)(*(each.nbytes for each in values))
    error = _library().nvckpt_lowrank_decode(
        ctypes.byref(matrix.native(len(out), kept.ctypes.data)),
        _addresses(values),
        sizes,
        section.ctypes.data,
        section.size,
        out.ctypes.data,
        float_native.SIMD[simd],
    )
    _check(error)


def _addresses(arrays: Sequence[npt.NDArray[np.generic]]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def _check(error: int) -> None:
    if error == _NO_MEMORY:
        raise MemoryError("no memory for the lowrank codec's working space")
    if error:
        raise CorruptChunkError(SENTENCES[error])


@cache
def _library() -> ctypes.CDLL:
    library = float_native.library()
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.nvckpt_lowrank_encode.restype = number
    library.nvckpt_lowrank_encode.argtypes = [pointer] * 6 + [number]
    library.nvckpt_lowrank_fit.restype = number
    library.nvckpt_lowrank_fit.argtypes = [pointer, ctypes.c_uint64, ctypes.c_uint64, number, number, pointer, number]
    library.nvckpt_lowrank_decode.restype = number
    library.nvckpt_lowrank_decode.argtypes = [*[pointer] * 4, ctypes.c_uint64, pointer, number]
    return library
