"""Files of torch.distributed.checkpoint: complete torch zips, one behind the other.

Each zip holds one tensor or object under the name `archive`. What it is called stands only in the
`.metadata` file of the same folder, together with its offset.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from nvckpt.formats import groups
from nvckpt.formats.allowance import PICKLE_BYTE, Allowance
from nvckpt.formats.byte_source import ByteSource, FileBytes
from nvckpt.formats.errors import MalformedCheckpointError, MemoryLimitError
from nvckpt.formats.pickle_values import Call, Key, entries_of
from nvckpt.formats.pickle_walk import MAX_PICKLE_BYTES, walk
from nvckpt.formats.segments import Segment
from nvckpt.formats.torch_zip import Doubts
from nvckpt.formats.torch_zip import find_tensors as find_zip_tensors
from nvckpt.formats.zip_directory import MAX_RECORDS, Directory, directory_ending_at

METADATA_NAME = ".metadata"


def find_tensors(
    data: ByteSource,
    directories: list[Directory],
    names: Mapping[int, str],
    doubts: Doubts,
    role: str = groups.UNKNOWN_ROLE,
) -> list[Segment]:
    """The storages of all zips of a chain; `names` gives a name for the offset of a zip."""
    segments: list[Segment] = []
    for directory in directories:
        name = names.get(directory.start, "")
        segments.extend(find_zip_tensors(data, directory, doubts, role or groups.WEIGHTS, name))
    return segments


def chain(data: ByteSource, last: Directory, doubts: Doubts) -> list[Directory]:
    """All zips up to `last`, in file order, each ending where the next one starts.

    Walks backwards, since only the end of a zip tells where it starts. A part of the file that is
    no zip ends the walk: it and everything before it is left out, and noted in `doubts`.
    """
    directories = [last]
    records = 0
    while directories[-1].start > 0:
        # An empty zip counts as well, or a file of nothing else would never end.
        records += len(directories[-1].records) + 1
        if records > MAX_RECORDS:
            doubts.say("the file holds too many zips to look into all of them")
            break
        try:
            directories.append(directory_ending_at(data, directories[-1].start, doubts.memory))
        except MemoryLimitError as error:
            doubts.say(str(error))
            break
        except MalformedCheckpointError:
            doubts.say("the file does not start with a zip; its first part is kept as plain bytes")
            break
    directories.reverse()
    return directories


def read_names(path: Path | None, memory: Allowance | None = None) -> dict[int, str]:
    """The names of the zips in the file at `path`, by their offsets, from the `.metadata` beside it.

    Empty when there is none, or it does not list the file.
    """
    if path is None:
        return {}
    try:
        raw = _read_regular(path.parent / METADATA_NAME)
        memory = memory or Allowance()
        memory.spend(PICKLE_BYTE * len(raw))
        value, _ = walk(raw, memory=memory)
    except (OSError, MalformedCheckpointError):
        return {}
    return _names_in(value, path.name)


def _read_regular(path: Path) -> bytes:
    """The bytes of a small regular file; a pipe of that name must not make the reader wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise MalformedCheckpointError(f"{METADATA_NAME} is not a file")
        data = FileBytes(descriptor)
        if data.size > MAX_PICKLE_BYTES:
            raise MalformedCheckpointError(f"{METADATA_NAME} is too large")
        return data.read_at(0, data.size)
    finally:
        os.close(descriptor)


def _names_in(metadata: object, file_name: str) -> dict[int, str]:
    """From Metadata.storage_data: {MetadataIndex(fqn, ...): _StorageInfo(relative_path, offset, length)}."""
    storage_data = entries_of(_attributes(metadata).get("storage_data"))
    names: dict[int, str] = {}
    for index, info in (storage_data or {}).items():
        where = _attributes(info)
        name = _attributes(index).get("fqn")
        offset = where.get("offset")
        if where.get("relative_path") == file_name and isinstance(name, str) and isinstance(offset, int):
            names[offset] = name
    return names


def _attributes(value: object) -> dict[object, object]:
    """The attributes of an object: what BUILD gave it."""
    if isinstance(value, Key):
        value = value.value
    state = value.state if isinstance(value, Call) else None
    return state if isinstance(state, dict) else {}
