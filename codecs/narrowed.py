"""`narrowed`: FP32 words that hold FP16 values, and FP64 words that hold FP32 values, coded as those (FORMAT.md 18).

FP32 that holds BF16 values needs no codec of its own: `float` leaves out a low plane that is zero.
"""

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.base import Buffer, Codec
from nvckpt.codecs.content import Content, Kind
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_codec import Float
from nvckpt.codecs.float_spec import LevelName
from nvckpt.codecs.rounding import narrow_to_fp16, narrow_to_fp32, widen_fp16, widen_fp32

FP32_OF_FP16, FP64_OF_FP32 = 1, 2
"""What the wide words hold; ids of the format."""

_HEAD = 16
_NARROW: dict[int, tuple[int, Kind]] = {FP32_OF_FP16: (2, "fp16"), FP64_OF_FP32: (4, "fp32")}
"""Bytes of a narrow word, and what it is; a wide one has twice as many."""
_KINDS: dict[Kind, int] = {"fp32": FP32_OF_FP16, "fp64": FP64_OF_FP32}
# The sample that tells whether it is worth a try: words at a place, and places.
_STRETCH, _PLACES = 64, 16
# Words narrowed at a time: a step's arrays stay in a core's cache.
_STEP = 1 << 16

Words = npt.NDArray[np.unsignedinteger]


class Narrowed(Codec):
    """Codec id 33: a head of 16 bytes, its first the kind, and a `float` stream of the narrow words."""

    id = 33
    name = "narrowed"

    def __init__(self, inner: Float) -> None:
        self._inner = inner

    def encode(self, data: Buffer, level: int | None = None) -> bytes:
        """Not for bytes of no known structure: `encode_values` is what tells whether data can be narrowed."""
        raise NotImplementedError("only encode_values knows what the words are")

    def encode_values(self, data: Buffer, content: Content, level: LevelName) -> bytes | None:
        """Code a block of whole words; None unless every word is one that widening its narrow word gives."""
        kind = _KINDS.get(content.kind)
        if kind is None or not len(data) or len(data) % content.word:
            return None
        words = np.frombuffer(data, f"<u{content.word}")
        if not _may_narrow(kind, words):
            return None
        width, name = _NARROW[kind]
        narrow = np.empty(len(words), f"<u{width}")
        for start in range(0, len(words), _STEP):
            part = slice(start, start + _STEP)
            narrow[part] = _narrow(kind, words[part])
            if (_widen(kind, narrow[part]) != words[part]).any():
                return None
        inner = self._inner.encode_values(narrow.view(np.uint8).data, Content(width, name, content.matrices), level)
        return bytes([kind]).ljust(_HEAD, b"\0") + inner

    def check(self, stream: memoryview, size: int) -> None:
        """See Codec."""
        if len(stream) < _HEAD or stream[0] not in _NARROW or any(stream[1:_HEAD]):
            raise CorruptChunkError("the head of a narrowed stream is damaged")
        if size % (2 * _NARROW[stream[0]][0]):
            raise CorruptChunkError("a narrowed stream has an impossible size")
        self._inner.check(stream[_HEAD:], size // 2)

    def decode(self, stream: memoryview, out: memoryview) -> None:
        """See Codec."""
        kind = stream[0]
        width = _NARROW[kind][0]
        narrow = np.empty(len(out) // (2 * width), f"<u{width}")
        self._inner.decode(stream[_HEAD:], narrow.view(np.uint8).data)
        words = np.frombuffer(out, f"<u{2 * width}")
        for start in range(0, len(words), _STEP):
            words[start : start + _STEP] = _widen(kind, narrow[start : start + _STEP])

    def max_encoded_size(self, size: int) -> int:
        """See Codec."""
        return _HEAD + self._inner.max_encoded_size(size // 2)


def _may_narrow(kind: int, words: Words) -> bool:
    """Look at a few words: do they narrow, and is it worth it? FP32 whose low halves are zero is left to `float`."""
    step = max(1, (len(words) - _STRETCH) // (_PLACES - 1))
    sample = np.concatenate([words[place * step : place * step + _STRETCH] for place in range(_PLACES)])
    if kind == FP32_OF_FP16 and not (sample & np.uint32(0xFFFF)).any():
        return False
    return bool((_widen(kind, _narrow(kind, sample)) == sample).all())


def _narrow(kind: int, words: Words) -> Words:
    if kind == FP32_OF_FP16:
        return narrow_to_fp16(words.astype(np.uint32, copy=False))
    return narrow_to_fp32(words.astype(np.uint64, copy=False))


def _widen(kind: int, words: Words) -> Words:
    if kind == FP32_OF_FP16:
        return widen_fp16(words.astype(np.uint16, copy=False))
    return widen_fp32(words.astype(np.uint32, copy=False))
