"""Measure codecs on a file's own tensors, in memory, group by group; every round trip is compared."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import nvckpt
from nvckpt import files
from nvckpt.codecs import blocks, device, registry
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.content import Content
from nvckpt.errors import InvalidRequestError, VerificationError
from nvckpt.formats.groups import GROUPS
from nvckpt.formats.segments import Segment
from nvckpt.formats.sniff import read_source
from nvckpt.pipeline import ordered_map, thread_count
from nvckpt.plan import BlockPlan, windows
from nvckpt.results import STRUCTURE

ALL_GROUPS = "all"

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure; `groups` empty means all, `sample` bounds the bytes of each group, 0 takes everything."""

    codecs: tuple[str, ...] = (registry.AUTO, "zstd", "lz4", "snappy", "deflate", "gzip")
    groups: tuple[str, ...] = ()
    level: registry.Level = "default"
    device: str = "auto"
    threads: int = 0
    runs: int = 3
    sample: int = 64 << 20

    def __post_init__(self) -> None:
        """Raise for names that nobody knows; a codec that cannot run here gets a row instead."""
        device.resolve(self.device)
        for name in self.codecs:
            if name not in registry.names():
                registry.by_name(name)
            registry.check_level(name, self.level)
        known = (*GROUPS, STRUCTURE)
        for group in self.groups:
            if group not in known:
                raise InvalidRequestError(f"unknown group '{group}': choose from {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One codec on one group, or on all; bytes, and the median seconds of a run. `problem` replaces the figures."""

    codec: str
    group: str
    bytes_in: int = 0
    bytes_out: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    problem: str | None = None


Blocks = dict[str, list[tuple[Content, Buffer]]]
"""By group: what each block holds, and its bytes."""


def bench(paths: Sequence[str | os.PathLike[str]] = (), options: BenchOptions | None = None) -> list[BenchRow]:
    """Measure on the given files, or on the sample data of a source checkout.

    Rows come by codec, each with its groups and then `all`. Raises VerificationError when a round trip is
    not exact, InvalidRequestError when there is nothing to measure.
    """
    options = options or BenchOptions()
    content = _load([os.fspath(p) for p in paths] or _sample_files(), options)
    if not content:
        raise InvalidRequestError("there is nothing to measure: no bytes in the groups asked for")
    rows: list[BenchRow] = []
    for codec in options.codecs:
        problem = None if codec == registry.AUTO else registry.unavailable(codec)
        if problem:
            rows.append(BenchRow(codec, ALL_GROUPS, problem=problem))
            continue
        measured = [_measure(codec, group, parts, options) for group, parts in content.items()]
        rows += [*measured, _total(codec, measured)]
    return rows


def _sample_files() -> list[str]:
    """The checkpoints of the source checkout this package runs from."""
    folder = Path(nvckpt.__file__).resolve().parent.parent / "sample_data" / "checkpoints"
    found = sorted(str(path) for path in folder.glob("*") if path.is_file()) if folder.is_dir() else []
    if not found:
        raise InvalidRequestError("name a file: the sample data is only there in a source checkout")
    return found


def _load(names: Sequence[str], options: BenchOptions) -> Blocks:
    content: Blocks = {}
    taken: dict[str, int] = {}
    for name in names:
        with files.open_input(name, follow=True) as opened:
            for plan in _spread(read_source(opened.data, opened.path).segments):
                group, size = plan.group or STRUCTURE, plan.size
                if options.groups and group not in options.groups:
                    continue
                if options.sample and taken.get(group, 0) + size > options.sample and taken.get(group, 0):
                    continue
                taken[group] = taken.get(group, 0) + size
                data = b"".join(opened.data.read_at(offset, length) for offset, length in plan.extents)
                content.setdefault(group, []).append((plan.content, data))
    return content


def _spread(segments: Sequence[Segment]) -> Iterator[BlockPlan]:
    """Yield the blocks that compressing would make, every eighth first, so that a bounded sample spans the file."""
    plans = [plan for window in windows(segments) for plan in window.blocks]
    for first in range(8):
        yield from plans[first::8]


def _measure(codec: str, group: str, parts: Sequence[tuple[Content, Buffer]], options: BenchOptions) -> BenchRow:
    choice = blocks.Choice(codec, options.level)
    threads = thread_count(options.threads)
    encoded, encode_seconds = _timed(options.runs, threads, parts, lambda part: blocks.encode(part[1], part[0], choice))
    decoded, decode_seconds = _timed(
        options.runs,
        threads,
        list(zip(encoded, parts, strict=True)),
        lambda pair: blocks.decode(pair[0], len(pair[1][1])),
    )
    for result, (_, data) in zip(decoded, parts, strict=True):
        if result != data:
            raise VerificationError(f"codec '{codec}' did not give the bytes of group '{group}' back")
    before = sum(len(data) for _, data in parts)
    return BenchRow(codec, group, before, sum(b.encoded_size for b in encoded), encode_seconds, decode_seconds)


def _timed(
    runs: int, threads: int, items: Sequence[Item], work: Callable[[Item], Result]
) -> tuple[list[Result], float]:
    """Run `work` on all items in threads, `runs` times; the last results and the median seconds."""
    seconds = []
    results: list[Result] = []
    for _ in range(runs):
        started = time.perf_counter()
        results = [done[0] for _, done in ordered_map(items, lambda item: [item], work, threads)]
        seconds.append(time.perf_counter() - started)
    return results, statistics.median(seconds)


def _total(codec: str, rows: Sequence[BenchRow]) -> BenchRow:
    return BenchRow(
        codec,
        ALL_GROUPS,
        sum(row.bytes_in for row in rows),
        sum(row.bytes_out for row in rows),
        sum(row.encode_seconds for row in rows),
        sum(row.decode_seconds for row in rows),
    )
