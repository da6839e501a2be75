"""What a block of bytes holds, as far as a coder needs to know."""

from dataclasses import dataclass

from nvckpt.codecs.float_spec import Kind

Matrix = tuple[int, int]
"""Rows and columns of words in row-major order; columns 0 for words without a second dimension, counted by rows."""


@dataclass(frozen=True, slots=True)
class Content:
    """`word` is the bytes of an element's unit (half a complex number), 1 for bytes without known structure.

    `kind` tells what a word encodes, "bytes" for everything but floats of 16 bits and more. `matrices` are those
    that the block's words form, one after the other; they account for all whole words, or none is known.
    """

    word: int = 1
    is_float: bool = False
    kind: Kind = "bytes"
    matrices: tuple[Matrix, ...] = ()


BYTES = Content()
