"""Fitting what the codec `lowrank` predicts with: scales of rows and columns, and whole-number factors.

The same result on every machine (FORMAT.md 19.4): products of whole numbers, whose order does not matter, and single
IEEE operations in a fixed order; no function of a mathematics library. None overflows, or makes a subnormal number.
In C where that was built; this is the oracle.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import lowrank_basis, lowrank_native
from nvckpt.codecs.lowrank_basis import FINE, MOST_NUMBERS, MOST_SIDE, Doubles, Whole, bands
from nvckpt.codecs.lowrank_choice import LOG_UNIT, NOTHING, Choice, choose
from nvckpt.codecs.lowrank_grid import Kind
from nvckpt.codecs.lowrank_record import MOST_FACTOR

Words = npt.NDArray[np.unsignedinteger]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

RANK, SPARE = 128, 16
"""Components looked for at most, and vectors more than those, which make the last of them better."""
PASSES = 4
SHIFT = 20
# What a product may be worth, so that multipliers stay below 2^30.
MOST_UNIT = 512.0
# Rows and columns that tell whether anything is to be gained, and the least gain in bits a value.
_SAMPLE_ROWS, _SAMPLE_COLS, _LEAST_GAIN = 192, 384, 0.03
# Numbers are rounded to 2^-3 of their scale and cut at MOST_FACTOR, or more coarsely: so few may be cut.
_FINEST, _CUT_ONE_IN = 3, 16384
_EXPONENTS = 2047
# A residual is taken to be at least this part of a number's last place.
_FLOOR, _SMALLEST = 0.29, 2.0**-126
# Logarithms are exponents with 8 bits of the mantissa: by so much too low on the average.
_LOG_BITS, _LOG_MEAN = 8, 15
# Bounds of the scales, 160 and 200 octaves, so that no square overflows.
_MOST_ROW, _MOST_COL = 8 * 160, 8 * 200
# 2^(k / 8) and 2^(-k / 8), as every machine must have them: a library's may differ in the last place.
_OCTAVE = np.array(
    [
        1.0,
        1.0905077326652577,
        1.189207115002721,
        1.2968395546510096,
        1.4142135623730951,
        1.5422108254079407,
        1.681792830507429,
        1.8340080864093424,
    ]
)
_INVERSE = np.array(
    [
        1.0,
        0.9170040432046712,
        0.8408964152537145,
        0.7711054127039704,
        0.7071067811865476,
        0.6484197773255048,
        0.5946035575013605,
        0.5452538663326288,
    ]
)


@dataclass(frozen=True, slots=True)
class Model:
    """`rows` and `cols` add up to a number's scale in eighths of an octave (biased); `left` and `right` are factors.

    A prediction is (left @ right.T) * multipliers[scale & 7] >> shift, in steps of 2^(scale >> 3).
    """

    rows: Ints
    cols: Ints
    left: Ints
    right: Ints
    multipliers: Ints
    shift: int = SHIFT


def values_of(words: Words, kind: Kind) -> Floats:
    """Return words as numbers; what is not finite counts as zero, and so does what is subnormal."""
    wide = words.astype(np.uint32, order="C")
    wide <<= np.uint32(32 - 8 * kind.word)
    exponent = wide >> np.uint32(23) & np.uint32(0xFF)
    wide[(exponent == 0) | (exponent == 0xFF)] = 0
    return wide.view(np.float32)


def promises(words: Words, kind: Kind) -> bool:
    """Tell from some rows and columns whether a matrix has a signed part of low rank worth its factors."""
    down, across = sample_steps(*words.shape)
    some = worth_fitting(words[::down, ::across], kind)
    return some is not None and is_worth(_fit(some, kind, 1)[1], some.size)


def sample_steps(rows: int, cols: int) -> tuple[int, int]:
    """Return every how many rows and columns are taken for a sample."""
    return -(-rows // _SAMPLE_ROWS), -(-cols // _SAMPLE_COLS)


def worth_fitting(sampled: Words, kind: Kind) -> Words | None:
    """Return a sample's rows that are not all zero; None where they are few, or all of one sign."""
    values = values_of(sampled, kind)
    live = sampled[values.any(1)]
    return None if min(live.shape) < 8 or (values >= 0).all() or (values <= 0).all() else live


def is_worth(gain: int, size: int) -> bool:
    """Tell whether a fitted sample of `size` numbers promises that a matrix repays its factors."""
    return gain > 2 * LOG_UNIT * _LEAST_GAIN * size


