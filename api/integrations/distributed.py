"""torch.distributed.checkpoint with archives: `dcp.save(state, storage_writer=Writer(path))`, and the same to read.

Each rank writes one archive, `__RANK_0.distcp.nvckpt`, whose original is the `.distcp` file that torch's own writer
makes; `.metadata` is torch's. So `nvckpt decompress` in the folder gives a checkpoint that needs no nvckpt, and
`nvckpt compress` of a plain one gives one that Reader reads.
"""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from nvckpt.compression import CompressOptions
from nvckpt.files import SUFFIX
from nvckpt.formats.byte_source import FileBytes, JoinedBytes, MemoryBytes, Part
from nvckpt.original import Original, OriginalFile
from nvckpt.saving import write_state
from nvckpt.state import pickled, state_file

_FILE = "{prefix}0.distcp"


class Writer(FileSystemWriter):
    """Writes what FileSystemWriter writes, compressed: one archive a rank.

    `options` are those of `nvckpt.compress`; the others are FileSystemWriter's.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, options: CompressOptions | None = None, overwrite: bool = True
    ) -> None:
        super().__init__(path, single_file_per_rank=True, overwrite=overwrite)
        self._options = options or CompressOptions(verify=False)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's part of the plan; see StorageWriter."""
        future: Future[list[WriteResult]] = Future()
        if not plan.items:
            future.set_result([])
            return future
        name = _FILE.format(prefix=plan.storage_data.prefix)
        parts: list[Part] = []
        names: dict[int, str] = {}
        results: list[WriteResult] = []
        offset = 0
        for item in sorted(plan.items, key=lambda item: item.type != WriteItemType.BYTE_IO):
            part = self._part(item, planner)
            info = _StorageInfo(name, offset, part.size)
            results.append(WriteResult(index=item.index, size_in_bytes=part.size, storage_data=info))
            names[offset] = item.index.fqn
            parts.append(part)
            offset += part.size
        path = Path(self.path) / name
        write_state(JoinedBytes(parts), path.with_name(name + SUFFIX), self._options, names)
        path.unlink(missing_ok=True)  # of an earlier checkpoint, saved without compression
        future.set_result(results)
        return future

    def _part(self, item: WriteItem, planner: SavePlanner) -> Part:
        """What FileSystemWriter appends to its file for an item."""
        data = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            return MemoryBytes(cast(io.BytesIO, data).getvalue())
        tensor = cast(torch.Tensor, data).detach()
        if tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        return state_file(*pickled(tensor), self._options.threads)


class Reader(FileSystemReader):
    """Reads what Writer wrote, and every checkpoint that FileSystemReader reads."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.fs = _Archives()


class _Archives(FileSystem):
    """Files that are there as archives are opened as their originals."""

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        archive = Path(os.fspath(path) + SUFFIX)
        if mode != "rb" or Path(path).exists() or not archive.exists():
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with (
            archive.open("rb") as file,
            contextlib.closing(Original(FileBytes(file.fileno()), read_ahead=True)) as original,
        ):
            reader = OriginalFile(original)
            try:
                yield reader
            except Exception:
                if reader.error is not None:
                    raise reader.error from None
                raise
