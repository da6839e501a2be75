"""What the float encoders decide, in NumPy: the definition that C and CUDA repeat (16.9)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.float_quantum import QUANTUM_BITS, Words, quantum
from nvckpt.codecs.float_spec import CENTRE, MAX_MATRICES, FloatSpec, Layout, LevelName, log256

Quanta = npt.NDArray[np.int64]

_RUN_BYTES = 512
_FLAT_RUNS, _ROW_RUNS = 64, 1
_COLUMN_SAMPLE, _COST_SAMPLE = 128, 32
_ZERO_STRIDE, _ZERO_SHARE, _EXCEPTION_SHARE = 61, 128, 512


@dataclass(frozen=True, slots=True)
class Entry:
    """One matrix of the header: `cols` is 0 for a flat one, whose `rows` is then its number of words."""

    rows: int
    cols: int
    base: int

    @property
    def words(self) -> int:
        """Return the number of words."""
        return self.rows * (self.cols or 1)


@dataclass(frozen=True, slots=True)
class Choices:
    """Everything an encoder decides before it codes: `side` is the offsets' plane, `sampling` the tables' stride."""

    layout: Layout
    matrices: tuple[Entry, ...]
    side: npt.NDArray[np.uint8]
    zeros: bool
    sampling: int


def choose(words: Words, spec: FloatSpec, level: LevelName) -> Choices:
    """Make the decisions 1 to 9 for a stream's words."""
    layout = spec.layout(level)
    nothing = np.zeros(0, np.uint8)
    if layout == Layout.BYTES or (level == "fast" and spec.kind != "fp64"):
        return Choices(layout, (), nothing, False, 16)
    entries, side = _fit_all(words, spec.matrices, layout)
    sample = _sampled_runs(words)
    zeros = int((words[sample] == 0).sum()) * _ZERO_SHARE >= len(sample) > 0
    if layout == Layout.LOG and spec.kind != "fp64" and _too_many_exceptions(words, sample, entries, side):
        return Choices(Layout.ROTATED, (), nothing, zeros, 4)
    if layout == Layout.ROTATED and not len(side):
        entries = ()
    return Choices(layout, entries, side, zeros, 4)


def _fit_all(
    words: Words, matrices: Sequence[tuple[int, int]], layout: Layout
) -> tuple[tuple[Entry, ...], npt.NDArray[np.uint8]]:
    entries, sides = [], [np.zeros(0, np.uint8)]
    position = 0
    for rows, cols in matrices if len(matrices) <= MAX_MATRICES else [(len(words), 0)]:
        part = words[position : position + rows * (cols or 1)]
        position += len(part)
        entry, side = _fit_matrix(part.reshape(rows, cols), layout) if cols else (_fit_flat(part, layout), None)
        entries.append(entry)
        if side is not None:
            sides.append(side)
    return tuple(entries), np.concatenate(sides)


def _mean(total: int, count: int) -> int:
    """Rounded mean, halves up; floor division is what C and CUDA must do for negative sums, too."""
    return (2 * total + count) // (2 * count)


