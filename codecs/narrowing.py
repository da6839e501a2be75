"""Narrowing the words of a block and widening them back, step by step, for the codec `narrowed`."""

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.base import Buffer
from nvckpt.codecs.rounding import narrow_to_fp16, narrow_to_fp32, widen_fp16, widen_fp32

FP32_OF_FP16, FP64_OF_FP32 = 1, 2
"""What the wide words hold; ids of the format."""

# Bits that widening leaves zero.
_LOW = {FP32_OF_FP16: (1 << 13) - 1, FP64_OF_FP32: (1 << 29) - 1}

# The sample that tells whether it is worth a try: words at a place, and places.
_STRETCH, _PLACES = 64, 16
# Words at a time: a step's arrays stay in a core's cache.
_STEP = 1 << 16

Words = npt.NDArray[np.unsignedinteger]


def narrow(kind: int, data: Buffer, width: int) -> memoryview | None:
    """Return the narrow words, of `width` bytes, that wide ones were widened from; None unless all were."""
    words = np.frombuffer(data, f"<u{2 * width}")
    if not _may_narrow(kind, words):
        return None
    found = np.empty(len(words), f"<u{width}")
    for start in range(0, len(words), _STEP):
        part = slice(start, start + _STEP)
        found[part] = _narrow(kind, words[part])
        if (_widen(kind, found[part]) != words[part]).any():
            return None
    return found.view(np.uint8).data


def widen_into(kind: int, source: Buffer, width: int, out: memoryview) -> None:
    """Fill `out` with the wide words of narrow ones of `width` bytes."""
    found, words = np.frombuffer(source, f"<u{width}"), np.frombuffer(out, f"<u{2 * width}")
    for start in range(0, len(words), _STEP):
        words[start : start + _STEP] = _widen(kind, found[start : start + _STEP])


def _may_narrow(kind: int, words: Words) -> bool:
    """Look at a few words: do they narrow, and is it worth it? FP32 whose low halves are zero is left to `float`."""
    step = max(1, (len(words) - _STRETCH) // (_PLACES - 1))
    sample = np.concatenate([words[place * step : place * step + _STRETCH] for place in range(_PLACES)])
    if (sample & sample.dtype.type(_LOW[kind])).any():
        return False
    if kind == FP32_OF_FP16 and not (sample & np.uint32(0xFFFF)).any():
        return False
    return bool((_widen(kind, _narrow(kind, sample)) == sample).all())


def _narrow(kind: int, words: Words) -> Words:
    if kind == FP32_OF_FP16:
        return narrow_to_fp16(words.astype(np.uint32, copy=False))
    return narrow_to_fp32(words.astype(np.uint64, copy=False))


def _widen(kind: int, words: Words) -> Words:
    if kind == FP32_OF_FP16:
        return widen_fp16(words.astype(np.uint16, copy=False))
    return widen_fp32(words.astype(np.uint32, copy=False))
