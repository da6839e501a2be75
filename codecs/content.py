"""What a block of bytes holds, as far as a coder needs to know."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """`word` is the bytes of an element's unit, 1 for bytes without known structure."""

    word: int = 1
    is_float: bool = False


BYTES = Content()
