"""16-bit tensors inside flat FP32 buffers, one after the other, as ZeRO, FSDP and Megatron keep their masters.

Nothing tells their order or the padding between them, but each one's first words, rounded, tell where it begins.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nvckpt.candidates import Sampler, Tensor, Words, tells_something
from nvckpt.codecs.rounding import BF16, FP16, ROUNDINGS
from nvckpt.formats.checksum import checksum

KINDS = {"BF16": BF16, "F16": FP16}
"""16-bit dtypes, and their kinds in the format."""

_HEAD = 32
# Tensors that begin with words all the same, such as zeros, are tried at every place: this many.
_MOST_MUTE = 64
# Each tensor may begin at a multiple of one of these behind the end of the one before.
_ALIGNMENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Stretch(NamedTuple):
    """Elements of a flat buffer from `at` on that round to a whole tensor."""

    at: int
    tensor: Tensor


def rounded(words: Words, kind: int) -> bytes:
    """Return FP32 elements rounded to a 16-bit kind."""
    return ROUNDINGS[kind].round(words.view("<u4").astype(np.uint32)).tobytes()


class FlatBuffers:
    """Finds 16-bit tensors in flat buffers by their first words."""

    def __init__(self, sampler: Sampler, tensors: Sequence[Tensor]) -> None:
        self._sampler = sampler
        self._tensors = [tensor for tensor in tensors if tensor.count >= _HEAD]
        self._mute: list[Tensor] = []
        self._by_head: dict[tuple[int, int], list[Tensor]] = {}
        self._kinds = sorted({KINDS[tensor.dtype] for tensor in self._tensors})
        for tensor in self._tensors:
            head = sampler.read(tensor, 0, _HEAD)
            if tells_something(head, tensor.word):
                key = (KINDS[tensor.dtype], checksum(head.tobytes()))
                self._by_head.setdefault(key, []).append(tensor)
            elif len(self._mute) < _MOST_MUTE:
                self._mute.append(tensor)

    def walk(self, flat: Tensor) -> Iterator[Stretch]:
        """Yield the tensors in a buffer of FP32, in its order, until one is not recognised."""
        position = 0
        while found := self._next(flat, position):
            yield found
            position = found.at + found.tensor.count

    def _next(self, flat: Tensor, position: int) -> Stretch | None:
        starts = sorted({-(-position // alignment) * alignment for alignment in _ALIGNMENTS})
        for start in starts:
            for tensor in self._candidates(flat, start):
                if not tensor.paired and self._agree(flat, start, tensor):
                    return Stretch(start, tensor)
        return None

    def _candidates(self, flat: Tensor, start: int) -> Iterator[Tensor]:
        """Yield what begins with the words at a place, then what begins with words that tell nothing."""
        if start + _HEAD > flat.count:
            return
        head = self._sampler.read(flat, start, _HEAD)
        for kind in self._kinds:
            yield from self._by_head.get((kind, checksum(rounded(head, kind))), ())
        yield from self._mute

    def _agree(self, flat: Tensor, start: int, tensor: Tensor) -> bool:
        if start + tensor.count > flat.count:
            return False
        words = self._sampler.sample(tensor)
        wide = self._sampler.sample(flat, start, tensor.count)
        return words is not None and wide is not None and rounded(wide, KINDS[tensor.dtype]) == words.tobytes()
