"""Blocks of matrices coded by factors on a CUDA device: which promise something, their rows, models and streams."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import lowrank_cuda_encode, lowrank_cuda_fit, lowrank_fit
from nvckpt.codecs.content import Content
from nvckpt.codecs.cuda_pieces import copy_pieces, piece_table
from nvckpt.codecs.float_cuda_device import Device
from nvckpt.codecs.float_cuda_tables import firsts, packed, pairs
from nvckpt.codecs.float_spec import align
from nvckpt.codecs.lowrank_cuda_encode import Fitted
from nvckpt.codecs.lowrank_cuda_fit import OnDevice
from nvckpt.codecs.lowrank_grid import KINDS
from nvckpt.codecs.lowrank_stream import ASKED

_ROWS = np.dtype(
    [(n, "<u8") for n in ("words", "out")] + [(n, "<u4") for n in ("rows", "cols", "row_step", "col_step")]
)
"""Rows of kernels/lowrank_rows.cu."""
_ROWS_AN_ITEM = 8
# Numbers fitted at a time: what a fit takes on the device is about 8 bytes for each.
_NUMBERS = 1 << 25


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix of a block, by the block's number."""

    block: int
    address: int
    rows: int
    cols: int


def encode(device: Device, blocks: Sequence[int], contents: Sequence[Content]) -> dict[int, Any]:
    """Return the streams of the blocks, by number, that have a part of low rank in one of their first matrices.

    `blocks` are device addresses of whole matrices, 16-byte aligned; all have a content that LowRank.fits. The streams
    are arrays on the device, the same bytes as lowrank_stream.encode gives. Waits for the device.
    """
    streams: dict[int, Any] = {}
    for word in sorted({content.word for content in contents}):
        matrices = [m for i, c in enumerate(contents) if c.word == word for m in _matrices(i, blocks[i], c)]
        promising = _promising(device, word, matrices)
        mine = [m for m in matrices if m.block in promising]
        for some in _portions(mine):
            streams |= _encoded(device, word, some)
    return streams


def _matrices(number: int, address: int, content: Content) -> list[_Matrix]:
    sizes = [rows * cols * content.word for rows, cols in content.matrices]
    places = [address + start for start in firsts(sizes)]
    return [_Matrix(number, at, *shape) for at, shape in zip(places, content.matrices, strict=True)]


def _portions(matrices: Sequence[_Matrix]) -> list[list[_Matrix]]:
    """Whole blocks together, as many as are fitted at a time."""
    portions: list[list[_Matrix]] = []
    numbers, last = _NUMBERS, -1
    for matrix in matrices:
        if matrix.block != last and numbers >= _NUMBERS:
            portions.append([])
            numbers = 0
        portions[-1].append(matrix)
        numbers, last = numbers + matrix.rows * matrix.cols, matrix.block
    return portions


