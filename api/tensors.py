"""A checkpoint's tensors by name, whether it is compressed or not: where they are, and their values as bytes."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nvckpt.errors import UnusableTensorError
from nvckpt.files import Input, show
from nvckpt.formats import opaque, safetensors_file
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.container import ArchiveReader, is_archive
from nvckpt.formats.layout import Extent
from nvckpt.formats.segments import Segment, View
from nvckpt.formats.sniff import read_source
from nvckpt.original import Original

CHUNK = 16 << 20
"""Bytes of values handed on at a time at most; a multiple of every element's size."""

_MAX_BYTES = 1 << 62
_MAX_RANK = 64


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named tensor: its storage, and how it lies in it."""

    segment: Segment
    view: View

    @property
    def name(self) -> str:
        """As `list` shows it."""
        return self.view.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes; one dimension over the whole storage where the checkpoint does not tell."""
        if self.view.shape is not None:
            return self.view.shape
        return ((self.segment.length * 8 - self.view.offset * self.view.dtype.bits) // self.view.dtype.bits,)

    @property
    def size(self) -> int:
        """Bytes of its values, one after the other."""
        return math.prod(self.shape) * self.view.dtype.bits // 8

    @property
    def span(self) -> Extent:
        """Offset and length of the bytes of the original from its first to its last value.

        UnusableTensorError where they are not all in the storage, or do not begin and end at bytes.
        """
        bits, strides = self.view.dtype.bits, self.view.strides
        elements = math.prod(self.shape)
        if strides is not None and elements:
            if len(strides) != len(self.shape) or len(strides) > _MAX_RANK or bits < 8:
                raise UnusableTensorError(f"tensor {show(self.name)} has strides that make no sense")
            elements = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, strides, strict=True))
        if self.view.offset * bits % 8 or elements * bits % 8:
            raise UnusableTensorError(f"tensor {show(self.name)} does not begin and end at whole bytes")
        start, length = self.view.offset * bits // 8, elements * bits // 8
        if start + length > self.segment.length or self.size > _MAX_BYTES:
            raise UnusableTensorError(f"tensor {show(self.name)} reaches beyond its storage")
        return self.segment.offset + start, length

    @property
    def is_dense(self) -> bool:
        """Tell whether its values are all bytes that it spans, in whatever order."""
        expected = 1
        for stride, size in sorted(zip(self.view.strides or (), self.shape, strict=False)):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


class Checkpoint:
    """An open checkpoint: its segments, and the bytes of the file they tile.

    `hash` is the XXH3-128 of the file where an archive tells it, and None where it would have to be computed.
    """

    def __init__(self, source: Input, threads: int) -> None:
        data = source.data
        self.original: Original | None = None
        self.bytes: ByteSource = data
        self.hash: bytes | None = None
        if is_archive(data.read_at(0, min(8, data.size))):
            self.bytes = self.original = Original(data, threads)
            reader: ArchiveReader = self.original.reader
            self.segments: Sequence[Segment] = reader.description.segments
            self.format, self.hash = reader.index.source_format, reader.index.original_hash
        else:
            parsed = read_source(data, source.path)
            self.segments, self.format = parsed.segments, parsed.format
        self.size = self.bytes.size
        self._ahead = threads or 2

    def tensors(self) -> list[Tensor]:
        """Return the named tensors that have bytes, in the order of the file."""
        return [Tensor(segment, view) for segment in self.segments for view in segment.views]

    def empty_tensors(self) -> list[Tensor]:
        """Return those without bytes, which only a safetensors header tells of; it is decoded for them."""
        if self.format != opaque.SAFETENSORS:
            return []
        return [Tensor(segment, view) for segment, view in safetensors_file.empty_tensors(self.bytes)]

    def stream(self, ranges: Sequence[Extent]) -> Iterator[bytes]:
        """Yield the bytes of each range in order, the frames of the next ones being decoded meanwhile."""
        for extent in ranges[: self._ahead]:
            self.prepare(extent)
        for number, (offset, length) in enumerate(ranges):
            for extent in ranges[number + self._ahead : number + self._ahead + 1]:
                self.prepare(extent)
            yield self.bytes.read_at(offset, length)

    def prepare(self, extent: Extent) -> None:
        """Have a range decoded in the background, as far as an archive has to be; it should be read soon."""
        if self.original is not None:
            self.original.prepare(*extent)

    def values(self, tensors: Iterable[Tensor]) -> Iterator[tuple[Tensor, bytes]]:
        """Yield the values of the tensors: row-major, little-endian, in pieces of at most CHUNK bytes.

        Of a tensor with strides the storage it spans is in memory, of all others a piece.
        """
        plan = [(tensor, extent) for tensor in tensors for extent in _reads(tensor)]
        for (tensor, _), data in zip(plan, self.stream([extent for _, extent in plan]), strict=True):
            swapped = tensor.view.dtype.word if tensor.segment.big_endian else 1
            for piece in (data,) if tensor.view.strides is None else _gathered(tensor, data):
                yield tensor, piece if swapped == 1 else np.frombuffer(piece, f"u{swapped}").byteswap().tobytes()


@contextlib.contextmanager
def open_checkpoint(source: Input, threads: int = 0) -> Iterator[Checkpoint]:
    """Understand an open input; FormatError for an archive that cannot be read."""
    checkpoint = Checkpoint(source, threads)
    try:
        yield checkpoint
    finally:
        if checkpoint.original is not None:
            checkpoint.original.close()


def _reads(tensor: Tensor) -> Iterator[Extent]:
    offset, length = tensor.span
    if tensor.view.strides is not None and length:
        yield offset, length
        return
    for start in range(0, length, CHUNK):
        yield offset + start, min(CHUNK, length - start)


def _gathered(tensor: Tensor, data: bytes) -> Iterator[bytes]:
    """Yield the values that strides pick from the bytes they span, in pieces."""
    item = tensor.view.dtype.bits // 8
    strides = tuple(stride * item for stride in tensor.view.strides or ())
    elements = np.frombuffer(data, f"V{item}")
    pending = [np.lib.stride_tricks.as_strided(elements, tensor.shape, strides, writeable=False)]
    while pending:
        part = pending.pop()
        if part.size * item <= CHUNK:
            yield part.tobytes()
            continue
        rows = max(1, CHUNK // (part.size // len(part) * item))
        if len(part) == 1:
            pending.append(part[0])
        else:
            pending.append(part[rows:])
            pending.append(part[:rows])
