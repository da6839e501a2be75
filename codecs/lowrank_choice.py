"""How many components `lowrank` keeps, and how finely their factors are rounded, so that the stream is smallest.

The same numbers on every machine: single IEEE operations in a fixed order, and logarithms in integers.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LOG_UNIT = 1 << 16
"""An octave, of `logarithms`. A gain counts half of these."""
# Bits that a component costs beside its entries.
_SIDE = 16
_TWO_PI_E = 17.079468445347135
# Of the whole energy, so much is always left.
_LEAST_REST = 1e-12


class Choice(NamedTuple):
    """`step` of the factors' entries; `gain` in bits times 2 LOG_UNIT, 0 where nothing is to be gained."""

    rank: int
    step: float
    gain: int


NOTHING = Choice(0, 0.0, 0)


def choose(squares: Doubles, gone: Doubles, shape: tuple[int, int], energy: float) -> Choice:
    """Choose for a matrix of a sum of squares `energy`.

    `squares` are those of the components' sizes, descending; `gone` is what each and those before it take of `energy`.
    The rounding of the factors is made the part k (rows + cols) / n of the residual, the optimum in closed form.
    """
    rows, cols = shape
    n = rows * cols
    ranks = np.arange(1, len(squares) + 1)
    noise = ranks * (rows + cols) / n
    usable = int(((noise <= 0.5) & (squares > 0)).sum())
    if not usable or energy <= 0:
        return NOTHING
    ranks, noise, sizes = ranks[:usable], noise[:usable], np.sqrt(squares[:usable])
    rest = np.maximum(energy - gone[:usable], _LEAST_REST * energy) / n
    even = np.sqrt(np.float64(rows) / cols)  # the square of what evens out the factors
    # `accumulate` adds one element after the other.
    total = np.add.accumulate(sizes) * (1 / (cols * even) + even / rows)
    step2 = 12 * noise * rest / total
    gains = n * (logarithms(np.float64(energy) / n) - logarithms(rest * (1 + noise))) - 2 * _SIDE * LOG_UNIT * ranks
    for k in range(usable):
        power = _TWO_PI_E * sizes[: k + 1] / step2[k]
        gains[k] -= rows * logarithms(1 + power * even / rows).sum()
        gains[k] -= cols * logarithms(1 + power / (cols * even)).sum()
    best = int(gains.argmax())
    return Choice(best + 1, float(np.sqrt(step2[best])), int(gains[best])) if gains[best] > 0 else NOTHING


def logarithms(values: Doubles | np.float64) -> Ints:
    """Return the binary logarithms of positive numbers by their exponents and upper 8 bits, in 1 / LOG_UNIT."""
    bits = np.asarray(values).view(np.int64)
    found: Ints = ((bits >> 52) - 1023) * LOG_UNIT + LOGARITHMS[bits >> 44 & 0xFF]
    return found


def _make_table() -> Ints:
    """The logarithms of (513 + 2 i) / 512, bit after bit: a square above 2 is a bit that is set."""
    number = (513 + 2 * np.arange(256, dtype=np.uint64)) << np.uint64(22)
    found = np.zeros(256, np.int64)
    for _ in range(16):
        number = number * number >> np.uint64(31)
        bit = number >> np.uint64(32)
        found = found << 1 | bit.astype(np.int64)
        number >>= bit
    return found


LOGARITHMS = _make_table()
