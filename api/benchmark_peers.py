"""Other compressors on the same bytes, where they are installed: the zstd program, lmz and zipnn."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from nvckpt.benchmark_rows import Row, total
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.content import Content
from nvckpt.conditions import output_of
from nvckpt.errors import VerificationError
from nvckpt.pipeline import ordered_map
from nvckpt.samples import Part

LMZ_CHUNK = 8 << 20
"""The bytes that lmz codes at a time in its archives."""
_ZIPNN_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class Peer:
    """A package's coder; `takes` tells which content, one with `own_threads` needs none of ours, `spoils` its input."""

    name: str
    takes: Callable[[Content], bool]
    encode: Callable[[Buffer, Content], Any]
    decode: Callable[[Any, Content, int], Any]
    size: Callable[[Any], int]
    own_threads: bool = False
    spoils: bool = False


def measure(groups: dict[str, list[Part]], runs: int, threads: int) -> Iterator[Row]:
    """Yield the rows of each peer; one that is not installed has a row that says so."""
    yield from _zstd_rows(groups, runs)
    for name, package, make in (("lmz", "lmzip", lmz), ("zipnn", "zipnn", zipnn)):
        try:
            peer = make(threads)
        except (ImportError, AttributeError) as error:
            yield Row(
                f"peer {name}",
                "all",
                problem=f"the package {package} is not usable here ({error}): pip install {package}",
            )
            continue
        yield from _package_rows(peer, groups, runs, threads)


def lmz(_: int = 0) -> Peer:
    """Return its chunk coder, as its archives use it, without checksums; ImportError where it is missing."""
    codec, planner = import_module("lmz.codec"), import_module("lmz.planner")

    def encode(data: Buffer, content: Content) -> Any:
        kind = planner.KIND_BF16 if content.kind == "bf16" else planner.KIND_BYTES
        payload, number, flags, _ = codec.encode_chunk(bytes(data), content.word, 1, checksum=False, kind=kind)
        return payload if isinstance(payload, bytes) else b"".join(payload), number, flags

    def decode(coded: Any, content: Content, size: int) -> Any:
        return codec.decode_chunk(coded[0], coded[1], content.word, coded[2], size, verify=False)

    return Peer("peer lmz", lambda content: True, encode, decode, lambda coded: len(coded[0]))


def zipnn(threads: int) -> Peer:
    """Return its coder, which brings its own threads and reorders bits in the very bytes that it is given."""
    module = import_module("zipnn")
    coders = {
        kind: module.ZipNN(input_format="byte", bytearray_dtype=name, threads=threads)
        for kind, name in _ZIPNN_TYPES.items()
    }
    return Peer(
        f"peer zipnn, {threads} threads",
        lambda content: content.kind in coders,
        lambda data, content: coders[content.kind].compress(data),
        lambda coded, content, _: coders[content.kind].decompress(coded),
        len,
        own_threads=True,
        spoils=True,
    )


def _package_rows(peer: Peer, groups: dict[str, list[Part]], runs: int, threads: int) -> Iterator[Row]:
    rows = []
    for group, parts in groups.items():
        if not all(peer.takes(part.content) for part in parts):
            yield Row(peer.name, group, problem="does not take what this group holds")
            continue
        rows.append(
            _package_row(peer, group, _pieces(parts, LMZ_CHUNK if peer.name == "peer lmz" else 0), runs, threads)
        )
        yield rows[-1]
    if rows:
        yield total(peer.name, "cpu", rows)


def _package_row(peer: Peer, group: str, parts: Sequence[tuple[Content, bytes]], runs: int, threads: int) -> Row:
    workers = 1 if peer.own_threads else threads
    times: list[list[float]] = [[], []]
    for _ in range(runs):
        # Copied through a view: Python would hand out the same object again, which the peer writes into.
        inputs = [(c, bytes(memoryview(data)) if peer.spoils else data) for c, data in parts]
        started = time.perf_counter()
        coded = _mapped(lambda part: peer.encode(part[1], part[0]), inputs, workers)
        middle = time.perf_counter()
        back = _mapped(
            lambda pair: peer.decode(pair[0], pair[1][0], len(pair[1][1])),
            list(zip(coded, parts, strict=True)),
            workers,
        )
        times[0].append(middle - started)
        times[1].append(time.perf_counter() - middle)
        if any(bytes(result) != data for result, (_, data) in zip(back, parts, strict=True)):
            raise VerificationError(f"{peer.name} did not give the bytes of group '{group}' back")
    return Row(
        peer.name,
        group,
        "cpu",
        sum(len(data) for _, data in parts),
        sum(map(peer.size, coded)),
        sum(len(data) // content.word for content, data in parts),
        tuple(times[0]),
        tuple(times[1]),
    )


def _pieces(parts: Sequence[Part], size: int) -> list[tuple[Content, bytes]]:
    """Cut the parts to `size` bytes, 0 for whole ones, and leave out bytes behind the last whole word."""
    pieces = []
    for part in parts:
        data = bytes(part.data[: len(part.data) // part.content.word * part.content.word])
        step = size or len(data) or 1
        pieces += [(part.content, data[start : start + step]) for start in range(0, len(data), step)]
    return pieces


def _mapped(work: Callable[[Any], Any], items: Sequence[Any], threads: int) -> list[Any]:
    return [done[0] for _, done in ordered_map(items, lambda item: [item], work, threads)]


def _zstd_rows(groups: dict[str, list[Part]], runs: int) -> Iterator[Row]:
    """Yield the rows of the zstd program, from file to file: each group is one file, as a user would have it."""
    name = "peer zstd -T0 -3"
    if shutil.which("zstd") is None:
        yield Row(name, "all", problem="the program zstd is not installed")
        return
    rows = []
    for group, parts in groups.items():
        with tempfile.TemporaryDirectory(prefix="nvckpt-bench-") as folder:
            source, coded, back = (Path(folder) / file for file in ("in", "in.zst", "out"))
            source.write_bytes(b"".join(part.data for part in parts))
            encode = [_timed("zstd", "-T0", "-3", "-qf", str(source), "-o", str(coded)) for _ in range(runs)]
            decode = [_timed("zstd", "-dqf", str(coded), "-o", str(back)) for _ in range(runs)]
            if back.read_bytes() != source.read_bytes():
                raise VerificationError(f"{name} did not give the bytes of group '{group}' back")
            values = sum(len(part.data) // part.content.word for part in parts)
            sizes = source.stat().st_size, coded.stat().st_size
            rows.append(Row(name, group, "cpu", *sizes, values, tuple(encode), tuple(decode)))
        yield rows[-1]
    yield total(name, "cpu", rows)


def _timed(*command: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def conditions() -> dict[str, str | None]:
    """Return how the peers ran."""
    return {
        "zstd": output_of("zstd", "--version"),
        "zstd runs": "from file to file, a group as one file in which it also finds repeated tensors",
    }
