"""A state as the file torch.save would write: its pickle, its storages and the zip around them, never built in memory.

The pickling is torch's own protocol: tensors reduce themselves, and storages are persistent ids of the form
("storage", type, key, location, count), so that whatever torch.save takes is taken here, with the same errors.
"""

import io
import pickle
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nvckpt.codecs import crc32
from nvckpt.formats import opaque
from nvckpt.formats.byte_source import JoinedBytes, MemoryBytes, Part
from nvckpt.formats.checksum import checksum
from nvckpt.formats.dtypes import UNKNOWN
from nvckpt.formats.errors import MalformedCheckpointError
from nvckpt.formats.lockless import cached_property
from nvckpt.formats.pickle_walk import walk
from nvckpt.formats.segments import Segment, Source, tile
from nvckpt.formats.sniff import read_source
from nvckpt.formats.torch_tensors import find_storages
from nvckpt.formats.torch_zip_writer import ALIGNMENT, ZipLayout
from nvckpt.pipeline import thread_count

PROTOCOL = 2
"""What torch.save uses by default; every torch reads it."""
TOP = "archive"
"""The folder in the zip, as torch names it when it writes to a file object."""

_STEP = 16 << 20
_SMALL = 256 << 10


class StorageBytes:
    """The bytes of a torch storage on any device, copied to the host range by range."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.size: int = storage.nbytes()
        if storage.device.type == "meta":
            storage.cpu()  # raises what torch.save raises
        self._host = _memory(self._flat) if storage.device.type == "cpu" and self.size else None

    @cached_property
    def _flat(self) -> Any:
        """The storage as a tensor of bytes: made when one is read, which those that a GPU codes are not."""
        import torch

        with torch.no_grad():
            return torch.empty(0, dtype=torch.uint8, device=self.storage.device).set_(self.storage)

    @property
    def place(self) -> tuple[int, int] | None:
        """The number of the CUDA device that holds the bytes, and their address there; None for other memory."""
        device = self.storage.device
        return (device.index, self.storage.data_ptr()) if device.type == "cuda" else None

    def read_at(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        return bytes(self.view(offset, length))

    def view(self, offset: int, length: int) -> memoryview:
        """A range without a copy where the storage is in host memory."""
        if self._host is not None:
            return self._host[offset : offset + length]
        return _memory(self._flat[offset : offset + length].cpu())


def _memory(tensor: Any) -> memoryview:
    return memoryview(tensor.numpy())


def pickled(obj: object, protocol: int = PROTOCOL) -> tuple[bytes, list[Any]]:
    """Pickle an object as torch.save does; returns the pickle and the storages, whose keys are their numbers.

    Raises what torch.save raises for what cannot be pickled, and RuntimeError for memory seen as two types.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, protocol)
    pickler.dump(obj)
    return buffer.getvalue(), pickler.storages


class _Pickler(pickle.Pickler):
    """Leaves storages out and numbers them."""

    def __init__(self, buffer: io.BytesIO, protocol: int) -> None:
        super().__init__(buffer, protocol=protocol)
        self.storages: list[Any] = []
        self._keys: dict[int, str] = {}
        self._dtypes: dict[int, object] = {}

    def persistent_id(self, obj: Any) -> tuple[object, ...] | None:
        """Describe a storage; None for everything else."""
        import torch

        # Parts of torch without types of their own.
        serialization: Any = torch.serialization
        storage: Any = obj
        if isinstance(obj, torch.storage.TypedStorage):
            typed: Any = obj
            storage, dtype, count = typed._untyped_storage, typed.dtype, typed._size()
            kind: object = getattr(torch, typed._pickle_storage_type())
        elif torch.is_storage(obj):
            dtype, count = torch.uint8, obj.nbytes()
            kind = serialization.normalize_storage_type(type(obj))
        else:
            return None
        self._check_dtype(storage, dtype)
        key = self._keys.get(storage._cdata)
        if key is None:
            key = self._keys[storage._cdata] = str(len(self.storages))
            self.storages.append(storage)
        return ("storage", kind, key, serialization.location_tag(storage), count)

    def _check_dtype(self, storage: Any, dtype: object) -> None:
        """Loading cannot give one storage two types, so torch.save refuses it, too."""
        if storage.device.type == "meta" or storage.data_ptr() == 0:
            return
        if self._dtypes.setdefault(storage.data_ptr(), dtype) != dtype:
            raise RuntimeError("Cannot save multiple tensors or storages that view the same data as different types")