def fit(words: Words, kind: Kind) -> Model:
    """Fit a matrix without rows that are all zero."""
    return _fit(words, kind, PASSES)[0]


def _fit(words: Words, kind: Kind, passes: int) -> tuple[Model, int]:
    if not lowrank_native.available():
        return fit_passes(words, kind, passes)
    rows, cols = words.shape
    made = lowrank_native.fit(words, kind, most_rank(rows, cols), passes)
    scales, entries = made.scales.astype(np.int64), made.factors.T.astype(np.int64)
    multipliers = np.array(made.multipliers, np.int64)
    return Model(scales[:rows], scales[rows:], entries[:rows], entries[rows:], multipliers), made.gain


class _Scale(NamedTuple):
    """The scale of a number is the sum of its row's and its column's, in eighths of an octave."""

    rows: Ints
    cols: Ints

    def times(self, numbers: Doubles, band: slice, unit: float) -> Doubles:
        """Return the numbers of some rows times their scales and a unit."""
        rows, cols = self.rows[band], self.cols
        by_row = np.ldexp(unit * _OCTAVE[rows & 7], rows >> 3)
        scaled: Doubles = numbers * by_row[:, None] * np.ldexp(_OCTAVE[cols & 7], cols >> 3)
        return scaled

    def divide(self, values: Floats, band: slice) -> Doubles:
        """Return the numbers of some rows in units of their scales."""
        rows, cols = self.rows[band], self.cols
        by_row = np.ldexp(_INVERSE[rows & 7], -(rows >> 3))
        by_col = np.ldexp(_INVERSE[cols & 7], -(cols >> 3))
        scaled: Doubles = values[band].astype(np.float64) * by_row[:, None] * by_col
        return scaled


class _Prediction(NamedTuple):
    """Factors, by component, the worth of their product, and the scale that it is in."""

    left: Doubles
    right: Doubles
    unit: float
    scale: _Scale

    def of(self, band: slice) -> Doubles:
        """Return the prediction of some rows."""
        return self.scale.times(self.left[:, band].T @ self.right, band, self.unit)


