"""Measure nvckpt on a GPU machine with trained checkpoints, and record the run in a folder.

    python sample_data/train_models.py --model dense --out /dev/shm/dense.pt
    python sample_data/train_models.py --model moe --out /dev/shm/moe.pt
    python sample_data/measure_gpu.py --dense /dev/shm/dense.pt --moe /dev/shm/moe.pt --out DIR [--scratch /dev/shm]

Sections, each into a JSON file of its own; one that fails is recorded with its error, and the others go on:

    conditions  the machine and the versions
    bench_dense every codec by group of tensors: `nvckpt bench --json`, which article_report.py reads
    bench_moe   the same on the mixture of experts
    direct      nvCOMP called by hand on the dense model's tensors, which bench_dense has to agree with
    files       cp, compress and decompress of files of several sizes: times, memory, stages
    recipe      the obvious way with torch.load, nvCOMP and torch.save, on the smallest of these files
    codecs      the whole file with one codec each
    layouts     each file of --layouts whole, at levels default and max

README.md in the folder sums them up; it is written anew after each section. `scratch` is a tmpfs with room for about
2.7 times the largest size, and the machine needs a quarter more than that while the file is made.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import child_process
import measure_conditions
import run_summary

HERE = Path(__file__).resolve().parent
NVCKPT = (sys.executable, "-m", "nvckpt.cli")
BENCH_CODECS = ("all", "float:level=fast", "zstd:level=fast")
WHOLE_FILE = (("auto", "default"), ("zstd", "default"), ("ans", "default"), ("float", "fast"), ("float", "max"))
KEPT = ("bytes_in", "bytes_out", "ratio", "seconds", "device", "verified", "stages", "bottleneck")
SECTIONS = ("conditions", "bench_dense", "bench_moe", "direct", "files", "recipe", "codecs", "layouts")


class Recorder:
    """What the sections share: options, the measured processes, and the files that were grown."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.memory = child_process.DeviceMemory()
        self.scratch = Path(options.scratch) / f"nvckpt-measure-{os.getpid()}"

    def run(self, *command: str | Path) -> child_process.Measured:
        """Run to the end, within the time a program may take."""
        return child_process.run([str(word) for word in command], self.options.timeout, self.memory)

    def nvckpt(self, command: str, *arguments: str | Path) -> dict[str, Any]:
        """Run one command on one file; the process as measured, and what the command says of the file."""
        done = self.run(*NVCKPT, command, "--json", "--device", self.options.device, *arguments)
        entry = json.loads(done.output)["results"][0]
        return {**done.figures(), "said": {name: entry[name] for name in KEPT if name in entry}}

    def path(self, gigabytes: float) -> Path:
        """Return where the checkpoint of this size lies."""
        return self.scratch / f"dense-{gigabytes:g}GB.pt"

    def grown(self, gigabytes: float) -> Path:
        """Return a checkpoint of this size, made when first asked for."""
        path = self.path(gigabytes)
        if not path.exists():
            self.scratch.mkdir(exist_ok=True)
            wanted = int(gigabytes * 1e9)
            free = shutil.disk_usage(self.scratch).free
            if free < 2.7 * wanted:
                raise OSError(f"a file of {gigabytes:g} GB needs {2.7 * gigabytes:.1f} GB, {free / 1e9:.1f} are free")
            self.run(sys.executable, HERE / "grow_checkpoint.py", self.options.dense, path, "--bytes", str(wanted))
        return path


def conditions(recorder: Recorder) -> dict[str, Any]:
    found = measure_conditions.found(recorder.scratch.parent)
    found["commit"] = recorder.options.commit
    found["doctor"] = measure_conditions.doctor(recorder.run(*NVCKPT, "doctor", "--json").output)
    return found


def bench(recorder: Recorder, model: Path | None) -> dict[str, Any]:
    options = recorder.options
    if model is None:
        return {"skipped": "no such model was given"}
    codecs = [word for name in options.bench_codecs for word in ("--codec", name)]
    arguments = ["--json", "--device", options.device, "--sample", str(options.sample), "--runs", str(options.runs)]
    document: dict[str, Any] = json.loads(
        recorder.run(*NVCKPT, "bench", model, *codecs, *arguments, "--no-whole-file").output
    )
    document["conditions"]["files"] = [Path(name).name for name in document["conditions"]["files"]]
    document["conditions"]["commit"] = document["conditions"]["commit"] or options.commit
    return document


def direct(recorder: Recorder) -> dict[str, Any]:
    options = recorder.options
    if options.device != "cuda":
        return {"skipped": "nvCOMP needs a GPU, and this run is on the CPU"}
    sizes = ("--mebibytes", str(options.sample), "--runs", str(options.runs))
    found: dict[str, Any] = json.loads(
        recorder.run(sys.executable, HERE / "nvcomp_direct.py", options.dense, *sizes).output
    )
    return found


def files(recorder: Recorder) -> dict[str, Any]:
    """Every size apart, then what follows from the smallest and the largest."""
    found: dict[str, Any] = {"tiny": attempt(lambda: tiny(recorder)), "sizes": []}
    for gigabytes in recorder.options.sizes:
        found["sizes"].append({"gigabytes": gigabytes, **attempt(lambda size=gigabytes: one_size(recorder, size))})
        if gigabytes != min(recorder.options.sizes):
            recorder.path(gigabytes).unlink(missing_ok=True)
    return found


