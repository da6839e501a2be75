"""What `derived` does with BF16 words, in C, where that was built.

Two to three times as fast as NumPy on one thread, and without holding the interpreter's lock.
"""

import ctypes
from functools import cache

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import float_native
from nvckpt.codecs.rounding import Words, Words16, Words32


def available() -> bool:
    """Tell whether the C functions are there."""
    return float_native.available() is None


def remainder_encode(data: Words, source: Words, allowed: int) -> tuple[Words16, npt.NDArray[np.uint32]] | None:
    """Return the differences and the numbers of the words that have none; None for more than `allowed` of these."""
    rest = np.empty(len(data), np.uint16)
    exceptions = np.empty(allowed, np.uint32)
    found = _library().nvckpt_remainder_encode(
        data.ctypes.data, source.ctypes.data, len(data), rest.ctypes.data, exceptions.ctypes.data, allowed
    )
    return None if found < 0 else (rest, exceptions[:found])


def remainder_decode(rest: Words, source: Words, out: Words) -> None:
    """Add differences, modulo 2^16, to widened words."""
    _library().nvckpt_remainder_decode(rest.ctypes.data, source.ctypes.data, len(out), out.ctypes.data)


def round_into(words: Words32, out: Words16) -> None:
    """FP32 words to BF16 words, as `rounding.round_to_bf16`."""
    _library().nvckpt_round_to_bf16(words.ctypes.data, len(words), out.ctypes.data)


@cache
def _library() -> ctypes.CDLL:
    library = float_native.library()
    pointer, count = ctypes.c_void_p, ctypes.c_uint64
    library.nvckpt_remainder_encode.restype = ctypes.c_int64
    library.nvckpt_remainder_encode.argtypes = [pointer, pointer, count, pointer, pointer, count]
    library.nvckpt_remainder_decode.restype = None
    library.nvckpt_remainder_decode.argtypes = [pointer, pointer, count, pointer]
    library.nvckpt_round_to_bf16.restype = None
    library.nvckpt_round_to_bf16.argtypes = [pointer, count, pointer]
    return library
