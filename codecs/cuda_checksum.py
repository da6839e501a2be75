"""XXH3 and CRC-32 of ranges of device memory: the values of the host's libraries, without copying the bytes there."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs import crc32
from nvckpt.codecs.float_cuda_device import Device
from nvckpt.codecs.float_cuda_tables import pairs

Place = tuple[int, int]
"""Address and bytes."""

BLOCK = 1024
"""Bytes that XXH3 adds up before it scrambles its accumulators."""
SHORTEST = 241
"""Bytes from which on XXH3 hashes in this way; shorter ranges are for the host's library."""

_RANGE = np.dtype([("address", "<u8"), ("size", "<u8"), ("first", "<u8")])
_KIND = (1, 0)
_BLOCKS_AN_ITEM = 64
_CRC_PART = 256 << 10
_WARPS = 4
_MASK = (1 << 64) - 1
_ONES = 0xFFFFFFFF

_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
START = (_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1)
"""XXH3's accumulators before the first byte."""

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc"
    "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
"""The library's default secret of 192 bytes."""


class Xxh3State:
    """XXH3 of a long stream whose whole blocks are folded in on the device, piece by piece, and its end on the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._accumulators = device.upload(np.array(START, "<u8"))

    def update(self, address: int, size: int) -> None:
        """Fold in the next bytes, a multiple of BLOCK, at a multiple of 8; nothing is waited for."""
        if size % BLOCK:
            raise ValueError("only whole blocks are folded in")
        if size:
            ranges = _ranges([(address, size)], [0])
            sums = _block_sums(self._device, ranges)
            _chain(self._device, ranges, np.array([size // BLOCK], "<u8"), sums, self._accumulators)

    def digest128(self, size: int, tail: bytes) -> bytes:
        """The XXH3-128 of a stream of `size` bytes, most significant byte first.

        `tail` are its bytes from the last multiple of BLOCK below its end on, after at least 64 more before them.
        All blocks before the tail, and nothing of it, were folded in.
        """
        accumulators = self._device.download(self._accumulators, "<u8")[:8].tolist()
        last = size - (size - 1) // BLOCK * BLOCK
        _finish(accumulators, tail, last)
        low = _merged(accumulators, 11, size * _P64_1 & _MASK)
        high = _merged(accumulators, len(SECRET) - 64 - 11, ~(size * _P64_2) & _MASK)
        return (high << 64 | low).to_bytes(16, "big")


def xxh3_64(device: Device, places: Sequence[Place]) -> list[int]:
    """The XXH3-64 of each range of at least SHORTEST bytes at a multiple of 8. Waits for the device."""
    if not places:
        return []
    counts = np.array([(size - 1) // BLOCK for _, size in places], "<u8")
    # A range's last block is never scrambled, even if it is whole.
    firsts = np.cumsum([0, *counts[:-1].tolist()])
    ranges = _ranges([(address, int(n) * BLOCK) for (address, _), n in zip(places, counts, strict=True)], firsts)
    accumulators = device.upload(np.tile(np.array(START, "<u8"), len(places)))
    _chain(device, ranges, counts, _block_sums(device, ranges), accumulators)
    whole = device.upload(_ranges(places, firsts))
    device.launch("checksum.last_stripes", _KIND, len(places), 32, 0, [whole, accumulators])
    found = device.download(accumulators, "<u8")[: 8 * len(places)].reshape(-1, 8).tolist()
    return [_merged(a, 11, size * _P64_1 & _MASK) for a, (_, size) in zip(found, places, strict=True)]


def crc32_of(device: Device, places: Sequence[Place]) -> list[int]:
    """The CRC-32 of each range, which begins at a multiple of 16. Waits for the device."""
    counts = [-(-size // _CRC_PART) for _, size in places]
    if not sum(counts):
        return [0] * len(places)
    firsts = np.cumsum([0, *counts[:-1]])
    items = pairs(counts)
    # The last thread block's spare warps do the last part again.
    spare = -len(items) % _WARPS
    items = np.concatenate([items, np.repeat(items[-1:], spare, axis=0)])
    parts = device.zeros(4 * sum(counts))
    tables, powers = (device.upload(table) for table in _crc_tables())
    arguments = [device.upload(_ranges(places, firsts)), device.upload(items), tables, powers, parts, _CRC_PART]
    device.launch("checksum.crc_parts", _KIND, len(items) // _WARPS, 32 * _WARPS, 0, arguments)
    return _joined(device.download(parts, "<u4")[: sum(counts)], [size for _, size in places])


def _ranges(places: Sequence[Place], firsts: Any) -> npt.NDArray[Any]:
    table = np.zeros(len(places), _RANGE)
    table["address"], table["size"] = [a for a, _ in places], [n for _, n in places]
    table["first"] = firsts
    return table


def _block_sums(device: Device, ranges: npt.NDArray[Any]) -> Any:
    blocks = ranges["size"].astype(np.int64) // BLOCK
    sums = device.empty(64 * int(blocks.sum()))
    items = pairs((-(-blocks // _BLOCKS_AN_ITEM)).tolist())
    if len(items):
        arguments = [device.upload(ranges), device.upload(items), sums]
        device.launch("checksum.block_sums", _KIND, len(items), 256, 0, arguments)
    return sums


def _chain(device: Device, ranges: npt.NDArray[Any], counts: npt.NDArray[Any], sums: Any, accumulators: Any) -> None:
    arguments = [device.upload(ranges), device.upload(counts), sums, accumulators]
    device.launch("checksum.chain_blocks", _KIND, len(ranges), 32, 0, arguments)


def _finish(accumulators: list[int], tail: bytes, last: int) -> None:
    """Fold in the last `last` bytes of `tail` as the library does behind the last scramble."""
    begin = len(tail) - last
    for stripe in range((last - 1) // 64):
        _accumulate(accumulators, tail[begin + 64 * stripe : begin + 64 * stripe + 64], 8 * stripe)
    _accumulate(accumulators, tail[-64:], len(SECRET) - 64 - 7)


def _accumulate(accumulators: list[int], stripe: bytes, secret: int) -> None:
    for i in range(8):
        word = int.from_bytes(stripe[8 * i : 8 * i + 8], "little")
        key = word ^ _secret_at(secret + 8 * i)
        accumulators[i ^ 1] = (accumulators[i ^ 1] + word) & _MASK
        accumulators[i] = (accumulators[i] + (key & 0xFFFFFFFF) * (key >> 32)) & _MASK


def _secret_at(offset: int) -> int:
    return int.from_bytes(SECRET[offset : offset + 8], "little")


def _merged(accumulators: Sequence[int], secret: int, start: int) -> int:
    result = start
    for i in range(4):
        left = accumulators[2 * i] ^ _secret_at(secret + 16 * i)
        product = left * (accumulators[2 * i + 1] ^ _secret_at(secret + 16 * i + 8))
        result += product & _MASK ^ product >> 64
    result &= _MASK
    result = (result ^ result >> 37) * 0x165667919E3779F9 & _MASK
    return result ^ result >> 32


@cache
def _crc_tables() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """What the kernel looks up: steps over 512 bytes by each byte of a word, over one byte, and to a row's end."""
    row, byte = crc32.shift(512), crc32.shift(1)
    skip = [crc32.multiply(row, value << 8 * k) for k in range(4) for value in range(256)]
    step = [crc32.multiply(byte, value) for value in range(256)]
    powers = [crc32.shift(512 - 4 * word) for word in range(128)]
    return np.array(skip + step, "<u4"), np.array(powers, "<u4")


