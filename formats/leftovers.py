"""Names of temporary files, and removing those that a killed process left behind.

Whoever writes a temporary file holds a lock on it, which the system drops when the process ends, however it ends. A
file that can be locked has therefore nobody left, whatever machine or container it came from.
"""

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time

# Characters of the target's name in the temporary one: at most 160 bytes of the 255 that file systems allow.
_NAME_PART = 40
_TEMPORARY = re.compile(r"\..{0,40}\.nvckpt-[0-9a-f]{12}\.tmp", re.DOTALL)
# A batch writes thousands of files into one folder, which is read only once in so many seconds.
_FRESH = 60.0

_seen: dict[tuple[int, int], tuple[float, frozenset[str]]] = {}


def temporary_name(target: str) -> str:
    """Return a new name for what will be called `target`: hidden, and known again by `remove_leftovers`."""
    return f"{_prefix(target)}{secrets.token_hex(6)}.tmp"


def is_temporary(name: str) -> bool:
    """Tell whether a file's name is one that `temporary_name` gives."""
    return _TEMPORARY.fullmatch(name) is not None


def hold(descriptor: int) -> bool:
    """Lock a temporary file that was just made; False when somebody took it for left behind in between."""
    with contextlib.suppress(OSError):  # file systems without locks: nobody else can lock there either
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return os.fstat(descriptor).st_nlink > 0


def remove_leftovers(directory: int, target: str) -> None:
    """Remove temporary files for `target` in an open directory whose writers are gone; never an error."""
    with contextlib.suppress(OSError):
        for name in _temporaries(directory):
            if name.startswith(_prefix(target)):
                with contextlib.suppress(OSError):  # in use, gone already, or somebody else's
                    _remove(directory, name)


def _prefix(target: str) -> str:
    return f".{target[:_NAME_PART]}.nvckpt-"


def _temporaries(directory: int) -> frozenset[str]:
    status = os.fstat(directory)
    key = (status.st_dev, status.st_ino)
    read_at, names = _seen.get(key, (-_FRESH, frozenset()))
    if time.monotonic() - read_at < _FRESH:
        return names
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        found = frozenset(name for name in os.listdir(readable) if is_temporary(name))  # noqa: PTH208
    finally:
        os.close(readable)
    _seen.clear()
    _seen[key] = (time.monotonic(), found)
    return found


def _remove(directory: int, name: str) -> None:
    descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(status, os.stat(name, dir_fd=directory, follow_symlinks=False)):
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(descriptor)
