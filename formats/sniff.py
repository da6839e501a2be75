"""Which format a file has, told by its content alone, and what its segments are."""

from collections.abc import Mapping
from pathlib import Path

from nvckpt.formats import distcp, groups, opaque, safetensors_file, torch_legacy, torch_zip
from nvckpt.formats.allowance import Allowance
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.collector import collector_paused
from nvckpt.formats.errors import MalformedCheckpointError, MemoryLimitError
from nvckpt.formats.segments import Segment, Source, tile
from nvckpt.formats.zip_directory import LOCAL_MAGIC, find_directory

_HEAD = 512
_TORCH_PICKLE = b"/data.pkl"


def read_source(
    data: ByteSource, path: Path | None = None, memory: Allowance | None = None, names: Mapping[int, str] | None = None
) -> Source:
    """Understand a file as far as possible: segments that tile it, its format and the doubts.

    Content decides; `path` only helps with names, through its own and a `.metadata` file beside it, in whose place
    `names` gives those of the zips at some offsets.
    Never raises for what the bytes are: whatever is not understood, or would take more than `memory`, becomes opaque
    bytes, with a warning. An OSError from reading passes.
    """
    if data.size == 0:
        return opaque.opaque_source(opaque.EMPTY, 0)
    try:
        with collector_paused():
            return _read(data, data.read_at(0, min(_HEAD, data.size)), path, memory or Allowance(), names)
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
        return torch_zip.format_of(find_directory(data, Allowance()))
    except MalformedCheckpointError:
        return opaque.ZIP


_NOT_UNDERSTOOD = "the file could not be understood; kept as plain bytes"


def _read(
    data: ByteSource, head: bytes, path: Path | None, memory: Allowance, names: Mapping[int, str] | None
) -> Source:
    """Try the formats in order: a safetensors length can look like any magic, so it comes first."""
    if head.startswith(opaque.LFS_MAGIC):
        return opaque.foreign_source(head, data.size)
    if safetensors_file.looks_like(head):
        return safetensors_file.read(data, groups.role_of_file(path), memory)
    if head.startswith(LOCAL_MAGIC):
        return _read_zip(data, head, path, memory, names)
    if torch_legacy.MAGIC in head[: torch_legacy.MAGIC_WITHIN]:
        return _read_legacy(data, path, memory)
    return opaque.foreign_source(head, data.size)


def _read_zip(
    data: ByteSource, head: bytes, path: Path | None, memory: Allowance, given: Mapping[int, str] | None
) -> Source:
    try:
        directory = find_directory(data, memory)
    except MalformedCheckpointError as error:
        is_torch = _TORCH_PICKLE in head
        return opaque.opaque_source(opaque.TORCH_ZIP if is_torch else opaque.ZIP, data.size, str(error))
    doubts = torch_zip.Doubts(memory=memory)
    directories = distcp.chain(data, directory, doubts)
    formats = {torch_zip.format_of(directory) for directory in directories} - {opaque.ZIP}
    if not formats:
        return opaque.foreign_zip(data.size)
    role = groups.role_of_file(path)
    names = given or distcp.read_names(path, memory) if opaque.TORCH_ZIP in formats else {}
    is_distcp = len(directories) > 1 or bool(names)
    format_name = opaque.DISTCP if is_distcp else formats.pop()
    try:
        if is_distcp:
            tensors = distcp.find_tensors(data, directories, names, doubts, role)
        else:
            tensors = torch_zip.find_tensors(data, directory, doubts, role)
    except MemoryLimitError as error:
        return opaque.opaque_source(format_name, data.size, f"{error}; kept as plain bytes")
    return _tiled(format_name, data.size, tensors, doubts.warnings())


def _read_legacy(data: ByteSource, path: Path | None, memory: Allowance) -> Source:
    try:
        tensors = torch_legacy.find_tensors(data, groups.role_of_file(path), memory)
    except MalformedCheckpointError as error:
        return opaque.opaque_source(opaque.TORCH_LEGACY, data.size, f"{error}; kept as plain bytes")
    return _tiled(opaque.TORCH_LEGACY, data.size, tensors, [])


def _tiled(format_name: str, size: int, tensors: list[Segment], warnings: list[str]) -> Source:
    segments, dropped = tile(size, tensors)
    return Source(format_name, size, segments, (*warnings, *dropped))
