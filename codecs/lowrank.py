"""`lowrank`: matrices of BF16 or FP32 predicted by the product of two whole-number factors (FORMAT.md 19).

For momentum and gradients, which are close to low rank: the only structure that predicts a sign. For level max.
"""

from nvckpt.codecs.base import Buffer, Codec
from nvckpt.codecs.content import Content
from nvckpt.codecs.float_codec import Float

_LEAST_SIDE = 64
"""Smaller matrices do not repay their factors."""
_WORDS = {"bf16": 2, "fp32": 4}


class LowRank(Codec):
    """Codec id 34: one record for each matrix, whose parts are `float` streams and raw bits."""

    id = 34
    name = "lowrank"

    def __init__(self, inner: Float) -> None:
        self._inner = inner

    def encode(self, data: Buffer, level: int | None = None) -> bytes:
        """Not for bytes of no known structure: `encode_values` is what tells whether there is anything to predict."""
        raise NotImplementedError("only encode_values knows the matrices")

    @staticmethod
    def takes(content: Content, size: int) -> bool:
        """Tell whether a block of `size` bytes is made of whole matrices large enough to be fitted."""
        sides = [side for matrix in content.matrices for side in matrix]
        if _WORDS.get(content.kind) != content.word or not sides or min(sides) < _LEAST_SIDE:
            return False
        return sum(rows * cols for rows, cols in content.matrices) * content.word == size

    def encode_values(self, data: Buffer, content: Content) -> bytes | None:
        """Code a block of whole matrices; None unless they have a part of low rank that is worth its factors."""
        if not self.takes(content, len(data)):
            return None
        from nvckpt.codecs import lowrank_stream

        return lowrank_stream.encode(data, content.word, content.matrices, self._inner)

    def check(self, stream: memoryview, size: int) -> None:
        """See Codec."""
        from nvckpt.codecs import lowrank_stream

        lowrank_stream.check(stream, size, self._inner)

    def decode(self, stream: memoryview, out: memoryview) -> None:
        """See Codec."""
        from nvckpt.codecs import lowrank_stream

        lowrank_stream.decode(stream, out, self._inner)

    def max_encoded_size(self, size: int) -> int:
        """Bound for `size` bytes of matrices: every number an escape, with factors of half as many entries."""
        return 2 * self._inner.max_encoded_size(size) + 4096
