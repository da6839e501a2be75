"""Fitting many matrices at a time on a CUDA device, to the same factors as lowrank_fit.py, bit for bit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.float_cuda_device import Device
from nvckpt.codecs.float_cuda_tables import packed, pairs
from nvckpt.codecs.lowrank_choice import LOGARITHMS
from nvckpt.codecs.lowrank_fit import MOST_UNIT, RANK, SPARE, most_rank, multipliers_of

_MOST_VECTORS = RANK + SPARE
STATE = np.dtype(
    [
        *[("unit", "<f8"), ("step", "<f8"), ("gain", "<i8"), ("energy", "<u8")],
        *[("shift", "<i4"), ("rank", "<u4"), ("stopped", "<u4"), ("reserved", "<u4")],
        *[("largest", "<f8", _MOST_VECTORS), ("finely", "<u8", _MOST_VECTORS)],
        *[("left", "<f8", RANK), ("right", "<f8", RANK)],
        *[("order", "<u4", _MOST_VECTORS), ("loud", "<u4", 320)],
    ]
)
"""FitState of kernels/lowrank_fit.cuh."""
_PLACES = (
    *("words", "sums", "scales", "whole", "basis_across", "next_across", "basis_along", "products", "gram", "turn"),
    *("factors", "coded_scales", "state"),
)
_COUNTS = ("rows", "cols", "count", "rank", "across", "along")
FIT = np.dtype([(name, "<u8") for name in _PLACES] + [(name, "<u4") for name in _COUNTS])
"""Fit of kernels/lowrank_fit.cuh."""

_TILE, _PART_M, _PART_N = 64, 48, 128
_ALONG, _ACROSS, _GRAM_ALONG, _GRAM_ACROSS, _TURN_ALONG, _TURN_ACROSS, _WIDTHS = range(7)
_ANY = (1, 0)
_ALIGNMENT = 16

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A matrix without rows that are all zero: `address` of its words, row after row."""

    address: int
    rows: int
    cols: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model (lowrank_fit.Model) whose numbers lie on the device, and the gain that the last pass saw.

    `scales` is the address of int16 for rows, then columns; `factors` of uint16[rank][rows + cols], signs folded in.
    `memory` holds both.
    """

    rank: int
    multipliers: Ints
    scales: int
    factors: int
    gain: int
    memory: Any


def fit(device: Device, word: int, matrices: Sequence[OnDevice], passes: int) -> list[Fitted]:
    """Fit matrices of `word`-byte numbers. Waits for the device."""
    return _Fit(device, word, matrices).run(passes) if matrices else []


class _Fit:
    """Tables and memory of one call."""

    def __init__(self, device: Device, word: int, matrices: Sequence[OnDevice]) -> None:
        self._device, self._kind = device, (word, 2)
        table = np.zeros(len(matrices), FIT)
        rows, cols = np.array([(m.rows, m.cols) for m in matrices], np.int64).T
        table["words"], table["rows"], table["cols"] = [m.address for m in matrices], rows, cols
        ranks = np.array([most_rank(m.rows, m.cols) for m in matrices], np.int64)
        table["rank"], table["count"] = ranks, np.minimum(ranks + SPARE, np.minimum(rows, cols))
        table["across"], table["along"] = (-(-side // _ALIGNMENT) * _ALIGNMENT for side in (cols, rows))
        self._table = table
        self._cleared = self._place(table, device.zeros, ["sums"])
        self._memory = self._place(table, device.empty, [n for n in _PLACES[1:-1] if n != "sums"])
        states = np.zeros(len(table), STATE)
        states["stopped"] = table["rank"] == 0
        self._states = device.upload(states)
        table["state"] = device.address(self._states) + STATE.itemsize * np.arange(len(table), dtype=np.uint64)
        self._upload()

    def _place(self, table: npt.NDArray[Any], reserve: Any, names: Sequence[str]) -> Any:
        """Reserve what the names stand for, one piece of memory for all matrices."""
        sizes = np.stack([_sizes(table, name) for name in names])
        starts = (np.cumsum(sizes) - sizes.reshape(-1)).reshape(sizes.shape)
        memory = reserve(int(sizes.sum()))
        for name, mine in zip(names, starts, strict=True):
            table[name] = self._device.address(memory) + mine
        return memory

    def _upload(self) -> None:
        """Tables: the matrices twice, since vectors across change places; and what each kind of launch works on."""
        table = self._table
        swapped = table.copy()
        swapped["basis_across"], swapped["next_across"] = table["next_across"], table["basis_across"]
        rows, cols, count = (table[name].astype(np.int64) for name in ("rows", "cols", "count"))
        live = np.flatnonzero(table["rank"])
        ups = {
            "tiles": pairs((_up(rows, _TILE) * _up(cols, _TILE)).tolist()),
            "vectors": _chosen(live, pairs(count[live].tolist())),
            "along": _parts(live, count, rows),
            "across": _parts(live, count, cols),
            "gram": _parts(live, count, count),
            "logarithms": LOGARITHMS.astype("<u4"),
        }
        whole, places = packed([table, swapped, *ups.values()])
        self._tables = self._device.upload(whole)
        first, second, *rest = (np.uint64(self._device.address(self._tables) + place) for place in places)
        self._fits = first, second
        self._items = {name: (at, len(ups[name])) for name, at in zip(ups, rest, strict=True)}
        self._live = len(live)

    def run(self, passes: int) -> list[Fitted]:
        """Fit, and wait."""
        self._scale(0, plain=1)
        if self._live:
            self._each("lowrank_basis.start_vectors", 0, "vectors")
            for number in range(passes):
                if number:
                    self._scale(number, plain=0)
                self._pass(number, 2 if number == passes - 1 else 1)
            # Where nothing was gained, the values themselves are scaled.
            self._scale(0, plain=1)
        self._all("lowrank_fit.write_scales", 0, 256, self._kind)
        found = self._device.download(self._states, STATE)
        return [self._fitted(row, state) for row, state in zip(self._table, found, strict=True)]

    def _fitted(self, row: Any, state: Any) -> Fitted:
        rank, unit, gain = int(state["rank"]), float(state["unit"]), int(state["gain"])
        if unit >= MOST_UNIT:
            rank, unit, gain = 0, 0.0, 0
        return Fitted(rank, multipliers_of(unit), int(row["coded_scales"]), int(row["factors"]), gain, self._memory)

    def _pass(self, number: int, turns: int) -> None:
        self._each("lowrank_fit.count_loud", number, "tiles", self._kind)
        self._all("lowrank_fit.choose_shift", number, 32, self._kind)
        self._each("lowrank_fit.make_whole", number, "tiles", self._kind)
        both = (_ALONG, _GRAM_ALONG, _TURN_ALONG, 0), (_ACROSS, _GRAM_ACROSS, _TURN_ACROSS, 1)
        for form, gram, turn, is_across in both * turns:
            self._multiply(number, form, is_across)
            self._products(number, gram)
            self._all("lowrank_basis.orthogonalise", number, 1024)
            self._multiply(number, turn, is_across)
        self._multiply(number, _ALONG, 0)
        self._products(number, _GRAM_ALONG)
        self._products(number, _WIDTHS)
        arguments = [self._fits[number % 2], self._items["logarithms"][0]]
        self._device.launch("lowrank_choice.choose_rank", _ANY, len(self._table), 160, 0, arguments)
        self._each("lowrank_choice.write_factors", number, "vectors")

    def _scale(self, number: int, plain: int) -> None:
        self._launch("lowrank_fit.add_logarithms", self._kind, self._items["tiles"], 256, number, [plain])
        arguments = [self._fits[number % 2], plain]
        self._device.launch("lowrank_fit.finish_scales", self._kind, len(self._table), 256, 0, arguments)

    def _products(self, number: int, form: int) -> None:
        """Of vectors with each other."""
        self._launch("lowrank_basis.multiply", _ANY, self._items["gram"], 256, number, [form])

    def _multiply(self, number: int, form: int, is_across: int) -> None:
        """A product, rounded to vectors."""
        items = self._items["across" if is_across else "along"]
        self._launch("lowrank_basis.multiply", _ANY, items, 256, number, [form])
        self._launch("lowrank_basis.round_vectors", _ANY, self._items["vectors"], 256, number, [is_across])

    def _each(self, name: str, number: int, items: str, kind: tuple[int, int] = _ANY) -> None:
        self._launch(name, kind, self._items[items], 256, number, [])

    def _all(self, name: str, number: int, threads: int, kind: tuple[int, int] = _ANY) -> None:
        """A thread block a matrix."""
        self._device.launch(name, kind, len(self._table), threads, 0, [self._fits[number % 2]])

    def _launch(
        self,
        name: str,
        kind: tuple[int, int],
        items: tuple[Any, int],
        threads: int,
        number: int,
        more: list[Any],
    ) -> None:
        self._device.launch(name, kind, items[1], threads, 0, [self._fits[number % 2], items[0], *more])


def _sizes(table: npt.NDArray[Any], name: str) -> Ints:
    """Bytes of what a field of FIT points to, for each matrix; those that nothing is fitted to need scales alone."""
    rows, cols, count, rank, across, along = (table[n].astype(np.int64) for n in _COUNTS)
    sides = rows + cols
    sizes: dict[str, Ints] = {
        "sums": 8 * sides,
        "scales": 4 * sides,
        "whole": 2 * rows * across,
        "basis_across": 2 * count * across,
        "next_across": 2 * count * across,
        "basis_along": 2 * count * along,
        "products": 8 * count * np.maximum(across, along),
        "gram": 8 * count * count,
        "turn": 8 * count * count,
        "factors": 2 * rank * sides,
        "coded_scales": 2 * sides,
    }
    size = sizes[name] if name in ("sums", "scales", "coded_scales") else np.where(rank > 0, sizes[name], 0)
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _up(counts: Ints, unit: int) -> Ints:
    return -(-counts // unit)


def _chosen(live: Ints, items: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Items of some matrices, which were counted from 0, by the numbers of these."""
    items[:, 0] = live[items[:, 0]]
    return items


def _parts(live: Ints, count: Ints, length: Ints) -> npt.NDArray[Any]:
    """(fit, m, n, 0) for each part of a product of `count` vectors by `length`; parts with the same n side by side."""
    down, across = _up(count[live], _PART_M), _up(length[live], _PART_N)
    items = pairs((down * across).tolist()).astype(np.int64)
    rows = down[items[:, 0]]
    table = np.stack([live[items[:, 0]], items[:, 1] % rows, items[:, 1] // rows, np.zeros(len(items), np.int64)], 1)
    return np.ascontiguousarray(table, "<u4")
