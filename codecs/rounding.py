"""Rounding FP32 to 16 bits and widening back, for every bit pattern and the same on every machine (FORMAT.md 17.1).

Words in, words out: unsigned integers of 2, 4 or 8 bytes. The one floating-point operation here is the correctly
rounded conversion to FP16; denormals and NaN, where machines and their modes differ, are done in integers.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Words16 = npt.NDArray[np.uint16]
Words32 = npt.NDArray[np.uint32]
Words = npt.NDArray[np.unsignedinteger]

BF16, FP16 = 1, 2
"""The kinds of 16-bit words; ids of the format."""

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)


def round_to_bf16(words: Words32) -> Words16:
    """FP32 words to BF16 words, to nearest even; a NaN keeps its upper bits and becomes quiet."""
    rounded = words >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += words
    rounded >>= np.uint32(16)
    out = rounded.astype(np.uint16)
    nan = (words & _MAGNITUDE) > _INFINITY
    if nan.any():
        out[nan] = (words[nan] >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40)
    return out


def round_to_fp16(words: Words32) -> Words16:
    """FP32 words to FP16 words, to nearest even; a NaN keeps its upper bits and becomes quiet."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out = words.view(np.float32).astype(np.float16).view(np.uint16)
    nan = (words & _MAGNITUDE) > _INFINITY
    if nan.any():
        held = words[nan]
        sign = (held >> np.uint32(16)) & np.uint32(0x8000)
        out[nan] = (sign | np.uint32(0x7E00) | ((held >> np.uint32(13)) & np.uint32(0x3FF))).astype(np.uint16)
    return out


def widen_bf16(words: Words16) -> Words32:
    """BF16 words as FP32 words of the same value."""
    wide = words.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide


def widen_fp16(words: Words16) -> Words32:
    """FP16 words as FP32 words of the same value; a NaN keeps its bits at the top of the mantissa."""
    magnitude = (words & np.uint16(0x7FFF)).astype(np.uint32)
    wide = (magnitude << np.uint32(13)) + np.uint32(112 << 23)
    wide += np.where(magnitude >= 0x7C00, np.uint32(112 << 23), np.uint32(0))
    small = magnitude < 0x400
    if small.any():
        value = magnitude[small].astype(np.float32).view(np.uint32)
        wide[small] = value - np.where(value != 0, np.uint32(24 << 23), np.uint32(0))
    wide |= (words & np.uint16(0x8000)).astype(np.uint32) << np.uint32(16)
    return wide


def widen_fp32(words: Words32) -> npt.NDArray[np.uint64]:
    """FP32 words as FP64 words of the same value; a NaN keeps its bits at the top of the mantissa."""
    magnitude = (words & _MAGNITUDE).astype(np.uint64)
    wide = (magnitude << np.uint64(29)) + np.uint64(896 << 52)
    wide += np.where(magnitude >= _INFINITY, np.uint64(896 << 52), np.uint64(0))
    small = magnitude < 1 << 23
    if small.any():
        value = magnitude[small].astype(np.float64).view(np.uint64)
        wide[small] = value - np.where(value != 0, np.uint64(149 << 52), np.uint64(0))
    wide |= (words & np.uint32(0x80000000)).astype(np.uint64) << np.uint64(32)
    return wide


def narrow_to_fp32(words: npt.NDArray[np.uint64]) -> Words32:
    """Guess the FP32 words that FP64 words were widened from; only widening again tells whether they were."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out = words.view(np.float64).astype(np.float32).view(np.uint32)
    nan = (words & np.uint64(0x7FFFFFFFFFFFFFFF)) > np.uint64(0x7FF0000000000000)
    if nan.any():
        sign = (words[nan] >> np.uint64(32)) & np.uint64(0x80000000)
        out[nan] = (sign | ((words[nan] >> np.uint64(29)) & np.uint64(0x7FFFFFFF))).astype(np.uint32)
        out[nan] |= _INFINITY
    return out


def narrow_to_fp16(words: Words32) -> Words16:
    """Guess the FP16 words that FP32 words were widened from; only widening again tells whether they were."""
    out = round_to_fp16(words)
    nan = (words & _MAGNITUDE) > _INFINITY
    if nan.any():
        sign = (words[nan] >> np.uint32(16)) & np.uint32(0x8000)
        out[nan] = (sign | np.uint32(0x7C00) | ((words[nan] >> np.uint32(13)) & np.uint32(0x3FF))).astype(np.uint16)
    return out


class Rounding(NamedTuple):
    """A 16-bit kind: rounding to it, and widening from it."""

    round: Callable[[Words32], Words16]
    widen: Callable[[Words16], Words32]


ROUNDINGS = {BF16: Rounding(round_to_bf16, widen_bf16), FP16: Rounding(round_to_fp16, widen_fp16)}
