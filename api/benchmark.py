"""Measure codecs on a file's own tensors, in memory, group by group; every round trip is compared."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nvckpt import benchmark_files, benchmark_peers, conditions
from nvckpt.benchmark_codecs import CodecSpec, parse_all, parse_usual
from nvckpt.benchmark_rows import ALL_GROUPS, WHOLE_FILE, BenchResult, Row, total
from nvckpt.codecs import blocks, device, registry
from nvckpt.codecs.errors import CodecUnavailableError, InvalidLevelError
from nvckpt.errors import InvalidRequestError, VerificationError
from nvckpt.formats.groups import GROUPS
from nvckpt.pipeline import ordered_map, thread_count
from nvckpt.results import STRUCTURE
from nvckpt.samples import Part, Sample, take

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_CODECS = ("auto", "float", "float:level=fast", "zstd", "lz4", "snappy", "deflate", "gzip")
GPU_CODECS = ("auto", "float", "float:level=fast", "ans", "bitcomp", "zstd", "lz4", "snappy", "gdeflate")
SAMPLE = 64 << 20
GPU_SAMPLE = 1 << 30
"""Bytes of a group; a GPU needs many to show its speed."""
_WHOLE_FILES = 256 << 20
"""Up to here, files are also compressed as a whole unless something else is asked for."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure; checked when it is made.

    `codecs` are names, with settings as in `zstd:level=3` or `ans:chunk=1MiB`, or `all`; empty means those that are
    worth a look on the device. `groups` empty means all.
    `sample` bounds the bytes of each group (None: 64 MiB, on a GPU 1 GiB; 0 takes everything), `tile` repeats what
    there is until a group has so many bytes, for speeds that small files do not show. `whole_file` also compresses
    the files with everything around the codec; None does it for small ones. `peers` measures other compressors.
    """

    codecs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    level: registry.Level = "default"
    device: str = "auto"
    threads: int = 0
    runs: int = 3
    sample: int | None = None
    tile: int = 0
    whole_file: bool | None = None
    peers: bool = False

    def __post_init__(self) -> None:
        """Raise for names and numbers that cannot be; a codec that cannot run here gets a row instead."""
        self.specs(device.resolve(self.device, gpu_only=True))
        known = (*GROUPS, STRUCTURE)
        for group in self.groups:
            if group not in known:
                raise InvalidRequestError(f"unknown group '{group}': choose from {', '.join(known)}")
        if self.runs < 1 or (self.sample or 0) < 0 or self.tile < 0 or self.threads < 0:
            raise InvalidRequestError("runs are at least 1, and sample, tile and threads are not negative")

    def specs(self, where: str) -> tuple[CodecSpec, ...]:
        """Return the codecs to measure on a device."""
        usual = GPU_CODECS if where.startswith("cuda") else DEFAULT_CODECS
        return parse_all(self.codecs, self.level) if self.codecs else parse_usual(usual, self.level)


def bench(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (), options: BenchOptions | None = None
) -> "pd.DataFrame":
    """Measure, and return a pandas frame with a row a codec and group; the conditions are in its `attrs`.

    Raises what `measure` raises, and InvalidRequestError where pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise InvalidRequestError(
            "the results are a pandas frame: install nvckpt's extra: pip install '.[pandas]' in its checkout"
        ) from None
    result = measure([paths] if isinstance(paths, str | os.PathLike) else paths, options)
    frame = pd.DataFrame(result.records())
    frame.attrs["conditions"] = dict(result.conditions)
    return frame


def measure(paths: Sequence[str | os.PathLike[str]] = (), options: BenchOptions | None = None) -> BenchResult:
    """Measure on the given files together, or on the sample data of a source checkout.

    Rows come by codec: its groups, then `all`, then the whole `file`. Raises VerificationError when a round trip is
    not exact, InvalidRequestError when there is nothing to measure.
    """
    options = options or BenchOptions()
    names = [os.fspath(p) for p in paths] or _sample_files()
    where = device.resolve(options.device, gpu_only=True)
    on_gpu = where.startswith("cuda")
    budget = (GPU_SAMPLE if on_gpu else SAMPLE) if options.sample is None else options.sample
    sample = take(names, budget, options.groups)
    _check(sample, names, options)
    groups = {group: _tiled(parts, options.tile) for group, parts in sample.parts.items()}
    found = {**conditions.describe(), **_request(options, names, sample, budget, where)}
    coder = _coder(where, options)
    found.update(coder.conditions())
    whole = _whole_file(options, names)
    rows: list[Row] = []
    for spec in options.specs(where):
        problem = None if spec.name == registry.AUTO else registry.unavailable(spec.name)
        if problem:
            rows.append(Row(spec.text, ALL_GROUPS, where, problem=problem))
            continue
        measured = [row for group, parts in groups.items() for row in _rows(coder, spec, group, parts, where)]
        for codec in dict.fromkeys(row.codec for row in measured):
            mine = [row for row in measured if row.codec == codec]
            done = [row for row in mine if row.problem is None]
            rows += [*mine, total(codec, where, done)] if done else mine
        if whole is not None and any(row.problem is None for row in measured):
            rows.append(
                Row(spec.text, WHOLE_FILE, where, problem=whole)
                if whole
                else benchmark_files.measure(spec, names, options.device, options.threads)
            )
    if options.peers:
        rows += benchmark_peers.measure(groups, options.runs, thread_count(options.threads))
        found["peers"] = benchmark_peers.conditions()
    return BenchResult(tuple(rows), found)


