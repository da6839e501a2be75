"""Memory to decode into, on huge pages and used again, and the comparison of two pieces.

A system hands fresh memory out page by page and fills it with zeros; with small pages that took as long as decoding
(BF16 weights, two threads: 2.1 GB/s into fresh small pages, 3.2 into fresh huge ones, 3.8 into memory used before).
"""

import contextlib
import mmap
import weakref
from collections import deque

import numpy as np

from nvckpt.codecs.base import Buffer

_HUGE_PAGE = 2 << 20
# Below this the allocator of C has memory at hand; a last page that would be filled less stays in small ones.
_LARGE = 512 << 10
# What is kept for the next call: the blocks that a few threads work on.
_MOST_KEPT = 128 << 20

_kept: deque[mmap.mmap] = deque()


def unfilled(size: int) -> memoryview:
    """Return writeable memory of `size` bytes with anything in it, used again when the last view of it is gone."""
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(size, np.uint8).data
    mapped = _used_before(size) or _fresh(size)
    if mapped is None:
        return np.empty(size, np.uint8).data
    whole = np.frombuffer(mapped, np.uint8)
    start = -whole.ctypes.data % _HUGE_PAGE
    room = whole[start : start + size]
    # This very array is what the view exports, and so lives as long as any view of it.
    weakref.finalize(room, _keep, mapped).atexit = False
    return room.data


def same_bytes(a: Buffer, b: Buffer) -> bool:
    """Tell whether both hold the same. Python compares views at 0.5 GB/s, with its lock held; this at 7 and more."""
    if len(a) != len(b) or not len(a):
        return len(a) == len(b)
    x, y = (np.frombuffer(one, np.uint8) for one in (a, b))
    whole = len(x) // 8 * 8
    return np.array_equal(x[whole:], y[whole:]) and np.array_equal(x[:whole].view(np.uint64), y[:whole].view(np.uint64))


def _fresh(size: int) -> mmap.mmap | None:
    """Return new memory with room to begin at a multiple of a huge page; what is never touched costs nothing."""
    pages, rest = divmod(size, _HUGE_PAGE)
    length = size if rest < _LARGE else (pages + 1) * _HUGE_PAGE
    try:
        mapped = mmap.mmap(-1, length + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # too little memory: what is kept may be what lacks
        _kept.clear()
        return None
    with contextlib.suppress(OSError):  # a kernel without huge pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _used_before(size: int) -> mmap.mmap | None:
    """Return kept memory that fits and is not much larger. No lock: a view may go, and `_keep` run, at any moment."""
    with contextlib.suppress(IndexError):
        for _ in range(len(_kept)):
            mapped = _kept.popleft()
            if size + _HUGE_PAGE <= len(mapped) <= 2 * size + 2 * _HUGE_PAGE:
                return mapped
            _kept.append(mapped)
    return None


def _keep(mapped: mmap.mmap) -> None:
    _kept.append(mapped)
    with contextlib.suppress(IndexError, RuntimeError):  # another thread did the same
        while sum(len(one) for one in tuple(_kept)) > _MOST_KEPT:
            _kept.popleft()
