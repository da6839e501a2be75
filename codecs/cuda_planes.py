"""Byte planes on a CUDA device: what `planes` does, on CuPy arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def split(data: Any, word: int, rotate: bool) -> list[Any]:
    """See `planes.split`; `data` begins at a multiple of 16. Every plane begins at a multiple of 16, too."""
    import cupy

    whole = data.size // word * word
    count = whole // word
    columns = data[:whole].reshape(count, word)
    top = data[:whole].view(np.uint16).reshape(count, word // 2)[:, -1]
    if rotate:
        top = (top << np.uint16(1)) | (top >> np.uint16(15))
    planes = [(top >> np.uint16(8)).astype(np.uint8), top.astype(np.uint8)]
    planes += [cupy.ascontiguousarray(columns[:, word - 1 - j]) for j in range(2, word)]
    if whole < data.size:
        planes.append(data[whole:].copy())
    return planes


def join(streams: Sequence[Any], word: int, rotate: bool, out: Any) -> None:
    """Undo `split` into `out`, which begins at a multiple of 16."""
    whole = out.size // word * word
    count = whole // word
    top = (streams[0].astype(np.uint16) << np.uint16(8)) | streams[1]
    if rotate:
        top = (top >> np.uint16(1)) | (top << np.uint16(15))
    out[:whole].view(np.uint16).reshape(count, word // 2)[:, -1] = top
    columns = out[:whole].reshape(count, word)
    for j in range(2, word):
        columns[:, word - 1 - j] = streams[j]
    if whole < out.size:
        out[whole:] = streams[word]
