"""Output that appears under its name whole or not at all.

A temporary file with a random name beside the target, private until it is complete; then mode and
times, fsync, and a rename. Whatever interrupts this removes the temporary file.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_WRITE_STEP = 64 << 20
# Characters of the target's name in the temporary one: at most 160 bytes of the 255 that file systems allow.
_NAME_PART = 40
_TEMPORARY = re.compile(r"\..{1,40}\.[0-9a-f]{12}\.tmp", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Attributes:
    """What an output takes over from its input; times in nanoseconds."""

    mode: int
    atime_ns: int
    mtime_ns: int
    uid: int
    gid: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Attributes":
        """Read them from a stat result; set-user-id and the like are left out on purpose."""
        return cls(status.st_mode & 0o777, status.st_atime_ns, status.st_mtime_ns, status.st_uid, status.st_gid)


class OutputFile:
    """An open file that takes bytes in order or at a position."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of `data`; the system may take less at a time."""
        view = memoryview(data).cast("B")
        while len(view):
            view = view[os.write(self.descriptor, view[:_WRITE_STEP]) :]

    def write_at(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Put all of `data` at a position; what is never written reads as zeros and takes no room."""
        view = memoryview(data).cast("B")
        while len(view):
            written = os.pwrite(self.descriptor, view[:_WRITE_STEP], offset)
            view, offset = view[written:], offset + written


class AtomicFile(OutputFile):
    """A temporary file that becomes `target` by `commit`, or goes away."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._temporary = target.with_name(f".{target.name[:_NAME_PART]}.{secrets.token_hex(6)}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        super().__init__(os.open(self._temporary, flags, 0o600))
        self._open = True

    def commit(self, attributes: Attributes | None, *, overwrite: bool) -> None:
        """Give the file its attributes and its name; FileExistsError if the name is taken and not `overwrite`.

        Without attributes (input from a pipe) the mode is what the umask allows.
        """
        if attributes is None:
            os.fchmod(self.descriptor, 0o666 & ~_umask())
        else:
            _apply(self.descriptor, attributes)
        os.fsync(self.descriptor)
        if overwrite:
            self._temporary.rename(self.target)
        else:
            _rename_new(self._temporary, self.target)
        self._open = False
        sync_directory(self.target.parent)

    def close(self) -> None:
        """Close; remove the temporary file unless it was committed."""
        os.close(self.descriptor)
        if self._open:
            self._open = False
            with contextlib.suppress(FileNotFoundError):
                self._temporary.unlink()


def is_temporary(name: str) -> bool:
    """Tell whether a file's name is one that AtomicFile gives until the commit; a killed process leaves it."""
    return _TEMPORARY.fullmatch(name) is not None


@contextlib.contextmanager
def atomic_file(target: Path, kind: type[AtomicFile] = AtomicFile) -> Iterator[AtomicFile]:
    """Open a temporary file beside `target`; it is removed on leaving unless committed."""
    file = kind(target)
    try:
        yield file
    finally:
        file.close()


def sync_directory(directory: Path) -> None:
    """Make a rename or removal in `directory` durable; some file systems cannot, which is no error."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_stream(path: Path) -> bool:
    """Tell whether `path` is something to write into in place: a pipe, a terminal, /dev/null."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def _apply(descriptor: int, attributes: Attributes) -> None:
    if os.geteuid() == 0:
        # Changing the owner may be refused (user namespaces, network file systems); the content is what counts.
        with contextlib.suppress(OSError):
            os.fchown(descriptor, attributes.uid, attributes.gid)
    os.fchmod(descriptor, attributes.mode)
    os.utime(descriptor, ns=(attributes.atime_ns, attributes.mtime_ns))


def _rename_new(source: Path, target: Path) -> None:
    """Rename, but never over a file that appeared meanwhile: a hard link refuses what a rename replaces."""
    try:
        target.hardlink_to(source)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV):
            raise
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        source.rename(target)
    else:
        # The output has its name; a directory that only lets files be added keeps the other name, too.
        with contextlib.suppress(OSError):
            source.unlink()


def _umask() -> int:
    """Read the mask; setting it to learn it would give files that other threads create meanwhile a wrong mode."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