def _promising(device: Device, word: int, matrices: Sequence[_Matrix]) -> set[int]:
    """Tell which blocks have a sample, of one of their first matrices, that promises something."""
    seen: dict[int, int] = {}
    asked = []
    for matrix in matrices:
        seen[matrix.block] = seen.get(matrix.block, 0) + 1
        if seen[matrix.block] <= ASKED:
            asked.append(matrix)
    steps = [lowrank_fit.sample_steps(m.rows, m.cols) for m in asked]
    shapes = [(-(-m.rows // down), -(-m.cols // across)) for m, (down, across) in zip(asked, steps, strict=True)]
    starts = firsts([align(rows * cols * word) for rows, cols in shapes])
    room = device.empty(starts[-1] + align(shapes[-1][0] * shapes[-1][1] * word)) if asked else None
    table = _table(device, asked, room, starts)
    table["row_step"], table["col_step"] = np.array(steps, np.int64).reshape(-1, 2).T
    _launch(device, "take_sample", word, table, [rows for rows, _ in shapes], 128)
    if room is None:
        return set()
    taken = device.download(room, f"<u{word}")
    blocks, samples = [], []
    for matrix, start, (rows, cols) in zip(asked, starts, shapes, strict=True):
        some = taken[start // word : start // word + rows * cols].reshape(rows, cols)
        live = lowrank_fit.worth_fitting(some, KINDS[word])
        if live is not None:
            blocks.append(matrix.block)
            samples.append(live)
    held = [device.upload(np.ascontiguousarray(some)) for some in samples]
    fitted = lowrank_cuda_fit.fit(
        device, word, [OnDevice(device.address(h), *s.shape) for h, s in zip(held, samples, strict=True)], 1
    )
    return {
        block
        for block, model, some in zip(blocks, fitted, samples, strict=True)
        if lowrank_fit.is_worth(model.gain, some.size)
    }


def _encoded(device: Device, word: int, matrices: Sequence[_Matrix]) -> dict[int, Any]:
    """Fit and code matrices; the streams of their blocks."""
    kept = _kept_rows(device, word, matrices)
    held, memory = _compact(device, word, matrices, kept)
    live = [i for i, rows in enumerate(kept) if rows.any()]
    models = lowrank_cuda_fit.fit(device, word, [held[i] for i in live], lowrank_fit.PASSES)
    fitted: dict[int, list[Fitted]] = {}
    by_number = dict(zip(live, models, strict=True))
    for i, (matrix, rows) in enumerate(zip(matrices, kept, strict=True)):
        bitmap = np.packbits(rows, bitorder="little").tobytes()
        made = Fitted(matrix.rows, held[i].rows, matrix.cols, word, bitmap)
        if i in by_number:
            model = by_number[i]
            numbers, places = model.multipliers.tolist(), (held[i].address, model.scales, model.factors)
            made = Fitted(
                matrix.rows, held[i].rows, matrix.cols, word, bitmap, *places, model.rank, lowrank_fit.SHIFT, numbers
            )
        fitted.setdefault(matrix.block, []).append(made)
    streams = lowrank_cuda_encode.encode(device, list(fitted.values()))
    del memory, models  # in use until here
    return dict(zip(fitted, streams, strict=True))


def _kept_rows(device: Device, word: int, matrices: Sequence[_Matrix]) -> list[npt.NDArray[np.bool_]]:
    """Tell for each row whether any of its words is not zero."""
    starts = firsts([m.rows for m in matrices])
    room = device.empty(sum(m.rows for m in matrices))
    items = [-(-m.rows // _ROWS_AN_ITEM) for m in matrices]
    _launch(device, "mark_rows", word, _table(device, matrices, room, starts), items, 256)
    marks = device.download(room, np.bool_)
    return [marks[start : start + m.rows] for start, m in zip(starts, matrices, strict=True)]


def _compact(
    device: Device, word: int, matrices: Sequence[_Matrix], kept: Sequence[npt.NDArray[np.bool_]]
) -> tuple[list[OnDevice], Any]:
    """Return the matrices without rows that are all zero, moved together where there are such, and the memory used."""
    sizes = [
        0 if rows.all() else align(int(rows.sum()) * m.cols * word) for m, rows in zip(matrices, kept, strict=True)
    ]
    memory = device.empty(sum(sizes))
    held, pieces = [], []
    for matrix, rows, start in zip(matrices, kept, firsts(sizes), strict=True):
        address = matrix.address
        if not rows.all():
            address = device.address(memory) + start
            edges = np.flatnonzero(np.diff(np.concatenate([[False], rows, [False]]).astype(np.int8)))
            begins, ends = edges[::2], edges[1::2]
            lengths = (ends - begins) * matrix.cols * word
            sources = matrix.address + begins * matrix.cols * word
            pieces.append((sources, address + np.cumsum(lengths) - lengths, lengths))
        held.append(OnDevice(address, int(rows.sum()), matrix.cols))
    if sum(sizes):
        copy_pieces(device, piece_table(*(np.concatenate(column) for column in zip(*pieces, strict=True))))
    return held, memory


def _table(device: Device, matrices: Sequence[_Matrix], room: Any, starts: Sequence[int]) -> npt.NDArray[Any]:
    table = np.zeros(len(matrices), _ROWS)
    for name in ("rows", "cols"):
        table[name] = [getattr(m, name) for m in matrices]
    table["words"] = [m.address for m in matrices]
    if len(matrices):
        table["out"] = np.array(starts, np.uint64) + np.uint64(device.address(room))
    return table


def _launch(device: Device, name: str, word: int, table: npt.NDArray[Any], counts: list[int], threads: int) -> None:
    if not len(table):
        return
    items = pairs(counts)
    whole, places = packed([table, items])
    memory = device.upload(whole)
    addresses = [np.uint64(device.address(memory) + place) for place in places]
    device.launch(f"lowrank_rows.{name}", (word, 2), len(items), threads, 0, addresses)
