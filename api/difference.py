"""Which tensors of two checkpoints differ, compressed or not; what checksums tell is not decoded."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from nvckpt import files
from nvckpt.decompression import Progress
from nvckpt.errors import InvalidRequestError, UnusableTensorError
from nvckpt.files import Input
from nvckpt.formats.checksum import FileHash
from nvckpt.formats.layout import Extent
from nvckpt.original import Original
from nvckpt.pipeline import thread_count
from nvckpt.results import Difference, DifferenceKind, DiffResult
from nvckpt.tensors import CHUNK, Checkpoint, Tensor, open_checkpoint

Key = tuple[str, int]
"""A name, and a number for those that several tensors have."""


Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """How to compare; with `tensors_only` the bytes that belong to no tensor are left out, so formats may differ."""

    threads: int = 0
    tensors_only: bool = False


def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    options: DiffOptions | None = None,
    progress: Progress | None = None,
) -> DiffResult:
    """Compare two checkpoints, each an archive or not, tensor by tensor and by bytes.

    Archives whose originals have the same hash are equal without decoding, and so are tensors whose frames have the
    same checksums: damage in them is for `verify` to find. Raises one of `nvckpt.errors.KNOWN_ERRORS`.
    """
    options = options or DiffOptions()
    started = time.perf_counter()
    names = os.fspath(first), os.fspath(second)
    if names == (files.PIPE, files.PIPE):
        raise InvalidRequestError("standard input can be read only once")
    threads = thread_count(options.threads)
    with (
        files.open_input(names[0], follow=True) as a_input,
        files.open_input(names[1], follow=True) as b_input,
        open_checkpoint(a_input, threads) as a,
        open_checkpoint(b_input, threads) as b,
    ):
        comparison = _Comparison(a, b, progress)
        how: Literal["hash", "tensors"] = "hash"
        rest: bool | None = False
        if _same_file(a_input, b_input) or _same_hash(a, b):
            tensors = a.tensors()
            comparison.same_tensors, comparison.same_bytes = len(tensors), sum(t.size for t in tensors)
        else:
            how = "tensors"
            comparison.run()
            # Where only the places of the tensors differ, the files do.
            moved = comparison.was_moved and not comparison.differences
            rest = None if options.tensors_only else comparison.rest() or moved
        for opened in (a_input, b_input):
            opened.check_unchanged("the comparison cannot be trusted")
    return DiffResult(
        *names,
        a.size,
        b.size,
        how,
        rest is False and not comparison.differences,
        comparison.same_tensors,
        comparison.same_bytes,
        tuple(comparison.differences),
        sum(length for _, length in comparison.rests[0]),
        sum(length for _, length in comparison.rests[1]),
        rest,
        time.perf_counter() - started,
    )


def _same_file(a: Input, b: Input) -> bool:
    return a.path is not None and b.path is not None and os.path.samestat(a.status, b.status)


def _same_hash(a: Checkpoint, b: Checkpoint) -> bool:
    """Compare the hashes of the files; one that is not compressed is read for its own, if the other's is known."""
    if a.size != b.size or (a.hash is None and b.hash is None):
        return False
    return (a.hash or _hash(a)) == (b.hash or _hash(b))


def _hash(checkpoint: Checkpoint) -> bytes:
    file_hash = FileHash()
    for data in checkpoint.stream(list(_cut((0, checkpoint.size)))):
        file_hash.update(data)
    return file_hash.digest()


def _cut(extent: Extent) -> Iterator[Extent]:
    for start in range(0, extent[1], CHUNK):
        yield extent[0] + start, min(CHUNK, extent[1] - start)


