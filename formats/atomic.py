"""Output that appears under its name whole or not at all.

A temporary file with a random name beside the target, private until it is complete; then mode and
times, fsync, and a rename. Whatever interrupts this removes the temporary file; after a SIGKILL the next
run for the same target does.
"""

import atexit
import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvckpt.formats.errors import NotDurableError
from nvckpt.formats.leftovers import hold, remove_leftovers, temporary_name
from nvckpt.formats.mapped import LEAST, MappedWriter, writer_for

_WRITE_STEP = 64 << 20
_MOST_PARTS = 256
_LARGE = 64 << 20


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

    def write_all(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """Append all parts, one after the other."""
        for part in parts:
            self.write(part)

    def use_threads(self, threads: int) -> None:
        """Let large data be written by so many threads where that is faster; for what comes faster than one writes."""

    def write_at(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Put all of `data` at a position; what is never written reads as zeros and takes no room."""
        view = memoryview(data).cast("B")
        while len(view):
            written = os.pwrite(self.descriptor, view[:_WRITE_STEP], offset)
            view, offset = view[written:], offset + written


class AtomicFile(OutputFile):
    """A temporary file that becomes `target` by `commit`, or goes away.

    The directory stays open, so that the file is found again should the directory be moved meanwhile.
    """

    def __init__(self, target: Path) -> None:
        self._directory = os.open(target.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._target = target.name
        self._temporary = ""
        self._committed = False
        self._mapped: MappedWriter | None = None
        super().__init__(-1)
        _open_files.add(self)
        try:
            remove_leftovers(self._directory, self._target)
            while not self._create():
                pass
        except BaseException:
            self.close()
            raise

    def _create(self) -> bool:
        """Make the temporary file; False when it was taken for one left behind, before it was locked."""
        # Named before it is made: a signal may come right between.
        self._temporary = temporary_name(self._target)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.descriptor = os.open(self._temporary, flags, 0o600, dir_fd=self._directory)
        if hold(self.descriptor):
            return True
        os.close(self.descriptor)
        self.descriptor = -1
        return False

    def use_threads(self, threads: int) -> None:
        """See OutputFile."""
        self._mapped = writer_for(self.descriptor, threads)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See OutputFile."""
        if not self._write_mapped([memoryview(data).cast("B")]):
            super().write(data)

    def write_all(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """See OutputFile; in as few calls as the system allows."""
        views = [view for part in parts if len(view := memoryview(part).cast("B"))]
        if self._write_mapped(views):
            return
        while views:
            written = os.writev(self.descriptor, views[:_MOST_PARTS])
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]

    def _write_mapped(self, views: Sequence[memoryview]) -> bool:
        return self._mapped is not None and sum(map(len, views)) >= LEAST and self._mapped.write(views)

    def settle(self) -> None:
        """Bring everything to the disk and forget it in memory, so that what is read next comes from the disk."""
        os.fsync(self.descriptor)
        with contextlib.suppress(OSError):
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def commit(self, attributes: Attributes | None, *, overwrite: bool) -> None:
        """Give the file its attributes and its name; FileExistsError if the name is taken and not `overwrite`.

        Without attributes (input from a pipe) the mode is what the umask allows. NotDurableError when the file has
        its name, but a power cut may still take that away.
        """
        if attributes is None:
            os.fchmod(self.descriptor, 0o666 & ~_umask())
        else:
            _apply(self.descriptor, attributes)
        os.fsync(self.descriptor)
        if overwrite:
            with _freed_later(self._directory, self._target):
                os.rename(self._temporary, self._target, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        else:
            _rename_new(self._directory, self._temporary, self._target)
        self._committed = True
        try:
            sync_directory(self._directory)
        except OSError as error:
            raise NotDurableError(error.errno, error.strerror) from error

    def close(self) -> None:
        """Close; remove the temporary file unless it was committed. May be called again."""
        try:
            self._discard()
        except BaseException:
            # A signal or an error may come in the middle; it does so once.
            self._discard()
            raise

    def _discard(self) -> None:
        if self._temporary and not self._committed:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary, dir_fd=self._directory)
        self._temporary = ""
        descriptor, self.descriptor = self.descriptor, -1
        directory, self._directory = self._directory, -1
        try:
            if descriptor >= 0:
                os.close(descriptor)
        finally:
            if directory >= 0:
                os.close(directory)
            _open_files.discard(self)


_open_files: set[AtomicFile] = set()
os.register_at_fork(after_in_child=_open_files.clear)  # a child that ends must not remove what its parent writes


@atexit.register
def _close_all() -> None:
    """Remove what a signal left behind that came while a context was entered or left."""
    for file in tuple(_open_files):
        with contextlib.suppress(OSError):
            file.close()


@contextlib.contextmanager
def atomic_file(target: Path, kind: type[AtomicFile] = AtomicFile) -> Iterator[AtomicFile]:
    """Open a temporary file beside `target`; it is removed on leaving unless committed."""
    file = kind(target)
    try:
        yield file
    finally:
        file.close()


def sync_directory(directory: int | Path) -> None:
    """Make a rename or removal in a directory durable.

    Some file systems cannot, and some directories cannot be opened for it, which is no error.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    name, at = (".", directory) if isinstance(directory, int) else (directory, None)
    try:
        descriptor = os.open(name, flags, dir_fd=at)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EROFS):
            raise
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


def _rename_new(directory: int, source: str, target: str) -> None:
    """Rename, but never over a file that appeared meanwhile: a hard link refuses what a rename replaces."""
    try:
        os.link(source, target, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV):
            raise
        if _is_there(directory, target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
        os.rename(source, target, src_dir_fd=directory, dst_dir_fd=directory)
    else:
        _drop_second_name(directory, source)


def _drop_second_name(directory: int, name: str) -> None:
    """The output has its name; a directory that only lets files be added keeps the other name, too."""
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)


@contextlib.contextmanager
def _freed_later(directory: int, name: str) -> Iterator[None]:
    """Keep a large file while its name goes to another, and give it up in a thread: freeing it takes its time.

    0.2 to 0.4 s for 2.6 GB on a tmpfs.
    """
    replaced = -1
    with contextlib.suppress(OSError):
        replaced = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield
    finally:
        if replaced >= 0 and os.fstat(replaced).st_size >= _LARGE:
            threading.Thread(target=os.close, args=(replaced,), name="nvckpt-free").start()
        elif replaced >= 0:
            os.close(replaced)


def _is_there(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _umask() -> int:
    """Read the mask; setting it to learn it would give files that other threads create meanwhile a wrong mode."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
