"""Decoding `lowrank` streams on a CUDA device, many in a call: the host reads their records, kernels do the numbers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nvckpt.codecs import lowrank_record
from nvckpt.codecs.cuda_pieces import copy_pieces, piece_table
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_cuda_decode import Decoding, Place
from nvckpt.codecs.float_cuda_device import Arena, Device
from nvckpt.codecs.float_cuda_tables import Table, packed, pairs
from nvckpt.codecs.lowrank_cuda_tables import (
    BELOW,
    BINS_SIZE,
    COUNTS_KIND,
    ESCAPES,
    PLANES,
    THREADS,
    Batch,
    Shape,
    lay_out,
)
from nvckpt.codecs.lowrank_grid import CONTEXTS
from nvckpt.codecs.lowrank_native import SENTENCES
from nvckpt.codecs.lowrank_record import FACTORS, SCALES, Record

# Of a number between two kernels, by the bytes of a word: `Placed` in kernels/lowrank_decode.cu.
_PLACED = {2: 4, 4: 8}
_CLEAR_PART = 65536
_RANGE = np.dtype([("address", "<u8"), ("size", "<u8")])

# The bits of kernels/lowrank_counts.cu, in the order in which a decoder meets what they stand for.
_FACTOR, _CONTEXTS, _BELOW, _RAW, _ESCAPES, _LEFT_OVER = (1 << i for i in range(6))
_TOO_FEW, _TOO_MANY, _OTHER_RAW, _FACTOR_RANGE = SENTENCES[1:]
_WRONG = {
    _FACTOR: _FACTOR_RANGE,
    _CONTEXTS: _TOO_FEW,
    _BELOW: _TOO_FEW,
    _RAW: _OTHER_RAW,
    _ESCAPES: _TOO_FEW,
    _LEFT_OVER: _TOO_MANY,
}


class _Job(NamedTuple):
    """A record, its kept rows, and the addresses of its stream and of its matrix."""

    record: Record
    held: int
    stream: int
    out: int


def decode(device: Device, streams: Sequence[Place], outs: Sequence[Place], heads: Sequence[memoryview]) -> None:
    """Fill `outs`, each of its stream's original size, from streams in device memory whose bytes `heads` has, too.

    Both begin at multiples of 16. CorruptChunkError for a stream that is damaged, whose output may then hold anything.
    """
    jobs, clear, moved, arena = [], [], [], Arena(device)
    for (stream, _), (out, size), head in zip(streams, outs, heads, strict=True):
        position = out
        for record in lowrank_record.records(head, size):
            to = position
            if position % record.kind.word:  # behind an odd number of BF16 words, which no encoder writes
                to = arena.take(record.size)
                moved.append((to, position, record.size))
            job = _Job(record, record.held, stream, to)
            clear += [(record.kind.word, *place) for place in _rows_left_out(job)]
            jobs.append(job)
            position += record.size
    work = _Numbers(device, sorted(jobs, key=lambda job: job.record.kind.word))
    _clear(device, clear)
    work.run()
    _copy(device, moved)


def _rows_left_out(job: _Job) -> list[Place]:
    """Address and bytes of each run of rows that are not kept."""
    row = job.record.cols * job.record.kind.word
    edges = np.flatnonzero(np.diff(np.concatenate([[True], job.record.kept, [True]])))
    return [(job.out + start * row, (end - start) * row) for start, end in edges.reshape(-1, 2).tolist()]


def _copy(device: Device, moved: Sequence[tuple[int, int, int]]) -> None:
    """Copy from an address to another so many bytes, for each."""
    if moved:
        copy_pieces(device, piece_table(*np.array(moved, np.int64).T))


def _clear(device: Device, ranges: Sequence[tuple[int, int, int]]) -> None:
    for word in sorted({word for word, _, _ in ranges}):
        table = np.array([place for each, *place in ranges if each == word], np.uint64)
        chosen = np.zeros(len(table), _RANGE)
        chosen["address"], chosen["size"] = table.T
        items = pairs((-(-chosen["size"].astype(np.int64) // _CLEAR_PART)).tolist())
        arguments = [device.upload(chosen), device.upload(items)]
        device.launch("lowrank_decode.clear_ranges", (word, 2), len(items), THREADS, 0, arguments)


class _Numbers:
    """The records of one call that keep any rows: all their sections are decoded first, then all their numbers."""

    def __init__(self, device: Device, jobs: Sequence[_Job]) -> None:
        self._device, self._arena = device, Arena(device)
        self._floats: list[tuple[Place, Place]] = []
        self._moved: list[tuple[int, int, int]] = []
        sizes = [lowrank_record.float_sizes(job.record) for job in jobs]
        self._jobs = [job for job in jobs if job.held]
        if not self._jobs:
            return
        shapes = [Shape(job.held, job.record.cols, job.record.kind.word) for job in self._jobs]
        self._batch = lay_out(device, shapes, _PLACED)
        of_jobs = [of_job for job, of_job in zip(jobs, sizes, strict=True) if job.held]
        for job, row, of_job in zip(self._jobs, self._batch.table, of_jobs, strict=True):
            self._add(job, row, of_job)

    def _add(self, job: _Job, row: Any, sizes: list[int]) -> None:
        """Note the sections of a record that are `float` streams, and where each goes."""
        record = job.record
        row["rank"], row["shift"], row["multipliers"] = record.rank, record.shift, record.multipliers
        row["words"], row["totals"] = job.out, record.counts
        row["scales"] = self._decoded(job, SCALES, sizes[0])
        sides = job.held + record.cols
        row["factors"] = factors = self._arena.take(2 * record.rank * sides)
        for number, part in enumerate(lowrank_record.group_slices(record.rank, record.groups)):
            target, size = factors + 2 * part.start * sides, sizes[1 + number]
            if target % 16:
                self._moved.append((self._decoded(job, FACTORS + number, size), target, size))
            else:
                self._floats.append((_place(job, FACTORS + number), (target, size)))
        first = FACTORS + record.groups
        for plane in range(CONTEXTS + 1):
            row["planes"][plane] = self._decoded(job, first + plane, sizes[1 + record.groups + plane])
        row["planes"][ESCAPES] = job.stream + record.starts[-2]

    def _decoded(self, job: _Job, section: int, size: int) -> int:
        """Where a section is decoded to; nowhere if it is empty."""
        if not size:
            return 0
        target = self._arena.take(size)
        self._floats.append((_place(job, section), (target, size)))
        return target

    def run(self) -> None:
        """Decode everything and wait."""
        if not self._jobs:
            return
        Decoding(self._device, [stream for stream, _ in self._floats], [out for _, out in self._floats]).run()
        _copy(self._device, self._moved)
        errors = self._device.zeros(4 * len(self._jobs))
        self._launch(self._batch, self._strips(), errors)
        for error in self._device.download(errors, "<u4")[: len(self._jobs)].tolist():
            if error:
                raise CorruptChunkError(_WRONG[error & -error])

    def _strips(self) -> Table:
        """The table of strips with the place and size of each one's raw bits, as the raw sections say."""
        strips = self._batch.strips
        counts = np.bincount(strips["matrix"], minlength=len(self._jobs)).tolist()
        first = 0
        for job, count in zip(self._jobs, counts, strict=True):
            sizes = np.frombuffer(job.record.sections[-1], "<u4", count).astype(np.int64)
            start = job.stream + job.record.starts[-1] + 4 * count
            mine = strips[first : first + count]
            mine["size"], mine["raw"] = sizes, start + np.cumsum(sizes) - sizes
            first += count
        return strips

    def _kept(self) -> tuple[Table, list[int]]:
        """The places of kept rows, of all matrices that have others, and which matrices these are."""
        chosen = [i for i, job in enumerate(self._jobs) if job.held < job.record.rows]
        places = [np.flatnonzero(self._jobs[i].record.kept) for i in chosen]
        self._batch.table["kept"][chosen] = np.cumsum([0, *(4 * len(place) for place in places[:-1])])[: len(chosen)]
        return np.concatenate([np.zeros(0, "<u4"), *places]).astype("<u4"), chosen

    def _launch(self, batch: Batch, strips: Table, errors: Any) -> None:
        device, count = self._device, len(batch.table)
        kept, chosen = self._kept()
        if chosen:
            places = device.upload(kept)
            batch.memory.append(places)
            batch.table["kept"][chosen] += np.uint64(device.address(places))
        whole, (table_at, strips_at) = packed([batch.table, strips])
        tables = device.upload(whole)
        matrices, of_strips = (np.uint64(device.address(tables) + at) for at in (table_at, strips_at))
        bins = device.empty(BINS_SIZE * len(strips))
        none = np.uint64(0)

        def by_word(kernel: str, grid: str, *rest: Any) -> None:
            for part in batch.parts:
                mine = np.uint64(int(matrices) + part.first * batch.table.itemsize)
                arguments = [mine, part.count, *rest]
                device.launch(f"lowrank_decode.{kernel}", part.kind, getattr(part, grid), THREADS, 0, arguments)

        def scan(first: int, fields: int, known: int) -> None:
            arguments = [matrices, first, fields, errors, known, none]
            device.launch("lowrank_counts.scan_counts", COUNTS_KIND, fields * count, THREADS, 0, arguments)

        # Each kernel leaves out the matrices that are known to be wrong in what it relies on.
        known = _FACTOR
        by_word("place_numbers", "tiles", errors, _FACTOR)
        by_word("count_contexts", "blocks")
        scan(0, CONTEXTS, known)
        known |= _CONTEXTS
        by_word("take_symbols", "blocks", errors, known)
        scan(BELOW, PLANES - BELOW, known)
        known |= _BELOW
        by_word("take_below", "blocks", errors, known)
        arguments = [matrices, of_strips, bins, errors, known, none]
        device.launch("lowrank_counts.place_bins", COUNTS_KIND, len(strips), THREADS, 0, arguments)
        known |= _RAW | _ESCAPES
        by_word("put_words", "blocks", of_strips, bins, errors, known)


def _place(job: _Job, section: int) -> Place:
    return job.stream + job.record.starts[section], len(job.record.sections[section])
