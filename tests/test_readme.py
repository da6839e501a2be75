"""README promises what the tool does; the promises that can be read by a program are compared here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

import nvckpt
from nvckpt.cli.exits import Exit

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SAMPLES = sorted((ROOT / "sample_data" / "checkpoints").iterdir())


def test_exit_code_table_is_the_code():
    """The exit codes that scripts rely on are those of the program."""
    assert {int(code) for code in re.findall(r"^\| (\d+) \| ", README, re.MULTILINE)} == set(Exit)


def test_error_codes_are_the_code():
    """The list of error codes holds every code that a class of the project owns."""
    from nvckpt import errors
    from nvckpt.codecs import errors as codec_errors
    from nvckpt.formats import errors as format_errors

    owned = {code for code, _ in errors._OS_CODES.values()} | {"io", "oom", "internal"}
    for module in (errors, codec_errors, format_errors):
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, Exception)
                and isinstance(getattr(value, "code", None), str)
            ):
                owned.add(value.code)
    listed = re.search(r"`error.code` is one of:\n\n(.*)\n", README)
    assert listed
    assert set(re.findall(r"`(\w+)`", listed[1])) == owned


def test_results_table_is_true(tmp_path):
    """The results table is what this version makes, within 1 % for other library versions, and beats `zstd -19`."""
    rows = {
        row[0]: [int(figure.replace(",", "")) for figure in row[1:]]
        for row in re.findall(r"^\| `(\S+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|", README, re.MULTILINE)
    }
    assert set(rows) == {sample.name for sample in SAMPLES}
    for sample in SAMPLES:
        original = sample.read_bytes()
        ours = nvckpt.compress(sample, tmp_path / f"{sample.name}.nvckpt").bytes_out
        theirs = len(zstandard.ZstdCompressor(level=19).compress(original))
        assert ours < theirs
        assert rows[sample.name] == pytest.approx([len(original), theirs, ours], rel=0.01)


def test_python_example_runs(tmp_path):
    """The Python lines of the README run as they stand."""
    code = re.search(r"```python\n(import nvckpt\n.*?)```", README, re.DOTALL)
    assert code
    (tmp_path / "ckpt.pt").write_bytes(SAMPLES[0].read_bytes())
    done = subprocess.run([sys.executable, "-c", code[1]], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "weights" in done.stdout
    assert (tmp_path / "again.pt").read_bytes() == SAMPLES[0].read_bytes()


def test_commands_run(tmp_path):
    """The four commands of the README run as they stand."""
    block = re.search(r"```bash\n(nvckpt compress ckpt.pt .*?)```", README, re.DOTALL)
    assert block
    (tmp_path / "ckpt.pt").write_bytes(SAMPLES[0].read_bytes())
    for line in block[1].splitlines():
        command = line.split("#")[0].split()
        if command[1] == "decompress":
            (tmp_path / "ckpt.pt").unlink()
        subprocess.run(
            [sys.executable, "-m", "nvckpt.cli", *command[1:]], cwd=tmp_path, check=True, capture_output=True
        )
    assert (tmp_path / "ckpt.pt").read_bytes() == SAMPLES[0].read_bytes()
