"""Blocks coded on a CUDA device, many in one call: what `blocks` does, on CuPy arrays.

`auto`, `float` and `store` give the same streams as on the CPU. What a GPU does badly (little data, text, blocks that
zstd's search shrinks more) is coded by the CPU meanwhile. All work goes to CuPy's current device and stream.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import blocks, cuda_planes, float_cuda, lowrank_cuda_blocks, nvcomp, nvcomp_formats, registry
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.blocks import FLOAT_PLANES, NO_TRANSFORM, Block, Choice, Made, Stream
from nvckpt.codecs.chunked import align, pack_table
from nvckpt.codecs.content import Content
from nvckpt.codecs.cuda_decoding import Decoding
from nvckpt.codecs.cuda_pieces import copy_pieces, differing, piece_table
from nvckpt.codecs.cuda_transfer import ALIGNMENT, address_of, fetched, is_array
from nvckpt.codecs.float_codec import spec_of
from nvckpt.codecs.float_cuda_device import BY_FACTORS, CupyDevice, prepare
from nvckpt.codecs.samples import Range, glance_ranges, joined, sample_ranges

Numbers = npt.NDArray[np.int64]

HostBytes = Callable[[int], Buffer]
"""Gives the bytes of a block by its number."""


RangesOf = Callable[[int], list[Range]]
"""Which ranges to look at of a block of some bytes."""

Pieces = Callable[[Sequence[int], RangesOf], list[memoryview]]
"""Gives these ranges of the blocks of some numbers, those of a block joined."""

Fact = tuple[int, Content, int, Choice]
"""A block's bytes, content, bytes as it was coded, and what was asked for."""


class OnHost(Protocol):
    """Runs a function over items: `map`, or an executor's `map`."""

    def __call__(self, work: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]:
        """Results in order."""


def encode(
    arrays: Sequence[Any],
    contents: Sequence[Content],
    choice: Choice,
    host: HostBytes | None = None,
    run: OnHost = map,
) -> list[Block]:
    """Code each CuPy array of bytes, of at least one byte and beginning at a multiple of 16, as a block.

    The streams' data are CuPy arrays, or bytes of the host where the CPU coded the block. `host` saves fetching bytes
    from the device where the host has them, too; `run` spreads the host's part over threads. Waits for the device.
    """
    numbers = range(len(arrays))
    get = host or (lambda i: arrays[i].get().data)
    routes = [_route(array, content, choice) for array, content in zip(arrays, contents, strict=True)]
    results: dict[int, Block] = {}
    floats = [i for i in numbers if routes[i] == "float"]
    mine, kinds = [arrays[i] for i in floats], [contents[i] for i in floats]
    by_low_rank = _by_low_rank(mine, kinds, choice)
    made = [Made(block, by_low_rank.get(n)) for n, block in enumerate(_by_float(mine, kinds, choice))]

    def pieces(some: Sequence[int], ranges_of: RangesOf) -> list[memoryview]:
        if host is None:
            return _pieces([mine[n] for n in some], ranges_of)
        return [joined(memoryview(host(floats[n])).cast("B"), ranges_of(mine[n].size)) for n in some]

    facts = [(a.size, c, m.last.encoded_size, choice) for a, c, m in zip(mine, kinds, made, strict=True)]
    doubtful = _in_doubt(facts, pieces, run)
    for i, array, block in zip(floats, mine, made, strict=True):
        results[i] = min(_stored(array), block.by_float, block.last, key=lambda one: one.encoded_size)
    tried = run(lambda n: blocks.encode(get(floats[n]), kinds[n], choice, made[n]), doubtful)
    results |= zip([floats[n] for n in doubtful], tried, strict=True)
    vendor = [i for i in numbers if routes[i] == "nvcomp"]
    coded = _by_nvcomp([arrays[i] for i in vendor], [contents[i] for i in vendor], choice)
    results |= zip(vendor, coded, strict=True)
    rest = [i for i in numbers if routes[i] == "host"]
    by_cpu = choice if choice.codec in (registry.AUTO, *registry.CPU_NAMES) else Choice("zstd")
    results |= zip(rest, run(lambda i: blocks.encode(get(i), contents[i], by_cpu), rest), strict=True)
    return [results[i] for i in numbers]


