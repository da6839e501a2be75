"""What the float codec's three implementations share in Python: constants, layouts, and the host's decisions.

Section numbers are those of FORMAT.md, "The `float` codec".
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

HEADER_SIZE = 48
MATRIX_SIZE = 16
END_SIZE = 16
VERSION = 1

CHUNK = 32768
CHUNKS_A_BLOCK = 4
BLOCK = CHUNK * CHUNKS_A_BLOCK
LANES = 32
MAX_EXCEPTIONS = 127
PROBABILITY_BITS = 12
PROBABILITY_SUM = 1 << PROBABILITY_BITS
STATE_LOW = 1 << 15
CENTRE = 160
MAX_MATRICES = 65536
MAX_SIZE = 256 << 20
WORDS = (1, 2, 4, 8)

LevelName = Literal["fast", "default", "max"]
Kind = Literal["bf16", "fp16", "fp32", "fp64", "bytes"]


class Layout(IntEnum):
    """How words become planes (16.5)."""

    BYTES = 0
    ROTATED = 1
    LOG = 2


class Flag(IntEnum):
    """Bits of the header's `flags` (16.2)."""

    ZEROS_REMOVED = 1
    SIDE_PLANE = 2
    SIGN_CONSTANT = 4
    SIGN_VALUE = 8
    NO_NIBBLES = 16
    NO_LOW = 32


@dataclass(frozen=True, slots=True)
class FloatSpec:
    """What a stream holds: `word` bytes a value, of `kind`, in matrices of (rows, cols), cols 0 for flat ones.

    The matrices' words add up to the whole number of words; they are ignored for kind "bytes".
    """

    word: int
    kind: Kind
    matrices: tuple[tuple[int, int], ...] = ()

    def layout(self, level: LevelName) -> Layout:
        """Return the layout that decision 1 gives, before decision 9."""
        if self.kind == "bytes":
            return Layout.BYTES
        if self.kind == "fp16" or (level == "fast" and self.kind != "fp64"):
            return Layout.ROTATED
        return Layout.LOG


def align(offset: int) -> int:
    """Return the next multiple of 16 at or after `offset`."""
    return -(-offset // 16) * 16


def log256(x: int) -> int:
    """Return floor(256 log2 x) for x of at least 1, in integers (16.10)."""
    e = x.bit_length() - 1
    m = (x << 31) >> e if e <= 31 else x >> (e - 31)
    for _ in range(8):
        m = m * m >> 31
        e = e << 1 | m >> 32
        m >>= m >> 32
    return e
