"""`narrowed`: FP32 words that hold FP16 values, and FP64 words that hold FP32 values, coded as those (FORMAT.md 18).

FP32 that holds BF16 values needs no codec of its own: `float` leaves out a low plane that is zero.
"""

from nvckpt.codecs.base import Buffer, Codec
from nvckpt.codecs.content import Content, Kind
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_codec import Float
from nvckpt.codecs.float_spec import LevelName

_HEAD = 16
_NARROW: dict[int, tuple[int, Kind]] = {1: (2, "fp16"), 2: (4, "fp32")}
"""By the kind in the head: bytes of a narrow word, and what it is; a wide one has twice as many."""
_KINDS: dict[Kind, int] = {"fp32": 1, "fp64": 2}


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
        from nvckpt.codecs import narrowing

        width, name = _NARROW[kind]
        words = narrowing.narrow(kind, data, width)
        if words is None:
            return None
        inner = self._inner.encode_values(words, Content(width, name, content.matrices), level)
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
        from nvckpt.codecs import narrowing

        words = memoryview(bytearray(len(out) // 2))
        self._inner.decode(stream[_HEAD:], words)
        narrowing.widen_into(stream[0], words, _NARROW[stream[0]][0], out)

    def max_encoded_size(self, size: int) -> int:
        """See Codec."""
        return _HEAD + self._inner.max_encoded_size(size // 2)