def _route(array: Any, content: Content, choice: Choice) -> str:
    if blocks.coded_by_float(content, choice):
        return "float"
    if choice.codec in nvcomp_formats.FORMATS and array.size >= nvcomp_formats.SMALLEST and bool(array.any()):
        return "nvcomp"
    return "host"


def _stored(array: Any) -> Block:
    return Block(NO_TRANSFORM, 0, (Stream(0, array.size, array),))


def _by_float(arrays: Sequence[Any], contents: Sequence[Content], choice: Choice) -> list[Block]:
    if not arrays:
        return []
    level = "default" if isinstance(choice.level, int) else choice.level
    specs = [spec_of(array.size, content) for array, content in zip(arrays, contents, strict=True)]
    buffer, offsets, sizes = float_cuda.encode(arrays, specs, level)
    streams = [buffer[start : start + size] for start, size in zip(offsets.tolist(), sizes.tolist(), strict=True)]
    return [
        Block(NO_TRANSFORM, 0, (Stream(registry.FLOAT.id, array.size, stream),))
        for array, stream in zip(arrays, streams, strict=True)
    ]


def _by_low_rank(arrays: Sequence[Any], contents: Sequence[Content], choice: Choice) -> dict[int, Block]:
    """The blocks that promise something by factors, by number."""
    asked = [i for i, a in enumerate(arrays) if blocks.low_rank_may_win(contents[i], a.size, choice)]
    if not asked:
        return {}
    prepare(BY_FACTORS)
    addresses, some = [address_of(arrays[i]) for i in asked], [contents[i] for i in asked]
    streams = lowrank_cuda_blocks.encode(CupyDevice(), addresses, some)
    return {
        asked[n]: Block(NO_TRANSFORM, 0, (Stream(registry.LOW_RANK.id, arrays[asked[n]].size, stream),))
        for n, stream in streams.items()
    }


def _in_doubt(facts: Sequence[Fact], pieces: Pieces, run: OnHost) -> list[int]:
    """Which blocks the CPU may code smaller than they were coded here; a glance settles most."""
    numbers = range(len(facts))
    glances = pieces(numbers, glance_ranges)
    hints = run(lambda n: blocks.others_hinted(glances[n], *facts[n]), numbers)
    hinted = [n for n, yes in zip(numbers, hints, strict=True) if yes]
    sampled = dict(zip(hinted, pieces(hinted, sample_ranges), strict=True))
    chances = run(lambda n: blocks.others_may_win(sampled[n], *facts[n]), hinted)
    return [n for n, yes in zip(hinted, chances, strict=True) if yes]


def _pieces(arrays: Sequence[Any], ranges_of: RangesOf) -> list[memoryview]:
    """Fetch ranges of each array, in one copy."""
    if not arrays:
        return []
    device = CupyDevice()
    ranges = [(int(a.data.ptr) + start, size) for a in arrays for start, size in ranges_of(a.size)]
    sizes = [size for _, size in ranges]
    starts = np.cumsum([0, *sizes])
    room = device.empty(int(starts[-1]))
    base = device.address(room)
    copy_pieces(device, piece_table([at for at, _ in ranges], (base + starts[:-1]).tolist(), sizes))
    host = memoryview(room.get())
    ends = np.cumsum([0, *(sum(size for _, size in ranges_of(a.size)) for a in arrays)]).tolist()
    return [host[start:end] for start, end in itertools.pairwise(ends)]


