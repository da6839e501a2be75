"""A checkpoint file as segments that tile it exactly.

Parsing only annotates: whatever a reader finds, `tile` covers every byte of the file once, so
concatenating the segments gives the file back whether or not the annotations are right.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nvckpt.formats.dtypes import DType


@dataclass(frozen=True, slots=True)
class View:
    """One named tensor in a storage, as the checkpoint describes it.

    `offset` and `strides` are in elements, `strides` is None for row-major. `shape` is None where
    the file does not tell it. Nothing here is trusted: it is shown, and used to model the values.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of the file, in bytes: a tensor storage, or opaque bytes when `dtype` is None."""

    offset: int
    length: int
    dtype: DType | None = None
    group: str = "other"
    views: tuple[View, ...] = ()
    big_endian: bool = False

    @property
    def end(self) -> int:
        """First byte behind the range."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Source:
    """What a reader understood of a file: its format's name, its segments in file order, its doubts."""

    format: str
    size: int
    segments: tuple[Segment, ...]
    warnings: tuple[str, ...] = ()


def tile(size: int, tensors: Iterable[Segment]) -> tuple[tuple[Segment, ...], list[str]]:
    """Cover [0, size) with the given tensor ranges and opaque bytes between them.

    Ranges of no length, outside the file, or overlapping another are dropped (their bytes stay
    opaque). Returns the segments and a sentence for each kind of range dropped.
    """
    ordered = sorted((t for t in tensors if t.length > 0), key=lambda t: (t.offset, t.length))
    inside = [t for t in ordered if t.offset >= 0 and t.end <= size]
    kept = _without_overlaps(inside)
    warnings = []
    if len(inside) < len(ordered):
        warnings.append("tensors reach beyond the end of the file")
    if len(kept) < len(inside):
        warnings.append("tensors overlap one another")
    segments: list[Segment] = []
    position = 0
    for tensor in kept:
        if tensor.offset > position:
            segments.append(Segment(position, tensor.offset - position))
        segments.append(tensor)
        position = tensor.end
    if position < size:
        segments.append(Segment(position, size - position))
    return tuple(segments), warnings


def _without_overlaps(ordered: Sequence[Segment]) -> list[Segment]:
    """Drop every range that shares a byte with another; neither of the two can be believed."""
    kept: list[Segment] = []
    reach = 0
    last_is_clean = False
    for tensor in ordered:
        if tensor.offset >= reach:
            kept.append(tensor)
            last_is_clean = True
        elif last_is_clean:
            kept.pop()
            last_is_clean = False
        reach = max(reach, tensor.end)
    return kept
