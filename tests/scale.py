"""Time per tensor and per file, and whether it grows in proportion; `make reliability` calls it.

    python tests/scale.py --out sample_data/runs/DATE-reliability

Processor seconds of whole commands, the start of the interpreter included: the least of three runs, at half the
number and at the whole.
"""

import argparse
import json
import os
import platform
import resource
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from checkpoints import torch_zip_bytes

from nvckpt.version import __version__

PROGRAM = str(Path(sys.executable).with_name("nvckpt"))
TENSOR = 16
"""Bytes of a tensor: what is measured is the work on its name, place and kind."""


def safetensors(count: int) -> bytes:
    """A file of so many tensors of four floats."""
    entries = (
        f'"model.layers.{i}.weight":{{"dtype":"F32","shape":[4],"data_offsets":[{i * TENSOR},{(i + 1) * TENSOR}]}}'
        for i in range(count)
    )
    header = ("{" + ",".join(entries) + "}").encode()
    return struct.pack("<Q", len(header)) + header + os.urandom(TENSOR) * count


def torch_zip(count: int) -> bytes:
    """The same as torch.save writes it."""
    data = os.urandom(TENSOR)
    return torch_zip_bytes({f"model.layers.{i}.weight": data for i in range(count)})


def seconds(folder: Path, *arguments: str, runs: int = 3) -> float:
    """Processor seconds of a command."""
    times = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([PROGRAM, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(times)


def tensors(folder: Path, count: int) -> dict[str, dict[str, float]]:
    """Seconds at half of `count` and at `count`, by command and format."""
    results = {}
    for name, make in (("pt", torch_zip), ("safetensors", safetensors)):
        files = {}
        for number in (count // 2, count):
            (folder / f"{number}.{name}").write_bytes(make(number))
            files[number] = f"{number}.{name}"
        commands = {
            "compress": lambda file: ("compress", "-fq", "-T1", file),
            "list": lambda file: ("list", "-q", f"{file}.nvckpt"),
            "decompress": lambda file: ("decompress", "-fq", "-T1", f"{file}.nvckpt", "-o", "restored"),
        }
        for command, line in commands.items():
            half, whole = (seconds(folder, *line(files[number])) for number in (count // 2, count))
            if command == "decompress" and (folder / "restored").read_bytes() != (folder / files[count]).read_bytes():
                raise AssertionError("not the same bytes")
            results[f"{command} .{name}"] = _row(half, whole, count)
    return results


def batch(folder: Path, count: int) -> dict[str, dict[str, float]]:
    """Seconds for half of `count` small files, and for `count`, in one command."""
    for number in (count // 2, count):
        (folder / f"batch{number}").mkdir()
        for i in range(number):
            (folder / f"batch{number}" / f"{i}.safetensors").write_bytes(safetensors(2))
    results = {}
    for command in ("compress", "decompress"):
        half, whole = (
            seconds(folder, command, "-rfq", "-T1", f"batch{number}", runs=1) for number in (count // 2, count)
        )
        results[f"{command} a file"] = _row(half, whole, count)
    return results


def _row(half: float, whole: float, count: int) -> dict[str, float]:
    return {
        "count": count,
        "half_seconds": round(half, 3),
        "whole_seconds": round(whole, 3),
        "ratio": round(whole / half, 3),
        "microseconds_each": round((whole - half) / (count - count // 2) * 1e6, 1),
    }


def main() -> int:
    """Measure, print and write; exit 1 when something grows faster than the work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=70_000, metavar="N")
    parser.add_argument("--files", type=int, default=2000, metavar="N")
    parser.add_argument("--out", type=Path, help="folder for scale.json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results = tensors(Path(name), asked.tensors) | batch(Path(name), asked.files)
    for what, row in results.items():
        print(f"{what:24s} {json.dumps(row)}")
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        machine = f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores"
        facts = {"command": "python tests/scale.py", "version": __version__, "machine": machine, "results": results}
        (asked.out / "scale.json").write_text(json.dumps(facts, indent=2) + "\n")
    return int(any(row["ratio"] >= 2.2 for row in results.values()))


if __name__ == "__main__":
    sys.exit(main())
