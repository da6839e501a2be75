"""What an archive holds, told from its index and the heads of its frames; nothing is decoded."""

import os
from collections.abc import Sequence

from nvckpt import files
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.container import ArchiveReader
from nvckpt.formats.index import Index, PlacedFrame
from nvckpt.formats.segments import Segment
from nvckpt.limits import archive_allowance
from nvckpt.results import Listing, TensorInfo, describe, group_sizes


def inspect(archive: str | os.PathLike[str], max_memory: int = 0, *, models: bool = False) -> Listing:
    """Read the index of `archive` (`-`: standard input); FormatError tells why it cannot be read.

    `max_memory` is in bytes, 0 for half of the machine's. With `models` the head of each frame is read, too, and the
    tensors have `model` and `saved`.
    """
    name = os.fspath(archive)
    with files.open_input(name, follow=True) as opened:
        reader = ArchiveReader(opened.data, archive_allowance(max_memory))
        index, segments = reader.index, reader.description.segments
        tensors = _with_models(opened.data, index, segments) if models else describe(index, segments)
    return Listing(
        name,
        index.source_format,
        index.original_size,
        reader.size,
        index.original_hash.hex(),
        reader.description.writer,
        len(index.frames),
        group_sizes(tensors, reader.size),
        tuple(tensors),
    )


def _with_models(data: ByteSource, index: Index, segments: Sequence[Segment]) -> list[TensorInfo]:
    from nvckpt.tensor_models import HEAD, with_models

    def head(frame: PlacedFrame) -> bytes:
        return data.read_at(frame.offset + len(frame.packed), min(HEAD, frame.header.payload_size))

    return with_models(index, segments, head)
