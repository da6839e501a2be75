"""Room for a file allocated a little ahead of what is written to it.

A write to new pages or blocks waits for their allocation, which a thread beside it can do before. On a tmpfs,
allocating alone reached 6.7 GB/s and eight threads wrote 4.4 into what was there, where plain writes do both at 2.7 to
3.3; what it gives to a whole command was not measured apart.
"""

import contextlib
import ctypes
import os
import threading

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_STEP = 64 << 20
_AHEAD = 512 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def _fallocate(descriptor: int, mode: int, offset: int, length: int) -> bool:
    """Call fallocate(2), which does nothing where a file system cannot, unlike posix_fallocate(3)."""
    call = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
    if call is None:
        return False
    return bool(call(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0)


def punch(descriptor: int, offset: int, length: int) -> None:
    """Give back what was allocated for a range before the end of the file; it then reads as zeros."""
    _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, length)


class Reservation:
    """Allocates up to `limit` bytes of an open file, never more than half a GiB ahead of what was written.

    Where the file system cannot, or is full, nothing happens: the writes find out themselves.
    """

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor, self._limit = descriptor, limit
        self._written = self._reserved = 0
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="nvckpt-reserve")
        self._thread.start()

    def written(self, position: int) -> None:
        """Tell how far the writes have come."""
        with self._changed:
            self._written = position
            self._changed.notify()

    def end(self) -> None:
        """Stop, and give back what was allocated behind the end of the file."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size)

    def _run(self) -> None:
        while (step := self._next()) and _fallocate(self._descriptor, _KEEP_SIZE, self._reserved, step):
            self._reserved += step

    def _next(self) -> int:
        """Wait until there is something to allocate; 0 at the end."""
        with self._changed:
            while not self._ended and self._reserved < self._limit:
                # Behind the writes there is nothing left to do.
                self._reserved = max(self._reserved, self._written)
                if self._reserved - self._written < _AHEAD:
                    return min(_STEP, self._limit - self._reserved)
                self._changed.wait()
        return 0