def _joined(parts: npt.NDArray[np.uint32], sizes: Sequence[int]) -> list[int]:
    """The CRC of each range from those of its parts, in order, which were begun with 0 and not inverted."""
    counts = np.array([-(-size // _CRC_PART) for size in sizes])
    ends = np.cumsum(counts)
    # Whole parts are moved past the whole ones behind them, and their sum past the last part, which may be shorter.
    behind = np.repeat(ends, counts) - np.arange(len(parts)) - 2
    moved = crc32.multiply_all(crc32.shifts(_CRC_PART, int(max(counts.max() - 1, 1)))[np.maximum(behind, 0)], parts)
    moved[behind < 0] = 0
    running = np.concatenate([[np.uint32(0)], np.bitwise_xor.accumulate(moved)])
    whole = running[ends] ^ running[ends - counts]
    # The sums begin with ones and end inverted. A loop over thousands of tensors would keep the device waiting.
    past_last = _shifts_of([(size - 1) % _CRC_PART + 1 for size in sizes])
    begun = crc32.multiply_all(_shifts_of(sizes), np.array(_ONES, np.uint32))
    found = crc32.multiply_all(past_last, whole) ^ parts[np.maximum(ends - 1, 0)] ^ begun ^ np.uint32(_ONES)
    return [value if size else 0 for size, value in zip(sizes, found.tolist(), strict=True)]


def _shifts_of(lengths: Sequence[int]) -> npt.NDArray[np.uint32]:
    """`crc32.shift` of each length; tensors have few different ones."""
    return np.array([crc32.shift(length) for length in lengths], np.uint32)
