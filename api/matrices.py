"""Which matrices a stretch of a tensor's storage holds, for the coders that model rows and columns."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from nvckpt.codecs.content import Matrix
from nvckpt.formats.segments import Segment, View

_LEAST_SIDE = 8
"""Fewer rows or columns give too few values to estimate an offset from."""


class Grid(NamedTuple):
    """A tensor as a stack of matrices: `rows` of each, and `cols` words to a row."""

    rows: int
    cols: int


def grid_of(segment: Segment) -> Grid | None:
    """Return the grid of a storage; None where its shape is unknown, does not fill it, or has one dimension.

    Two dimensions are one matrix, three a stack of them (experts), more one matrix of the first dimension and the rest.
    """
    shape = _shape_in_memory(segment)
    if segment.dtype is None or shape is None or len(shape) < 2:
        return None
    rows, cols = (shape[1], shape[2]) if len(shape) == 3 else (shape[0], math.prod(shape[1:]))
    cols *= segment.dtype.bits // 8 // segment.dtype.word
    return Grid(rows, cols) if min(rows, cols) >= _LEAST_SIDE else None


def _shape_in_memory(segment: Segment) -> tuple[int, ...] | None:
    """Return the first view's dimensions in the order of memory, if it is dense and fills the storage."""
    if segment.dtype is None or segment.dtype.bits % 8 or not segment.views:
        return None
    view = segment.views[0]
    if view.shape is None or view.offset or math.prod(view.shape) * segment.dtype.bits != 8 * segment.length:
        return None
    return shape_in_memory(view)


def shape_in_memory(view: View) -> tuple[int, ...] | None:
    """Return a view's dimensions in the order of memory; None where they are unknown or leave gaps."""
    return view.shape if view.shape is None or view.strides is None else _sorted_by_stride(view)


def _sorted_by_stride(view: View) -> tuple[int, ...] | None:
    """Return the dimensions from the largest stride to the smallest; None unless they are dense in that order."""
    strides, shape = view.strides or (), view.shape or ()
    order = sorted(range(len(shape)), key=lambda i: -strides[i])
    expected = 1
    for i in reversed(order):
        if shape[i] != 1 and strides[i] != expected:
            return None
        expected *= shape[i]
    return tuple(shape[i] for i in order)


def matrices_in(grid: Grid | None, word: int, start: int, length: int) -> list[Matrix]:
    """Return the matrices in the bytes [start, start + length) of a storage of `word`-byte words.

    A stretch that does not begin and end with a row is flat; so is what is left of a matrix with too few rows.
    """
    row = grid.cols * word if grid else 0
    if grid is None or start % row or length % row:
        return [(length // word, 0)] if length >= word else []
    found = []
    first, last = start // row, (start + length) // row
    while first < last:
        stop = min(last, (first // grid.rows + 1) * grid.rows)
        rows = stop - first
        found.append((rows, grid.cols) if rows >= _LEAST_SIDE else (rows * grid.cols, 0))
        first = stop
    return found


def merged(matrices: Iterable[Matrix]) -> tuple[Matrix, ...]:
    """Join neighbouring flat stretches."""
    joined: list[Matrix] = []
    for rows, cols in matrices:
        if joined and not cols and not joined[-1][1]:
            joined[-1] = (joined[-1][0] + rows, 0)
        else:
            joined.append((rows, cols))
    return tuple(joined)
