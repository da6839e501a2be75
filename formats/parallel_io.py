"""Reading and writing by several threads in one call, where parallel_io.c was built."""

import ctypes
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_STEP = 2 << 20
_MOST = 64 << 20


@cache
def library() -> ctypes.CDLL | None:
    """Return the C functions; None where nvckpt was installed without a C compiler."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_parallel_io{suffix}")
        if path.exists():
            try:
                return _declare(ctypes.CDLL(str(path)))
            except (OSError, AttributeError):
                continue
    return None


def _declare(loaded: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size, count = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
    loaded.nvckpt_fill_map.argtypes = [pointer, size, size, pointer, pointer, size, size, size, count]
    loaded.nvckpt_read_range.argtypes = [ctypes.c_int, size, size, pointer, size, count]
    loaded.nvckpt_read_range.restype = ctypes.c_int64
    return loaded


def read_range(descriptor: int, offset: int, target: "npt.NDArray[np.uint8]", threads: int) -> int:
    """Fill an array from a file; returns the bytes read, fewer where it ends. OSError."""
    loaded = library()
    if loaded is None:
        return _read_alone(descriptor, offset, target.data)
    found = int(loaded.nvckpt_read_range(descriptor, offset, target.nbytes, target.ctypes.data, _STEP, threads))
    if found < 0:
        raise OSError(-found, os.strerror(-found))
    return found


def _read_alone(descriptor: int, offset: int, view: memoryview) -> int:
    done = 0
    while done < len(view) and (got := os.preadv(descriptor, [view[done : done + _MOST]], offset + done)):
        done += got
    return done
