"""Tables that the kernels of `lowrank` read, as the structs in kernels/lowrank_numbers.cuh declare them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.float_cuda_device import Device
from nvckpt.codecs.float_cuda_tables import Table, firsts, pairs
from nvckpt.codecs.lowrank_grid import CONTEXTS
from nvckpt.codecs.lowrank_record import STRIP as STRIP_NUMBERS

SEGMENT = 512
"""Numbers of a strip that one warp works on."""
WARPS = 8
TILE_SIDE = 64
PLANES = CONTEXTS + 2
BELOW, ESCAPES = CONTEXTS, CONTEXTS + 1
WIDTHS = 24
FIELDS = PLANES + WIDTHS
COUNTS_KIND = (1, 0)
"""What kernels/lowrank_counts.cu is compiled for: it does not know the words."""
THREADS = 256

MATRIX = np.dtype(
    [(name, "<u8") for name in ("scales", "factors", "words", "kept", "numbers", "counts")]
    + [("planes", "<u8", PLANES), ("multipliers", "<i4", 8), ("totals", "<u4", PLANES)]
    + [(name, "<u4") for name in ("rows", "cols", "rank", "shift")]
    + [(name, "<u4") for name in ("strip_numbers", "strip_segments", "segments")]
    + [(name, "<u4") for name in ("number", "first_tile", "first_block", "first_strip")],
    align=True,
)
STRIP = np.dtype([("raw", "<u8"), *((name, "<u4") for name in ("size", "matrix", "index", "reserved"))])
BINS_SIZE = 2 * 4 * WIDTHS

# The kernels address a matrix's numbers in 32 bits; a block has far fewer.
_MOST_NUMBERS = 1 << 32


class Shape(NamedTuple):
    """Kept rows, columns, and bytes of a number."""

    rows: int
    cols: int
    word: int


@dataclass(frozen=True, slots=True)
class Part:
    """The matrices of one table whose numbers have the same bytes: the first, how many, and grids of launches."""

    kind: tuple[int, int]
    first: int
    count: int
    tiles: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A MATRIX table in which shapes and places among tiles, blocks and strips are filled in, and its STRIP table."""

    table: Table
    strips: Table
    parts: list[Part]
    memory: list[Any]


def lay_out(device: Device, shapes: Sequence[Shape], number_size: dict[int, int]) -> Batch:
    """Reserve working space, `number_size[word]` bytes a number, for matrices in ascending order of their words."""
    table = np.zeros(len(shapes), MATRIX)
    rows, cols, words = np.array(shapes, np.int64).T
    numbers = rows * cols
    if numbers.max() >= _MOST_NUMBERS:
        raise ValueError("a matrix of the lowrank codec has at most 2^32 numbers")
    whole = np.maximum(1, STRIP_NUMBERS // cols) * cols
    strips = -(-numbers // whole)
    in_strip = -(-whole // SEGMENT)
    segments = (strips - 1) * in_strip + -(-(numbers - (strips - 1) * whole) // SEGMENT)
    table["rows"], table["cols"], table["number"] = rows, cols, np.arange(len(shapes))
    table["strip_numbers"], table["strip_segments"], table["segments"] = whole, in_strip, segments
    table["first_strip"] = np.cumsum(strips) - strips
    tiles, blocks = -(-rows // TILE_SIDE) * -(-cols // TILE_SIDE), -(-segments // WARPS)
    parts = []
    for word in sorted(set(words.tolist())):
        mine = np.flatnonzero(words == word)
        table["first_tile"][mine] = np.cumsum(tiles[mine]) - tiles[mine]
        table["first_block"][mine] = np.cumsum(blocks[mine]) - blocks[mine]
        grids = int(tiles[mine].sum()), int(blocks[mine].sum())
        parts.append(Part((word, 2), int(mine[0]), len(mine), *grids))
    each = numbers * np.array([number_size[word] for word in words.tolist()])
    memory = [_reserve(device, table, "numbers", each), _reserve(device, table, "counts", 4 * FIELDS * segments)]
    of_strips = np.zeros(int(strips.sum()), STRIP)
    owners = pairs(strips.tolist())
    of_strips["matrix"], of_strips["index"] = owners[:, 0], owners[:, 1]
    return Batch(table, of_strips, parts, memory)


def _reserve(device: Device, table: Table, field: str, sizes: npt.NDArray[np.int64]) -> Any:
    """Memory of so many bytes for each matrix, at multiples of 16."""
    aligned = (-(-sizes // 16) * 16).tolist()
    memory = device.empty(sum(aligned))
    table[field] = device.address(memory) + np.array(firsts(aligned), np.int64)
    return memory
