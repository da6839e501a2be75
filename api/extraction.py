"""Single tensors out of a checkpoint, compressed or not, into a safetensors file or as bare bytes."""

import difflib
import fnmatch
import json
import os
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nvckpt import files
from nvckpt.decompression import Progress
from nvckpt.errors import InvalidRequestError, NoSuchTensorError, UnusableTensorError
from nvckpt.files import show
from nvckpt.formats.atomic import AtomicFile
from nvckpt.formats.groups import GROUPS
from nvckpt.formats.safetensors_file import DTYPES, MAX_HEADER
from nvckpt.pipeline import thread_count
from nvckpt.results import Extracted, ExtractResult
from nvckpt.tensors import Checkpoint, Tensor, open_checkpoint

_ALIGNMENT = 8
_METADATA = "__metadata__"
_SUGGESTED = 3
# Comparing a name with all others takes time; there are checkpoints with hundreds of thousands.
_COMPARED = 20_000


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    """What to extract: tensors by `names`, which may be patterns with * ? [], and of `groups` only, if any are given.

    `raw` writes the values of one tensor alone. `threads` 0 is one a core; `force` replaces an output.
    """

    names: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    raw: bool = False
    threads: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        """Raise the sentence for what cannot be."""
        if not self.names and not self.groups:
            raise InvalidRequestError("name the tensors to extract, or a group; `nvckpt list -v` shows both")
        for group in self.groups:
            if group not in GROUPS:
                raise InvalidRequestError(f"unknown group '{group}': choose from {', '.join(GROUPS)}")


def extract(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: ExtractOptions,
    progress: Progress | None = None,
) -> ExtractResult:
    """Write tensors of an archive or a checkpoint to `output`; of an archive only the frames they need are decoded.

    Values are written in row-major order, little-endian, whatever the checkpoint had, and tied tensors once for each
    name. `-` stands for standard input and output. Raises one of `nvckpt.errors.KNOWN_ERRORS`: NoSuchTensorError, with
    the closest names, when a name fits nothing, UnusableTensorError for what safetensors cannot hold.
    """
    started = time.perf_counter()
    name = os.fspath(source)
    with files.transfer(name, output, force=True, remove=False) as (opened, target):
        if target is not None:
            files.check_output(opened, target, force=options.force)
        with open_checkpoint(opened, thread_count(options.threads)) as checkpoint:
            chosen = choose(checkpoint, options)
            head = b"" if options.raw else _header(chosen)
            size = len(head) + sum(tensor.size for tensor in chosen)
            with files.open_output(target) as file:
                if isinstance(file, AtomicFile):
                    files.check_space(file.descriptor, size)
                file.write(head)
                done = len(head)
                for _, piece in checkpoint.values(chosen):
                    file.write(piece)
                    done += len(piece)
                    if progress:
                        progress(done, size)
                opened.check_unchanged()
                if isinstance(file, AtomicFile):
                    file.commit(opened.attributes, overwrite=options.force)
    return ExtractResult(
        name,
        os.fspath(output),
        checkpoint.format,
        opened.data.size,
        size,
        time.perf_counter() - started,
        tuple(Extracted(t.name, t.segment.group, t.view.dtype.name, t.shape, t.size) for t in chosen),
    )


def choose(checkpoint: Checkpoint, options: ExtractOptions) -> list[Tensor]:
    """Return the tensors asked for, in the order of the output: large elements first, so that all are aligned."""
    tensors = checkpoint.tensors()
    known = {tensor.name for tensor in tensors}
    if options.groups or not known.issuperset(options.names):
        tensors += checkpoint.empty_tensors()
    if not tensors:
        raise NoSuchTensorError(f"the file ({show(checkpoint.format)}) has no tensors that nvckpt knows by name")
    by_name: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        by_name.setdefault(tensor.name, []).append(tensor)
    names = dict.fromkeys(name for pattern in options.names or ("*",) for name in _matches(pattern, by_name))
    chosen = [
        tensor
        for name in names
        for tensor in by_name[name]
        if not options.groups or tensor.segment.group in options.groups
    ]
    if not chosen:
        found = ", ".join(dict.fromkeys(tensor.segment.group for tensor in tensors))
        raise NoSuchTensorError(f"no tensor asked for is in group {', '.join(options.groups)}; groups here: {found}")
    _check(chosen, raw=options.raw)
    return sorted(chosen, key=lambda tensor: (-tensor.view.dtype.bits, tensor.segment.offset, tensor.view.offset))


def _matches(pattern: str, by_name: dict[str, list[Tensor]]) -> Sequence[str]:
    """Return the names that a pattern fits; a name that is there is meant as it stands, whatever is in it."""
    if pattern in by_name:
        return (pattern,)
    if any(character in pattern for character in "*?["):
        if found := [name for name in by_name if fnmatch.fnmatchcase(name, pattern)]:
            return found
        raise NoSuchTensorError(f"no tensor's name fits '{show(pattern)}'; `nvckpt list -v` shows the names")
    close = _close(pattern, by_name)
    hint = f"did you mean {' or '.join(map(show, close))}?" if close else "`nvckpt list -v` shows the names"
    raise NoSuchTensorError(f"no tensor is called '{show(pattern)}'; {hint}")


def _close(wanted: str, names: Iterable[str]) -> list[str]:
    """Return the names that end in or hold what was wanted, shortest first, or else those spelt most like it."""
    lowered = wanted.lower()
    holding = sorted((name for name in names if len(lowered) > 2 and lowered in name.lower()), key=len)
    if holding:
        return holding[:_SUGGESTED]
    compared = list(names)[:_COMPARED]
    by_tail = {name.rpartition(".")[2]: name for name in reversed(compared)}
    tails = [by_tail[tail] for tail in difflib.get_close_matches(wanted, by_tail, _SUGGESTED)]
    return difflib.get_close_matches(wanted, compared, _SUGGESTED) or tails


def _check(chosen: Sequence[Tensor], *, raw: bool) -> None:
    names: set[str] = set()
    for tensor in chosen:
        if tensor.name in names:
            raise NoSuchTensorError(f"several tensors are called '{show(tensor.name)}'; they cannot be told apart")
        names.add(tensor.name)
        _ = tensor.span
        if not raw and tensor.view.dtype.name not in DTYPES:
            raise UnusableTensorError(
                f"tensor {show(tensor.name)} is {tensor.view.dtype.name}, which safetensors does not have; "
                "--raw writes the bytes of one tensor"
            )
    if raw and len(chosen) > 1:
        raise InvalidRequestError(f"--raw writes one tensor, and {len(chosen)} fit what was asked for")


def _header(chosen: Sequence[Tensor]) -> bytes:
    """Return the head of a safetensors file; the format entry is what Transformers asks for."""
    entries: dict[str, object] = {_METADATA: {"format": "pt"}}
    position = 0
    for tensor in chosen:
        end = position + tensor.size
        entries[tensor.name] = {
            "dtype": tensor.view.dtype.name,
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    try:
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UnusableTensorError("a tensor's name is not Unicode, which safetensors needs") from error
    if len(text) > MAX_HEADER - _ALIGNMENT or len(entries) <= len(chosen):
        raise UnusableTensorError("the tensors' names do not fit into a safetensors header")
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
