"""Compare the float codec on the CPU, in memory, with other compressors: ratio and GB/s by group of tensors.

    python sample_data/bench_cpu.py [FILE ...] [--size MIB] [--rounds N] [--threads N] [--drop] [--json OUT]

Blocks are those that `nvckpt compress` would make, joined to frames of 16 MiB at most, which are repeated. Rounds are
interleaved: in each one every method encodes and decodes everything once, so a disturbance meets all of them; medians
are shown. The first round trip is compared. zipnn, lmz (package lmzip), pcodec and zstandard take part where they can
be imported. The NumPy oracle and zstd -19 are slow and get a sample of one MiB and of four.
On a machine that others use, the rates by CPU second are those to compare.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

from nvckpt import benchmark_peers, files
from nvckpt.codecs import float_native, float_reference, memory
from nvckpt.codecs.content import Content
from nvckpt.codecs.float_spec import FloatSpec
from nvckpt.formats.sniff import read_source
from nvckpt.plan import windows

FRAME = 16 << 20
HERE = Path(__file__).parent
RATES = ("encode_gb_s", "decode_gb_s", "encode_gb_cpu_s", "decode_gb_cpu_s")


@dataclass(frozen=True)
class Frame:
    """Up to 16 MiB of one kind, as nvckpt codes them."""

    data: bytes
    spec: FloatSpec


@dataclass(frozen=True)
class Method:
    """`encode` gives what `decode` takes; `size` bounds the bytes of a frame, 0 takes all.

    Without `pool` it brings its own threads; `spoils` its input, and gets a copy made before the clock starts.
    """

    name: str
    encode: Callable[[Frame], Any]
    decode: Callable[[Any, Frame], Any]
    size: int = 0
    pool: bool = True
    spoils: bool = False


def main() -> None:
    options = arguments()
    groups = {key: tile(blocks, options.size << 20) for key, blocks in load(options.files).items()}
    methods = list(available_methods(options.threads))
    conditions = describe(options, methods)
    print("\n".join(f"{key}: {value}" for key, value in conditions.items()), end="\n\n")
    rows = [row for key, frames in groups.items() for row in measure(key, frames, methods, options)]
    if options.json:
        Path(options.json).write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    samples = [str(HERE / "checkpoints" / name) for name in ("dense_mixed.pt", "moe_mixed.pt")]
    parser.add_argument("files", nargs="*", default=samples, help="safetensors or pt; the sample checkpoints if none")
    parser.add_argument("--size", type=int, default=64, metavar="MIB", help="bytes of a group (default 64 MiB)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--drop", action="store_true", help="keep no result: memory is used again, none is fresh")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", metavar="OUT", help="write conditions and rows to this file")
    return parser.parse_args()


def load(names: list[str]) -> dict[tuple[str, str], list[Frame]]:
    """Float blocks of all files, by group and kind."""
    found: dict[tuple[str, str], list[Frame]] = {}
    for name in names:
        with files.open_input(name, follow=True) as opened:
            segments = read_source(opened.data, opened.path).segments
            for plan in (plan for window in windows(segments) for plan in window.blocks):
                if plan.content.kind in ("bytes", "fp8") or not plan.content.matrices:
                    continue
                data = b"".join(opened.data.read_at(offset, length) for offset, length in plan.extents)
                spec = FloatSpec(plan.content.word, plan.content.kind, plan.content.matrices)
                found.setdefault((plan.group or "unknown", plan.content.kind), []).append(Frame(data, spec))
    return found


def tile(blocks: list[Frame], size: int) -> list[Frame]:
    """Join the blocks to frames of at most 16 MiB, and repeat these until there are `size` bytes.

    No frame holds the same bytes twice: a compressor that looks back would find them.
    """
    frames: list[Frame] = []
    waiting: list[Frame] = []
    for block in blocks:
        if waiting and sum(len(b.data) for b in waiting) + len(block.data) > FRAME:
            frames.append(joined(waiting))
            waiting = []
        waiting.append(block)
    frames.append(joined(waiting))
    repeats = -(-size // sum(len(f.data) for f in frames))
    return frames * repeats


def joined(blocks: list[Frame]) -> Frame:
    first = blocks[0].spec
    matrices = tuple(matrix for block in blocks for matrix in block.spec.matrices)
    return Frame(b"".join(block.data for block in blocks), FloatSpec(first.word, first.kind, matrices))


def available_methods(threads: int) -> Iterator[Method]:
    """Ours, then those of other packages that can be imported."""
    if float_native.available() is None:
        for simd in ("avx2", "plain") if float_native.has_avx2() else ("plain",):
            yield native(f"float, {simd}", "default", simd)
        yield native("float fast, best", "fast", "auto")
    yield Method("float, NumPy", lambda f: float_reference.encode(f.data, f.spec), decode_numpy, size=1 << 20)
    for name, make in (("zipnn", zipnn), ("lmz", lmz), ("zstandard", zstd), ("pcodec", pcodec)):
        try:
            yield from make(import_module(name), threads)
        except (ImportError, AttributeError) as error:
            print(f"without {name}: {error}", file=sys.stderr)


def native(name: str, level: Any, simd: Any) -> Method:
    def decode(stream: memoryview, frame: Frame) -> memoryview:
        out = memory.unfilled(len(frame.data))  # as blocks.decode does
        float_native.decode(stream, out, simd=simd)
        return out

    return Method(name, lambda f: float_native.encode(f.data, f.spec, level, simd=simd), decode)


def decode_numpy(stream: bytes, frame: Frame) -> bytearray:
    out = bytearray(len(frame.data))
    float_reference.decode(memoryview(stream), memoryview(out))
    return out


def zipnn(_: Any, threads: int) -> Iterator[Method]:
    yield adapted(benchmark_peers.zipnn(threads))


def lmz(_: Any, __: int) -> Iterator[Method]:
    yield adapted(benchmark_peers.lmz(), size=benchmark_peers.LMZ_CHUNK)


def adapted(peer: benchmark_peers.Peer, size: int = 0) -> Method:
    """The same coder that `nvckpt bench --peers` measures."""

    def content(frame: Frame) -> Content:
        return Content(frame.spec.word, frame.spec.kind)

    return Method(
        peer.name.removeprefix("peer "),
        lambda f: peer.encode(f.data, content(f)),
        lambda coded, f: peer.decode(coded, content(f), len(f.data)),
        size=size,
        pool=not peer.own_threads,
        spoils=peer.spoils,
    )


def zstd(module: Any, _: int) -> Iterator[Method]:
    def method(level: int, size: int) -> Method:
        return Method(
            f"zstd -{level}",
            lambda f: module.ZstdCompressor(level=level).compress(f.data),
            lambda stream, f: module.ZstdDecompressor().decompress(stream),
            size=size,
        )

    yield method(3, 0)
    yield method(19, 4 << 20)


def pcodec(module: Any, _: int) -> Iterator[Method]:
    """Of the types that it knows: BF16 goes as 16-bit integers."""
    types = {"bf16": np.uint16, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
    coder, config = module.standalone, module.ChunkConfig()
    yield Method(
        "pcodec",
        lambda f: coder.simple_compress(np.frombuffer(f.data, types[f.spec.kind]), config),
        lambda stream, f: coder.simple_decompress(stream).tobytes(),
    )


def sample(frames: list[Frame], size: int) -> list[Frame]:
    """The frames, or flat pieces of at most `size` bytes: of all, or one only where the method is slow."""
    if not size:
        return frames
    data = frames[0].data[: size // 8 * 8]
    spec = frames[0].spec
    pieces = (
        [data] if size < FRAME // 2 else [f.data[i : i + size] for f in frames for i in range(0, len(f.data), size)]
    )
    return [Frame(piece, FloatSpec(spec.word, spec.kind, ((len(piece) // spec.word, 0),))) for piece in pieces]


def measure(
    key: tuple[str, str], frames: list[Frame], methods: list[Method], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Rows of one group, printed as they are known."""
    inputs = {method.name: sample(frames, method.size) for method in methods}
    seconds: dict[str, list[tuple[float, ...]]] = {method.name: [] for method in methods}
    coded_size: dict[str, int] = {}
    with ThreadPoolExecutor(options.threads) as pool:
        for number in range(options.rounds):
            for method in methods:
                if number and sum(seconds[method.name][0][:2]) > 20:
                    continue
                run = pool.map if method.pool else map
                coded_size[method.name], spent = once(
                    method, inputs[method.name], run, verify=number == 0, drop=options.drop
                )
                seconds[method.name].append(spent)
    rows = []
    print(
        f"{'/'.join(key):<22}{'ratio':>8}{'encode':>9}{'decode':>9}  GB/s {'encode':>9}{'decode':>9}  GB a CPU second"
    )
    for method in methods:
        size = sum(len(f.data) for f in inputs[method.name])
        rates = [size / statistics.median(times) / 1e9 for times in zip(*seconds[method.name], strict=True)]
        wall, processor = (" ".join(f"{rate:>8.3f}" for rate in part) for part in (rates[:2], rates[2:]))
        print(f"  {method.name:<20}{size / coded_size[method.name]:>8.3f} {wall}       {processor}")
        rows.append(
            {"group": key[0], "kind": key[1], "method": method.name, "bytes": size, "coded": coded_size[method.name]}
            | dict(zip(RATES, rates, strict=True))
            | {"seconds": seconds[method.name]}
        )
    print(flush=True)
    return rows


