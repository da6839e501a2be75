"""Output with holes where many blocks of the file system are zeros: the same bytes, less disk."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nvckpt.formats.atomic import AtomicFile, Attributes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Scattered small holes, as rows of unused tokens leave them, cost calls and tear a file apart on the disk.
_LEAST_HOLE = 64 << 10


class SparseFile(AtomicFile):
    """An AtomicFile that skips blocks of zeros instead of writing them."""

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        try:
            self._block = os.fstat(self.descriptor).st_blksize
        except BaseException:
            self.close()
            raise
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of `data`; a longer run of blocks of zeros moves only the position."""
        view = memoryview(data).cast("B")
        unwritten = 0
        for start, end in self._zero_runs(view):
            if start > unwritten:
                super().write(view[unwritten:start])
            os.lseek(self.descriptor, end - start, os.SEEK_CUR)
            unwritten = end
        super().write(view[unwritten:])
        self._size += len(view)

    def write_all(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """See OutputFile."""
        for part in parts:
            self.write(part)

    def _zero_runs(self, view: memoryview) -> Iterator[tuple[int, int]]:
        """Yield where in the data to append whole blocks of the file are zeros, in runs worth a hole."""
        import numpy as np

        block = self._block
        first = -self._size % block
        count = max(0, len(view) - first) // block
        if count * block < _LEAST_HOLE:
            return
        blocks = np.frombuffer(view, np.uint8)[first : first + count * block].reshape(count, block)
        # Nearly always decided by one byte of each block.
        for low, high in _runs(blocks[:, 0] == 0):
            if (high - low) * block < _LEAST_HOLE:
                continue
            filled = np.asarray(blocks[low:high].any(axis=1))
            for start, end in _runs(~filled):
                if (end - start) * block >= _LEAST_HOLE:
                    yield first + (low + start) * block, first + (low + end) * block

    def commit(self, attributes: Attributes | None, *, overwrite: bool) -> None:
        """See AtomicFile; a hole at the end is part of the file, too."""
        os.ftruncate(self.descriptor, self._size)
        super().commit(attributes, overwrite=overwrite)


def _runs(flags: "npt.NDArray[np.bool_]") -> list[tuple[int, int]]:
    """Where runs of true flags begin and end."""
    import numpy as np

    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
