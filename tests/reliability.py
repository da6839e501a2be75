"""Kill runs at random moments and fill disks, and count what was lost; `make reliability` calls it.

    python tests/reliability.py --kills 200 --disks 50 --out sample_data/runs/DATE-reliability

Each run compresses or decompresses a real file in a folder of its own, with and without --rm, with and without a
file of the output's name there already. After it: the source is there, whole, or (with --rm) the output is, and gives
it back; under the output's name stands a whole file, what was there before, or nothing; a run that was told to stop
left no other file, one that was killed a temporary file at most, which the next run removes.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nvckpt
from nvckpt.compression import CompressOptions
from nvckpt.decompression import DecompressOptions
from nvckpt.errors import KNOWN_ERRORS
from nvckpt.formats import leftovers
from nvckpt.version import __version__

PROGRAM = str(Path(sys.executable).with_name("nvckpt"))
OLD = b"what was there before"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGKILL, signal.SIGINT)
OPTIONS = ((), ("--rm",), ("-f",), ("-f", "--rm"))
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143, signal.SIGKILL: -signal.SIGKILL}


class Loss(Exception):
    """Something was lost, or left behind, or not said."""


class Bench:
    """A file that takes a moment, its archive, and a folder in which a command runs on one of them."""

    def __init__(self, folder: Path, mebibytes: int) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.kept = folder / "kept"
        self.kept.mkdir()
        block = os.urandom(1 << 20)
        with (self.kept / "original").open("wb") as file:
            for number in range(mebibytes):
                file.write(block if number % 2 else number.to_bytes(4, "little") * (1 << 18))
        nvckpt.compress(self.kept / "original", self.kept / "packed")
        self.hash = _hash(self.kept / "original")
        self.hashes = {"compress": self.hash, "decompress": _hash(self.kept / "packed")}

    def prepare(self, command: str, options: tuple[str, ...], work: Path | None = None) -> list[str | Path]:
        """Make the folder anew, and return the command line."""
        work = work or self.work
        work.mkdir(exist_ok=True)
        for path in work.iterdir():
            path.unlink()
        source = self.folder / "source"
        source.unlink(missing_ok=True)
        source.write_bytes((self.kept / ("original" if command == "compress" else "packed")).read_bytes())
        if "-f" in options:
            (work / "output").write_bytes(OLD)
        return [PROGRAM, command, "-q", *options, source, "-o", work / "output"]

    def check(self, command: str, options: tuple[str, ...], code: int, killed: bool, work: Path | None = None) -> str:
        """Raise Loss for whatever must not be; returns in a word what came out."""
        work = work or self.work
        source, output = self.folder / "source", work / "output"
        others = sorted(path.name for path in work.iterdir() if path != output)
        if others and not killed:
            raise Loss(f"left behind: {others}")
        if not all(map(leftovers.is_temporary, others)):
            raise Loss(f"left behind under names that nobody knows: {others}")
        outcome = self._outcome(command, options, output)
        if source.exists():
            if _hash(source) != self.hashes[command]:
                raise Loss("the source is damaged")
        elif "--rm" not in options or outcome != "whole":
            raise Loss(f"the source is gone, and the output is {outcome}")
        if code == 0 and (outcome != "whole" or source.exists() == ("--rm" in options)):
            raise Loss(f"exit 0, and the output is {outcome}")
        if others:
            self._clean_up(command, work)
        return f"{outcome}, litter" if others else outcome

    def _outcome(self, command: str, options: tuple[str, ...], output: Path) -> str:
        """whole, old, or absent; anything else is a part under the final name."""
        if not output.exists():
            if "-f" in options:
                raise Loss("what was there before is gone")
            return "absent"
        if "-f" in options and output.read_bytes() == OLD:
            return "old"
        restored = output
        if command == "compress":
            restored = self.folder / "restored"
            try:
                nvckpt.decompress(output, restored, DecompressOptions(force=True))
            except KNOWN_ERRORS as error:
                raise Loss(f"a part under the final name: {error}") from error
        if _hash(restored) != self.hash:
            raise Loss("a part under the final name")
        return "whole"

    def _clean_up(self, command: str, work: Path) -> None:
        """Run again for the same target, as anybody would; no temporary file is left."""
        kept = self.kept / ("original" if command == "compress" else "packed")
        leftovers._seen.clear()
        if command == "compress":
            nvckpt.compress(kept, work / "output", CompressOptions(force=True))
        else:
            nvckpt.decompress(kept, work / "output", DecompressOptions(force=True))
        if [path.name for path in work.iterdir()] != ["output"]:
            raise Loss("the next run did not remove what the killed one left")


def kill(bench: Bench, count: int, rng: random.Random) -> dict[str, object]:
    """Kill `count` runs, each at a moment of its own: after its start, or after its temporary file appeared."""
    counts: Counter[str] = Counter()
    took: dict[str, tuple[float, float]] = {}
    killed = number = 0
    while killed < count:
        command = ("compress", "decompress")[number // len(SIGNALS) % 2]
        options = OPTIONS[number % len(OPTIONS)]
        sent = SIGNALS[number % len(SIGNALS)]
        if command not in took:
            took[command] = _time(bench, bench.prepare(command, ("-f",)))
        process = subprocess.Popen(
            bench.prepare(command, options),
            stderr=subprocess.PIPE,
            preexec_fn=_default_signals,  # noqa: PLW1509 - nothing else runs in the child
        )
        before, writing = took[command]
        if rng.random() < 0.25:
            time.sleep(rng.random() * (before + writing))
        else:
            _wait_for_output(bench, process)
            time.sleep(rng.random() * writing)
        process.send_signal(sent)
        said = process.communicate(timeout=120)[1].decode()
        # Python itself prints one when it is interrupted before the first line of the program.
        if "internal error" in said or ("Traceback" in said and "nvckpt/" in said.split("Traceback")[1]):
            raise Loss(f"not a sentence: {said}")
        outcome = bench.check(command, options, process.returncode, sent == signal.SIGKILL)
        # Before the program has set what a signal does, it ends by the signal itself.
        if process.returncode not in (0, CODES[sent], -sent):
            raise Loss(f"exit code {process.returncode} after {sent.name}")
        number += 1
        if process.returncode == 0:
            counts["ended before the signal"] += 1
            continue
        killed += 1
        counts[sent.name] += 1
        counts[f"output {outcome}"] += 1
    return {"killed": count, "damaged_or_missing_sources": 0, "partial_files": 0, **dict(sorted(counts.items()))}


def _wait_for_output(bench: Bench, process: subprocess.Popen[bytes]) -> None:
    """Wait until the output is begun; the start of an interpreter takes the longest."""
    while process.poll() is None and not list(bench.work.glob(".*.tmp")):
        time.sleep(0.001)


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _time(bench: Bench, command: list[str | Path]) -> tuple[float, float]:
    """Seconds that an undisturbed run takes until it begins its output, and from there on."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    _wait_for_output(bench, process)
    began = time.perf_counter()
    process.wait()
    return began - started, time.perf_counter() - began


