"""The decoders that blocks on a CUDA device need, each called once for all streams of a call."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import blocks, cuda_planes, float_cuda, lowrank_cuda_decode, nvcomp, nvcomp_formats, registry
from nvckpt.codecs.blocks import FLOAT_PLANES, NO_TRANSFORM, Block, Stream
from nvckpt.codecs.chunked import HEAD_SIZE, parse_table, read_table, table_size
from nvckpt.codecs.cuda_pieces import copy_pieces, piece_table
from nvckpt.codecs.cuda_transfer import address_of
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_cuda_device import CupyDevice

Numbers = npt.NDArray[np.int64]


class Decoding:
    """Streams of one call by what decodes them; planes are joined last."""

    def __init__(self) -> None:
        self._device = CupyDevice()
        self._floats: list[tuple[Any, Any]] = []
        self._low_rank: list[tuple[Any, Any, memoryview]] = []
        # Columns: addresses of sources and of targets, and bytes; of coded chunks before and after.
        self._copies: list[tuple[Numbers, Numbers, Numbers]] = []
        self._chunks: dict[tuple[str, int], list[tuple[Numbers, Numbers, Numbers, Numbers]]] = defaultdict(list)
        self._joins: list[tuple[list[Any], Block, Any]] = []

    def parts(self, block: Block, out: Any) -> list[Any]:
        """Where each stream of a block is decoded to."""
        import cupy

        sizes = blocks.stream_sizes(block, out.size)
        if [s.original_size for s in block.streams] != sizes:
            raise CorruptChunkError("the streams do not fit the transform")
        if block.transform_id == NO_TRANSFORM:
            return [out]
        parts = [cupy.empty(size, np.uint8) for size in sizes]
        self._joins.append((parts, block, out))
        return parts

    def add(self, stream: Stream, out: Any, head: memoryview | None) -> None:
        """Note a stream; its table, if it has one, is checked before anything is decoded."""
        if stream.codec_id == 0:
            if len(stream.data) != out.size:
                raise CorruptChunkError("a stored stream has another size than the original")
            place = address_of(stream.data), address_of(out), out.size
            self._copies.append((np.array(place[:1]), np.array(place[1:2]), np.array(place[2:])))
        elif stream.codec_id == registry.FLOAT.id:
            self._floats.append((stream.data, out))
        elif stream.codec_id == registry.LOW_RANK.id:
            data: Any = stream.data
            self._low_rank.append((data, out, memoryview(data.get()) if head is None else head))
        else:
            form = nvcomp_formats.BY_ID[stream.codec_id]
            if form.own:
                nvcomp_formats.check_version(form.name, stream.library_version)
            elif stream.codec_param or stream.library_version:
                raise CorruptChunkError(f"a {form.name} stream has a parameter, and takes none")
            self._add_chunks(form.name, stream, out, head)

    def _add_chunks(self, name: str, stream: Stream, out: Any, head: memoryview | None) -> None:
        if stream.codec_param not in nvcomp_formats.ELEMENTS:
            raise CorruptChunkError(f"a {name} stream is of an unknown element type")
        if head is not None:
            chunk, starts, sizes = parse_table(head, out.size)
        else:
            chunk, starts, sizes = read_table(_table_of(stream.data), len(stream.data), out.size)
        if out.size % int(nvcomp_formats.ELEMENTS[stream.codec_param][2:]):
            raise CorruptChunkError(f"a {name} stream holds a part of an element")
        before, offsets = np.array(sizes, np.int64), np.arange(len(sizes), dtype=np.int64) * chunk
        after = np.minimum(chunk, out.size - offsets)
        if (before > after).any():
            raise CorruptChunkError(f"{name} chunk {int((before > after).argmax())} is larger than what it holds")
        sources, targets = address_of(stream.data) + np.array(starts, np.int64), address_of(out) + offsets
        kept, coded = before == after, before != after
        self._copies.append((sources[kept], targets[kept], after[kept]))
        if coded.any():
            columns = sources[coded], before[coded], targets[coded], after[coded]
            self._chunks[name, stream.codec_param].append(columns)

    def run(self) -> None:
        """Decode everything and wait."""
        if self._copies:
            copy_pieces(self._device, piece_table(*_joined(self._copies)))
        for (name, element), columns in self._chunks.items():
            sources, before, targets, after = _joined(columns)
            nvcomp.decode(name, element, (sources, before), (targets, after))
        if self._floats:
            float_cuda.decode([stream for stream, _ in self._floats], [out for _, out in self._floats])
        if self._low_rank:
            streams, outs, heads = zip(*self._low_rank, strict=True)
            places = [[(address_of(array), int(array.size)) for array in arrays] for arrays in (streams, outs)]
            lowrank_cuda_decode.decode(self._device, places[0], places[1], heads)
        for parts, block, out in self._joins:
            cuda_planes.join(parts, block.transform_param, block.transform_id == FLOAT_PLANES, out)
        self._device.synchronize()


def _joined(columns: Iterable[tuple[Numbers, ...]]) -> list[Numbers]:
    """Put tables, each in columns, one after the other."""
    return [np.concatenate(parts) for parts in zip(*columns, strict=True)]


def _table_of(data: Any) -> memoryview:
    """Fetch the table of a chunked stream, and nothing behind it."""
    head = memoryview(data[:HEAD_SIZE].get())
    return memoryview(data[: table_size(head)].get()) if len(head) == HEAD_SIZE else head
