"""Tables that the float codec's kernels read, field by field as the structs in kernels/ declare them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[Any]


def _struct(wide: str, narrow: str, signed: tuple[str, ...] = ()) -> np.dtype[Any]:
    """A struct of 8-byte fields and then 4-byte fields, as all of them are."""
    fields = [(name, "<u8") for name in wide.split()]
    fields += [(name, "<i4" if name in signed else "<u4") for name in narrow.split()]
    return np.dtype(fields, align=True)


ENTRY = _struct("start count levels columns", "cols reciprocal shift side")
PLANE = _struct(
    "words count mid sign nibble low coded records limit entries", "entry_count chain first sampling stream flags"
)
CANDIDATE = _struct(
    "words columns flat_cost fitted_cost",
    "rows cols flat first_row first_strip base flat_base rowcol",
    ("base", "flat_base"),
)
FIT_STREAM = _struct("words count entries matrices side", "entry_count first_candidate side_count known")
SAMPLE = _struct("", "stream first count stride")
SEEN = _struct("", "zeros exceptions all nonzero")
TRANSFORM = _struct("words count coded bitmap entries coded_count", "entry_count first_tile stream reserved")
FINISH = _struct("stream n m tail matrices", "layout word flags tail_size matrix_count first_plane planes reserved")
SOURCE = _struct("stream size original", "")
MOST_PLANES = 10
PARSED = np.dtype(
    [(name, "<u8") for name in ("n", "m", "rows", "columns", "side")]
    + [("raw", "<u8", 4), *((name, "<u8", MOST_PLANES) for name in ("directory", "records", "limit"))]
    + [(name, "<u4") for name in ["error", "layout", "word", "flags", "matrix_count", "tail_size", "planes", "known"]]
)
MATRICES = _struct("records entries side levels columns", "count reserved")
BYTES = _struct("words planes count stride", "word first_tile")
TAIL = _struct("source target", "size reserved")

MATRICES_IN_GROUPS, MATRICES_ZERO_HAS_SYMBOL, MATRICES_ROWCOL = 1, 2, 4
SEEN_SIGN, SEEN_NO_SIGN, SEEN_NIBBLE, SEEN_LOW = 1, 2, 4, 8
TILE, BYTE_TILE = 4096, 4096


def firsts(counts: list[int]) -> list[int]:
    """Where each of several runs begins when they lie one after the other."""
    return [0, *np.cumsum(np.asarray(counts, np.int64))[:-1].tolist()] if counts else []


def packed(tables: Sequence[Table]) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """All tables as one run of bytes, to be uploaded at once, and where each begins: at a multiple of 16."""
    parts = [np.ascontiguousarray(table).reshape(-1).view(np.uint8) for table in tables]
    places = firsts([-(-len(part) // 16) * 16 for part in parts])
    whole = np.zeros(places[-1] + len(parts[-1]), np.uint8)
    for part, place in zip(parts, places, strict=True):
        whole[place : place + len(part)] = part
    return whole, places


def pairs(counts: list[int]) -> Table:
    """[(0, 0), (0, 1), ..., (1, 0), ...]: an item for each block of each plane."""
    lengths = np.asarray(counts, np.int64)
    owner = np.repeat(np.arange(len(counts)), lengths)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.stack([owner, within], axis=1).astype("<u4")
