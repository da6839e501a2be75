"""Processes of one user take turns on a GPU: several at once would each want its memory, and none would be faster."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def turn(device: str) -> Iterator[None]:
    """Wait until no other process of this user is inside for this device. A process that dies gives its turn back."""
    path = Path(tempfile.gettempdir()) / f"nvckpt-{os.getuid()}-{device.replace(':', '-')}.lock"
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError:  # no place for a lock, or one that belongs to somebody else: work without taking turns
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
