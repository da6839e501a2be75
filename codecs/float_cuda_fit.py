"""The host's part of what the CUDA float encoder decides: matrices, zeros, layout, planes left out (16.9, 1 to 10)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.float_cuda_device import Arena, Device
from nvckpt.codecs.float_cuda_tables import (
    CANDIDATE,
    ENTRY,
    FIT_STREAM,
    MATRICES_IN_GROUPS,
    MATRICES_ROWCOL,
    MATRICES_ZERO_HAS_SYMBOL,
    SAMPLE,
    SEEN,
    SEEN_LOW,
    SEEN_NIBBLE,
    SEEN_NO_SIGN,
    SEEN_SIGN,
    TILE,
    TRANSFORM,
    Table,
    firsts,
    pairs,
)
from nvckpt.codecs.float_decisions import sample_stride
from nvckpt.codecs.float_spec import MATRIX_SIZE, MAX_MATRICES, Flag, FloatSpec, Layout, LevelName, align

_FIT_WARPS, _FIT_ROWS = 8, 4
_SAMPLE_RUNS = 32
_RUN_BYTES = 512
_EXCEPTION_SHARE, _ZERO_SHARE = 512, 128
# Plain numbers: an enumeration's members are slow to look up, and this happens for each of many streams.
_ROTATED, _LOG = int(Layout.ROTATED), int(Layout.LOG)
_ZEROS_REMOVED, _SIDE_PLANE = int(Flag.ZEROS_REMOVED), int(Flag.SIDE_PLANE)


@dataclass(slots=True)
class Job:
    """One stream on its way: what it holds, and what was decided so far. Addresses are of device memory."""

    spec: FloatSpec
    address: int
    size: int
    layout: Layout
    sampling: int
    fitted: bool
    flags: int = 0
    coded: int = 0
    coded_count: int = 0
    entries: int = 0
    entry_count: int = 0
    matrices: int = 0
    matrix_count: int = 0
    side: int = 0
    side_count: int = 0
    bitmap: int = 0
    known: int = MATRICES_IN_GROUPS
    shapes: Sequence[tuple[int, int]] = field(default=())

    @property
    def words(self) -> int:
        """Return the number of whole words."""
        return self.size // self.spec.word

    @property
    def kind(self) -> tuple[int, int]:
        """Return which kernels code the main plane."""
        return (self.spec.word, int(self.layout)) if self.layout else (1, 0)


def new_job(spec: FloatSpec, address: int, size: int, level: LevelName) -> Job:
    """Return a stream about which only the level has been asked."""
    layout = spec.layout(level)
    fitted = layout != Layout.BYTES and (level != "fast" or spec.kind == "fp64")
    job = Job(spec, address, size, layout, 4 if fitted else 16, fitted, coded=address, coded_count=size // spec.word)
    if fitted and job.words:
        job.shapes = spec.matrices if len(spec.matrices) <= MAX_MATRICES else ((job.words, 0),)
    return job


def decide(device: Device, jobs: Sequence[Job]) -> list[Any]:
    """Fill in every job's decisions. Returns memory that the jobs' addresses point into."""
    kept: list[Any] = []
    groups: dict[tuple[int, int], list[Job]] = defaultdict(list)
    for job in jobs:
        if job.words and job.layout and (job.fitted or job.spec.word > 2):
            groups[job.kind].append(job)
    found = []
    for kind, group in groups.items():
        # fast and fitted jobs never share a kind: at one level, FP32 is rotated or fitted
        streams = _fit(device, kind, group, kept) if group[0].fitted else _upload(device, _plain_streams(group))
        counts = np.array([job.words for job in group], np.int64)
        _sample(device, kind, streams, counts, group[0].fitted, kept)
        found.append((group, streams))
    for group, streams in found:
        _settle(group, *_download(device, streams, len(group)))
    _transform(device, [job for job in jobs if job.words and job.layout], kept)
    return kept


def _upload(device: Device, streams: Table) -> Any:
    """Memory of the streams' table, and behind it zeros for what the sample will see of each."""
    return device.upload(np.concatenate([streams.view(np.uint8), np.zeros(SEEN.itemsize * len(streams), np.uint8)]))


def _download(device: Device, memory: Any, count: int) -> tuple[Table, Table]:
    """Wait; the streams' table as the kernels left it, and what the sample saw."""
    told, size = device.download(memory, np.uint8), FIT_STREAM.itemsize * count
    return told[:size].view(FIT_STREAM), told[size:].view(SEEN)


