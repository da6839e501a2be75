"""Fitting what the codec `lowrank` predicts with: scales of rows and columns, and whole-number factors.

Floating point, and free to be: a stream holds what was fitted, and decoding it is integer arithmetic (FORMAT.md 19).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.lowrank_grid import Kind
from nvckpt.codecs.lowrank_record import MOST_FACTOR

Matrix = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

# Components looked for in a large matrix; more gain a tenth of a bit and cost time.
_RANK = 128
_SPARE = 16
_SHIFT = 20
# What a product may be worth, so that multipliers stay below 2^30.
_MOST_UNIT = 512.0
# Numbers of a band: up to so many a matrix is fitted in double precision throughout.
_BAND = 1 << 20
_PASSES = 3
# Rows and columns that tell whether anything is to be gained, and the least gain in bits a value.
_SAMPLE_ROWS, _SAMPLE_COLS, _LEAST_GAIN = 192, 384, 0.03
# Outliers beyond so many times the scale of their row and column are cut: they must not rule the factors.
_LOUDEST = 1e6
# A residual is taken to be at least this part of a number's last place.
_FLOOR = 0.29


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
    shift: int = _SHIFT


def values_of(words: npt.NDArray[np.unsignedinteger], kind: Kind) -> npt.NDArray[np.float32]:
    """Return words as numbers; what is not finite counts as zero."""
    wide = words.astype(np.uint32)
    wide <<= np.uint32(32 - 8 * kind.word)
    values = wide.view(np.float32)
    values[~np.isfinite(values)] = 0
    return values


def promises(words: npt.NDArray[np.unsignedinteger], kind: Kind) -> bool:
    """Tell from some rows and columns whether a matrix has a signed part of low rank worth its factors."""
    rows, cols = words.shape
    some = values_of(words[:: -(-rows // _SAMPLE_ROWS), :: -(-cols // _SAMPLE_COLS)], kind)
    some = some[some.any(1)]
    if min(some.shape) < 8 or (some >= 0).all() or (some <= 0).all():
        return False
    z = _scaled(some, _scales(some, None, kind))
    rank, _, gain = _choose(_svd(z)[1], z.shape, _energy(z))
    return rank > 0 and gain > _LEAST_GAIN


class _Scale(NamedTuple):
    """The scale of a number is the sum of its row's and its column's, in eighths of an octave."""

    rows: Ints
    cols: Ints

    def factor(self, band: slice) -> Matrix:
        """Return the scale of some rows as a factor."""
        return np.exp2((self.rows[band, None] + self.cols) / 8)


class _Prediction(NamedTuple):
    """Factors, the worth of their product, and the scale that it is in."""

    left: Matrix
    right: Matrix
    unit: float
    scale: _Scale

    def of(self, band: slice) -> Matrix:
        """Return the prediction of some rows."""
        return self.left[band] @ self.right.T * (self.unit * self.scale.factor(band))


def fit(words: npt.NDArray[np.unsignedinteger], kind: Kind) -> Model:
    """Fit a matrix without rows that are all zero."""
    values = values_of(words, kind)
    scale = _scales(values, None, kind)
    left, right, unit = _factors(_scaled(values, scale))
    for _ in range(_PASSES if left.shape[1] else 0):
        # The residual has other scales than the values; a product counts in the scale of the residual.
        scale = _scales(values, _Prediction(left, right, unit, scale), kind)
        left, right, unit = _factors(_scaled(values, scale))
    if unit >= _MOST_UNIT:
        left, right, unit = left[:, :0], right[:, :0], 0.0
    multipliers = np.round(unit * np.exp2(np.arange(8) / 8) * (1 << _SHIFT)).astype(np.int64)
    return Model(scale.rows + 8 * 127, scale.cols, left.astype(np.int64), right.astype(np.int64), multipliers)


def _bands(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield the rows of a matrix in bands, so that what is computed of them takes little memory."""
    step = max(1, _BAND // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, start + step)


def _scales(values: npt.NDArray[np.float32], prediction: _Prediction | None, kind: Kind) -> _Scale:
    """Fit the mean logarithms of a residual's rows and columns, in eighths of an octave."""
    rows, cols = np.empty(values.shape[0], np.int64), np.zeros(values.shape[1])
    for band in _bands(values.shape):
        held = values[band].astype(np.float64)
        residual = np.abs(held - prediction.of(band)) if prediction else np.abs(held)
        last_place = np.maximum(np.abs(held), 2.0**-126) * 2.0**-kind.mantissa
        logarithm = 8 * np.log2(np.maximum(residual, _FLOOR * last_place))
        rows[band] = np.round(logarithm.mean(1))
        cols += (logarithm - rows[band, None]).sum(0)
    return _Scale(rows, np.round(cols / len(rows)).astype(np.int64))


def _scaled(values: npt.NDArray[np.float32], scale: _Scale) -> Matrix:
    """Return values in units of their scale; large matrices in single precision."""
    z = np.empty(values.shape, np.float64 if values.size <= _BAND else np.float32)
    for band in _bands(values.shape):
        z[band] = np.clip(values[band] / scale.factor(band), -_LOUDEST, _LOUDEST)
    return z


def _energy(z: Matrix) -> float:
    return sum(float(np.square(z[band], dtype=np.float64).sum()) for band in _bands(z.shape))


def _factors(z: Matrix) -> tuple[Matrix, Matrix, float]:
    """Return whole-number factors of a matrix whose noise is about 1, and the worth of a product of theirs."""
    u, singular, v = _svd(z)
    rank, step, _ = _choose(singular, z.shape, _energy(z))
    if not rank:
        return u[:, :0], v[:, :0], 0.0
    balance = (z.shape[0] / z.shape[1]) ** 0.25
    root = np.sqrt(singular[:rank])
    loudest = max(np.abs(u[:, :rank] * root).max() * balance, np.abs(v[:, :rank] * root).max() / balance)
    step = max(step, loudest / MOST_FACTOR)
    left = np.round(u[:, :rank] * (root * balance / step))
    right = np.round(v[:, :rank] * (root / balance / step))
    return left, right, step * step


def _svd(z: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Return the leading singular vectors and values: all for a small matrix, by a range finder for a large one."""
    if min(z.shape) <= 2 * _RANK:
        u, singular, vt = np.linalg.svd(z, full_matrices=False)
        return u.astype(np.float64), singular.astype(np.float64), vt.T.astype(np.float64)
    narrow = z.astype(np.float32, copy=False)
    start = np.random.default_rng(0).standard_normal((z.shape[1], _RANK + _SPARE), dtype=np.float32)
    q = np.linalg.qr(narrow @ start)[0]
    for _ in range(2):
        q = np.linalg.qr(narrow @ np.linalg.qr(narrow.T @ q)[0])[0]
    u, singular, vt = np.linalg.svd((q.T @ narrow).astype(np.float64), full_matrices=False)
    leading: Matrix = singular[:_RANK].astype(np.float64)
    return (q.astype(np.float64) @ u)[:, :_RANK], leading, vt[:_RANK].T.astype(np.float64)


def _choose(singular: Matrix, shape: tuple[int, ...], energy: float) -> tuple[int, float, float]:
    """Return the rank that makes the stream smallest, the step of its factors, and the gain in bits a value.

    The rounding of the factors is made the part k (rows + cols) / n of the residual, the optimum in closed form.
    """
    if not len(singular) or energy <= 0:
        return 0, 0.0, 0.0
    rows, cols = shape
    n = rows * cols
    squares = np.cumsum(singular * singular)
    ranks = np.arange(1, len(singular) + 1)
    noise = ranks * (rows + cols) / n
    rest = np.maximum(energy - squares, 1e-12 * energy) / n
    balance = rows / cols  # the fourth power of what evens out the factors
    weight = 1 / (cols * balance**0.5) + balance**0.5 / rows
    step2 = 12 * noise * rest / (np.cumsum(singular) * weight)
    side = np.zeros(len(singular))
    for k in ranks[noise <= 0.5]:
        power = 2 * np.pi * np.e * singular[:k] / step2[k - 1]
        side[k - 1] = rows / 2 * np.log2(1 + power * balance**0.5 / rows).sum()
        side[k - 1] += cols / 2 * np.log2(1 + power / (cols * balance**0.5)).sum() + 16 * k
    gain = np.where(noise <= 0.5, -0.5 * np.log2(rest * (1 + noise) / (energy / n)) - side / n, -1.0)
    best = int(gain.argmax())
    if gain[best] <= 0:
        return 0, 0.0, 0.0
    return best + 1, float(np.sqrt(step2[best])), float(gain[best])