def tiny(recorder: Recorder) -> dict[str, Any]:
    """Return what a sample of about a megabyte takes: nearly all of it is start-up."""
    sample = HERE / "checkpoints" / "dense_mixed.pt"
    recorder.scratch.mkdir(exist_ok=True)
    archive = recorder.scratch / "tiny.nvckpt"
    return {
        "compress": repeated(recorder, archive, lambda: recorder.nvckpt("compress", sample, "-o", archive)),
        "decompress": repeated(
            recorder, archive.with_suffix(".pt"),
            lambda: recorder.nvckpt("decompress", archive, "-o", archive.with_suffix(".pt")),
        ),
    }  # fmt: skip


def one_size(recorder: Recorder, gigabytes: float) -> dict[str, Any]:
    """Measure cp, compress and decompress of one file, and compare what comes back with it."""
    source = recorder.grown(gigabytes)
    copy, archive, restored = (source.with_suffix(f".{name}") for name in ("copy", "nvckpt", "restored"))
    try:
        result: dict[str, Any] = {"bytes": source.stat().st_size}
        result["cp"] = repeated(recorder, copy, lambda: recorder.run("cp", source, copy).figures())
        copy.unlink()
        result["compress"] = repeated(
            recorder, archive, lambda: recorder.nvckpt("compress", source, "-o", archive)
        )  # fmt: skip
        result["decompress"] = repeated(
            recorder, restored, lambda: recorder.nvckpt("decompress", archive, "-o", restored)
        )
        recorder.run("cmp", source, restored)
        result["identical"] = True
        return result
    finally:
        for path in (copy, archive, restored):
            path.unlink(missing_ok=True)


def repeated(recorder: Recorder, output: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do it several times, each without the former's output; the median of the times, the most of the memory."""
    runs = []
    for _ in range(recorder.options.runs):
        output.unlink(missing_ok=True)
        runs.append(work())
    peaks = ("peak_host", "peak_anonymous", "peak_device")
    most = {name: max((run[name] for run in runs if run[name] is not None), default=None) for name in peaks}
    return {"seconds": statistics.median(run["seconds"] for run in runs), **most, "runs": runs}


def recipe(recorder: Recorder) -> dict[str, Any]:
    if recorder.options.device != "cuda":
        return {"skipped": "the recipe is nvCOMP on a GPU, and this run is on the CPU"}
    source = recorder.grown(min(recorder.options.sizes))
    done = recorder.run(sys.executable, HERE / "nvcomp_recipe.py", source, recorder.scratch)
    return {**done.figures(), **json.loads(done.output)}


def codecs(recorder: Recorder) -> dict[str, Any]:
    """Compress the smallest file once with each codec."""
    source = recorder.grown(min(recorder.options.sizes))
    archive = source.with_suffix(".nvckpt")
    found = {}
    for name, level in WHOLE_FILE:
        command = ("compress", source, "-o", archive, "-f", "--codec", name, "--level", level)
        found[f"{name}:{level}"] = attempt(lambda command=command: recorder.nvckpt(*command))
        archive.unlink(missing_ok=True)
    return found


def layouts(recorder: Recorder) -> dict[str, Any]:
    """Compress each checkpoint once at each level."""
    if not recorder.options.layouts:
        return {"skipped": "no files were given with --layouts"}
    recorder.scratch.mkdir(exist_ok=True)
    archive = recorder.scratch / "layout.nvckpt"
    found = {}
    for path in recorder.options.layouts:
        for level in ("default", "max"):
            command = ("compress", path, "-o", archive, "-f", "--level", level)
            found[f"{path.stem}:{level}"] = attempt(lambda command=command: recorder.nvckpt(*command))
    return found


def attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result, or the error as one."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - a run of many minutes keeps what it has
        print(f"  failed: {error}", file=sys.stderr, flush=True)
        return {"error": f"{type(error).__name__}: {error}"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--dense", type=Path, required=True, metavar="FILE.pt", help="also what larger files grow from")
    parser.add_argument("--moe", type=Path, metavar="FILE.pt")
    parser.add_argument("--layouts", type=Path, nargs="+", default=(), metavar="FILE.pt", help="of train_models.py")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"), help="a folder on a tmpfs")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between them")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--sizes", default="5,20", help="of the files, in GB (10^9 bytes)")
    parser.add_argument("--sample", type=int, default=0, help="MiB of each group that bench takes; 0: all of it")
    parser.add_argument("--bench-codecs", default=" ".join(BENCH_CODECS), help="with spaces between them")
    parser.add_argument("--runs", type=int, default=3, help="the median of so many")
    parser.add_argument("--timeout", type=float, default=300, help="seconds after which a program is stopped")
    parser.add_argument("--commit", help="of the tree that is measured, where git cannot tell")
    options = parser.parse_args()
    options.only = options.only.split(",")
    options.sizes = sorted(float(size) for size in options.sizes.split(","))
    options.bench_codecs = options.bench_codecs.split()
    if unknown := set(options.only) - set(SECTIONS):
        parser.error(f"unknown section {', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}")
    for path in (options.dense, options.moe):
        if path and not path.is_file():
            parser.error(f"{path} is no file: train_models.py makes one")
    return options


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(options)
    work = {
        "bench_dense": lambda recorder: bench(recorder, options.dense),
        "bench_moe": lambda recorder: bench(recorder, options.moe),
        "conditions": conditions, "direct": direct, "files": files, "recipe": recipe, "codecs": codecs,
        "layouts": layouts,
    }  # fmt: skip
    try:
        for name in (section for section in SECTIONS if section in options.only):
            started = time.perf_counter()
            result = attempt(lambda name=name: work[name](recorder))
            (options.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
            # From the files, so that a run of some sections adds to those of an earlier one.
            (options.out / "README.md").write_text(run_summary.summary(options.out))
            print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
    finally:
        shutil.rmtree(recorder.scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
