"""Inputs and outputs: what may be read, where results go, and the checks that keep a source safe."""

import contextlib
import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from nvckpt.errors import (
    DurabilityError,
    InvalidRequestError,
    NotARegularFileError,
    OutputExistsError,
    RemovalError,
    SourceChangedError,
    WriteError,
)
from nvckpt.formats.atomic import AtomicFile, Attributes, OutputFile, atomic_file, is_stream, sync_directory
from nvckpt.formats.byte_source import FileBytes
from nvckpt.formats.errors import NotDurableError, SourceReadError
from nvckpt.formats.sparse import SparseFile

SUFFIX = ".nvckpt"
PIPE = "-"
_COPY_STEP = 1 << 20


@dataclass(frozen=True, slots=True)
class Input:
    """An open source; `path` and `attributes` are None for a pipe, of which `status` is the pipe's own."""

    name: str
    data: FileBytes
    path: Path | None
    attributes: Attributes | None
    status: os.stat_result

    def check_unchanged(self, consequence: str = "nothing was written") -> None:
        """SourceChangedError, saying the consequence, when the file was written to or replaced since it was opened."""
        if self.path is None:
            return
        try:
            states = (os.fstat(self.data.descriptor), self.path.stat())
        except FileNotFoundError as error:
            raise SourceChangedError(f"the file was removed while it was read; {consequence}") from error
        if any(_identity(state) != _identity(self.status) for state in states):
            raise SourceChangedError(f"the file changed while it was read; {consequence}")


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@contextlib.contextmanager
def open_input(name: str, *, follow: bool) -> Iterator[Input]:
    """Open a file, or spool standard input for `-`: archives and zips are read from their end.

    NotARegularFileError for directories and devices, and for symbolic links unless `follow`.
    """
    if name == PIPE:
        if sys.stdin is None:
            raise InvalidRequestError("standard input is closed")
        with spooled(sys.stdin.buffer) as file:
            yield Input(PIPE, FileBytes(file.fileno()), None, None, _status_of_pipe(sys.stdin))
        return
    if not name:  # which Path takes for the working directory
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    path = Path(name)
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        status = path.stat()
        # /dev/stdin and a shell's <(command) are links to pipes, and nobody mistakes those for the file.
        if not follow and stat.S_ISREG(status.st_mode):
            raise NotARegularFileError("is a symbolic link; use -f to follow it")
    if stat.S_ISDIR(status.st_mode):
        raise NotARegularFileError(
            "is a directory; name the files in it, or use -r (compress, decompress, list, verify)"
        )
    if stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode):
        with path.open("rb") as pipe, spooled(pipe) as file:
            yield Input(name, FileBytes(file.fileno()), None, None, os.fstat(pipe.fileno()))
        return
    if not stat.S_ISREG(status.st_mode):
        raise NotARegularFileError("is not a regular file")
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        yield Input(name, FileBytes(file.fileno()), path, Attributes.of(status), status)


def _status_of_pipe(stream: TextIO) -> os.stat_result:
    """Tell what standard input is: it may be the very file that is the output, redirected."""
    try:
        return os.fstat(stream.fileno())
    except (OSError, ValueError):  # replaced by something in memory
        return os.stat_result([0] * 10)


@contextlib.contextmanager
def spooled(stream: BinaryIO) -> Iterator[BinaryIO]:
    """Copy a pipe into a nameless temporary file, which can be read at any position."""
    with tempfile.TemporaryFile() as file:
        while block := stream.read(_COPY_STEP):
            file.write(block)
        file.flush()
        yield file


