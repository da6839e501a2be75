"""Output with holes where whole blocks of the file system are zeros: the same bytes, less disk."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from nvckpt.formats.atomic import AtomicFile, Attributes


class SparseFile(AtomicFile):
    """An AtomicFile that skips blocks of zeros instead of writing them."""

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        try:
            self._block = os.fstat(self.descriptor).st_blksize
        except BaseException:
            self.close()
            raise
        self._zeros = bytes(self._block)
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of `data`; a block of zeros moves only the position."""
        view = memoryview(data).cast("B")
        block, unwritten = self._block, 0
        for start in self._zero_blocks(view):
            super().write(view[unwritten:start])
            os.lseek(self.descriptor, block, os.SEEK_CUR)
            unwritten = start + block
        super().write(view[unwritten:])
        self._size += len(view)

    def write_all(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """See OutputFile."""
        for part in parts:
            self.write(part)

    def _zero_blocks(self, view: memoryview) -> Iterator[int]:
        """Yield where in the data to append a whole block of the file is zeros."""
        import numpy as np

        block = self._block
        first = -self._size % block
        if len(view) - first < block:
            return
        # Nearly always decided by one byte of each block.
        likely = np.flatnonzero(np.frombuffer(view, np.uint8)[first : len(view) - block + 1 : block] == 0)
        for start in (first + likely * block).tolist():
            if view[start : start + block] == self._zeros:
                yield start

    def commit(self, attributes: Attributes | None, *, overwrite: bool) -> None:
        """See AtomicFile; a hole at the end is part of the file, too."""
        os.ftruncate(self.descriptor, self._size)
        super().commit(attributes, overwrite=overwrite)
