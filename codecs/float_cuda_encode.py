"""Encoding on a CUDA device: from decided jobs to streams in one buffer."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.float_cuda_device import THREADS, TUNING, Device, encode_shared
from nvckpt.codecs.float_cuda_fit import Job, decide, new_job
from nvckpt.codecs.float_cuda_tables import BYTE_TILE, BYTES, FINISH, PLANE, firsts, packed, pairs
from nvckpt.codecs.float_spec import (
    BLOCK,
    CHUNK,
    END_SIZE,
    HEADER_SIZE,
    MATRIX_SIZE,
    MAX_MATRICES,
    MAX_SIZE,
    Flag,
    FloatSpec,
    Layout,
    LevelName,
    align,
)
from nvckpt.codecs.float_words import raw_plane_sizes

_TABLE_MOST = 416
_BYTES_KIND = (1, 0)
# Plain numbers: an enumeration's members are slow to look up, and this happens for each of many streams.
_ROTATED, _LOG = int(Layout.ROTATED), int(Layout.LOG)
_ZEROS_REMOVED, _SIDE_PLANE = int(Flag.ZEROS_REMOVED), int(Flag.SIDE_PLANE)
_SIGN_CONSTANT, _NO_NIBBLES, _NO_LOW = int(Flag.SIGN_CONSTANT), int(Flag.NO_NIBBLES), int(Flag.NO_LOW)


def encode_on(
    device: Device, inputs: Sequence[tuple[int, int]], specs: Sequence[FloatSpec], level: LevelName
) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Encode inputs, (address, size) each, 16-byte aligned. Returns a buffer, and offsets and sizes of the streams."""
    if any(size > MAX_SIZE for _, size in inputs):
        raise ValueError(f"a stream holds at most {MAX_SIZE} bytes")
    jobs = [new_job(spec, address, size, level) for (address, size), spec in zip(inputs, specs, strict=True)]
    kept = decide(device, jobs)
    slots = [max_encoded_size(job.size, job.spec) for job in jobs]
    offsets = np.array(firsts(slots), np.int64)
    buffer = device.empty(sum(slots))
    sizes = np.zeros(len(jobs), np.int64)
    todo = list(range(len(jobs)))
    base = device.address(buffer)
    while todo:
        places = [base + int(offsets[i]) for i in todo]
        some, broken = _Run(device, [jobs[i] for i in todo], places, kept).finish()
        sizes[todo] = some
        todo = [i for i, flags in zip(todo, broken, strict=True) if _repair(jobs[i], flags)]
    return buffer, offsets, sizes


