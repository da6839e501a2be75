"""Output with holes where whole blocks of the file system are zeros: the same bytes, less disk."""

import os
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
        block, zeros = self._block, self._zeros
        unwritten = 0
        for start in range(-self._size % block, len(view) - block + 1, block):
            # Nearly always decided by one byte.
            if view[start] == 0 and view[start : start + block] == zeros:
                super().write(view[unwritten:start])
                os.lseek(self.descriptor, block, os.SEEK_CUR)
                unwritten = start + block
        super().write(view[unwritten:])
        self._size += len(view)

    def commit(self, attributes: Attributes | None, *, overwrite: bool) -> None:
        """See AtomicFile; a hole at the end is part of the file, too."""
        os.ftruncate(self.descriptor, self._size)
        super().commit(attributes, overwrite=overwrite)
