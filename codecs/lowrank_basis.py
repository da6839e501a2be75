"""Bases of whole numbers for `lowrank`'s fit: products are exact in any order, and the rest is in a fixed one.

A basis is an array of vectors, one a row, whose entries are at most MOST_FACTOR in size; only directions count. Whole
numbers are held as doubles, and sums of their products stay below 2^53 for matrices of MOST_NUMBERS and MOST_SIDE.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.lowrank_record import MOST_FACTOR

Doubles = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int16]
"""A matrix of whole numbers, at most MOST_FACTOR in size."""

MOST_NUMBERS, MOST_SIDE = 1 << 30, 1 << 20
"""Bounds of what is fitted: MOST_FACTOR^2 MOST_NUMBERS, and MOST_FACTOR FINE MOST_SIDE, are below 2^53."""
FINE = 1 << 21
"""What the largest entry of a vector becomes where it is rounded finely."""
# A vector that loses so much to those before it is one of them and rounding noise.
_LOST = 2.0**-20
_BAND = 1 << 20


def bands(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield the rows of a matrix in bands, so that what is computed of them takes little memory."""
    step = max(1, _BAND // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, start + step)


def arbitrary(count: int, length: int) -> Doubles:
    """Return vectors of arbitrary entries, the same ones always."""
    place = np.arange(count, dtype=np.uint32)[:, None] * np.uint32(0x9E3779B1)
    mixed = place + np.arange(length, dtype=np.uint32) * np.uint32(0x85EBCA77)
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        mixed = (mixed ^ mixed >> np.uint32(shift)) * np.uint32(factor)
    return (mixed >> np.uint32(24)).astype(np.float64) - 128


def by_rows(basis: Doubles, z: Whole) -> Doubles:
    """Return the products of a basis's vectors and a matrix's rows."""
    return np.concatenate([basis @ z[band].T.astype(np.float64) for band in bands(z.shape)], 1)


def by_columns(basis: Doubles, z: Whole) -> Doubles:
    """Return the products of a basis's vectors and a matrix's columns."""
    made = np.zeros((len(basis), z.shape[1]))
    for band in bands(z.shape):
        made += basis[:, band] @ z[band].astype(np.float64)
    return made


def rounded(vectors: Doubles, most: int = MOST_FACTOR) -> tuple[Doubles, Doubles]:
    """Return vectors with the largest entry of each brought to `most`, and what each had for a largest entry."""
    largest = np.abs(vectors).max(1)
    factors = np.divide(most, largest, out=np.zeros(len(largest)), where=largest > 0)
    return np.rint(vectors * factors[:, None]), largest


def orthogonal(vectors: Doubles) -> Doubles:
    """Return a basis of what vectors span, the longest vector first, each freed of those before it."""
    small, largest = rounded(vectors)
    products = small @ small.T
    scale = largest / MOST_FACTOR
    order = np.argsort(-(scale * scale * products.diagonal()), kind="stable")
    inverse = _inverse_of_root(products[np.ix_(order, order)])
    return rounded(rounded(inverse, FINE)[0] @ small[order])[0]


def _inverse_of_root(products: Doubles) -> Doubles:
    """Return the inverse of the Cholesky root, with rows of zeros for vectors that depend on those before."""
    count = len(products)
    left, inverse = products.copy(), np.eye(count)
    lost = np.zeros(count, np.bool_)
    for i in range(count):
        if left[i, i] <= products[i, i] * _LOST:
            lost[i] = True
            continue
        pivot = np.sqrt(left[i, i])
        column = left[i + 1 :, i] / pivot
        left[i + 1 :, i + 1 :] -= np.multiply.outer(column, column)
        inverse[i] /= pivot
        inverse[i + 1 :] -= np.multiply.outer(column, inverse[i])
    inverse[lost] = 0
    return inverse