@dataclass(slots=True)
class _Comparison:
    """Two checkpoints, and what was found so far."""

    a: Checkpoint
    b: Checkpoint
    progress: Progress | None
    same_tensors: int = 0
    same_bytes: int = 0
    differences: list[Difference] = field(default_factory=list)
    rests: tuple[list[Extent], list[Extent]] = field(default_factory=lambda: ([], []))
    was_moved: bool = False

    def run(self) -> None:
        """Compare all tensors, in the order of the first checkpoint; then those that only the second has."""
        ours, theirs = _keyed(self.a), _keyed(self.b)
        self.rests = _uncovered(self.a, ours), _uncovered(self.b, theirs)
        pairs = [(tensor, theirs[key]) for key, tensor in ours.items() if key in theirs]
        self.was_moved = len(pairs) < len(ours) or any(x.span != y.span for x, y in pairs)
        to_read = {
            number: (x, y)
            for number, (x, y) in enumerate(pairs)
            if _type_of(x) == _type_of(y) and not self._same_values(x, y)
        }
        changed = dict(zip(to_read, self._changed(list(to_read.values())), strict=True))
        for number, (x, y) in enumerate(pairs):
            if _type_of(x) != _type_of(y):
                self.differences.append(Difference(x.name, "type", _type_of(x), _type_of(y), max(x.size, y.size)))
            elif count := changed.get(number):
                self.differences.append(Difference(x.name, "values", _type_of(x), _type_of(y), x.size, count))
            else:
                self.same_tensors += 1
                self.same_bytes += x.size
        self.differences += [_only("only_first", tensor) for key, tensor in ours.items() if key not in theirs]
        self.differences += [_only("only_second", tensor) for key, tensor in theirs.items() if key not in ours]

    def rest(self) -> bool:
        """Tell whether the bytes that belong to no tensor differ."""
        ours, theirs = self.rests
        if sum(length for _, length in ours) != sum(length for _, length in theirs):
            return True
        if [length for _, length in ours] == [length for _, length in theirs]:
            open_pairs = [pair for pair in zip(ours, theirs, strict=True) if not self._same_frames(*pair)]
            ours, theirs = [x for x, _ in open_pairs], [y for _, y in open_pairs]
        return any(x != y for x, y in _side_by_side(_read(self.a, ours), _read(self.b, theirs)))

    def _changed(self, pairs: Sequence[Pair]) -> list[int]:
        """Read the values of pairs, and return how many elements of each differ."""
        changed = []
        total, done = sum(x.size for x, _ in pairs), 0
        for number, (x, y) in enumerate(pairs):
            for later in pairs[number + 1 : number + 3]:
                self.a.prepare(later[0].span)
                self.b.prepare(later[1].span)
            item = max(1, x.view.dtype.bits // 8)
            values = ((piece for _, piece in side.values([t])) for side, t in ((self.a, x), (self.b, y)))
            changed.append(sum(_count(item, *pieces) for pieces in _side_by_side(*values)))
            done += x.size
            if self.progress:
                self.progress(done, total)
        return changed

    def _same_values(self, x: Tensor, y: Tensor) -> bool:
        """Tell whether two tensors surely have the same values without reading any."""
        same_layout = (x.view.strides, x.segment.big_endian) == (y.view.strides, y.segment.big_endian)
        return same_layout and self._same_frames(x.span, y.span)

    def _same_frames(self, x: Extent, y: Extent) -> bool:
        """Tell whether both ranges are the same parts of frames that decode to the same, as their checksums tell."""
        if self.a.original is None or self.b.original is None or x[1] != y[1]:
            return False
        return _parts(self.a.original, x) == _parts(self.b.original, y)


def _keyed(checkpoint: Checkpoint) -> dict[Key, Tensor]:
    """Leave out what does not lie where the checkpoint says; its bytes are part of the rest."""
    seen: dict[str, int] = {}
    keyed = {}
    for tensor in (*checkpoint.tensors(), *checkpoint.empty_tensors()):
        try:
            _ = tensor.span
        except UnusableTensorError:
            continue
        number = seen.get(tensor.name, 0)
        seen[tensor.name] = number + 1
        keyed[tensor.name, number] = tensor
    return keyed


def _type_of(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return tensor.view.dtype.name, tensor.shape


def _only(kind: DifferenceKind, tensor: Tensor) -> Difference:
    described = _type_of(tensor)
    first, second = (described, None) if kind == "only_first" else (None, described)
    return Difference(tensor.name, kind, first, second, tensor.size)


def _parts(original: Original, extent: Extent) -> list[tuple[int, int, int, int]]:
    """Return for each piece of a range the checksum and size of what its frame decodes to, and which part it is."""
    frames = original.reader.frames
    return [
        (frames[number].header.original_checksum, frames[number].header.original_size, start, length)
        for number, start, _, length in original.pieces(*extent)
    ]


def _uncovered(checkpoint: Checkpoint, tensors: Mapping[Key, Tensor]) -> list[Extent]:
    """Return the ranges of the file that hold more than the tensors' values."""
    spans = sorted(tensor.span for tensor in tensors.values() if tensor.is_dense)
    gaps: list[Extent] = []
    position = 0
    for offset, length in [*spans, (checkpoint.size, 0)]:
        if offset > position:
            gaps.append((position, offset - position))
        position = max(position, offset + length)
    return gaps


def _read(checkpoint: Checkpoint, extents: Sequence[Extent]) -> Iterator[bytes]:
    return checkpoint.stream([part for extent in extents for part in _cut(extent)])


def _side_by_side(ours: Iterator[bytes], theirs: Iterator[bytes]) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield both in pieces of equal length; they have as many bytes in all, cut differently perhaps."""
    x = y = memoryview(b"")
    while True:
        x = x if x else memoryview(next(ours, b""))
        y = y if y else memoryview(next(theirs, b""))
        length = min(len(x), len(y))
        if not length:
            return
        yield x[:length], y[:length]
        x, y = x[length:], y[length:]


def _count(item: int, ours: memoryview, theirs: memoryview) -> int:
    """Return how many elements of `item` bytes differ in a bit."""
    if ours == theirs:
        return 0
    x, y = (np.frombuffer(side, np.uint8).reshape(-1, item) for side in (ours, theirs))
    return int((x != y).any(axis=1).sum())
