"""How much memory understanding a file may take.

A small file can describe millions of tensors, or nest a million lists. Readers pay here, by estimates, before they
build what they read about; estimates and not measurements, so that the same file is always understood the same way.
"""

from nvckpt.formats.errors import MemoryLimitError

READING = 1 << 30
"""Bytes allowed for a checkpoint's structure, unless said otherwise; files with a million tensors would take more."""
ARCHIVE = 4 << 30
"""Bytes allowed for an archive's index, unless said otherwise."""

# Bytes of the objects that stand for one thing, at most; measured with what costs most, and rounded up.
PICKLE_BYTE = 4
OPCODE = 150
RECORD = 400
STORAGE = 300
SEGMENT = 1000
VIEW = 450
DIMENSION = 40
LISTED = 400
JSON_BYTE = 2
JSON_OBJECT = 250
JSON_LIST = 70
JSON_ITEM = 90
FRAME = 800
STREAM = 160
EXTENT = 130


class Allowance:
    """Bytes that may still be taken."""

    __slots__ = ("_size", "left")

    def __init__(self, size: int = READING) -> None:
        self._size = size
        self.left = size

    def spend(self, size: int) -> None:
        """Take `size` bytes; MemoryLimitError when they are not left."""
        self.left -= size
        if self.left < 0:
            raise self.exceeded()

    def exceeded(self) -> MemoryLimitError:
        """Return the error that says what was allowed."""
        return MemoryLimitError(
            f"the structure of the file takes more memory than the {self._size >> 20} MiB allowed for it "
            "(--max-memory allows more)"
        )