@contextlib.contextmanager
def transfer(
    name: str | os.PathLike[str], output: str | os.PathLike[str], *, force: bool, remove: bool
) -> Iterator[tuple[Input, Path | None]]:
    """Open an input whose result goes to `output`, and check that it may.

    Yields the input and where to write, None for standard output. With `remove` the input is deleted on
    leaving without an exception, unless it changed meanwhile.
    """
    with open_input(os.fspath(name), follow=force) as opened:
        if os.fspath(output).endswith(os.sep):
            raise NotARegularFileError(f"output {show(output)} is a directory; name a file in it")
        target = None if os.fspath(output) == PIPE else Path(output)
        if remove:
            check_removal(target)
        if target is None:
            check_standard_output(opened)
        else:
            check_output(opened, target, force=force)
            target = final_path(target)
        yield opened, target
        if remove and opened.path is not None:
            opened.check_unchanged("it was not removed, and its output is out of date")
            try:
                opened.path.unlink()
            except OSError as error:
                raise RemovalError(show(output), error) from error
            with contextlib.suppress(OSError):  # should the removal not last, nothing is lost
                sync_directory(opened.path.parent)


def check_output(source: Input, output: Path, *, force: bool) -> None:
    """Refuse an output that is the source itself, a directory, or there already (without `force`)."""
    try:
        there = output.stat()
    except FileNotFoundError:
        if output.is_symlink():
            raise OutputExistsError(f"output {show(output)} is a dangling symbolic link") from None
        return
    if stat.S_ISREG(there.st_mode) and os.path.samestat(there, source.status):
        raise InvalidRequestError("the output is the input itself")
    if stat.S_ISDIR(there.st_mode):
        raise NotARegularFileError(f"output {show(output)} is a directory")
    if not force and not is_stream(output):
        raise OutputExistsError(f"output {show(output)} exists already; -f (force) replaces it")


def check_standard_output(source: Input) -> None:
    """Refuse to append to the file that is read, which the shell's `>>` would do."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or replaced by something in memory
        there = os.fstat(sys.stdout.fileno())
        if stat.S_ISREG(there.st_mode) and os.path.samestat(there, source.status):
            raise InvalidRequestError("the output is the input itself")


def check_removal(output: Path | None) -> None:
    """Refuse to remove an input whose output does not stay: a pipe, or a device such as /dev/null."""
    if output is None or is_stream(output):
        raise InvalidRequestError("an input is only removed when its output is a file; drop --rm")


def final_path(output: Path) -> Path:
    """Return where the bytes go: an output that is a link is written behind the link, as shells do."""
    return output.resolve() if output.is_symlink() else output


@contextlib.contextmanager
def open_output(target: Path | None, *, sparse: bool = False) -> Iterator[OutputFile]:
    """Open where results go: a temporary file to be committed, or a pipe or device as it is.

    Standard output when `target` is None. With `sparse`, zeros become holes in a file. Whatever the system says
    while writing becomes a WriteError.
    """
    try:
        if target is None:
            if sys.stdout is None:
                raise InvalidRequestError("standard output is closed")
            sys.stdout.flush()
            yield OutputFile(sys.stdout.fileno())
        elif is_stream(target):
            with target.open("wb", buffering=0) as device:
                yield OutputFile(device.fileno())
        else:
            with atomic_file(target, SparseFile if sparse else AtomicFile) as file:
                yield file
    except SourceReadError:
        raise
    except NotDurableError as error:
        raise DurabilityError(show(target or PIPE), error) from error
    except OSError as error:
        raise WriteError("standard output" if target is None else show(target), error) from error


def check_space(descriptor: int, size: int) -> None:
    """Raise now what writing `size` bytes would raise in the end, when they cannot fit."""
    free = os.fstatvfs(descriptor)
    if size > free.f_bavail * free.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def show(path: str | os.PathLike[str]) -> str:
    """Return a path as text that can be printed: undecodable bytes and control characters escaped."""
    return "".join(c if c.isprintable() else _escaped(c) for c in os.fspath(path))


def _escaped(character: str) -> str:
    """Return an escape; Python keeps an undecodable byte of a path as a surrogate from U+DC80 on."""
    byte = ord(character) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else character.encode("unicode_escape").decode()
