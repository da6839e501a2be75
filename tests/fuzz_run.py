"""Coverage-guided fuzzing of every reader and of the container, with Atheris (libFuzzer); `make fuzz` calls it.

    python tests/fuzz_run.py --runs 250000 --out sample_data/runs/DATE-fuzz

Each target runs in a process of its own, from the corpus in tests/corpus and the test fixtures, under a bound on
its memory. What it found is merged into the corpus, smallest files first. The summary counts executions, crashes
(anything undocumented), hangs (more than a second of processor time) and allocations beyond the bound.
"""

import argparse
import json
import os
import platform
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
MEMORY = 1 << 30
"""Bytes of address space a target may take beyond what the interpreter and its libraries have mapped at the start."""
LONGEST = 2048
TARGETS = [
    "sniff",
    "zip_file",
    "legacy",
    "safetensors",
    "pickle",
    "metadata",
    "archive",
    "index_sections",
    "frame_header",
    "codec",
    "derived",
]  # fuzz_targets.TARGETS, which cannot be imported here: Atheris must see the imports


def fuzz_one(name: str, report: Path, arguments: list[str]) -> None:
    """Fuzz one target in this process, which libFuzzer ends; counts go to `report` every few thousand executions."""
    import atheris

    with atheris.instrument_imports(include=["nvckpt"]):
        import fuzz_targets

    counts = {"executions": 0, "hangs": 0, "slowest_seconds": 0.0, "beyond_memory": 0}

    def one(data: bytes) -> None:
        counts["executions"] += 1
        try:
            seconds = fuzz_targets.run(name, data)
        except MemoryError:
            counts["beyond_memory"] += 1
            (report.parent / f"memory-{name}-{counts['beyond_memory']}").write_bytes(data)
            return
        if seconds > counts["slowest_seconds"]:
            counts["slowest_seconds"] = round(seconds, 4)
        if seconds > fuzz_targets.SLOW:
            counts["hangs"] += 1
            (report.parent / f"hang-{name}-{counts['hangs']}").write_bytes(data)
        if counts["executions"] % 1000 == 0:
            report.write_text(json.dumps(counts))

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, hard))
    # To merge, libFuzzer starts itself again: with its first argument as the beginning of a shell's line.
    itself = shlex.join([sys.executable, __file__, "--child", name, str(report)])
    atheris.Setup([itself, *arguments], one, internal_libfuzzer=True)
    with fuzz_targets.without_checksums():
        atheris.Fuzz()


def _child(name: str, report: Path, arguments: list[str]) -> str:
    """Fuzz in a process of its own, at the lowest priority; returns what libFuzzer said."""
    command = ["nice", "-n", "19", sys.executable, __file__, "--child", name, str(report), *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False).stderr


def campaign(name: str, runs: int, seconds: int, work: Path) -> dict[str, object]:
    """Fuzz one target and merge what it found into the corpus; returns the counts."""
    found, seeds = work / f"found-{name}", work / f"seeds-{name}"
    for folder in (found, seeds, CORPUS / name):
        folder.mkdir(parents=True, exist_ok=True)
    _write_seeds(name, seeds)
    report = work / f"{name}.json"
    limits = [f"-max_len={LONGEST}", "-timeout=20", "-rss_limit_mb=4096", f"-artifact_prefix={work}/crash-{name}-"]
    started = time.perf_counter()
    said = _child(
        name,
        report,
        [*limits, f"-runs={runs}", f"-max_total_time={seconds}", str(found), str(CORPUS / name), str(seeds)],
    )
    wall = time.perf_counter() - started
    (work / f"{name}.log").write_text(said)
    done = re.search(r"Done (\d+) runs", said)
    counts = json.loads(report.read_text()) if report.exists() else {"executions": 0}
    counts["executions"] = int(done[1]) if done else counts["executions"]
    counts["crashes"] = len(list(work.glob(f"crash-{name}-*")))
    features = re.findall(r"cov: (\d+) ft: (\d+)", said)
    counts["coverage"], counts["features"] = map(int, features[-1]) if features else (0, 0)
    counts["wall_seconds"] = round(wall, 1)
    merged = work / f"merged-{name}"
    merged.mkdir()
    said = _child(
        name, work / "merge.json", ["-merge=1", f"-max_len={LONGEST}", *map(str, (merged, CORPUS / name, seeds, found))]
    )
    (work / f"{name}-merge.log").write_text(said)
    if any(merged.iterdir()):
        shutil.rmtree(CORPUS / name)
        shutil.copytree(merged, CORPUS / name)
    counts["corpus_files"] = len(list((CORPUS / name).iterdir()))
    return counts


def _write_seeds(name: str, folder: Path) -> None:
    from fuzz_seeds import seeds

    for number, data in enumerate(seeds(name)):
        if len(data) <= LONGEST:
            (folder / str(number)).write_bytes(data)


def main() -> int:
    """Run the campaign; exit 1 when anything was found."""
    if sys.argv[1:2] == ["--child"]:
        fuzz_one(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=250_000, help="executions a target")
    parser.add_argument("--seconds", type=int, default=1200, help="at most, a target")
    parser.add_argument("--out", type=Path, help="folder for the summary and whatever was found")
    parser.add_argument("--work", type=Path, help="folder to keep the logs and everything found in")
    parser.add_argument("targets", nargs="*", default=TARGETS)
    asked = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        work = asked.work or Path(folder)
        for name in asked.targets:
            results[name] = campaign(name, asked.runs, asked.seconds, work)
            print(name, json.dumps(results[name]), flush=True)
            _record(asked.out, asked.targets, results, work)
    return int(any(r["crashes"] or r["hangs"] or r["beyond_memory"] for r in results.values()))


def _record(out: Path | None, targets: list[str], results: dict[str, dict[str, object]], work: Path) -> None:
    """Write the summary so far, and copy what was found."""
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    keys = ("executions", "crashes", "hangs", "beyond_memory")
    summary = {
        "command": "python tests/fuzz_run.py",
        "python": platform.python_version(),
        "atheris": metadata.version("atheris"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "memory_bound_bytes": MEMORY,
        "hang_seconds": 1.0,
        "totals": {key: sum(int(str(r.get(key, 0))) for r in results.values()) for key in keys},
        "targets": {name: results[name] for name in targets if name in results},
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    for pattern in ("crash-*", "hang-*", "memory-*"):
        for path in work.glob(pattern):
            shutil.copy(path, out / path.name)


if __name__ == "__main__":
    random.seed(0)
    sys.exit(main())
