"""What a block of bytes holds, as far as a coder needs to know."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["bytes", "fp8", "fp16", "bf16", "fp32", "fp64"]
Matrix = tuple[int, int]
"""Rows and columns of words in row-major order; columns 0 for words without a second dimension, counted by rows."""


@dataclass(frozen=True, slots=True)
class Content:
    """`word` is the bytes of an element's unit (half a complex number), 1 for bytes without known structure.

    `kind` tells what a word encodes, "bytes" for everything but floats. `matrices` are those that the block's words
    form, one after the other; they account for all whole words, or are empty where nothing is known.
    """

    word: int = 1
    kind: Kind = "bytes"
    matrices: tuple[Matrix, ...] = ()

    @property
    def is_float(self) -> bool:
        """Tell whether the words are floating-point numbers."""
        return self.kind != "bytes"


BYTES = Content()
