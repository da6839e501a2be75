"""Which files a command works on: names and directories as given become a list of files, before any work."""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path

from nvckpt.errors import KnownError, NotARegularFileError
from nvckpt.files import PIPE, SUFFIX
from nvckpt.formats.byte_source import FileBytes
from nvckpt.formats.leftovers import is_temporary
from nvckpt.formats.opaque import (
    COMPRESSED,
    DISTCP,
    GGUF,
    HDF5,
    NUMPY,
    PICKLE,
    SAFETENSORS,
    TAR,
    TORCH_LEGACY,
    TORCH_ZIP,
    TORCHSCRIPT,
)

# A folder of torch.distributed.checkpoint is complete when it has this file, and the names in its other files come
# from it: so it is the last to be restored, and the last to be removed.
_LAST = ".metadata"
_CHECKPOINTS = {SAFETENSORS, TORCH_ZIP, TORCH_LEGACY, DISTCP, TORCHSCRIPT, PICKLE, TAR, GGUF, HDF5, NUMPY}

Pick = Callable[[str], bool]
"""Tells whether a file found in a directory is one to work on."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is taken: `include` and `exclude` are globs, `follow` goes through links that were named."""

    recursive: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    follow: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A file to work on, or with `error` a directory that could not be read."""

    path: str
    error: KnownError | None = None

    @property
    def is_last(self) -> bool:
        """Tell whether all others come before it."""
        return Path(self.path).name.removesuffix(SUFFIX) == _LAST


@dataclass(slots=True)
class Finds:
    """The files to work on, those that were not picked (archives aside), and how many links were passed over."""

    files: list[Found] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    links: int = 0


def find(names: Sequence[str], selection: Selection, pick: Pick, avoid: str | None = None) -> Finds:
    """Return what `names` stand for; with `recursive`, directories stand for the files in them that `pick` takes.

    With `include`, its globs decide instead of `pick`. Files named themselves need no picking. Symbolic links in
    directories are passed over, so are leftovers of interrupted runs and the directory `avoid`, where outputs go.
    """
    finds = Finds()
    for name in names:
        if selection.recursive and name != PIPE and Path(name).is_dir():
            if _is_link(name) and not selection.follow:
                finds.files.append(Found(name, NotARegularFileError("is a symbolic link; use -f to follow it")))
            else:
                _Walk(name, selection, pick, avoid, finds).run()
        elif name == PIPE or _Globs(selection).take(name, name):
            finds.files.append(Found(name))
    return finds


def _is_link(name: str) -> bool:
    """Tell whether a name is a symbolic link; one with a slash at its end means what is behind it."""
    return not name.endswith("/") and Path(name).is_symlink()


def in_order(files: Sequence[Found]) -> list[Found]:
    """Drop what was named twice, by whatever path, and put `.metadata` files last."""
    once: dict[str, Found] = {}
    for file in files:
        directory, base = os.path.split(file.path)
        once.setdefault(f"{os.path.realpath(directory)}/{base}", file)
    return sorted(once.values(), key=lambda file: file.is_last)


def is_checkpoint(path: str) -> bool:
    """Tell by its content whether a file may hold tensors; a file that cannot be read might."""
    return _format(path) in {*_CHECKPOINTS, None}


def is_compressed(path: str) -> bool:
    """Tell whether a file is gzip, zstd or the like; an archive of nvckpt is not known here."""
    return _format(path) == COMPRESSED


def _format(path: str) -> str | None:
    from nvckpt.formats.sniff import probe  # all readers, which most commands do without

    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            return None
        with Path(path).open("rb") as file:
            return probe(FileBytes(file.fileno()))
    except OSError:
        return None


class _Globs:
    """The globs of a selection: with a slash they are tested on the path below what was named, else on the name."""

    def __init__(self, selection: Selection) -> None:
        self.include = [_Glob(pattern) for pattern in selection.include]
        self.exclude = [_Glob(pattern) for pattern in selection.exclude]

    def drops(self, name: str, below: str) -> bool:
        return any(glob.fits(name, below) for glob in self.exclude)

    def take(self, path: str, below: str) -> bool:
        name = Path(path).name
        included = not self.include or any(glob.fits(name, below) for glob in self.include)
        return included and not self.drops(name, below)


class _Glob:
    def __init__(self, pattern: str) -> None:
        pattern = pattern.rstrip("/")
        self._whole_path = "/" in pattern
        self._matches = re.compile(translate(pattern.removeprefix("./"))).match

    def fits(self, name: str, below: str) -> bool:
        return self._matches(os.path.normpath(below) if self._whole_path else name) is not None


class _Walk:
    """One directory that was named, and all below it."""

    def __init__(self, root: str, selection: Selection, pick: Pick, avoid: str | None, finds: Finds) -> None:
        self._root = root
        self._globs = _Globs(selection)
        self._pick = pick
        self._finds = finds
        self._avoid = _identity(avoid)

    def run(self) -> None:
        """Add to the finds; a list of directories instead of recursion, as trees may be deep."""
        directories = [self._root]
        while directories:
            directory = directories.pop()
            try:
                with os.scandir(directory) as listing:
                    entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
                directories.extend(reversed([entry.path for entry in self._directories(entries)]))
            except OSError as error:
                self._finds.files.append(Found(directory, error))

    def _directories(self, entries: "list[os.DirEntry[str]]") -> "Iterator[os.DirEntry[str]]":
        """Take the files of a directory and yield the directories to go on with."""
        for entry in entries:
            below = entry.path[len(self._root) :].lstrip("/")
            if self._globs.drops(entry.name, below):
                continue
            if entry.is_symlink():
                self._finds.links += 1
            elif entry.is_dir(follow_symlinks=False):
                if self._avoid is None or self._avoid != _identity(entry.path):
                    yield entry
            elif entry.is_file(follow_symlinks=False) and not is_temporary(entry.name):
                self._file(entry.path, below)

    def _file(self, path: str, below: str) -> None:
        if not self._globs.take(path, below):
            return
        if self._globs.include or self._pick(path):
            self._finds.files.append(Found(path))
        elif not path.endswith(SUFFIX):
            self._finds.left_alone.append(path)


def _identity(directory: str | None) -> tuple[int, int] | None:
    try:
        status = Path(directory).stat() if directory is not None else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status else None
