"""Words of the float codec in NumPy: quantum, prediction, and the split into symbols and raw planes (16.3 and 16.5)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.float_decisions import Entry
from nvckpt.codecs.float_quantum import Words, quantum, replace_quantum
from nvckpt.codecs.float_spec import CENTRE, Flag, Layout

Bytes = npt.NDArray[np.uint8]
Symbols = npt.NDArray[np.uint16]
"""Symbols from 0 to 255; EXCEPTION where a word has none."""
EXCEPTION = 0xFFFF


def predicted(entries: Sequence[Entry], side: Bytes, n: int) -> npt.NDArray[np.int32]:
    """Return what is subtracted from each word's quantum: `p` less the centre, 0 where nothing is predicted."""
    if not entries:
        return np.zeros(n, np.int32)
    parts = []
    position = 0
    for entry in entries:
        if entry.cols == 0:
            parts.append(np.full(entry.rows, entry.base - CENTRE, np.int32))
            continue
        rows = side[position : position + entry.rows].astype(np.int32)
        cols = side[position + entry.rows : position + entry.rows + entry.cols].astype(np.int32)
        position += entry.rows + entry.cols
        parts.append((entry.base - CENTRE - 128 + rows[:, None] + cols).reshape(-1))
    return np.concatenate(parts)


def transform(words: Words, prediction: npt.NDArray[np.int32], layout: Layout) -> Words:
    """Return the transformed words: the quantum less the prediction, and in layout 2 zero exchanged for 0."""
    if layout == Layout.BYTES:
        return words
    moved = replace_quantum(words, quantum(words, layout).astype(np.int32) - prediction, layout)
    if layout == Layout.LOG:
        of_zero = replace_quantum(np.zeros_like(words), -prediction, layout)
        moved = np.where(words == 0, 0, np.where(moved == 0, of_zero, moved)).astype(words.dtype)
    return moved


def untransform(moved: Words, prediction: npt.NDArray[np.int32], layout: Layout) -> Words:
    """Undo `transform`."""
    if layout == Layout.BYTES:
        return moved
    words = replace_quantum(moved, quantum(moved, layout).astype(np.int32) + prediction, layout)
    if layout == Layout.LOG:
        of_zero = replace_quantum(np.zeros_like(moved), -prediction, layout)
        from_zero = replace_quantum(np.zeros_like(moved), prediction, layout)
        words = np.where(moved == 0, 0, np.where(moved == of_zero, from_zero, words)).astype(moved.dtype)
    return words


def raw_planes(coded: Words, layout: Layout) -> tuple[int, list[bytes]]:
    """Return the flags that say which planes are left out, and the planes that are not."""
    word = coded.dtype.itemsize
    if layout == Layout.BYTES:
        return 0, []
    flags, planes = 0, []
    if layout == Layout.ROTATED:
        top = (coded >> (8 * word - 16)).astype(np.uint16)
        planes.append(((top << np.uint16(1)) | (top >> np.uint16(15))).astype(np.uint8).tobytes())
    else:
        sign = (coded >> (8 * word - 1)).astype(np.uint8)
        if len(coded) and (sign == sign[0]).all():
            flags |= Flag.SIGN_CONSTANT | (Flag.SIGN_VALUE if sign[0] else 0)
        else:
            planes.append(np.packbits(sign, bitorder="little").tobytes())
        nibble = (coded >> (8 * word - 16)).astype(np.uint8) & 15
        if len(coded) and not nibble.any():
            flags |= Flag.NO_NIBBLES
        else:
            pairs = np.append(nibble, 0)[: -(-len(nibble) // 2) * 2]
            planes.append((pairs[::2] | pairs[1::2] << 4).astype(np.uint8).tobytes())
    if word > 2:
        low = coded.view(np.uint8).reshape(-1, word)[:, : word - 2]
        if len(coded) and not low.any():
            flags |= Flag.NO_LOW
        else:
            planes.append(low.tobytes())
    return flags, planes


def raw_plane_sizes(m: int, word: int, layout: Layout, flags: int) -> list[int]:
    """Return the bytes of the raw planes that a stream holds, in order."""
    if layout == Layout.BYTES:
        return []
    sizes = [m] if layout == Layout.ROTATED else []
    if layout == Layout.LOG:
        sizes += [] if flags & Flag.SIGN_CONSTANT else [-(-m // 8)]
        sizes += [] if flags & Flag.NO_NIBBLES else [-(-m // 2)]
    if word > 2 and not flags & Flag.NO_LOW:
        sizes.append(m * (word - 2))
    return sizes


def symbols_of(coded: Words, layout: Layout) -> list[tuple[Symbols, npt.NDArray[Any]]]:
    """Return the coded planes: symbols, with EXCEPTION where there is none, and the values that exceptions keep."""
    if layout == Layout.BYTES:
        columns = coded.view(np.uint8).reshape(-1, coded.dtype.itemsize)
        planes = [np.ascontiguousarray(columns[:, j]) for j in reversed(range(coded.dtype.itemsize))]
        return [(plane.astype(np.uint16), plane) for plane in planes]
    symbols = quantum(coded, layout).astype(np.uint16)
    if layout == Layout.ROTATED:
        return [(symbols, symbols.astype(np.uint8))]
    none = (symbols > 255) | ((symbols == 0) & (coded != 0))
    return [(np.where(none, EXCEPTION, symbols).astype(np.uint16), coded)]


Decoded = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[Any]]
"""Symbols of a coded plane, positions of its exceptions and raw chunks, and their values."""


def join_words(decoded: Sequence[Decoded], raw: Sequence[Bytes], word: int, layout: Layout, flags: int) -> Words:
    """Undo `raw_planes` and `symbols_of`."""
    dtype = np.dtype(f"<u{word}")
    if layout == Layout.BYTES:
        columns = np.stack([patched(plane) for plane in reversed(decoded)], axis=1)
        return np.ascontiguousarray(columns).view(dtype).reshape(-1)
    planes = list(raw)
    m = len(decoded[0][0])
    if layout == Layout.ROTATED:
        top = patched(decoded[0]).astype(np.uint16) << np.uint16(8) | planes.pop(0)
        top = top >> np.uint16(1) | top << np.uint16(15)
    else:
        sign = np.full(m, bool(flags & Flag.SIGN_VALUE), np.uint16)
        if not flags & Flag.SIGN_CONSTANT:
            sign = np.unpackbits(planes.pop(0), bitorder="little")[:m].astype(np.uint16)
        nibble = np.zeros(m, np.uint16)
        if not flags & Flag.NO_NIBBLES:
            pairs = planes.pop(0)
            nibble = np.stack([pairs & 15, pairs >> 4], axis=1).reshape(-1)[:m].astype(np.uint16)
        top = sign << np.uint16(15) | decoded[0][0].astype(np.uint16) << np.uint16(4) | nibble
    words = top.astype(dtype) << (8 * word - 16)
    if word > 2 and not flags & Flag.NO_LOW:
        words.view(np.uint8).reshape(-1, word)[:, : word - 2] = planes.pop(0).reshape(-1, word - 2)
    if layout == Layout.LOG:
        words[decoded[0][1]] = decoded[0][2]
    return words


def patched(plane: Decoded) -> Bytes:
    """Return the symbols of a plane with its exceptions and raw chunks in their places."""
    symbols, positions, values = plane
    symbols[positions] = values
    return symbols
