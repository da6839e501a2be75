"""What each output of a batch is called; whatever would be overwritten by it is found before any work."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nvckpt.errors import InvalidRequestError, KnownError, WriteError
from nvckpt.files import PIPE, show
from nvckpt.formats.byte_source import FileBytes
from nvckpt.formats.container import ArchiveReader
from nvckpt.formats.errors import FormatError
from nvckpt.trees import Found


@dataclass(frozen=True, slots=True)
class Job:
    """One file of a batch; `output` is None where nothing is written, `error` says why it cannot be done.

    One that `is_last` waits until all others are finished.
    """

    source: str
    output: str | None = None
    error: KnownError | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """Where outputs go: beside their inputs, or all into `flat`, or below `mirror` in directories as given."""

    flat: str | None = None
    mirror: str | None = None

    @property
    def directory(self) -> str | None:
        """The one that was named."""
        return self.flat if self.flat is not None else self.mirror

    def of(self, output: str) -> str:
        """Return where to put what would be called `output` beside its input.

        InvalidRequestError for a path with `..`, which would lead out of `mirror`.
        """
        if self.flat is not None:
            return _inside(self.flat, output.rpartition("/")[2])
        if self.mirror is None:
            return output
        parts = [part for part in output.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise InvalidRequestError(
                f"{show(output)}: a path with .. cannot be mirrored; name it from a directory above both, or in full"
            )
        return _inside(self.mirror, *parts)

    def make(self, job: Job) -> None:
        """Make the directories of a job's output, with the modes of those that they mirror; WriteError."""
        if self.directory is None or job.output is None:
            return
        target, top = Path(job.output).parent, Path(self.directory)
        try:
            _make(target, Path(job.source).parent, top)
        except OSError as error:
            raise WriteError(show(target), error) from error


def _inside(directory: str, *parts: str) -> str:
    """Join without Path, which would make standard output of a file called `-` in the directory `.`."""
    return "/".join((directory.rstrip("/"), *parts))


def plan(files: Iterable[Found], beside: Callable[[str], str], places: Places, *, force: bool) -> list[Job]:
    """Name the outputs: `beside` gives what an input's is called, `places` where it goes.

    InvalidRequestError, before anything is done, when two outputs would be one, or with `force` an output
    would replace an input of the batch, under whatever name.
    """
    jobs = [_job(file, beside, places) for file in files]
    _check_different(jobs)
    if force:
        _check_inputs_survive(jobs)
    return jobs


def _job(file: Found, beside: Callable[[str], str], places: Places) -> Job:
    if file.error is not None:
        return Job(file.path, error=file.error)
    if file.path == PIPE and places.directory is not None:
        raise InvalidRequestError("standard input has no name for an output directory; name the output with -o")
    try:
        output = beside(file.path)
    except InvalidRequestError as error:
        return Job(file.path, error=error)
    return Job(file.path, places.of(output), is_last=file.is_last)


def _check_different(jobs: Sequence[Job]) -> None:
    makers: dict[str, str] = {}
    for job in jobs:
        if job.output in (None, PIPE):
            continue
        maker = makers.setdefault(_real(job.output), job.source)
        if maker is not job.source:
            raise InvalidRequestError(
                f"{show(maker)} and {show(job.source)} would both become {show(job.output)}; "
                "--output-dir-mirror keeps their directories apart"
            )


def _check_inputs_survive(jobs: Sequence[Job]) -> None:
    makers = {_identity(job.output): job for job in jobs if job.output is not None}
    for job in jobs:
        maker = makers.get(_identity(job.source)) if job.source != PIPE else None
        if maker is not None and maker is not job:
            raise InvalidRequestError(f"the output of {show(maker.source)} would replace the input {show(job.source)}")


def _real(output: str) -> str:
    directory, name = os.path.split(output)
    return f"{_real_directory(directory)}/{name}"


@cache
def _real_directory(directory: str) -> str:
    return os.path.realpath(directory)


def _identity(path: str) -> tuple[int, int] | str:
    """Return what is the same for every name of a file, through links of both kinds."""
    try:
        status = Path(path).stat()
    except OSError:
        return path
    return status.st_dev, status.st_ino


def is_done(archive: str, original: str) -> bool:
    """Tell whether both are there and the archive is whole, as its index tells, and of a file of that size."""
    try:
        if not (Path(archive).is_file() and Path(original).is_file()):
            return False
        with Path(archive).open("rb") as file:
            index = ArchiveReader(FileBytes(file.fileno())).index
        return index.original_size == Path(original).stat().st_size
    except (OSError, FormatError):
        return False


def _make(target: Path, like: Path, top: Path) -> None:
    if target.is_dir():
        return
    if target == top:
        target.mkdir(parents=True, exist_ok=True)
        return
    _make(target.parent, like.parent, top)
    # Their owner must be able to write there; the umask applies, too.
    target.mkdir(like.stat().st_mode & 0o777 | 0o700, exist_ok=True)
