"""Coding matrices by their `lowrank` models on a CUDA device, many in a call: the bytes that the oracle writes."""

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import lowrank_record
from nvckpt.codecs.content import Content
from nvckpt.codecs.cuda_pieces import copy_pieces, piece_table
from nvckpt.codecs.float_codec import spec_of
from nvckpt.codecs.float_cuda_decode import Place
from nvckpt.codecs.float_cuda_device import Arena, Device
from nvckpt.codecs.float_cuda_encode import encode_on
from nvckpt.codecs.float_cuda_tables import packed
from nvckpt.codecs.lowrank_cuda_tables import BINS_SIZE, COUNTS_KIND, ESCAPES, PLANES, THREADS, Shape, lay_out
from nvckpt.codecs.lowrank_grid import KINDS
from nvckpt.codecs.lowrank_record import align

_BYTES, _PAIRS = Content(1), Content(2)
# Of a number between two kernels: `Coded` in kernels/lowrank_encode.cu.
_CODED = {2: 4, 4: 4}


@dataclass(frozen=True, slots=True)
class Fitted:
    """A matrix whose `rows` kept rows lie one after the other in device memory, where its model is, too.

    `bitmap` tells which of `all_rows` rows are kept. `scales` is the address of int16[rows + cols], `factors` that of
    uint16[rank][rows + cols] with folded signs, as records have them. Where rows is 0 there need be none of these.
    """

    all_rows: int
    rows: int
    cols: int
    word: int
    bitmap: bytes
    words: int = 0
    scales: int = 0
    factors: int = 0
    rank: int = 0
    shift: int = 0
    multipliers: Sequence[int] = (0,) * 8


@dataclass(slots=True)
class _Parts:
    """What a matrix's numbers became: counts and addresses of planes and escapes; raw bits, and bytes of each strip."""

    counts: list[int]
    planes: list[int]
    raw: int
    strips: list[int]


class _Input(NamedTuple):
    """Bytes in device memory that become a `float` stream."""

    address: int
    size: int
    content: Content


def encode(device: Device, streams: Sequence[Sequence[Fitted]]) -> list[Any]:
    """Return the stream of each group of matrices, in device memory and at a multiple of 16.

    Waits for the device. What `Fitted` has addresses of must live until then.
    """
    flat = [matrix for stream in streams for matrix in stream]
    order = sorted((i for i, matrix in enumerate(flat) if matrix.rows), key=lambda i: flat[i].word)
    arena = Arena(device)
    numbers = _Numbers(device, [flat[i] for i in order], arena)
    parts = dict(zip(order, numbers.parts, strict=True))
    inputs = [_inputs(matrix, parts.get(i)) for i, matrix in enumerate(flat)]
    buffer, coded = _coded(device, [each for of_matrix in inputs for each in of_matrix], arena)
    writing = _Writing(device)
    ends, places = [0], iter(coded)
    for i, matrix in enumerate(flat):
        writing.add(matrix, parts.get(i), list(itertools.islice(places, len(inputs[i]))))
        ends.append(writing.size)
    room = writing.finish()
    del buffer  # now copied
    edges = [ends[i] for i in np.cumsum([0, *map(len, streams)])]
    return [room[start:end] for start, end in itertools.pairwise(edges)]


