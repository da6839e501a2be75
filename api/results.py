"""What the operations return: facts for reports and JSON, sizes in bytes and times in seconds."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from nvckpt.codecs import registry
from nvckpt.files import show
from nvckpt.formats.collector import collector_paused
from nvckpt.formats.index import Index
from nvckpt.formats.segments import Segment
from nvckpt.stages import Stage

STRUCTURE = "structure"
"""The row for opaque bytes: headers, padding, pickles, JSON."""
ARCHIVE = "archive"
"""The row for the archive's own header, index and footer."""


@dataclass(slots=True)
class GroupSize:
    """One group of tensors, before and after."""

    name: str
    tensors: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def ratio(self) -> float | None:
        """Return before over after; None when nothing is left after."""
        return self.bytes_in / self.bytes_out if self.bytes_out else None


@dataclass(frozen=True, slots=True)
class CompressResult:
    """A finished compression. `hash` is the XXH3-128 of the source in hexadecimal."""

    source: str
    output: str
    format: str
    bytes_in: int
    bytes_out: int
    seconds: float
    device: str
    codec: str
    hash: str
    verified: bool
    groups: tuple[GroupSize, ...]
    warnings: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True, slots=True)
class Damage:
    """A part that cannot be restored: the names of its tensors, the range of the original it lies in, and why."""

    names: tuple[str, ...]
    offset: int
    length: int
    reason: str

    def sentence(self, most: int | None = 3) -> str:
        """Return the whole in words, naming at most so many tensors, None for all."""
        place = f"bytes {self.offset} to {self.offset + self.length - 1} of the original"
        if not self.names:
            return f"{place}: {self.reason}"
        named = self.names[:most]
        more = f" and {len(self.names) - len(named)} more" if len(named) < len(self.names) else ""
        return f"{', '.join(map(show, named))}{more} ({place}): {self.reason}"


