"""Decoding on a CUDA device: headers are checked there, and each stream's planes are decoded in few launches."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_cuda_device import THREADS, Arena, Device, decode_shared
from nvckpt.codecs.float_cuda_tables import (
    BYTE_TILE,
    BYTES,
    ENTRY,
    MATRICES,
    MATRICES_IN_GROUPS,
    MATRICES_ZERO_HAS_SYMBOL,
    PARSED,
    PLANE,
    SOURCE,
    TAIL,
    TILE,
    TRANSFORM,
    firsts,
    pairs,
)
from nvckpt.codecs.float_spec import BLOCK, HEADER_SIZE, Flag, Layout, align

Place = tuple[int, int]
"""Address and size."""

_BYTES_KIND = (1, 0)
# Plain numbers: an enumeration's members are slow to look up, and this happens for each of many streams.
_ROTATED, _ZEROS_REMOVED, _SIDE_PLANE = int(Layout.ROTATED), int(Flag.ZEROS_REMOVED), int(Flag.SIDE_PLANE)
_SIGN_CONSTANT, _NO_NIBBLES, _NO_LOW = int(Flag.SIGN_CONSTANT), int(Flag.NO_NIBBLES), int(Flag.NO_LOW)
_PARSE_ERRORS = {
    1: "the float stream is cut short",
    2: "the float stream's header contradicts itself",
    3: "the float stream has another size than the archive says",
    4: "the float stream's matrices do not fit its words",
    5: "the float stream is longer or shorter than its sections",
}
_DECODE_ERRORS = {
    1: "the blocks of a coded plane are not in order",
    2: "a frequency table is damaged",
    4: "a block record is longer or shorter than its chunks",
    8: "a chunk's description is impossible",
    16: "a state of a chunk is outside its range",
    32: "a chunk does not end as it should",
    64: "the exceptions of a chunk are not in order",
    128: "the bitmap of zeros does not fit the number of words",
}


class Parsed(NamedTuple):
    """What a header says, field by field as PARSED: plain numbers, which are read many times over."""

    n: int
    m: int
    rows: int
    columns: int
    side: int
    raw: list[int]
    directory: list[int]
    records: list[int]
    limit: list[int]
    error: int
    layout: int
    word: int
    flags: int
    matrix_count: int
    tail_size: int
    planes: int
    known: int


def parse(device: Device, streams: Sequence[Place], sizes: Sequence[int]) -> list[Parsed]:
    """Check header, matrices and sections of every stream; CorruptChunkError names what is wrong with the first."""
    table = np.array(
        [(address, size, original) for (address, size), original in zip(streams, sizes, strict=True)], SOURCE
    )
    sources, parsed = device.upload(table), device.zeros(PARSED.itemsize * len(table))
    device.launch("float_sections.parse_streams", _BYTES_KIND, len(table), 128, 0, [sources, parsed])
    found = [Parsed(*row) for row in device.download(parsed, PARSED).tolist()]
    for header in found:
        if header.error:
            raise CorruptChunkError(_PARSE_ERRORS[header.error])
    return found


class Decoding:
    """One call's streams; `run` fills the outputs."""

    def __init__(self, device: Device, streams: Sequence[Place], outs: Sequence[Place]) -> None:
        self._device, self._streams, self._outs = device, streams, outs
        self._kept: list[Any] = []
        self._arena = Arena(device)
        self._parsed = parse(device, streams, [size for _, size in outs])
        self._errors = device.zeros(4 * len(streams))
        self._planes: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
        self._transforms: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
        self._joins: list[tuple[int, ...]] = []
        self._tails: list[tuple[int, ...]] = []
        self._first_planes: list[tuple[int, ...]] = []

    def run(self) -> None:
        """Decode everything; CorruptChunkError for the first stream that is damaged."""
        live = [i for i in range(len(self._streams)) if self._parsed[i].n]
        entries = self._describe_matrices(live)
        for i in live:
            self._add(i, self._parsed[i], entries.get(i, 0))
        for i, (address, _) in enumerate(self._streams):
            p = self._parsed[i]
            if p.tail_size:
                self._tails.append((address + 32, self._outs[i][0] + p.n * p.word, p.tail_size, 0))
        self._decode(_BYTES_KIND, self._first_planes)
        self._expand_sides()
        for kind, planes in self._planes.items():
            self._decode(kind, planes)
        self._restore()
        self._join()
        errors = self._device.download(self._errors, "<u4")[: len(self._streams)]
        for error in errors:
            if error:
                raise CorruptChunkError(_DECODE_ERRORS[int(error) & -int(error)])

    def _upload(self, rows: Sequence[tuple[int, ...]], kind: Any) -> Any:
        memory = self._device.upload(np.array(rows, kind))
        self._kept.append(memory)
        return memory

    def _describe_matrices(self, live: list[int]) -> dict[int, int]:
        """Tables of the matrices, still without levels; returns the address of each stream's entries."""
        rows, entries, self._matrix_items = [], {}, []
        for i in live:
            p = self._parsed[i]
            count = p.matrix_count
            if not count:
                continue
            entries[i] = self._arena.take(ENTRY.itemsize * count)
            side = self._arena.take(p.side)
            levels, columns = self._arena.take(4 * p.rows), self._arena.take(p.columns)
            self._matrix_items.append(count)
            rows.append((self._streams[i][0] + HEADER_SIZE, entries[i], side, levels, columns, count, 0))
            if p.flags & _SIDE_PLANE:
                index = 1 if p.layout else p.word
                self._first_planes.append(self._bytes_plane(i, p, index, side, p.side))
        self._matrices = rows
        return entries

    def _bytes_plane(self, i: int, p: Parsed, index: int, words: int, count: int) -> tuple[int, ...]:
        address = self._streams[i][0]
        directory, records = address + p.directory[index], address + p.records[index]
        return (words, count, 0, 0, 0, 0, directory, records, p.limit[index], 0, 0, 0, 0, 0, i, 0)

    def _add(self, i: int, p: Parsed, entries: int) -> None:
        n, m, word, layout, flags = p.n, p.m, p.word, p.layout, p.flags
        kind = (word, layout)
        out, address = self._outs[i][0], self._streams[i][0]
        matrix_count = p.matrix_count
        bitmap = 0
        if flags & _ZEROS_REMOVED:
            bitmap = self._arena.take(-(-n // 32) * 4 + 16)
            self._first_planes.append(self._bytes_plane(i, p, p.planes - 1, bitmap, -(-n // 8)))
        hard = p.known & MATRICES_ZERO_HAS_SYMBOL or not p.known & MATRICES_IN_GROUPS or layout == _ROTATED
        apart = bool(bitmap) or bool(matrix_count and hard)
        to = self._arena.take(m * word) if apart else out
        if apart:
            self._transforms[kind].append((out, n, to, bitmap, entries, m, matrix_count, 0, i, 0))
        if not layout:
            stride = align(m)
            planes = to if word == 1 else self._arena.take(stride * word)
            for j in range(word if m else 0):
                self._planes[_BYTES_KIND].append(self._bytes_plane(i, p, j, planes + j * stride, m))
            if word > 1 and m:
                self._joins.append((to, planes, m, stride, word, 0))
        elif m:
            raw = [address + at for at in p.raw]
            raw[1] = 0 if flags & _SIGN_CONSTANT else raw[1]
            raw[2] = 0 if flags & _NO_NIBBLES else raw[2]
            raw[3] = 0 if flags & _NO_LOW or word == 2 else raw[3]
            directory, records = address + p.directory[0], address + p.records[0]
            walk = (entries, matrix_count) if matrix_count and not apart else (0, 0)
            self._planes[kind].append(
                (to, m, *raw, directory, records, p.limit[0], walk[0], walk[1], 0, 0, 0, i, flags)
            )

    def _decode(self, kind: tuple[int, int], planes: list[tuple[int, ...]]) -> None:
        if not planes:
            return
        items = pairs([-(-plane[1] // BLOCK) for plane in planes])
        table, list_ = self._upload(planes, PLANE), self._device.upload(items)
        self._kept.append(list_)
        self._device.launch(
            "float_decode.decode_planes", kind, len(items), THREADS, decode_shared(), [table, list_, self._errors]
        )

    def _expand_sides(self) -> None:
        if not self._matrices:
            return
        table, items = self._upload(self._matrices, MATRICES), self._device.upload(pairs(self._matrix_items))
        self._kept.append(items)
        self._device.launch("float_sections.build_entries", _BYTES_KIND, len(self._matrices), 128, 0, [table])
        self._device.launch("float_sections.expand_side", _BYTES_KIND, sum(self._matrix_items), 1024, 0, [table, items])

    def _restore(self) -> None:
        self._join_layout_zero()
        for kind, rows in self._transforms.items():
            tiles = [-(-row[1] // TILE) for row in rows]
            placed = [(*row[:7], first, *row[8:]) for row, first in zip(rows, firsts(tiles), strict=True)]
            state = self._device.zeros(4 * (sum(tiles) + 4))
            self._kept.append(state)
            self._device.launch(
                "float_transform.restore_words",
                kind,
                sum(tiles),
                256,
                0,
                [
                    self._upload(placed, TRANSFORM),
                    len(rows),
                    state,
                    np.uint64(self._device.address(state) + 16),
                    self._errors,
                ],
            )

    def _join_layout_zero(self) -> None:
        if not self._joins:
            return
        tiles = [-(-row[2] // BYTE_TILE) for row in self._joins]
        rows = [(*row[:5], first) for row, first in zip(self._joins, firsts(tiles), strict=True)]
        self._device.launch(
            "float_sections.join_bytes", _BYTES_KIND, sum(tiles), 256, 0, [self._upload(rows, BYTES), len(rows)]
        )

    def _join(self) -> None:
        if self._tails:
            tails = self._upload(self._tails, TAIL)
            self._device.launch("float_sections.copy_tails", _BYTES_KIND, len(self._tails), 32, 0, [tails])
