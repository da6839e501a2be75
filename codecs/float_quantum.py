"""The quantum of a word: its coarse logarithm, the part that is predicted and coded (16.3)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.float_spec import Layout

Words = npt.NDArray[Any]
"""Unsigned integers of 1, 2, 4 or 8 bytes."""

QUANTUM_BITS = {Layout.ROTATED: 8, Layout.LOG: 11}


def quantum(words: Words, layout: Layout) -> npt.NDArray[np.uint16]:
    """Return each word's quantum: 8 bits of the rotated top in layout 1, the 11 bits below the sign in layout 2."""
    top = (words >> (8 * words.dtype.itemsize - 16)).astype(np.uint16)
    if layout == Layout.ROTATED:
        return top >> np.uint16(7) & np.uint16(255)
    return top >> np.uint16(4) & np.uint16(2047)


def replace_quantum(words: Words, value: npt.NDArray[np.int32], layout: Layout) -> Words:
    """Return the words with `value`, taken modulo the quantum's range, in the quantum's place."""
    shift = 8 * words.dtype.itemsize - 16 + (7 if layout == Layout.ROTATED else 4)
    mask = (1 << QUANTUM_BITS[layout]) - 1
    kept = words & words.dtype.type(~(mask << shift) & ((1 << 8 * words.dtype.itemsize) - 1))
    replaced: Words = kept | (value & mask).astype(words.dtype) << words.dtype.type(shift)
    return replaced