@dataclass(frozen=True, slots=True)
class DecompressResult:
    """A finished decompression or verification; `output` is empty for the latter."""

    source: str
    output: str
    format: str
    bytes_in: int
    bytes_out: int
    seconds: float
    device: str
    hash: str
    damage: tuple[Damage, ...] = ()
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True, slots=True)
class RescueResult:
    """What was left of a damaged archive; `damage` lists the ranges of `output` that were lost and read as zeros.

    `problems` are sentences on what is wrong around the frames. `is_whole` says that the output has the hash of the
    original; `hash` is None when the archive lost it, and then more may be missing unless `size_is_known`.
    """

    source: str
    output: str
    format: str
    bytes_in: int
    bytes_out: int
    seconds: float
    device: str
    hash: str | None
    damage: tuple[Damage, ...]
    problems: tuple[str, ...]
    rescued_bytes: int
    rescued_frames: int
    size_is_known: bool
    is_whole: bool

    def sentence(self) -> str:
        """Return why the output is not the whole; empty when it is."""
        if self.is_whole:
            return ""
        lost = sum(damage.length for damage in self.damage)
        parts = [
            *self.problems,
            f"{lost} of {self.bytes_out} bytes are lost" if lost else "nothing is known to be lost",
        ]
        if self.hash is None:
            parts.append("what was rescued cannot be compared with the hash of the original")
        if not self.size_is_known:
            parts.append(f"more may be missing behind byte {self.bytes_out}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Extracted:
    """One tensor that was written; `bytes` counts its values."""

    name: str
    group: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class ExtractResult:
    """A finished extraction; `bytes_in` is the size of the source, `bytes_out` that of the output."""

    source: str
    output: str
    format: str
    bytes_in: int
    bytes_out: int
    seconds: float
    tensors: tuple[Extracted, ...]


DifferenceKind = Literal["values", "type", "only_first", "only_second"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor that differs: its values, its dtype or shape, or that only one of the two has it.

    `first` and `second` are dtype and shape there, None where it is not. `bytes` are those of the values, of the
    larger one; of different values `changed` counts the elements.
    """

    name: str
    kind: DifferenceKind
    first: tuple[str, tuple[int, ...]] | None
    second: tuple[str, tuple[int, ...]] | None
    bytes: int
    changed: int | None = None


@dataclass(frozen=True, slots=True)
class DiffResult:
    """Two checkpoints compared; sizes in bytes, of the files as they were before compression.

    `rest` are the bytes that belong to no named tensor; None tells that they were not compared. `how` is `hash` when
    the files' hashes were enough, else `tensors`. `is_identical` says that the files have the same bytes.
    """

    first: str
    second: str
    bytes_first: int
    bytes_second: int
    how: str
    is_identical: bool
    same_tensors: int
    same_bytes: int
    differences: tuple[Difference, ...]
    rest_first: int
    rest_second: int
    rest_differs: bool | None
    seconds: float

    @property
    def is_same(self) -> bool:
        """Tell whether nothing that was compared differs."""
        return not self.differences and not self.rest_differs


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor storage in an archive, or a run of opaque bytes when `dtype` is None.

    `bytes_out` is a share where several share a frame. `codecs` are the names used for its streams. `model` says in
    words how it was coded, where that was asked for, and `saved` what following from another tensor saved, in bytes.
    """

    names: tuple[str, ...]
    group: str
    dtype: str | None
    shape: tuple[int, ...] | None
    offset: int
    bytes_in: int
    bytes_out: int
    codecs: tuple[str, ...]
    model: str = ""
    saved: int | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """What an archive holds, from its index alone."""

    source: str
    format: str
    bytes_in: int
    bytes_out: int
    hash: str
    writer: str
    frames: int
    groups: tuple[GroupSize, ...]
    tensors: tuple[TensorInfo, ...] = field(repr=False)


def describe(index: Index, segments: Sequence[Segment]) -> list[TensorInfo]:
    """Share the frames' bytes among the segments they restore; one entry a segment, in file order."""
    shares = [0] * len(segments)
    # Nearly every segment lies in one frame, and millions may share it: they share its set, too.
    codecs: list[frozenset[str]] = [frozenset()] * len(segments)
    with collector_paused():
        for frame in index.frames:
            total, size = len(frame.packed) + frame.header.payload_size, frame.header.original_size
            used = frozenset(registry.name_of(stream.codec_id) for stream in frame.header.streams)
            for number, length in touched(segments, frame.header.extents):
                shares[number] += total * length // size
                codecs[number] = codecs[number] | used if codecs[number] else used
        names = {used: tuple(sorted(used)) for used in set(codecs)}
        return [
            _info(segment, share, names[used]) for segment, share, used in zip(segments, shares, codecs, strict=True)
        ]


def touched(segments: Sequence[Segment], extents: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the number of each segment that the extents overlap, with the length of the overlap."""
    number = 0
    for offset, length in extents:
        number = _segment_at(segments, offset, number)
        position, end = offset, offset + length
        while position < end and number < len(segments):
            step = min(end, segments[number].end) - position
            yield number, step
            position += step
            number += position >= segments[number].end


def _segment_at(segments: Sequence[Segment], offset: int, low: int) -> int:
    """Binary search from `low` on for the segment that holds `offset`."""
    high = len(segments)
    while low < high:
        middle = (low + high) // 2
        if segments[middle].end <= offset:
            low = middle + 1
        else:
            high = middle
    return low


def _info(segment: Segment, share: int, codecs: tuple[str, ...]) -> TensorInfo:
    first = segment.views[0] if segment.views else None
    return TensorInfo(
        tuple(view.name for view in segment.views),
        segment.group if segment.dtype else STRUCTURE,
        segment.dtype.name if segment.dtype else None,
        first.shape if first else None,
        segment.offset,
        segment.length,
        share,
        codecs,
    )


def group_sizes(tensors: Iterable[TensorInfo], bytes_out: int) -> tuple[GroupSize, ...]:
    """Add up by group, largest first, with rows for the file's structure and the archive's own bytes last."""
    groups: dict[str, GroupSize] = {}
    for tensor in tensors:
        group = groups.setdefault(tensor.group, GroupSize(tensor.group))
        group.tensors += tensor.dtype is not None
        group.bytes_in += tensor.bytes_in
        group.bytes_out += tensor.bytes_out
    groups[ARCHIVE] = GroupSize(ARCHIVE, 0, 0, bytes_out - sum(group.bytes_out for group in groups.values()))
    return tuple(sorted(groups.values(), key=_rank))


def add_up(groups: Iterable[GroupSize]) -> list[GroupSize]:
    """Add the groups of several files up by name, in the order of a single file's."""
    totals: dict[str, GroupSize] = {}
    for group in groups:
        total = totals.setdefault(group.name, GroupSize(group.name))
        total.tensors += group.tensors
        total.bytes_in += group.bytes_in
        total.bytes_out += group.bytes_out
    return sorted(totals.values(), key=_rank)


def _rank(group: GroupSize) -> tuple[int, int]:
    """Largest first, and the rows that are not tensors last."""
    return (STRUCTURE, ARCHIVE).index(group.name) + 1 if group.name in (STRUCTURE, ARCHIVE) else 0, -group.bytes_in
