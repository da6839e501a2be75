"""Measure batches: time a file for many small files, time a tensor for many small tensors, and how both grow.

    python sample_data/bench_batch.py --out sample_data/runs/<date>-<machine>/batch.json

Each figure is the processor time of the command's processes (user and system) and its elapsed time, the least of
`--runs` runs. Twice the work may take at most 2.2 times the processor time; the exit code says whether it does.
Elapsed time has the disk's in it: each output is synced twice, with its directory.
"""

import argparse
import itertools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

PROGRAM = Path(sys.executable).with_name("nvckpt")
LINEAR = 2.2
SIDE = 32
TENSORS = 4


def safetensors(path: Path, tensors: int, numbers: np.random.Generator) -> None:
    """Write a file of FP32 matrices of SIDE x SIDE."""
    size = SIDE * SIDE * 4
    entries = {
        f"layers.{number}.weight": {
            "dtype": "F32",
            "shape": [SIDE, SIDE],
            "data_offsets": [number * size, (number + 1) * size],
        }
        for number in range(tensors)
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(tensors):
            file.write(numbers.standard_normal((SIDE, SIDE)).astype(np.float32).tobytes())


def tree(folder: Path, files: int) -> None:
    """Make a tree of small checkpoints, a hundred a directory."""
    numbers = np.random.default_rng(1)
    for number in range(files):
        path = folder / f"step-{number // 100:03}" / f"{number:05}.safetensors"
        path.parent.mkdir(exist_ok=True)
        safetensors(path, TENSORS, numbers)


def timed(arguments: list[str]) -> dict[str, float]:
    """Run the program; returns its processor time and elapsed time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run([str(PROGRAM), *arguments], check=True, stdout=subprocess.DEVNULL)
    elapsed = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"cpu_seconds": round(cpu, 3), "seconds": round(elapsed, 3)}


def least(runs: list[dict[str, float]]) -> dict[str, float]:
    """Take the least of each figure: what other work on the machine adds is not ours."""
    return {name: min(run[name] for run in runs) for name in runs[0]}


def measure(make: Callable[[Path, int], None], amount: int, runs: int, scratch: Path) -> dict[str, dict[str, float]]:
    """Compress, verify and restore `amount` of something, with the options that scripts use."""
    folder = scratch / "work"
    found: dict[str, list[dict[str, float]]] = {"compress": [], "verify": [], "decompress": []}
    for _ in range(runs):
        folder.mkdir()
        make(folder, amount)
        for command, figures in found.items():
            options = [] if command == "verify" else ["--rm"]
            figures.append(timed([command, "-rq", *options, str(folder)]))
        shutil.rmtree(folder)
    return {command: least(figures) for command, figures in found.items()}


def growth(name: str, make: Callable[[Path, int], None], amounts: list[int], runs: int, scratch: Path) -> dict:
    """Measure twice the amount each time; returns the figures, and what one more costs."""
    results = {str(amount): measure(make, amount, runs, scratch) for amount in amounts}
    table: dict = {"what": name, "results": results, "milliseconds_each": {}, "ratio_for_twice": {}}
    for command in ("compress", "verify", "decompress"):
        times = [results[str(amount)][command]["cpu_seconds"] for amount in amounts]
        more = (times[-1] - times[-2]) / (amounts[-1] - amounts[-2])
        table["milliseconds_each"][command] = round(1000 * more, 4)
        table["ratio_for_twice"][command] = [round(b / a, 3) for a, b in itertools.pairwise(times)]
    return table


def report(table: dict) -> Iterator[str]:
    """Yield lines for people."""
    yield table["what"]
    for amount, commands in table["results"].items():
        for command, figures in commands.items():
            yield f"  {int(amount):>7,} {command:<10} {figures['cpu_seconds']:>8.2f} s cpu {figures['seconds']:>8.2f} s"
    yield f"  one more, ms cpu: {table['milliseconds_each']}"
    yield f"  twice the work takes, times: {table['ratio_for_twice']}"


def main() -> int:
    """Measure, print, write; 1 when the time grows faster than the work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000, help="a batch, and half and twice of it")
    parser.add_argument("--tensors", type=int, default=70_000, help="in one file, and half of it")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write JSON here")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        batch = [chosen.files // 2, chosen.files, 2 * chosen.files]
        tensors = [chosen.tensors // 2, chosen.tensors]
        one_file = lambda folder, count: safetensors(folder / "x.safetensors", count, np.random.default_rng(1))  # noqa: E731
        tables = [
            growth(f"files of {TENSORS} FP32 matrices, 16 KiB", tree, batch, chosen.runs, scratch),
            growth("FP32 matrices of 4 KiB in one file", one_file, tensors, chosen.runs, scratch),
        ]  # fmt: skip
        tree(scratch, 1)
        path = str(next(scratch.rglob("*.safetensors")))
        start = least([timed(["compress", "-fq", path]) for _ in range(10)])
    for table in tables:
        print(*report(table), sep="\n")
    print(f"one process for one file: {start['cpu_seconds']:.2f} s cpu, {start['seconds']:.2f} s")
    conditions = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "runs": chosen.runs,
    }
    if chosen.out:
        content = {"conditions": conditions, "one_process": start, "tables": tables}
        chosen.out.write_text(json.dumps(content, indent=2) + "\n")
    return int(
        any(ratio > LINEAR for table in tables for ratios in table["ratio_for_twice"].values() for ratio in ratios)
    )


if __name__ == "__main__":
    sys.exit(main())
