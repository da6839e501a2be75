"""README promises what the tool does; the promises that can be read by a program are compared here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

import nvckpt
from nvckpt.cli.exits import MEANINGS, Exit

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SAMPLES = sorted((ROOT / "sample_data" / "checkpoints").iterdir())


def test_exit_code_table_is_the_code():
    """The exit codes that scripts rely on are those of the program, with the meanings of its manual page."""
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", README, re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == MEANINGS
    assert set(MEANINGS) == set(Exit)


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


BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README.split("## Use", 1)[1].split("\n## In training")[0], re.DOTALL)


@pytest.mark.parametrize(("language", "code"), BLOCKS)
def test_block_of_the_section_use_runs_as_it_stands(language, code, tmp_path):
    """Each block, pasted whole where a `ckpt.pt` is, works; what it restores is that file."""
    (tmp_path / "ckpt.pt").write_bytes(SAMPLES[0].read_bytes())
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    program = ["bash", "-ec"] if language == "bash" else [sys.executable, "-c"]
    # No other machine is at hand: a shell takes the place of the remote one.
    command = [*program, code.replace("ssh host", "bash -c")]
    done = subprocess.run(command, cwd=tmp_path, env=tools, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for restored in tmp_path.glob("*.pt"):
        assert restored.read_bytes() == SAMPLES[0].read_bytes()


def test_section_use_has_its_blocks():
    """Six for a shell, one for Python, two about many files, so that the test above cannot run dry."""
    assert [language for language, _ in BLOCKS] == ["bash"] * 6 + ["python"] + ["bash"] * 2
