"""Checkpoints written by torch.save before 1.6: five pickles, then the storages, unaligned.

Each storage is an int64 count of elements and that many elements, both little-endian whatever machine
wrote them (torch/csrc/serialization.cpp, writeFileRaw). Nothing else tells where a storage ends, so one
unknown element size makes everything behind it unreadable.
"""

import struct

from nvckpt.formats import groups
from nvckpt.formats.allowance import PICKLE_BYTE, SEGMENT, Allowance
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.dtypes import UNKNOWN
from nvckpt.formats.errors import MalformedCheckpointError
from nvckpt.formats.pickle_values import TruncatedPickleError
from nvckpt.formats.pickle_walk import MAX_PICKLE_BYTES, walk
from nvckpt.formats.segments import Segment
from nvckpt.formats.torch_rebuild import Storage
from nvckpt.formats.torch_tensors import find_storages
from nvckpt.formats.windows import Windows

# The first pickle is this number; protocols before 4 put it at byte 2, later ones behind a frame.
MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa85019")
MAGIC_WITHIN = 32
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL_VERSION = 1001
# Most pickles are short, and what stands behind them is tensor data.
_READS = (1 << 20, 8 << 20, MAX_PICKLE_BYTES)
_COUNT = struct.Struct("<q")


def find_tensors(data: ByteSource, role: str = groups.UNKNOWN_ROLE, memory: Allowance | None = None) -> list[Segment]:
    """The storages of a legacy file, in file order.

    Raises MalformedCheckpointError when the stream does not end exactly where the file does.
    """
    memory = memory or Allowance()
    value, keys, position = _read_pickles(data, memory)
    storages = find_storages(value, role, memory=memory)
    memory.spend(SEGMENT * len(keys))
    windows = Windows(data)
    if len(set(keys)) < len(keys):
        raise MalformedCheckpointError("the legacy file lists a storage twice")
    segments: list[Segment] = []
    for key in keys:
        storage = storages.get(key)
        if storage is None or storage.unit is None:
            raise MalformedCheckpointError("a storage of the legacy file has no known type")
        if position + _COUNT.size > data.size:
            raise MalformedCheckpointError("the legacy file is cut short")
        count = _COUNT.unpack(windows.read_at(position, _COUNT.size))[0]
        position += _COUNT.size
        length = count * storage.unit
        if count < 0 or length > data.size - position:
            raise MalformedCheckpointError("the legacy file is cut short")
        segments.extend(_segment(storage, position, length))
        position += length
    if position != data.size:
        raise MalformedCheckpointError(f"the legacy file has {data.size - position} bytes behind its last storage")
    return segments


def _segment(storage: Storage, position: int, length: int) -> list[Segment]:
    dtype = storage.dtype
    if dtype is UNKNOWN or length * 8 % dtype.bits:
        return []
    return [Segment(position, length, dtype, storage.group(length), tuple(storage.views))]


def _read_pickles(data: ByteSource, memory: Allowance) -> tuple[object, list[str], int]:
    """The object, the storage keys in file order, and where the storages start."""
    for size in _READS:
        memory.spend(PICKLE_BYTE * min(size, data.size))
        head = data.read_at(0, min(size, data.size))
        try:
            return _walk_pickles(head, memory)
        except TruncatedPickleError:
            if size >= data.size:
                raise
    raise MalformedCheckpointError(f"the pickles of the legacy file are longer than {MAX_PICKLE_BYTES} bytes")


def _walk_pickles(raw: bytes, memory: Allowance) -> tuple[object, list[str], int]:
    magic, position = walk(raw, 0, memory)
    version, position = walk(raw, position, memory)
    if magic != _MAGIC_NUMBER or version != _PROTOCOL_VERSION:
        raise MalformedCheckpointError("the legacy file has an unknown version")
    _system, position = walk(raw, position, memory)
    value, position = walk(raw, position, memory)
    keys, position = walk(raw, position, memory)
    if not isinstance(keys, list):
        raise MalformedCheckpointError("the legacy file has no list of storages")
    return value, [_key(key) for key in keys], position


def _key(key: object) -> str:
    if isinstance(key, bytes):
        return key.decode("latin-1")
    if isinstance(key, str):
        return key
    raise MalformedCheckpointError("the legacy file has a storage key that is no text")
