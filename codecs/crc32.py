"""CRC-32 of a whole from the CRC-32s of its parts (polynomial 0xEDB88320, as zip and zlib use it)."""

from functools import cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31


def combine(first: int, second: int, length: int) -> int:
    """Return the CRC of two byte strings one after the other; `length` is the second one's, in bytes."""
    return multiply(shift(length), first) ^ second


@cache
def shift(length: int) -> int:
    """Return x to the power of 8 `length`, modulo the polynomial: multiplying by it moves a CRC past so many bytes."""
    result, power, bits = _ONE, _ONE >> 8, length
    while bits:
        if bits & 1:
            result = multiply(power, result)
        power = multiply(power, power)
        bits >>= 1
    return result


def multiply(a: int, b: int) -> int:
    """Return the product of two polynomials of 32 bits, the highest power in the lowest bit."""
    product = 0
    mask = _ONE
    while mask:
        if a & mask:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
        mask >>= 1
    return product


def multiply_all(a: Words, b: Words) -> Words:
    """Return the products of pairs of polynomials."""
    product = np.zeros(np.broadcast(a, b).shape, np.uint32)
    polynomial = np.uint32(_POLYNOMIAL)
    for bit in range(31, -1, -1):
        product ^= np.where(a >> np.uint32(bit) & np.uint32(1), b, np.uint32(0))
        b = b >> np.uint32(1) ^ np.where(b & np.uint32(1), polynomial, np.uint32(0))
    return product


def shifts(length: int, count: int) -> Words:
    """Return `shift` of 0, 1, ... `count` - 1 times `length` bytes."""
    found = np.array([_ONE], np.uint32)
    while len(found) < count:
        found = np.concatenate([found, multiply_all(found, np.array(shift(length * len(found)), np.uint32))])
    return found[:count]
