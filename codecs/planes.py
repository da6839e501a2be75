"""Byte planes: all first bytes of the words, then all second bytes, and so on (FORMAT.md 7.2).

In a float the exponent is the part that compresses and the mantissa is noise; apart they can be
coded and stored each in its own way.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.base import Buffer

Plane = npt.NDArray[np.uint8]

WORD_SIZES = (2, 4, 8)


def split(data: Buffer, word: int, rotate: bool) -> list[memoryview]:
    """Planes of `data`, most significant byte first, then the odd bytes at the end, if any.

    `word` is 2, 4 or 8 bytes. `rotate` moves the sign of a float below the top of its mantissa, so
    that plane 0 of a BF16 or FP32 number is its exponent. Each plane has `len(data) // word` bytes.
    """
    whole = len(data) // word * word
    raw = np.frombuffer(data, np.uint8)
    halves = raw[:whole].view("<u2").reshape(-1, word // 2)
    top = halves[:, -1]
    if rotate:
        top = (top << np.uint16(1)) | (top >> np.uint16(15))
    planes = [(top >> np.uint16(8)).astype(np.uint8), top.astype(np.uint8)]
    columns = raw[:whole].reshape(-1, word)
    planes += [np.ascontiguousarray(columns[:, word - 1 - j]) for j in range(2, word)]
    if whole < len(data):
        planes.append(raw[whole:])
    return [plane.data for plane in planes]


def stream_sizes(size: int, word: int) -> list[int]:
    """Lengths of the streams that `split` makes of `size` bytes."""
    tail = size % word
    return [size // word] * word + ([tail] if tail else [])


def join(streams: Sequence[Plane], word: int, rotate: bool, out: memoryview) -> None:
    """Undo `split` into `out`, whose length is that of the original data."""
    whole = len(out) // word * word
    target = np.frombuffer(out, np.uint8)
    halves = target[:whole].view("<u2").reshape(-1, word // 2)
    top = (streams[0].astype(np.uint16) << np.uint16(8)) | streams[1]
    if rotate:
        top = (top >> np.uint16(1)) | (top << np.uint16(15))
    halves[:, -1] = top
    columns = target[:whole].reshape(-1, word)
    for j in range(2, word):
        columns[:, word - 1 - j] = streams[j]
    if whole < len(out):
        target[whole:] = streams[word]
