"""Which format a file has, told by its content alone, and what its segments are."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nvckpt.formats import distcp, groups, opaque, safetensors_file, torch_legacy, torch_zip
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.errors import MalformedCheckpointError
from nvckpt.formats.segments import Segment, Source, tile
from nvckpt.formats.zip_directory import LOCAL_MAGIC, find_directory

_HEAD = 512
_TORCH_PICKLE = b"/data.pkl"


def read_source(data: ByteSource, path: Path | None = None, names: Mapping[int, str] | None = None) -> Source:
    """Understand a file as far as possible: segments that tile it, its format and the doubts.

    Content decides; `path` only helps with names, through its own and a `.metadata` file beside it, in whose place
    `names` gives those of the zips at some offsets.
    Never raises for what the bytes are: whatever is not understood becomes opaque bytes, with a
    warning. An OSError from reading passes.
    """
    if data.size == 0:
        return opaque.opaque_source(opaque.EMPTY, 0)
    try:
        with _collector_paused():
            return _read(data, data.read_at(0, min(_HEAD, data.size)), path, names)
    except MalformedCheckpointError as error:
        return opaque.opaque_source(opaque.UNKNOWN, data.size, f"{error}; kept as plain bytes")
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - a parser's mistake must not stop bytes from being stored
        return opaque.opaque_source(opaque.UNKNOWN, data.size, _NOT_UNDERSTOOD)


def probe(data: ByteSource) -> str:
    """Return the format told from the first bytes and, for a zip, its directory: much less work than `read_source`.

    A file that breaks its format has the one it begins like. An OSError from reading passes.
    """
    if data.size == 0:
        return opaque.EMPTY
    head = data.read_at(0, min(_HEAD, data.size))
    if safetensors_file.looks_like(head):
        return opaque.SAFETENSORS
    if head.startswith(LOCAL_MAGIC):
        return opaque.TORCH_ZIP if _TORCH_PICKLE in head else _probe_zip(data)
    if torch_legacy.MAGIC in head[: torch_legacy.MAGIC_WITHIN]:
        return opaque.TORCH_LEGACY
    return opaque.foreign_source(head, data.size).format


def _probe_zip(data: ByteSource) -> str:
    try:
        return torch_zip.format_of(find_directory(data))
    except MalformedCheckpointError:
        return opaque.ZIP


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Millions of small objects are built and kept; looking for cycles among them doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_NOT_UNDERSTOOD = "the file could not be understood; kept as plain bytes"


def _read(data: ByteSource, head: bytes, path: Path | None, names: Mapping[int, str] | None) -> Source:
    """Try the formats in order: a safetensors length can look like any magic, so it comes first."""
    if head.startswith(opaque.LFS_MAGIC):
        return opaque.foreign_source(head, data.size)
    if safetensors_file.looks_like(head):
        return safetensors_file.read(data, groups.role_of_file(path))
    if head.startswith(LOCAL_MAGIC):
        return _read_zip(data, head, path, names)
    if torch_legacy.MAGIC in head[: torch_legacy.MAGIC_WITHIN]:
        return _read_legacy(data, path)
    return opaque.foreign_source(head, data.size)


def _read_zip(data: ByteSource, head: bytes, path: Path | None, given: Mapping[int, str] | None) -> Source:
    try:
        directory = find_directory(data)
    except MalformedCheckpointError as error:
        is_torch = _TORCH_PICKLE in head
        return opaque.opaque_source(opaque.TORCH_ZIP if is_torch else opaque.ZIP, data.size, str(error))
    doubts = torch_zip.Doubts()
    directories = distcp.chain(data, directory, doubts)
    formats = {torch_zip.format_of(directory) for directory in directories} - {opaque.ZIP}
    if not formats:
        return opaque.foreign_zip(data.size)
    role = groups.role_of_file(path)
    names = given or distcp.read_names(path) if opaque.TORCH_ZIP in formats else {}
    if len(directories) > 1 or names:
        tensors = distcp.find_tensors(data, directories, names, doubts, role)
        return _tiled(opaque.DISTCP, data.size, tensors, doubts.warnings())
    tensors = torch_zip.find_tensors(data, directory, doubts, role)
    return _tiled(formats.pop(), data.size, tensors, doubts.warnings())


def _read_legacy(data: ByteSource, path: Path | None) -> Source:
    try:
        tensors = torch_legacy.find_tensors(data, groups.role_of_file(path))
    except MalformedCheckpointError as error:
        return opaque.opaque_source(opaque.TORCH_LEGACY, data.size, f"{error}; kept as plain bytes")
    return _tiled(opaque.TORCH_LEGACY, data.size, tensors, [])


def _tiled(format_name: str, size: int, tensors: list[Segment], warnings: list[str]) -> Source:
    segments, dropped = tile(size, tensors)
    return Source(format_name, size, segments, (*warnings, *dropped))
