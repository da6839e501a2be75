"""What a command loads, and how fast it answers: people call it in loops."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from nvckpt import compress

HEAVY = ("torch", "cupy", "nvidia", "kvikio", "safetensors", "pandas")
DECODERS = ("zstandard", "lz4", "cramjam")
TIMES = 2.5
EMPTY = """
import typer

app = typer.Typer()


@app.command()
def nothing(name: str = "", count: int = 1) -> None: ...


app()
"""

PROBE = """
import atexit, json, sys
from nvckpt.cli.main import main

report = sys.argv.pop(1)


def dump():
    with open(report, "w") as file:
        json.dump(sorted(sys.modules), file)


atexit.register(dump)
main()
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("imports") / "x.bin"
    path.write_bytes(bytes(range(256)) * 300)
    compress(path)
    return f"{path}.nvckpt"


def modules_after(report: Path, *args: str) -> set[str]:
    """Names in sys.modules when the command ends."""
    done = subprocess.run([sys.executable, "-c", PROBE, str(report), *args], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(report.read_text()))


def roots(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


@pytest.mark.parametrize("command", [["--help"], ["--version"], ["compress", "--help"]], ids=" ".join)
def test_help_loads_nothing_heavy(command, tmp_path):
    """Help and version need no codec, no NumPy, no GPU library."""
    loaded = roots(modules_after(tmp_path / "modules", *command))
    assert "nvckpt" in loaded
    assert loaded.isdisjoint(HEAVY + DECODERS + ("numpy",))


@pytest.mark.parametrize("options", [[], ["-v"], ["--json"]], ids=str)
def test_list_loads_nothing_heavy(archive, options, tmp_path):
    """Listing touches neither a GPU nor torch nor NumPy, nor a codec for a small index."""
    loaded = roots(modules_after(tmp_path / "modules", "list", *options, archive))
    assert "nvckpt" in loaded
    assert loaded.isdisjoint(HEAVY + DECODERS + ("numpy",))


@pytest.mark.parametrize("command", ["compress", "decompress", "verify"])
def test_work_on_the_cpu_loads_no_gpu_library_and_no_torch(command, archive, tmp_path):
    """A file is compressed and restored without torch, on any machine."""
    arguments = [command, "-fq", archive] if command != "verify" else [command, archive]
    output = [] if command == "verify" else ["-o", str(tmp_path / "out")]
    loaded = roots(modules_after(tmp_path / "modules", *arguments, *output))
    assert loaded.isdisjoint(set(HEAVY))


def seconds_of(command):
    """Processor time of a program that succeeds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "COLUMNS": "80"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.parametrize("command", ["--help", "--version", "list"])
def test_answer_comes_at_once(command, archive):
    """Little more than Typer takes by itself, which is about 0.2 of the half second that people may wait.

    Processor time, tried for a while, and held against an empty program's: other work slows both, and so do machines.
    """
    program = [Path(sys.executable).with_name("nvckpt"), *([command, archive] if command == "list" else [command])]
    mine, empty = [], []
    while len(mine) < 3 or (len(mine) < 20 and min(mine) > TIMES * min(empty)):
        mine.append(seconds_of(program))
        empty.append(seconds_of([sys.executable, "-c", EMPTY]))
    assert min(mine) <= TIMES * min(empty)


def test_importing_the_package_costs_next_to_nothing():
    """Names are loaded when first used."""
    code = "import sys, nvckpt; print(sorted(m for m in sys.modules if m.startswith('nvckpt')), 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['nvckpt', 'nvckpt.version'] False"


def test_public_names_are_all_there():
    """Each name of `__all__` loads, and nothing else is promised."""
    import nvckpt

    assert all(getattr(nvckpt, name) for name in nvckpt.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = nvckpt.nothing
