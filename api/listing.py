"""What an archive holds, told from its index alone; nothing is decoded."""

import os

from nvckpt import files
from nvckpt.formats.container import ArchiveReader
from nvckpt.limits import archive_allowance
from nvckpt.results import Listing, describe, group_sizes


def inspect(archive: str | os.PathLike[str], max_memory: int = 0) -> Listing:
    """Read the index of `archive` (`-`: standard input); FormatError tells why it cannot be read.

    `max_memory` is in bytes, 0 for half of the machine's.
    """
    name = os.fspath(archive)
    with files.open_input(name, follow=True) as opened:
        reader = ArchiveReader(opened.data, archive_allowance(max_memory))
    index = reader.index
    tensors = describe(index, reader.description.segments)
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