def _runs(length: int, word: int, most: int) -> npt.NDArray[np.int64]:
    """Indices of the sampled runs of 512 bytes: all of them, or `most` spread evenly."""
    run = _RUN_BYTES // word
    runs = -(-length // run)
    chosen = range(runs) if runs <= most else (t * runs // most for t in range(most))
    return np.concatenate([np.arange(i * run, min(length, i * run + run)) for i in chosen])


def _fit_flat(part: Words, layout: Layout) -> Entry:
    sample = part[_runs(len(part), part.dtype.itemsize, _FLAT_RUNS)]
    values = quantum(sample, layout)[sample != 0].astype(np.int64)
    return Entry(len(part), 0, _mean(int(values.sum()), len(values)) if len(values) else 0)


def _fit_matrix(matrix: Words, layout: Layout) -> tuple[Entry, npt.NDArray[np.uint8] | None]:
    """Decisions 4 to 7 for one matrix; no side bytes when it stays flat."""
    rows, cols = matrix.shape
    means = _row_means(matrix[:, _runs(cols, matrix.dtype.itemsize, _ROW_RUNS)], layout)
    known = [mean for mean in means if mean is not None]
    base = min(known, default=0)
    flat_base = _mean(sum(known), len(known)) if known else 0
    row_offsets = np.array([min(255, mean - base) if mean is not None else 0 for mean in means], np.int64)
    column_offsets = _column_offsets(matrix, row_offsets + base, layout)
    if not _rowcol_pays(matrix, row_offsets + base, column_offsets, flat_base, layout):
        return Entry(rows * cols, 0, flat_base), None
    side = np.concatenate([row_offsets, column_offsets + 128]).astype(np.uint8)
    return Entry(rows, cols, base), side


def _row_means(sample: Words, layout: Layout) -> list[int | None]:
    present = sample != 0
    totals = (quantum(sample, layout).astype(np.int64) * present).sum(axis=1)
    counts = present.sum(axis=1)
    return [_mean(int(t), int(c)) if c else None for t, c in zip(totals, counts, strict=True)]


def _spread(rows: int, most: int) -> npt.NDArray[np.int64]:
    return np.arange(rows) if rows <= most else np.arange(most) * rows // most


def _column_offsets(matrix: Words, row_levels: Quanta, layout: Layout) -> Quanta:
    chosen = _spread(len(matrix), _COLUMN_SAMPLE)
    sample = matrix[chosen]
    present = sample != 0
    totals = ((quantum(sample, layout).astype(np.int64) - row_levels[chosen, None]) * present).sum(axis=0)
    counts = present.sum(axis=0)
    means = np.where(counts > 0, (2 * totals + counts) // np.maximum(2 * counts, 1), 0)
    return np.clip(means, -128, 127)


def _rowcol_pays(matrix: Words, row_levels: Quanta, column_offsets: Quanta, flat_base: int, layout: Layout) -> bool:
    """Compare mean absolute deviations: their logarithm stands for the entropy, the rest of the shape being alike."""
    rows, cols = matrix.shape
    chosen = _spread(rows, _COST_SAMPLE)
    sample = matrix[chosen]
    present = sample != 0
    values = quantum(sample, layout).astype(np.int64)
    flat = 1 + int((np.abs(values - flat_base) * present).sum())
    fitted = 1 + int((np.abs(values - row_levels[chosen, None] - column_offsets) * present).sum())
    gain: int = rows * cols * (log256(flat) - log256(fitted))
    return bool(gain > 256 * 8 * (rows + cols) + 5 * rows * cols)


def sample_stride(runs: int) -> int:
    """Return which of a stream's runs decisions 8 and 9 sample: about a thousand or more, and an odd stride."""
    return min(_ZERO_STRIDE, runs >> 10 | 1)


def _sampled_runs(words: Words) -> npt.NDArray[np.int64]:
    run = _RUN_BYTES // words.dtype.itemsize
    starts = range(0, len(words), run * sample_stride(-(-len(words) // run)))
    parts = [np.arange(start, min(len(words), start + run)) for start in starts]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _too_many_exceptions(
    words: Words, sample: npt.NDArray[np.int64], entries: Sequence[Entry], side: npt.NDArray[np.uint8]
) -> bool:
    levels = np.concatenate([np.zeros(0, np.int64), *_levels(entries, side)])[sample]
    present = words[sample] != 0
    moved = (quantum(words[sample], Layout.LOG).astype(np.int64) - levels + CENTRE) % (1 << QUANTUM_BITS[Layout.LOG])
    exceptions = int((present & ((moved == 0) | (moved > 255))).sum())
    return exceptions * _EXCEPTION_SHARE > int(present.sum())


def _levels(entries: Sequence[Entry], side: npt.NDArray[np.uint8]) -> Iterator[Quanta]:
    position = 0
    for entry in entries:
        if not entry.cols:
            yield np.full(entry.rows, entry.base, np.int64)
            continue
        rows = side[position : position + entry.rows].astype(np.int64)
        cols = side[position + entry.rows : position + entry.rows + entry.cols].astype(np.int64)
        position += entry.rows + entry.cols
        yield (entry.base - 128 + rows[:, None] + cols).reshape(-1)