def _by_nvcomp(arrays: Sequence[Any], contents: Sequence[Content], choice: Choice) -> list[Block]:
    """Code with one of nvCOMP's formats: the standard ones in planes as on the CPU, its own ones as they are."""
    if not arrays:
        return []
    form = nvcomp_formats.FORMATS[choice.codec]
    level = choice.level if isinstance(choice.level, str) else "default"
    plans = [_planes(array, content, choice) for array, content in zip(arrays, contents, strict=True)]
    parts = [part for _, _, split in plans for part in split]
    sampled = _pieces([] if form.own else parts, sample_ranges)
    worth = [True] * len(parts) if form.own else [blocks.worth_coding(plane) for plane in sampled]
    chosen = [i for i, part in enumerate(parts) if worth[i] and part.size >= nvcomp_formats.SMALLEST]
    # nvCOMP's own formats take a block as it is, so its parts are the blocks.
    elements = [form.element(contents[i], parts[i].size) if form.own else 0 for i in chosen]
    packed = _packed(nvcomp.encode([parts[i] for i in chosen], form.name, elements, level, choice.chunk or 0))
    version = nvcomp_formats.library_version() if form.own else 0
    coded = {
        i: Stream(form.id, parts[i].size, data, element, version)
        for i, data, element in zip(chosen, packed, elements, strict=True)
        if len(data) < parts[i].size
    }
    streams = iter([coded.get(i) or Stream(0, part.size, part) for i, part in enumerate(parts)])
    found = [Block(t, word, tuple(next(streams) for _ in split)) for t, word, split in plans]
    return [b if b.encoded_size < a.size else _stored(a) for b, a in zip(found, arrays, strict=True)]


def _planes(array: Any, content: Content, choice: Choice) -> tuple[int, int, list[Any]]:
    own = nvcomp_formats.FORMATS[choice.codec].own
    if own or not choice.planes or not content.is_float or content.word not in (2, 4, 8) or array.size < content.word:
        return NO_TRANSFORM, 0, [array]
    return FLOAT_PLANES, content.word, cuda_planes.split(array, content.word, True)


def _packed(coded: Sequence[nvcomp.Coded]) -> list[Any]:
    """Lay the chunks of every buffer behind their table (FORMAT.md 5.3), all in one launch."""
    if not coded:
        return []
    device = CupyDevice()
    tables = [pack_table(c.chunk, c.sizes.tolist()) for c in coded]
    heads = device.upload(np.frombuffer(b"".join(tables), np.uint8))
    sources: list[Numbers] = []
    targets: list[Numbers] = []
    sizes: list[Numbers] = []
    places: list[tuple[int, int]] = []
    position, head = 0, device.address(heads)
    for c, table in zip(coded, tables, strict=True):
        lengths = np.concatenate([[len(table)], c.sizes])
        starts = np.cumsum(np.concatenate([[0], -(-lengths[:-1] // ALIGNMENT) * ALIGNMENT]))
        sources.append(np.concatenate([[head], c.addresses]))
        targets.append(position + starts)
        sizes.append(lengths)
        places.append((position, int(starts[-1] + lengths[-1])))
        position = align(position + places[-1][1])
        head += len(table)
    room = device.zeros(position)
    joined = [np.concatenate(columns) for columns in (sources, targets, sizes)]
    copy_pieces(device, piece_table(joined[0], joined[1] + device.address(room), joined[2]))
    return [room[start : start + size] for start, size in places]


def decode(coded: Sequence[Block], outs: Sequence[Any], heads: Sequence[Sequence[memoryview]] | None = None) -> None:
    """Fill CuPy arrays of bytes, each of its block's original size and beginning at a multiple of 16.

    Streams are CuPy arrays beginning at multiples of 16, or bytes of the host, which the CPU decodes; `heads` are the
    bytes of the streams on the host, where they are there.
    CorruptChunkError if one does not fit; checksums must have been compared before (see `nvcomp`). Waits for the
    device.
    """
    work = Decoding()
    for number, (block, out) in enumerate(zip(coded, outs, strict=True)):
        if not all(is_array(stream.data) for stream in block.streams):
            decoded = blocks.decode(fetched(block), out.size)
            out.set(np.frombuffer(decoded, np.uint8))
            continue
        parts = work.parts(block, out)
        for j, (stream, part) in enumerate(zip(block.streams, parts, strict=True)):
            work.add(stream, part, heads[number][j] if heads else None)
    work.run()


def first_difference(left: Sequence[Any], right: Sequence[Any]) -> int | None:
    """Compare CuPy arrays of bytes in pairs; the number of the first pair that differs, None when all are the same."""
    table = piece_table([address_of(a) for a in left], [address_of(b) for b in right], [a.size for a in left])
    found = differing(CupyDevice(), table).nonzero()[0]
    return int(found[0]) if len(found) else None
