"""System calls that fail on demand: what file code calls of `os` and the like, counted, and one call made to fail."""

import contextlib
import errno
import fcntl
import io
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

CALLS = tuple(
    "open close write writev pread fsync fdatasync rename link unlink fchmod fchown utime fstat lstat stat "  # noqa: SIM905
    "fstatvfs lseek ftruncate posix_fadvise".split()
)
SHORT = 0
"""Instead of an error: a write or read of half of what was asked for."""


@dataclass
class Faults:
    """Counts calls; the one with the number `fail_at` fails with `error`."""

    fail_at: int = -1
    error: int = errno.EIO
    made: list[str] = field(default_factory=list)

    def call(self, name, real, *args, **options):
        number = len(self.made)
        self.made.append(name)
        if number != self.fail_at:
            return real(*args, **options)
        if self.error == SHORT:
            return self._short(name, real, args)
        if name == "close":
            # Linux closes the descriptor whatever it returns.
            real(*args, **options)
        raise OSError(self.error, os.strerror(self.error))

    @staticmethod
    def _short(name, real, args):
        if name == "write":
            return real(args[0], args[1][: max(1, len(args[1]) // 2)])
        if name == "writev":
            return real(args[0], [args[1][0][: max(1, len(args[1][0]) // 2)]])
        if name == "pread":
            return real(args[0], max(1, args[1] // 2), args[2])
        return real(*args)


@contextlib.contextmanager
def faults(fail_at: int = -1, error: int = errno.EIO) -> Iterator[Faults]:
    """While this lasts, one call of all that Python code makes fails."""
    state = Faults(fail_at, error)

    def wrapped(name, real):
        return lambda *args, **options: state.call(name, real, *args, **options)

    with contextlib.ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(mock.patch.object(os, name, wrapped(name, getattr(os, name))))
        stack.enter_context(mock.patch.object(io, "open", wrapped("open", io.open)))
        stack.enter_context(mock.patch.object(mmap, "mmap", wrapped("mmap", mmap.mmap)))
        stack.enter_context(mock.patch.object(fcntl, "flock", wrapped("flock", fcntl.flock)))
        yield state
