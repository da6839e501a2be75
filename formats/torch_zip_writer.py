"""The zip that torch.save writes, laid out from its members' names, sizes and CRC-32s alone.

Byte for byte what torch's writer makes (a test compares them): members are stored, their data begins at multiples of
64, sizes and CRC follow the data, and a zip64 end record is always there. So a file that exists only as an archive
still has every offset and header that torch expects.
"""

import struct
from dataclasses import dataclass

from nvckpt.formats.zip_directory import (
    CENTRAL_MAGIC,
    END64_MAGIC,
    END_MAGIC,
    LOCAL_MAGIC,
    LOCATOR_MAGIC,
)

ALIGNMENT = 64
"""Multiple at which each member's data begins, as torch's readers expect it."""

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4sHHHHIIH")
_DESCRIPTOR = struct.Struct("<4sIII")
_DESCRIPTOR64 = struct.Struct("<4sIQQ")
_EXTRA = struct.Struct("<HH")
_DESCRIPTOR_MAGIC = b"PK\x07\x08"
_PADDING_ID = int.from_bytes(b"FB", "little")
_ZIP64_ID = 1
_UTF8, _SIZES_FOLLOW = 1 << 11, 1 << 3
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Member:
    name: bytes
    size: int
    crc: int
    header: int


class ZipLayout:
    """Hands out the bytes around the members, in order; `position` is the next free offset."""

    def __init__(self) -> None:
        self.position = 0
        self._members: list[_Member] = []

    def add(self, name: str, size: int, crc: int) -> tuple[bytes, bytes]:
        """Return what stands before and behind the data of a member of `size` bytes."""
        member = _Member(name.encode(), size, crc, self.position)
        self._members.append(member)
        before = _local_header(member)
        after = _descriptor(member)
        self.position += len(before) + size + len(after)
        return before, after

    def finish(self) -> bytes:
        """Return the directory, which ends the file."""
        directory = b"".join(map(_central_header, self._members))
        start, count = self.position, len(self._members)
        end64 = _END64.pack(END64_MAGIC, _END64.size - 12, 0x31E, 45, 0, 0, count, count, len(directory), start)
        locator = _LOCATOR.pack(LOCATOR_MAGIC, 0, start + len(directory), 1)
        short = min(count, _FULL16)
        end = _END.pack(END_MAGIC, 0, 0, short, short, min(len(directory), _FULL32), min(start, _FULL32), 0)
        data = directory + end64 + locator + end
        self.position += len(data)
        return data


def _local_header(member: _Member) -> bytes:
    # Sizes in the zip64 field are left 0 as those of the header are: they follow the data.
    wide = _zip64(member, stored=0)
    flags = _UTF8 | (_SIZES_FOLLOW if member.size else 0)
    start = member.header + _LOCAL.size + len(member.name) + len(wide) + _EXTRA.size
    padding = -start % ALIGNMENT
    extra = wide + _EXTRA.pack(_PADDING_ID, padding) + b"Z" * padding
    fixed = _LOCAL.pack(LOCAL_MAGIC, 0, flags, 0, 0, 0, 0, 0, 0, len(member.name), len(extra))
    return fixed + member.name + extra


def _descriptor(member: _Member) -> bytes:
    if not member.size:
        return b""
    kind = _DESCRIPTOR64 if _is_wide(member) else _DESCRIPTOR
    return kind.pack(_DESCRIPTOR_MAGIC, member.crc, member.size, member.size)


def _central_header(member: _Member) -> bytes:
    extra = _zip64(member, stored=member.size)
    flags = _UTF8 | (_SIZES_FOLLOW if member.size else 0)
    size = min(member.size, _FULL32)
    lengths = (len(member.name), len(extra), 0, 0, 0, 0)
    header = min(member.header, _FULL32)
    fixed = _CENTRAL.pack(CENTRAL_MAGIC, 0, 0, flags, 0, 0, 0, member.crc, size, size, *lengths, header)
    return fixed + member.name + extra


def _is_wide(member: _Member) -> bool:
    return member.size >= _FULL32 or member.header >= _FULL32


def _zip64(member: _Member, stored: int) -> bytes:
    """The extra field that holds what does not fit 32 bits; empty where everything does."""
    values = []
    if member.size >= _FULL32:
        values += [member.size, stored]
    if member.header >= _FULL32:
        values.append(member.header)
    body = b"".join(value.to_bytes(8, "little") for value in values)
    return _EXTRA.pack(_ZIP64_ID, len(body)) + body if body else b""