def max_encoded_size(size: int, spec: FloatSpec) -> int:
    """Upper bound of a stream's size, a multiple of 16."""
    words, matrices = size // spec.word, min(len(spec.matrices), MAX_MATRICES)
    side = sum(rows + cols for rows, cols in spec.matrices if cols)
    raw = words * spec.word if spec.kind != "bytes" and spec.word > 1 else 0
    planes = [words * spec.word] if spec.kind != "bytes" else [words] * spec.word
    coded = sum(_plane_most(count) for count in [*planes, side, -(-words // 8)])
    return align(HEADER_SIZE + MATRIX_SIZE * matrices + raw + 64 + coded + END_SIZE)


def _plane_most(count: int) -> int:
    """A plane of raw chunks, each as long as it can be; `count` bytes of values."""
    return align(count + (_TABLE_MOST + 128 + 64) * (-(-count // CHUNK) + 1))


def _repair(job: Job, broken: int) -> bool:
    """Take back guesses that did not hold; whether there were any."""
    if broken & Flag.SIGN_CONSTANT:
        broken |= Flag.SIGN_VALUE
    job.flags &= ~broken
    return broken != 0


class _Run:
    """One pass over some jobs with the flags they have now."""

    def __init__(self, device: Device, jobs: list[Job], places: list[int], kept: list[Any]) -> None:
        self._device, self._jobs, self._places, self._kept = device, jobs, places, kept
        self._planes: list[tuple[int, ...]] = []
        self._blocks: list[int] = []
        self._kinds: list[tuple[int, int]] = []
        self._part_bytes()
        self._finish: list[tuple[int, ...]] = []
        self._total = 0
        for i, job in enumerate(jobs):
            self._total = self._add(i, job, places[i], self._total)
        self._launch()

    def _part_bytes(self) -> None:
        """Layout 0 with words of several bytes: planes apart, in memory of their own."""
        wide = [job for job in self._jobs if job.layout == Layout.BYTES and job.spec.word > 1 and job.words]
        table, tiles = np.zeros(len(wide), BYTES), [-(-job.words // BYTE_TILE) for job in wide]
        for job, row, first in zip(wide, table, firsts(tiles), strict=True):
            stride = align(job.words)
            memory = self._device.empty(stride * job.spec.word)
            self._kept.append(memory)
            job.coded = self._device.address(memory)
            row["words"], row["planes"], row["count"] = job.address, job.coded, job.words
            row["stride"], row["word"], row["first_tile"] = stride, job.spec.word, first
        if wide:
            memory = self._device.upload(table)
            self._kept.append(memory)
            self._device.launch("float_sections.part_bytes", _BYTES_KIND, sum(tiles), 256, 0, [memory, len(wide)])

    def _add(self, number: int, job: Job, place: int, chain: int) -> int:
        """Add a stream's planes; returns the number of the next block."""
        word, m, words, layout = job.spec.word, job.coded_count, job.words, int(job.layout)
        at = place + HEADER_SIZE + MATRIX_SIZE * job.matrix_count
        sizes = iter(raw_plane_sizes(m, word, job.layout, job.flags))
        present = (
            layout == _ROTATED,
            layout == _LOG and not job.flags & _SIGN_CONSTANT,
            layout == _LOG and not job.flags & _NO_NIBBLES,
            layout and word > 2 and not job.flags & _NO_LOW,
        )
        raw = []
        for there in present:
            raw.append(at if there else 0)
            at += align(next(sizes)) if there else 0
        coded = [(job.coded, m, job.sampling, (word, layout) if layout else _BYTES_KIND)]
        if not layout and word > 1:
            coded = [(job.coded + j * align(m), m, job.sampling, _BYTES_KIND) for j in range(word)]
        if job.flags & _SIDE_PLANE:
            coded.append((job.side, job.side_count, 1, _BYTES_KIND))
        if job.flags & _ZEROS_REMOVED:
            coded.append((job.bitmap, -(-words // 8), 1, _BYTES_KIND))
        directories, first, first_plane = 0, chain, len(self._planes)
        for index, (address, count, sampling, kind) in enumerate(coded):
            if not count:
                continue
            directories += directory_size(count)
            own = (*raw, at, directories, 0, job.entries, job.entry_count) if index == 0 and layout else None
            own = own or (0, 0, 0, 0, at, directories, 0, 0, 0)
            flags = job.flags if index == 0 and layout else 0
            self._planes.append((address, count, *own, chain, first, sampling, number, flags))
            self._blocks.append(-(-count // BLOCK))
            self._kinds.append(kind)
            first += self._blocks[-1]
        whole, planes = words * word, len(self._planes) - first_plane
        places = (place, words, m, job.address + whole, job.matrices)
        rest = (layout, word, job.flags, job.size - whole, job.matrix_count, first_plane, planes, 0)
        self._finish.append((*places, *rest))
        return first

    def _launch(self) -> None:
        device = self._device
        table = np.array(self._planes, PLANE) if self._planes else np.zeros(0, PLANE)
        kinds = sorted(set(self._kinds), reverse=True)  # side planes and bitmaps, of kind (1, 0), come last
        # sizes, two numbers for each stream; reports, one for each; tickets, one for each kind; statuses of blocks
        count = len(self._jobs)
        self._told, tickets = align(8 * count) + align(4 * count), 4 * 16
        self._state = device.zeros(self._told + tickets + 4 * self._total)
        sizes = device.address(self._state)
        reports, base = sizes + align(8 * count), sizes + self._told
        self._infos = device.empty(16 * self._total)
        status = np.uint64(base + tickets)
        by_kind: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, kind in enumerate(self._kinds):
            by_kind[kind].append(number)
        lists = {}
        for kind in kinds:
            chosen = np.array(by_kind[kind])
            items = pairs([self._blocks[i] for i in chosen])
            items[:, 0] = chosen[items[:, 0]]
            lists[kind] = items
        whole, places = packed([table, *lists.values(), np.array(self._finish, FINISH)])
        memory = device.upload(whole)
        planes, *blocks, finish = (np.uint64(device.address(memory) + place) for place in places)
        grids = {kind: min(len(lists[kind]), device.resident(*kind)) for kind in kinds}
        areas = [2 * grids[k] * (4 * CHUNK * (2 if k[1] == Layout.LOG else 1) + 512) for k in kinds]
        slots = device.empty(max(areas, default=0))
        self._kept += [memory, self._infos, slots]
        for number, kind in enumerate(kinds):
            device.launch(
                "float_encode.encode_planes",
                kind,
                grids[kind],
                THREADS,
                encode_shared(*kind),
                [
                    *(planes, blocks[number], len(lists[kind]), np.uint64(base + 4 * number), status, self._infos),
                    *(np.uint64(reports), slots, TUNING[kind][1]),
                ],
            )
        arguments = [finish, planes, status, self._infos, np.uint64(sizes)]
        device.launch("float_sections.finish_streams", _BYTES_KIND, len(self._jobs), 256, 0, arguments)

    def finish(self) -> tuple[npt.NDArray[np.int64], list[int]]:
        """Wait; sizes of the streams, and the flags of each that did not hold."""
        count = len(self._jobs)
        told = self._device.download(self._state[: self._told], np.uint8)
        reports = told[align(8 * count) :].view("<u4")[:count]
        return told[: 8 * count].view("<i8"), reports.tolist()


def directory_size(count: int) -> int:
    """Bytes of a coded plane's directory."""
    return align(4 * (-(-count // BLOCK) + 1 + -(-count // CHUNK)))