def _fit(device: Device, kind: tuple[int, int], jobs: list[Job], kept: list[Any]) -> Any:
    """Launch decisions 4 to 7; returns the table of streams."""
    word = kind[0]
    streams = np.zeros(len(jobs), FIT_STREAM)
    shapes = [shape for job in jobs for shape in job.shapes]
    counts = [len(job.shapes) for job in jobs]
    table = np.zeros(len(shapes), CANDIDATE)
    rows = np.array([rows if cols else 1 for rows, cols in shapes], np.int64)
    cols = np.array([cols or rows for rows, cols in shapes], np.int64)
    flat = np.array([cols == 0 for _, cols in shapes], bool)
    stream_of = np.repeat(np.arange(len(jobs)), counts)
    sizes = rows * cols
    before = np.cumsum(sizes) - sizes
    first = np.array(firsts(counts), np.int64)
    starts = before - before[first][stream_of] if shapes else before
    widths = np.where(flat, 0, -(-cols // 16) * 16)
    strips = np.where(flat, 0, -(-cols // (_RUN_BYTES // word)))
    sides = [align(int(size)) for size in np.bincount(stream_of, np.where(flat, 0, rows + cols), len(jobs))]

    means, levels = device.empty(4 * int(rows.sum())), device.empty(4 * int(rows.sum()))
    columns, side = device.empty(int(widths.sum())), device.empty(sum(sides))
    entries, matrices = device.empty(ENTRY.itemsize * len(shapes)), device.empty(MATRIX_SIZE * len(shapes))
    kept += [levels, columns, side, entries, matrices]
    table["words"] = np.array([job.address for job in jobs], np.uint64)[stream_of] + (starts * word).astype(np.uint64)
    table["columns"] = device.address(columns) + np.cumsum(widths) - widths
    table["rows"], table["cols"], table["flat"] = rows, cols, flat
    table["first_row"], table["first_strip"] = np.cumsum(rows) - rows, np.cumsum(strips) - strips
    streams["words"], streams["count"] = [job.address for job in jobs], [job.words for job in jobs]
    streams["entries"] = device.address(entries) + ENTRY.itemsize * first
    streams["matrices"] = device.address(matrices) + MATRIX_SIZE * first
    streams["side"] = device.address(side) + np.array(firsts(sides), np.int64)
    streams["entry_count"], streams["first_candidate"] = counts, first
    places = (streams[name].tolist() for name in ("entries", "matrices", "side"))
    for job, count, *addresses in zip(jobs, counts, *places, strict=True):
        job.entries, job.matrices, job.side = addresses
        job.entry_count = job.matrix_count = count

    candidates, memory = device.upload(table), _upload(device, streams)
    kept += [candidates, means]
    count, threads = len(table), 32 * _FIT_WARPS
    total = int(rows.sum())
    device.launch(
        "float_fit.fit_rows", kind, -(-total // (_FIT_WARPS * _FIT_ROWS)), threads, 0, [candidates, count, total, means]
    )
    device.launch("float_fit.fit_bases", kind, count, threads, 0, [candidates, means])
    device.launch("float_fit.fit_columns", kind, int(strips.sum()), threads, 0, [candidates, count, means])
    device.launch("float_fit.fit_choose", kind, len(jobs), 32, 0, [memory, candidates, levels])
    owners = device.upload(stream_of.astype("<u4"))
    kept.append(owners)
    device.launch("float_fit.fit_write", kind, count, 1024, 0, [memory, candidates, owners, means, levels])
    return memory


def _plain_streams(jobs: Sequence[Job]) -> Table:
    """Words to be coded as they are."""
    table = np.zeros(len(jobs), FIT_STREAM)
    table["words"], table["count"] = [job.coded for job in jobs], [job.coded_count for job in jobs]
    return table


def _sample(
    device: Device, kind: tuple[int, int], streams: Any, counts: npt.NDArray[np.int64], whole: bool, kept: list[Any]
) -> None:
    """Launch the sample of decisions 8 to 10: at even distances, or some where only left-out planes are guessed."""
    runs = -(-counts * kind[0] // _RUN_BYTES)
    if whole:
        strides = np.array([sample_stride(count) for count in runs.tolist()], np.int64)
        sampled = -(-runs // strides)
        units = pairs((-(-sampled // _SAMPLE_RUNS)).tolist())
        samples = np.zeros(len(units), SAMPLE)
        samples["stream"], samples["stride"] = units[:, 0], strides[units[:, 0]]
        samples["first"] = units[:, 1] * (_SAMPLE_RUNS * strides[units[:, 0]])
        rest = sampled[units[:, 0]] - units[:, 1].astype(np.int64) * _SAMPLE_RUNS
        samples["count"] = np.minimum(rest, _SAMPLE_RUNS)
    else:
        samples = np.zeros(len(counts), SAMPLE)
        samples["stream"] = np.arange(len(counts))
        samples["stride"] = np.maximum(1, runs // _SAMPLE_RUNS)
        samples["count"] = np.minimum(_SAMPLE_RUNS, runs)
    memory = device.upload(samples)
    kept.append(memory)
    seen = np.uint64(device.address(streams) + FIT_STREAM.itemsize * len(counts))
    arguments = [streams, memory, len(samples), seen]
    device.launch("float_fit.sample_words", kind, -(-len(samples) // _FIT_WARPS), 32 * _FIT_WARPS, 0, arguments)


def _settle(jobs: list[Job], streams: Table, seen: Table) -> None:
    """Decisions 8 to 10 from what the kernels counted."""
    told = zip(*(streams[name].tolist() for name in ("known", "side_count")), strict=True)
    counted = zip(*(seen[name].tolist() for name in ("zeros", "exceptions", "all")), strict=True)
    for job, (known, side_count), (zeros, exceptions, every) in zip(jobs, told, counted, strict=True):
        if job.fitted:
            job.known, job.side_count = known, side_count
            _choose_layout(job, zeros, exceptions)
        job.flags |= _left_out(job, every)


def _choose_layout(job: Job, zeros: int, exceptions: int) -> None:
    words, run = job.words, _RUN_BYTES // job.spec.word
    runs = -(-words // run)
    stride = sample_stride(runs)
    sampled = -(-runs // stride)
    total = sampled * run - (runs * run - words if (sampled - 1) * stride == runs - 1 else 0)
    if zeros * _ZERO_SHARE >= total:
        job.flags |= _ZEROS_REMOVED
    if job.layout == _LOG and job.spec.kind != "fp64" and exceptions * _EXCEPTION_SHARE > total - zeros:
        job.layout = Layout.ROTATED
        job.known = MATRICES_IN_GROUPS
    if job.layout == _ROTATED and not job.known & MATRICES_ROWCOL:
        job.entry_count = job.matrix_count = job.side_count = 0
    if job.side_count:
        job.flags |= _SIDE_PLANE


def _left_out(job: Job, seen: int) -> int:
    """Guess the planes that can be left out; the coder verifies."""
    flags = 0
    if job.layout == _LOG:
        if seen & (SEEN_SIGN | SEEN_NO_SIGN) != SEEN_SIGN | SEEN_NO_SIGN:
            flags |= Flag.SIGN_CONSTANT | (Flag.SIGN_VALUE if seen & SEEN_SIGN else 0)
        if not seen & SEEN_NIBBLE:
            flags |= Flag.NO_NIBBLES
    if job.layout and job.spec.word > 2 and not seen & SEEN_LOW:
        flags |= Flag.NO_LOW
    return flags


_LEFT_OUT = Flag.SIGN_CONSTANT | Flag.SIGN_VALUE | Flag.NO_NIBBLES | Flag.NO_LOW


def _transform(device: Device, jobs: list[Job], kept: list[Any]) -> None:
    """Write transformed words apart where zeros are removed or the coder cannot predict on its way."""
    groups: dict[tuple[int, int], list[Job]] = defaultdict(list)
    for job in jobs:
        hard = job.layout == _ROTATED or job.known & MATRICES_ZERO_HAS_SYMBOL or not job.known & MATRICES_IN_GROUPS
        if job.flags & _ZEROS_REMOVED or (job.entry_count and hard):
            groups[job.kind].append(job)
    started, arena = [], Arena(device)
    kept.append(arena)
    for kind, group in groups.items():
        table, tiles = np.zeros(len(group), TRANSFORM), [-(-job.words // TILE) for job in group]
        for job, row, first in zip(group, table, firsts(tiles), strict=True):
            job.coded = arena.take(job.words * job.spec.word)
            if job.flags & _ZEROS_REMOVED:
                job.bitmap = arena.take(-(-job.words // 32) * 4)
            row["words"], row["count"], row["coded"], row["bitmap"] = job.address, job.words, job.coded, job.bitmap
            row["entries"], row["entry_count"], row["first_tile"] = job.entries, job.entry_count, first
            job.entry_count = 0
        state, memory = device.zeros(4 * (sum(tiles) + 4)), device.upload(table)
        kept.append(memory)
        device.launch(
            "float_transform.transform_words",
            kind,
            sum(tiles),
            256,
            0,
            [memory, len(group), state, _after(device, state)],
        )
        started.append((kind, group, tiles, state))
    for kind, group, tiles, state in started:
        ends = device.download(state, "<u4")[4:][np.cumsum(tiles) - 1] & 0x3FFFFFFF
        removed = [job for job in group if job.flags & _ZEROS_REMOVED]
        for job, end in zip(group, ends, strict=True):
            if job.flags & _ZEROS_REMOVED:
                job.coded_count = int(end)
        _guess_again(device, kind, [job for job in removed if job.coded_count])
        for job in removed:
            if not job.coded_count:
                job.flags &= ~_LEFT_OUT


def _after(device: Device, state: Any) -> Any:
    """The status words, which lie 16 bytes after the ticket."""
    return np.uint64(device.address(state) + 16)


def _guess_again(device: Device, kind: tuple[int, int], jobs: list[Job]) -> None:
    """Guess the planes left out from words that remained, of which the first is among the sample."""
    if not jobs or (kind[1] == Layout.ROTATED and kind[0] == 2):
        return
    streams = _upload(device, _plain_streams(jobs))
    counts = np.array([job.coded_count for job in jobs], np.int64)
    _sample(device, kind, streams, counts, False, [])
    _, seen = _download(device, streams, len(jobs))
    for job, every in zip(jobs, seen["all"].tolist(), strict=True):
        job.flags = job.flags & ~_LEFT_OUT | _left_out(job, every)
