"""Which tensors of a file follow from earlier ones: duplicates, and 16-bit copies of FP32 masters in either order.

Found by content: a few hundred words of each tensor that has a partner of the right size, FP32 ones rounded. A find
is a guess that costs a few KiB of reading a tensor; the encoder proves it word by word, or codes the tensor plainly.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nvckpt.candidates import Sampler, Tensor, Words, tensors_of
from nvckpt.codecs.registry import COPY, REMAINDER, ROUNDED, SOURCE_SIZES
from nvckpt.codecs.rounding import ROUNDINGS
from nvckpt.flat_buffers import KINDS, FlatBuffers, rounded
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.checksum import checksum
from nvckpt.formats.segments import Segment

_MOST_DEPTH = 2


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes [offset, offset + length) of the original, said to follow from those at `source`: see Origin."""

    offset: int
    length: int
    codec_id: int
    param: int
    source: int
    depth: int

    @property
    def end(self) -> int:
        """First byte behind the range."""
        return self.offset + self.length

    def source_of(self, offset: int, length: int) -> tuple[int, int]:
        """Return the range that a part of the run, of whole words, follows from."""
        over, under = SOURCE_SIZES[self.codec_id]
        return self.source + (offset - self.offset) * over // under, length * over // under


Runs = dict[int, list[Run]]
"""By the offset of the segment that they lie in, in order."""


def find_runs(segments: Sequence[Segment], data: ByteSource) -> Runs:
    """Find what follows from earlier bytes of a file; MalformedCheckpointError when it has become shorter."""
    finder = _Finder(tensors_of(segments), Sampler(data))
    finder.find()
    runs: Runs = {}
    for offset, run in sorted(finder.found, key=lambda found: found[1].offset):
        runs.setdefault(offset, []).append(run)
    return runs


class _Finder:
    """Goes through the tensors in file order and remembers their words."""

    def __init__(self, tensors: Sequence[Tensor], sampler: Sampler) -> None:
        self.found: list[tuple[int, Run]] = []
        self._tensors = tensors
        self._sampler = sampler
        every = [each for tensor in tensors for each in (tensor, *tensor.parts)]
        self._lengths = Counter(tensor.length for tensor in every)
        self._counts = Counter((tensor.dtype, tensor.count) for tensor in every)
        self._by_bytes: dict[tuple[int, int], Tensor] = {}
        self._by_rounded: dict[tuple[int, int, int], Tensor] = {}

    def find(self) -> None:
        """Fill `found`."""
        for tensor in self._tensors:
            if not self._visit(tensor):
                for part in tensor.parts:
                    self._visit(part)
                tensor.depth = max((part.depth for part in tensor.parts), default=0)
        self._find_in_flat_buffers()

    def _visit(self, tensor: Tensor) -> bool:
        """Look a tensor up among the earlier ones, or remember it for the later ones."""
        partners = ("F32",) if tensor.dtype in KINDS else tuple(KINDS) if tensor.dtype == "F32" else ()
        may_round = any(self._counts[dtype, tensor.count] for dtype in partners)
        if self._lengths[tensor.length] < 2 and not may_round:
            return False
        words = self._sampler.sample(tensor)
        if words is None:
            return False
        key = checksum(words.tobytes())
        same = self._by_bytes.setdefault((tensor.length, key), tensor)
        if same is not tensor and self._pair(tensor, COPY, 0, same):
            return True
        return may_round and (
            self._visit_half(tensor, key) if tensor.dtype in KINDS else self._visit_master(tensor, words)
        )

    def _visit_half(self, tensor: Tensor, key: int) -> bool:
        kind = KINDS[tensor.dtype]
        master = self._by_rounded.setdefault((kind, tensor.count, key), tensor)
        return master.dtype == "F32" and self._pair(tensor, ROUNDED, kind, master)

    def _visit_master(self, tensor: Tensor, words: Words) -> bool:
        for kind in ROUNDINGS:
            key = (kind, tensor.count, checksum(rounded(words, kind)))
            half = self._by_rounded.setdefault(key, tensor)
            if half.dtype in KINDS and self._pair(tensor, REMAINDER, kind, half):
                return True
        return False

    def _pair(self, target: Tensor, codec_id: int, param: int, source: Tensor) -> bool:
        run = Run(target.offset, target.length, codec_id, param, source.offset, source.depth + 1)
        return self._note(run, target, source)

    def _note(self, run: Run, target: Tensor, source: Tensor) -> bool:
        """Take a run unless its source is too deep, or not wholly before it."""
        if run.depth > _MOST_DEPTH or source.end > target.offset:
            return False
        self.found.append((target.segment.offset, run))
        target.depth = max(target.depth, run.depth)
        target.paired = source.paired = True
        return True

    def _find_in_flat_buffers(self) -> None:
        every = [each for tensor in self._tensors for each in (tensor.parts or (tensor,))]
        halves = [tensor for tensor in every if tensor.dtype in KINDS and not tensor.paired]
        flats = [tensor for tensor in every if tensor.dtype == "F32" and not tensor.paired and _is_flat(tensor)]
        if not halves or not flats:
            return
        buffers = FlatBuffers(self._sampler, halves)
        for flat in flats:
            for at, half in buffers.walk(flat):
                kind, place = KINDS[half.dtype], flat.offset + 4 * at
                if flat.offset < half.offset:
                    self._note(Run(half.offset, half.length, ROUNDED, kind, place, flat.depth + 1), half, flat)
                else:
                    run = Run(place, 2 * half.length, REMAINDER, kind, half.offset, half.depth + 1)
                    self._note(run, flat, half)


def _is_flat(tensor: Tensor) -> bool:
    """Tell whether a tensor has one dimension, or none that is known."""
    views = tensor.segment.views
    shape = views[0].shape if len(views) == 1 else None
    return shape is None or len(shape) == 1
