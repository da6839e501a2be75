"""The tensors of a file that may follow from one another, and the few words of each that are compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.segments import Segment
from nvckpt.matrices import shape_in_memory

LEAST = 1 << 10
"""Bytes of a tensor below which a reference costs more than it saves."""
# Elements up to which a tensor is read whole; of a larger one so many places, and elements at each.
_SMALL, _PLACES, _STRETCH = 1024, 4, 64
# Views of one storage that are looked at: a hostile file may list millions.
_MOST_VIEWS = 1 << 16

Words = npt.NDArray[np.uint8]
"""The bytes of sampled elements."""


@dataclass(slots=True)
class Tensor:
    """A dense range of one dtype that may follow from another: a storage, or a view that is a part of one.

    `depth` is 0 where it is coded by itself, else one more than that of what it follows from.
    """

    offset: int
    count: int
    word: int
    dtype: str
    segment: Segment
    parts: list["Tensor"] = field(default_factory=list)
    depth: int = 0
    paired: bool = False

    @property
    def length(self) -> int:
        """Bytes."""
        return self.count * self.word

    @property
    def end(self) -> int:
        """First byte behind it."""
        return self.offset + self.length


def tensors_of(segments: Sequence[Segment]) -> list[Tensor]:
    """Return the storages worth a look, with their parts; big-endian ones have no dtype, and can only be copies."""
    found = []
    for segment in segments:
        dtype = segment.dtype
        if dtype is None or segment.length < LEAST or dtype.bits % 8 or segment.length % (dtype.bits // 8):
            continue
        word = dtype.bits // 8
        name = "" if segment.big_endian else dtype.name
        parts = [Tensor(segment.offset + at * word, count, word, name, segment) for at, count in _views(segment, word)]
        found.append(Tensor(segment.offset, segment.length // word, word, name, segment, parts))
    return found


def _views(segment: Segment, word: int) -> list[tuple[int, int]]:
    """Return the elements of each view as (start, count), in order; nothing if views overlap or are not dense."""
    if not 1 < len(segment.views) <= _MOST_VIEWS:
        return []
    ranges: set[tuple[int, int]] = set()
    for view in segment.views:
        shape = shape_in_memory(view)
        if shape is None or view.dtype != segment.dtype:
            return []
        ranges.add((view.offset, math.prod(shape)))
    ordered = sorted(each for each in ranges if each[1] * word >= LEAST)
    ends = [start + count for start, count in ordered]
    overlap = any(start < end for (start, _), end in zip(ordered[1:], ends, strict=False))
    if overlap or not ordered or ends[-1] * word > segment.length or ordered == [(0, segment.length // word)]:
        return []
    return ordered


class Sampler:
    """Reads the words that are compared; MalformedCheckpointError when the file has become shorter."""

    def __init__(self, data: ByteSource) -> None:
        self._data = data

    def read(self, tensor: Tensor, at: int, count: int) -> Words:
        """Return elements [at, at + count) of a tensor."""
        return np.frombuffer(self._data.read_at(tensor.offset + at * tensor.word, count * tensor.word), np.uint8)

    def sample(self, tensor: Tensor, at: int = 0, count: int = 0) -> Words | None:
        """Return a few of `count` elements (0: all) from `at` on; None if all are the same, which tells nothing.

        Their places depend on the count alone.
        """
        count = count or tensor.count
        if count <= _SMALL:
            words = self.read(tensor, at, count)
        else:
            places = ((count - _STRETCH) * i // (_PLACES - 1) for i in range(_PLACES))
            words = np.concatenate([self.read(tensor, at + place, _STRETCH) for place in places])
        return words if tells_something(words, tensor.word) else None


def tells_something(words: Words, word: int) -> bool:
    """Tell whether elements of `word` bytes are not all the same."""
    rows = words.reshape(-1, word)
    return not bool((rows == rows[0]).all())
