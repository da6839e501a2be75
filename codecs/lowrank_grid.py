"""The grid of the codec `lowrank`: numbers as whole steps, their difference from a prediction, and the bits below.

All in integers, strip by strip (FORMAT.md 19.3). `Widths` of raw bits follow from what was decoded before them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CONTEXTS = 5
"""Tables of the difference symbols: four of the phase, and one for coarsened steps."""
MOST_STEPS = 1 << 30
"""Bound of predictions and numbers in steps; what is beyond is an escape."""
ESCAPE = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """A float of 8 exponent bits: bytes, and bits of the mantissa."""

    word: int
    mantissa: int


KINDS = {2: Kind(2, 7), 4: Kind(4, 23)}
"""BF16 and FP32, by their bytes."""


@dataclass(slots=True)
class Grid:
    """A strip's predictions: exponent of the step (biased), whole steps, and the context of each number."""

    exponent: Ints
    steps: Ints
    context: npt.NDArray[np.uint8]


def make_grid(scale: Ints, products: Ints, multipliers: Ints, shift: int, kind: Kind) -> Grid:
    """Return the grid of numbers of a `scale` in eighths of an octave, predicted by the factors' `products`."""
    exponent, phase = scale >> 3, scale & 7
    steps = np.clip((products * multipliers[phase]) >> shift, -MOST_STEPS, MOST_STEPS - 1)
    # A step is never finer than the last place of the prediction.
    coarser = np.maximum(bit_length(np.where(steps < 0, -1 - steps, steps)) - 1 - kind.mantissa, 0)
    context = np.where(coarser > 0, CONTEXTS - 1, phase >> 1).astype(np.uint8)
    return Grid(exponent + coarser, steps >> coarser, context)


def bit_length(numbers: Ints) -> Ints:
    """Return the bits of numbers from 0 to 2^31: the exponent of the number as a double, which is exact."""
    return np.where(numbers > 0, (numbers.astype(np.float64).view(np.int64) >> 52) - 1022, 0)


@dataclass(slots=True)
class Strip:
    """A strip as coded: a symbol for each number, one more for each that is less than a step, raw bits, and escapes."""

    symbols: npt.NDArray[np.uint8]
    below: npt.NDArray[np.uint8]
    raw: bytes
    escapes: npt.NDArray[np.unsignedinteger]


def code(words: npt.NDArray[np.unsignedinteger], grid: Grid, kind: Kind) -> Strip:
    """Code a strip's words on its grid."""
    bits = words.astype(np.int64)
    negative = bits >> (8 * kind.word - 1)
    exponent = bits >> kind.mantissa & 0xFF
    mantissa = bits & ((1 << kind.mantissa) - 1)
    over = exponent - grid.exponent
    full = mantissa | 1 << kind.mantissa
    zero = (exponent == 0) & (mantissa == 0)
    size = np.where((over < 0) | zero, 0, (full << np.clip(over, 0, 31)) >> kind.mantissa)
    difference = np.where(negative, -1 - size, size) - grid.steps
    place = grid.exponent - exponent
    odd = (exponent == 0) & ~zero | (exponent == 255) | (over > 30) | (np.abs(difference) > 127)
    odd |= (size == 0) & ~zero & ((place < 1) | (place > 255))
    symbols = np.where(odd, ESCAPE, difference + 128).astype(np.uint8)
    small = (size == 0) & ~odd
    below = np.where(zero, 0, place)[small].astype(np.uint8)
    widths = _widths(size, small, ~odd, kind)
    widths[zero] = 0
    return Strip(symbols, below, pack(mantissa, widths), words[odd])


def _widths(size: Ints, small: Mask, coded: Mask, kind: Kind) -> Ints:
    widths = np.maximum(kind.mantissa + 1 - bit_length(size), 0)
    widths[small] = kind.mantissa
    widths[~coded] = 0
    return widths


@dataclass(slots=True)
class Numbers:
    """What the symbols of a strip tell: sizes in steps, signs, which are coded, and which are below a step."""

    size: Ints
    negative: Mask
    coded: Mask
    small: Mask


def numbers_of(symbols: npt.NDArray[np.uint8], grid: Grid) -> Numbers:
    """Undo the prediction."""
    steps = grid.steps + symbols.astype(np.int64) - 128
    negative = steps < 0
    size = np.where(negative, -1 - steps, steps)
    coded = symbols != ESCAPE
    return Numbers(size, negative, coded, (size == 0) & coded)


def widths_of(numbers: Numbers, below: npt.NDArray[np.uint8], kind: Kind) -> Ints:
    """Return the raw bits of each number, given the symbols of those below a step."""
    widths = _widths(numbers.size, numbers.small, numbers.coded, kind)
    widths[numbers.small] = np.where(below == 0, 0, kind.mantissa)
    return widths


def words_of(numbers: Numbers, below: npt.NDArray[np.uint8], raw: Ints, grid: Grid, kind: Kind) -> Ints:
    """Return the words of all numbers but escapes, whose words are anything."""
    length = bit_length(numbers.size) - 1
    exponent = grid.exponent + length
    left = kind.mantissa - length
    top = numbers.size - (1 << np.maximum(length, 0))
    mantissa = np.where(left >= 0, (top << np.maximum(left, 0)) | raw, top >> np.maximum(-left, 0))
    place = below.astype(np.int64)
    exponent[numbers.small] = np.where(place == 0, 0, grid.exponent[numbers.small] - place)
    mantissa[numbers.small] = raw[numbers.small]
    words = (exponent & 0xFF) << kind.mantissa | mantissa
    return words | numbers.negative.astype(np.int64) << (8 * kind.word - 1)


def pack(values: Ints, widths: Ints) -> bytes:
    """Pack the low bits of values: all of one width together, narrow ones first, in whole bytes and then the rest."""
    parts = []
    for width in range(1, int(widths.max(initial=0)) + 1):
        held = values[widths == width] & ((1 << width) - 1)
        parts += [(held >> 8 * i & 0xFF).astype(np.uint8).tobytes() for i in range(width // 8)]
        if width % 8:
            rest = (held >> (width // 8 * 8)).astype(np.uint8)
            bits = rest[:, None] >> np.arange(width % 8, dtype=np.uint8) & 1
            parts.append(np.packbits(bits.reshape(-1), bitorder="little").tobytes())
    return b"".join(parts)


def packed_size(widths: Ints) -> int:
    """Return the bytes that `pack` makes for values of these widths."""
    counts = np.bincount(widths, minlength=1)
    return sum(int(n) * (w // 8) + -(-int(n) * (w % 8) // 8) for w, n in enumerate(counts))


def unpack(packed: memoryview, widths: Ints) -> Ints:
    """Undo `pack`; the packed bytes are as many as `packed_size` says."""
    values = np.zeros(len(widths), np.int64)
    source = np.frombuffer(packed, np.uint8)
    position = 0
    for width in range(1, int(widths.max(initial=0)) + 1):
        places = np.flatnonzero(widths == width)
        count = len(places)
        held = np.zeros(count, np.int64)
        for i in range(width // 8):
            held |= source[position : position + count].astype(np.int64) << 8 * i
            position += count
        if width % 8:
            size = -(-count * (width % 8) // 8)
            bits = np.unpackbits(source[position : position + size], bitorder="little")[: count * (width % 8)]
            rest = bits.reshape(count, width % 8).astype(np.int64) << np.arange(width % 8)
            held |= rest.sum(1) << (width // 8 * 8)
            position += size
        values[places] = held
    return values