def _rows(coder: "Coder", spec: CodecSpec, group: str, parts: Sequence[Part], where: str) -> Sequence[Row]:
    """Measure; a codec that cannot code this group on this device has a row that says why."""
    try:
        return coder.measure(spec, group, parts)
    except (CodecUnavailableError, InvalidLevelError) as error:
        return [Row(spec.text, group, where, problem=str(error))]


def _sample_files() -> list[str]:
    """Return the checkpoints of the source checkout that this package runs from."""
    root = conditions.checkout()
    folder = root / "sample_data" / "checkpoints" if root else None
    found = sorted(str(path) for path in folder.glob("*") if path.is_file()) if folder else []
    if not found:
        raise InvalidRequestError("name a file: the sample data is only there in a source checkout")
    return found


def _check(sample: Sample, names: Sequence[str], options: BenchOptions) -> None:
    if not sample.tensors and STRUCTURE not in options.groups:
        raise InvalidRequestError(
            f"{sample.without_tensors(_listed(names))} name a checkpoint, or measure its bytes with group {STRUCTURE}"
        )
    if not any(sample.parts.values()):
        asked = f" in the groups asked for ({', '.join(options.groups)})" if options.groups else ""
        raise InvalidRequestError(f"there is nothing to measure: no bytes{asked} in {_listed(names)}")


def _listed(names: Sequence[str]) -> str:
    from nvckpt.files import show

    return show(names[0]) if len(names) == 1 else f"{len(names)} files"


def _tiled(parts: list[Part], size: int) -> list[Part]:
    """Repeat the parts until there are `size` bytes; each is coded alone, so no ratio changes."""
    there = sum(len(part.data) for part in parts)
    return parts * max(1, -(-size // there))


def _request(options: BenchOptions, names: Sequence[str], sample: Sample, budget: int, where: str) -> dict[str, Any]:
    return {
        "device": where,
        "files": [Path(name).name for name in names],
        "sample_bytes": budget,
        "sampled": not sample.whole,
        "tile_bytes": options.tile,
        "runs": options.runs,
        "threads": thread_count(options.threads),
    }


def _whole_file(options: BenchOptions, names: Sequence[str]) -> str | None:
    """Return None when whole files are not measured, the empty string when they are, else why they cannot be."""
    if options.whole_file is False or (options.groups and options.whole_file is None):
        return None
    if not all(Path(name).is_file() for name in names):
        return "is measured of regular files only" if options.whole_file else None
    if options.whole_file is None and sum(Path(name).stat().st_size for name in names) > _WHOLE_FILES:
        return None
    return benchmark_files.too_large(names) or ""


class Coder(Protocol):
    """Measures one codec on one group's parts, on one device."""

    def measure(self, spec: CodecSpec, group: str, parts: Sequence[Part]) -> Sequence[Row]:
        """Return the codec's row, and more for parts of it; VerificationError unless every byte comes back."""

    def conditions(self) -> dict[str, Any]:
        """Return what the figures depend on besides the host."""


def _coder(where: str, options: BenchOptions) -> Coder:
    if where.startswith("cuda"):
        from nvckpt import benchmark_cuda

        return benchmark_cuda.connect(where, options.runs)
    return CpuCoder(thread_count(options.threads), options.runs)


@dataclass(frozen=True, slots=True)
class CpuCoder:
    """Codes a group's parts in threads, as `compress` does."""

    threads: int
    runs: int

    def conditions(self) -> dict[str, Any]:
        """Return what the figures depend on besides the machine: nothing."""
        return {}

    def measure(self, spec: CodecSpec, group: str, parts: Sequence[Part]) -> Sequence[Row]:
        """Encode and decode all parts, `runs` times; VerificationError unless every byte comes back."""
        choice = spec.choice()
        encoded, encode_runs = self._timed(parts, lambda part: blocks.encode(part.data, part.content, choice))
        pairs = list(zip(encoded, parts, strict=True))
        decoded, decode_runs = self._timed(pairs, lambda pair: blocks.decode(pair[0], len(pair[1].data)))
        if any(result != part.data for result, part in zip(decoded, parts, strict=True)):
            raise VerificationError(f"codec '{spec.text}' did not give the bytes of group '{group}' back")
        row = Row(
            spec.text,
            group,
            "cpu",
            sum(len(part.data) for part in parts),
            sum(block.encoded_size for block in encoded),
            sum(len(part.data) // part.content.word for part in parts),
            encode_runs,
            decode_runs,
        )
        return [row]

    def _timed(self, items: Sequence[Item], work: Callable[[Item], Result]) -> tuple[list[Result], tuple[float, ...]]:
        """Run `work` on all items in threads, `runs` times; the last results and the seconds of each run."""
        seconds = []
        results: list[Result] = []
        for _ in range(self.runs):
            started = time.perf_counter()
            results = [done[0] for _, done in ordered_map(items, lambda item: [item], work, self.threads)]
            seconds.append(time.perf_counter() - started)
        return results, tuple(seconds)