class StateFile(JoinedBytes):
    """The file of a state. `source` is what its segments are; `parts` that are storages are StorageBytes."""

    def __init__(
        self, parts: Iterable[Part], pickle_bytes: bytes, offsets: Sequence[int], sizes: Sequence[int]
    ) -> None:
        super().__init__(parts)
        self._pickle, self._offsets, self._sizes = pickle_bytes, offsets, sizes

    @cached_property
    def source(self) -> Source:
        """What `read_source` finds in the file, without reading a tensor: where everything is is known here."""
        try:
            found = find_storages(walk(self._pickle)[0])
        except MalformedCheckpointError:
            return read_source(self)
        big_endian = sys.byteorder == "big"
        tensors = []
        for key, storage in found.items():
            offset, size = self._offsets[int(key)], self._sizes[int(key)]
            if storage.dtype is not UNKNOWN and size * 8 % storage.dtype.bits == 0:
                group = storage.group(size)
                tensors.append(Segment(offset, size, storage.dtype, group, tuple(storage.views), big_endian))
        return Source(opaque.TORCH_ZIP, self.size, tile(self.size, tensors)[0])


DeviceSums = Callable[[Sequence[StorageBytes]], dict[int, int]]
"""Gives the CRC-32 of those parts whose bytes need not come to the host for it, by their numbers."""


def state_file(
    pickle_bytes: bytes, storages: Sequence[Any], threads: int = 0, device_sums: DeviceSums | None = None
) -> StateFile:
    """Lay out the file of a pickle and its storages; reading it reads the storages."""
    parts = [StorageBytes(storage) for storage in storages]
    sums = storage_checksums(parts, threads, device_sums(parts) if device_sums else {})
    small = {
        "data.pkl": pickle_bytes,
        ".format_version": b"1",
        ".storage_alignment": str(ALIGNMENT).encode(),
        "byteorder": sys.byteorder.encode(),
    }
    members: list[tuple[str, Part, int]] = [(name, MemoryBytes(data), zlib.crc32(data)) for name, data in small.items()]
    members += [(f"data/{key}", part, crc) for key, (part, crc) in enumerate(zip(parts, sums, strict=True))]
    version = b"3\n"
    members.append(("version", MemoryBytes(version), zlib.crc32(version)))
    identity = _identity(members)
    members.append((".data/serialization_id", MemoryBytes(identity), zlib.crc32(identity)))
    pieces, offsets = _joined(members)
    first = len(small)
    return StateFile(pieces, pickle_bytes, offsets[first : first + len(parts)], [part.size for part in parts])


def storage_checksums(parts: Sequence[StorageBytes], threads: int, known: Mapping[int, int]) -> list[int]:
    """CRC-32 of each storage, of those not `known` computed in pieces by several threads."""

    def crc(piece: tuple[int, int, int]) -> int:
        number, offset, length = piece
        return zlib.crc32(parts[number].view(offset, length))

    pieces = [
        (number, offset, min(_STEP, part.size - offset))
        for number, part in enumerate(parts)
        if number not in known
        for offset in range(0, part.size, _STEP)
    ]
    sums = [known.get(number, 0) for number in range(len(parts))]
    with ThreadPoolExecutor(thread_count(threads), thread_name_prefix="nvckpt") as pool:
        # Handing a small piece to another thread costs more than its sum.
        begun = [pool.submit(crc, piece) if piece[2] >= _SMALL else None for piece in pieces]
        for piece, future in zip(pieces, begun, strict=True):
            number, offset, length = piece
            value = crc(piece) if future is None else future.result()
            sums[number] = crc32.combine(sums[number], value, length) if offset else value
    return sums


def _joined(members: Iterable[tuple[str, Part, int]]) -> tuple[list[Part], list[int]]:
    """The pieces of the zip, and where each member's bytes begin."""
    layout = ZipLayout()
    parts: list[Part] = []
    offsets: list[int] = []
    for name, part, crc in members:
        start = layout.position
        before, after = layout.add(f"{TOP}/{name}", part.size, crc)
        parts += (MemoryBytes(before), part, MemoryBytes(after))
        offsets.append(start + len(before))
    parts.append(MemoryBytes(layout.finish()))
    return parts, offsets


def _identity(members: Sequence[tuple[str, Part, int]]) -> bytes:
    """40 digits that tell files apart in torch's logs: of the names, and of all CRCs."""
    names = checksum("\0".join(name for name, _, _ in members).encode())
    crcs = checksum(b"".join(crc.to_bytes(4, "little") for _, _, crc in members))
    return f"{names:020}{crcs:020}".encode()