def fill(bench: Bench, count: int, rng: random.Random) -> dict[str, object]:
    """Run on `count` file systems that are too small, from nothing to just not enough."""
    counts: Counter[str] = Counter()
    for number in range(count):
        command = ("compress", "decompress")[number % 2]
        options = OPTIONS[number // 2 % len(OPTIONS)]
        need = (bench.kept / ("packed" if command == "compress" else "original")).stat().st_size
        room = int(need * (number + rng.random()) / count)
        with small_file_system(bench.folder / "disk", room + 8192) as work:
            line = bench.prepare(command, options, work)
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            counts[bench.check(command, options, done.returncode, killed=False, work=work)] += 1
            if done.returncode != 1 or "no space left on the device" not in done.stderr or done.stderr.count("\n") != 1:
                raise Loss(f"exit {done.returncode}, {done.stderr!r} with room for {room} of {need} bytes")
    losses = {"damaged_or_missing_sources": 0, "partial_files": 0}
    return {"sizes": count, "kind": "tmpfs", **losses, **{f"output {k}": v for k, v in sorted(counts.items())}}


@contextlib.contextmanager
def small_file_system(folder: Path, size: int) -> Iterator[Path]:
    """Mount a tmpfs of `size` bytes, rounded up to pages; NoMountsError where that is not allowed."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NoMountsError(done.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


class NoMountsError(Exception):
    """No small file system can be made here."""


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Run it, print the counts, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, metavar="N")
    parser.add_argument("--disks", type=int, default=50, metavar="N")
    parser.add_argument("--mebibytes", type=int, default=24, help="size of the file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for results.json")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    results: dict[str, object] = {
        "command": f"python tests/reliability.py --kills {asked.kills} --disks {asked.disks} --seed {asked.seed}",
        "version": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores",
        "mebibytes": asked.mebibytes,
    }
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), asked.mebibytes)
        results["kills"] = kill(bench, asked.kills, rng)
        print("killed:", json.dumps(results["kills"]), flush=True)
        try:
            results["disks"] = fill(bench, asked.disks, rng)
        except NoMountsError as error:
            results["disks"] = {"skipped": str(error)}
        print("full disks:", json.dumps(results["disks"]), flush=True)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