def most_rank(rows: int, cols: int) -> int:
    """Return how many components are looked for; none in a matrix whose sums might not be exact."""
    is_exact = max(rows, cols) <= MOST_SIDE and rows * cols <= MOST_NUMBERS
    return min(RANK, rows * cols // (2 * (rows + cols))) if is_exact else 0


def multipliers_of(unit: float) -> Ints:
    """Return what a record has of the worth of a product."""
    return np.rint(unit * _OCTAVE * (1 << SHIFT)).astype(np.int64)


def fit_passes(words: Words, kind: Kind, passes: int) -> tuple[Model, int]:
    """Fit a matrix without rows that are all zero; the model and the gain (see `Choice`) that the last pass saw."""
    values = values_of(words, kind)
    rows, cols = values.shape
    rank = most_rank(rows, cols)
    basis = lowrank_basis.arbitrary(min(rank + SPARE, rows, cols), cols)
    scale, prediction, choice = _scales(values, None, kind), None, NOTHING
    for number in range(passes if rank else 0):
        if prediction:
            # The residual has other scales than the values; a product counts in the scale of the residual.
            scale = _scales(values, prediction, kind)
        z, shift = _whole(values, scale)
        for _ in range(2 if number == passes - 1 else 1):
            basis = lowrank_basis.orthogonal(lowrank_basis.by_rows(basis, z))
            basis = lowrank_basis.orthogonal(lowrank_basis.by_columns(basis, z))
        left, right, unit, choice, basis = _factors(z, shift, basis, rank)
        prediction = _Prediction(left, right, unit, scale)
        if not choice.rank:
            break
    if prediction is None or not choice.rank or prediction.unit >= MOST_UNIT:
        none = np.zeros((0, rows)), np.zeros((0, cols))
        prediction, choice = _Prediction(*none, 0.0, _scales(values, None, kind)), NOTHING
    multipliers = multipliers_of(prediction.unit)
    factors = prediction.left.T.astype(np.int64), prediction.right.T.astype(np.int64)
    return Model(prediction.scale.rows + 8 * 127, prediction.scale.cols, *factors, multipliers), choice.gain


def _scales(values: Floats, prediction: _Prediction | None, kind: Kind) -> _Scale:
    """Fit the mean logarithms of a residual's rows and columns, in eighths of an octave, rounded to the nearest."""
    count, width = values.shape
    rows, cols = np.empty(count, np.int64), np.zeros(width, np.int64)
    unit = 1 << (_LOG_BITS - 3)
    for band in bands(values.shape):
        held = values[band].astype(np.float64)
        size = np.abs(held)
        residual = np.abs(held - prediction.of(band)) if prediction else size
        residual = np.maximum(residual, np.maximum(size, _SMALLEST) * (_FLOOR * 2.0**-kind.mantissa))
        logarithm = (residual.view(np.int64) >> (52 - _LOG_BITS)) - (1023 << _LOG_BITS) + _LOG_MEAN
        rows[band] = (logarithm.sum(1) + unit // 2 * width) // (unit * width)
        cols += logarithm.sum(0)
    rows = np.clip(rows, -_MOST_ROW, _MOST_ROW)
    cols = (cols - unit * rows.sum() + unit // 2 * count) // (unit * count)
    return _Scale(rows, np.clip(cols, -_MOST_COL, _MOST_COL))


def _whole(values: Floats, scale: _Scale) -> tuple[Whole, int]:
    """Return values as whole numbers in units of 2^-shift of their scale, and the shift."""
    counts = np.zeros(_EXPONENTS, np.int64)
    for band in bands(values.shape):
        exponents = np.abs(scale.divide(values, band)).view(np.int64) >> 52
        counts += np.bincount(exponents.reshape(-1), minlength=_EXPONENTS)
    shift, least = _FINEST, 1023 + MOST_FACTOR.bit_length()
    while counts[least - shift :].sum() * _CUT_ONE_IN > values.size:
        shift -= 1
    z = np.empty(values.shape, np.int16)
    for band in bands(values.shape):
        z[band] = np.clip(np.rint(np.ldexp(scale.divide(values, band), shift)), -MOST_FACTOR, MOST_FACTOR)
    return z, shift


def _factors(z: Whole, shift: int, basis: Doubles, rank: int) -> tuple[Doubles, Doubles, float, Choice, Doubles]:
    """Return whole-number factors of a matrix, the worth of a product, what was chosen, and the basis in order."""
    rows, cols = z.shape
    products = lowrank_basis.by_rows(basis, z)
    left, largest = lowrank_basis.rounded(products)
    lefts, rights = left @ left.T, basis @ basis.T
    widths = rights.diagonal()
    # Component i of what is kept is worth[i] left[i] basis[i]; `shared` are the products of two such.
    worth = np.divide(largest / MOST_FACTOR, widths, out=np.zeros(len(basis)), where=widths > 0)
    shared = worth[:, None] * worth * (lefts * rights)
    order = np.argsort(-shared.diagonal(), kind="stable")
    shared, left, basis = shared[np.ix_(order, order)], left[order], basis[order]
    lengths, widths, squares = lefts.diagonal()[order], widths[order], shared.diagonal()
    # What each takes of the matrix, exactly: neither side is quite orthogonal, and the rest is a small difference.
    finely = (left * lowrank_basis.rounded(products, FINE)[0][order]).sum(1)
    common = 2 * worth[order] * (largest[order] / FINE) * finely
    before = np.add.accumulate(np.tril(shared, -1), 1)[:, -1]
    gone = np.add.accumulate(common - squares - 2 * before)
    energy = np.ldexp(np.square(z, dtype=np.int64).sum().astype(np.float64), -2 * shift)
    squares, gone = np.ldexp(squares, -2 * shift), np.ldexp(gone, -2 * shift)
    choice = choose(squares[:rank], gone[:rank], (rows, cols), float(energy))
    k = choice.rank
    if not k:
        return left[:0], basis[:0], 0.0, choice, basis
    even, root = np.sqrt(np.sqrt(np.float64(rows) / cols)), np.sqrt(np.sqrt(squares[:k]))
    by_left, by_right = root * even / np.sqrt(lengths[:k]), root / even / np.sqrt(widths[:k])
    loudest = max((np.abs(left[:k]).max(1) * by_left).max(), (np.abs(basis[:k]).max(1) * by_right).max())
    step = max(choice.step, loudest / MOST_FACTOR)
    made = np.rint(left[:k] * (by_left / step)[:, None]), np.rint(basis[:k] * (by_right / step)[:, None])
    return *made, step * step, choice, basis