def once(method: Method, frames: list[Frame], run: Any, *, verify: bool, drop: bool) -> tuple[int, tuple[float, ...]]:
    """Coded bytes, and the seconds of encoding and of decoding all frames: elapsed, then of all threads' processors.

    Unless `drop`, what was decoded is kept until the clock has stopped, so that it needs memory of its own.
    """
    inputs = [Frame(bytes(bytearray(f.data)), f.spec) for f in frames] if method.spoils else frames
    clocks = time.perf_counter, time.process_time
    started = [clock() for clock in clocks]
    coded = list(run(method.encode, inputs))
    middle = [clock() for clock in clocks]
    back = deque(run(method.decode, coded, frames), maxlen=0 if drop and not verify else None)
    ended = [clock() for clock in clocks]
    if verify and any(bytes(b) != f.data for b, f in zip(back, frames, strict=True)):
        raise SystemExit(f"{method.name} did not give the bytes back")
    size = sum(len(c[0]) if isinstance(c, tuple) else len(c) for c in coded)
    spent = [(b - a, c - b) for a, b, c in zip(started, middle, ended, strict=True)]
    return size, (*spent[0], *spent[1])


def describe(options: argparse.Namespace, methods: list[Method]) -> dict[str, Any]:
    """Everything that a number depends on."""
    packages = {}
    for name in ("nvckpt", "numpy", "zipnn", "lmzip", "zstandard", "pcodec"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "absent"
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    commit = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "processor": models[0].partition(": ")[2] if models else platform.processor(),
        "cores": os.cpu_count(),
        "threads": options.threads,
        "load before": [round(load, 2) for load in os.getloadavg()],
        "system": platform.system() + " " + platform.machine(),
        "python": platform.python_version(),
        "packages": packages,
        "commit": commit.stdout.strip() or "unknown",
        "files": [Path(name).name for name in options.files],
        "MiB a group": options.size,
        "rounds": options.rounds,
        "results": "dropped" if options.drop else "kept",
        "methods": [method.name for method in methods],
    }


if __name__ == "__main__":
    main()