class _Numbers:
    """Symbols, escapes and raw bits of all numbers of some matrices, in ascending order of their words."""

    def __init__(self, device: Device, matrices: Sequence[Fitted], arena: Arena) -> None:
        self.parts: list[_Parts] = []
        if not matrices:
            return
        self._device = device
        self._batch = lay_out(device, [Shape(m.rows, m.cols, m.word) for m in matrices], _CODED)
        table, strips = self._batch.table, self._batch.strips
        for field in ("words", "scales", "factors", "rank", "shift", "multipliers"):
            table[field] = [getattr(matrix, field) for matrix in matrices]
        bins = device.empty(BINS_SIZE * len(strips))
        sizes = self._count(bins)
        strips["raw"] = self._reserve(matrices, sizes, arena)
        matrices_at, strips_at = self._upload()
        self._by_word("put_planes", "blocks", matrices_at, strips_at, bins)
        self._by_word("put_bits", "blocks", matrices_at, strips_at, bins)

    def _upload(self) -> tuple[int, int]:
        whole, (matrices, strips) = packed([self._batch.table, self._batch.strips])
        memory = self._device.upload(whole)
        self._batch.memory.append(memory)
        base = self._device.address(memory)
        return base + matrices, base + strips

    def _by_word(self, kernel: str, grid: str, matrices: int, *rest: Any) -> None:
        for part in self._batch.parts:
            mine = np.uint64(matrices + part.first * self._batch.table.itemsize)
            addresses = [np.uint64(each) if isinstance(each, int) else each for each in rest]
            arguments = [mine, part.count, *addresses]
            name = f"lowrank_encode.{kernel}"
            self._device.launch(name, part.kind, getattr(part, grid), THREADS, 0, arguments)

    def _count(self, bins: Any) -> npt.NDArray[np.int64]:
        """Code every number; waits. Fills in the totals and returns the bytes of each strip's raw bits."""
        device, table, strips = self._device, self._batch.table, self._batch.strips
        matrices, of_strips = self._upload()
        self._by_word("code_numbers", "tiles", matrices)
        self._by_word("count_numbers", "blocks", matrices)
        totals = 4 * PLANES * len(table)
        told = device.empty(totals + 4 * len(strips))
        none, sizes = np.uint64(0), np.uint64(device.address(told) + totals)
        arguments = [np.uint64(matrices), 0, PLANES, none, 0, told]
        device.launch("lowrank_counts.scan_counts", COUNTS_KIND, PLANES * len(table), THREADS, 0, arguments)
        arguments = [np.uint64(matrices), np.uint64(of_strips), bins, none, 0, sizes]
        device.launch("lowrank_counts.place_bins", COUNTS_KIND, len(strips), THREADS, 0, arguments)
        found = device.download(told, "<u4")
        table["totals"] = found[: totals // 4].reshape(-1, PLANES)
        return found[totals // 4 :][: len(strips)].astype(np.int64)

    def _reserve(self, matrices: Sequence[Fitted], sizes: npt.NDArray[np.int64], arena: Arena) -> npt.NDArray[np.int64]:
        """Memory for all planes and, cleared, for all raw bits; where those of each strip begin."""
        table = self._batch.table
        counts = np.bincount(self._batch.strips["matrix"], minlength=len(matrices)).tolist()
        of_matrices = np.split(sizes, np.cumsum(counts)[:-1])
        # Some bytes more, as bits are added to words of 4 bytes.
        starts = np.cumsum([0, *(align(int(each.sum())) + 16 for each in of_matrices)]).tolist()
        raw = self._device.zeros(starts[-1])
        self._batch.memory.append(raw)
        base, places = self._device.address(raw), []
        for matrix, row, start, each in zip(matrices, table, starts, of_matrices, strict=False):
            totals = row["totals"].tolist()
            units = [1] * ESCAPES + [matrix.word]
            planes = [arena.take(count * unit) if count else 0 for count, unit in zip(totals, units, strict=True)]
            row["planes"] = planes
            self.parts.append(_Parts(totals, planes, base + start, each.tolist()))
            places.append(base + start + np.cumsum(each) - each)
        return np.concatenate(places)


def _inputs(matrix: Fitted, parts: _Parts | None) -> list[_Input]:
    """What the `float` streams of a record hold: scales, groups of factors, symbols."""
    if not parts:
        return [_Input(0, 0, _BYTES)] * (1 + ESCAPES)
    sides = matrix.rows + matrix.cols
    slices = lowrank_record.group_slices(matrix.rank, lowrank_record.group_count(matrix.rank, sides))
    groups = [(2 * part.start * sides, 2 * (part.stop - part.start) * sides) for part in slices]
    return [
        _Input(matrix.scales, 2 * sides, _PAIRS),
        *(_Input(matrix.factors + start, size, _PAIRS) for start, size in groups),
        *(_Input(at, size, _BYTES) for at, size in zip(parts.planes, parts.counts[:ESCAPES], strict=False)),
    ]


def _coded(device: Device, inputs: Sequence[_Input], arena: Arena) -> tuple[Any, list[Place]]:
    """Code inputs as `float` streams: the memory that holds them, and each one's place; those of no bytes have none."""
    some = [i for i, each in enumerate(inputs) if each.size]
    if not some:
        return None, [(0, 0)] * len(inputs)
    addresses = [inputs[i].address for i in some]
    moved = [k for k, address in enumerate(addresses) if address % 16]
    sources, sizes = [addresses[k] for k in moved], [inputs[some[k]].size for k in moved]
    for k, size in zip(moved, sizes, strict=True):
        addresses[k] = arena.take(size)
    copy_pieces(device, piece_table(sources, [addresses[k] for k in moved], sizes))
    specs = [spec_of(inputs[i].size, inputs[i].content) for i in some]
    given = [(address, inputs[i].size) for address, i in zip(addresses, some, strict=True)]
    buffer, offsets, lengths = encode_on(device, given, specs, "default")
    found = [(0, 0)] * len(inputs)
    for i, offset, length in zip(some, offsets.tolist(), lengths.tolist(), strict=True):
        found[i] = device.address(buffer) + offset, length
    return buffer, found


class _Writing:
    """Records one after the other: what the host knows of them, and the pieces that are copied to their places."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._host = bytearray()
        # Sources (of the host's bytes: offsets), targets in the streams, bytes.
        self._from_host: list[tuple[int, int, int]] = []
        self._pieces: list[tuple[int, int, int]] = []
        self.size = 0

    def add(self, matrix: Fitted, parts: _Parts | None, sections: Sequence[Place]) -> None:
        """Add the record of a matrix, given the places of its `float` streams."""
        kind = KINDS[matrix.word]
        parts = parts or _Parts([0] * PLANES, [0] * PLANES, 0, [])
        model = (matrix.rank, len(sections) - 1 - ESCAPES, matrix.shift, matrix.multipliers)
        if not matrix.rows:
            model = (0, 0, 0, [0] * 8)
        table = struct.pack(f"<{len(parts.strips)}I", *parts.strips)
        escapes, raw = parts.counts[ESCAPES] * matrix.word, sum(parts.strips)
        sizes = [len(matrix.bitmap), *(size for _, size in sections), escapes, len(table) + raw]
        head, starts = lowrank_record.packed_head((matrix.all_rows, matrix.cols), kind, *model, parts.counts, sizes)
        *places, of_escapes, of_raw, end = starts
        self._put(head + matrix.bitmap, 0)
        self._put(table, of_raw)
        copies = [(at, place, size) for (at, size), place in zip(sections, places[1:], strict=True)]
        copies += [(parts.planes[ESCAPES], of_escapes, escapes), (parts.raw, of_raw + len(table), raw)]
        self._pieces += [(source, self.size + place, size) for source, place, size in copies if size]
        self.size += end

    def _put(self, data: bytes, place: int) -> None:
        if data:
            self._from_host.append((len(self._host), self.size + place, len(data)))
            self._host += data.ljust(align(len(data)), b"\0")

    def finish(self) -> Any:
        """Return memory with all records, and zeros between their sections."""
        room = self._device.zeros(self.size)
        host = self._device.upload(np.frombuffer(self._host, np.uint8))
        base = self._device.address(host)
        pieces = self._pieces + [(base + at, place, size) for at, place, size in self._from_host]
        sources, targets, sizes = np.array(pieces, np.int64).reshape(-1, 3).T
        copy_pieces(self._device, piece_table(sources, targets + self._device.address(room), sizes))
        return room
