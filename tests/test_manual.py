"""The manual page and the shell completion are made from the commands, so that they cannot drift."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from command import PROGRAM

from nvckpt.cli.exits import Exit
from nvckpt.cli.manual import page

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "cli" / "nvckpt.1"


def test_manual_page_is_current():
    """`make man` after a change of the commands or the version."""
    assert PAGE.read_text() == page(), "run `make man` and commit cli/nvckpt.1"


def test_manual_page_is_installed():
    """Where man looks for it."""
    data_files = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    assert data_files == {"share/man/man1": ["cli/nvckpt.1"]}


def test_manual_page_has_every_option_and_exit_code():
    """As the help shows them."""
    text = page().replace("\\-", "-")
    for word in ("--recursive", "--output-dir-mirror", "--rm", "--no-sparse", "NVCKPT_THREADS", "nvckpt doctor"):
        assert word in text
    assert all(f"\n.B {int(code)}\n" in text for code in Exit)


@pytest.mark.skipif(shutil.which("man") is None, reason="no man here")
def test_manual_page_is_understood():
    """No warning of the formatter, and no line is lost."""
    command = ["man", "--warnings", "-E", "UTF-8", str(PAGE)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C"}, check=True)
    assert done.stderr == b""
    assert b"EXIT STATUS" in done.stdout
    assert b"terminated (SIGTERM, SIGHUP)" in done.stdout


def complete(shell: str, line: str, tmp_path: Path) -> list[str]:
    """What the shell's script asks for a line, and what it gets."""
    words = line.split(" ")
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
    }[shell]
    env = {**os.environ, **asked, "_NVCKPT_COMPLETE": f"complete_{shell}", "HOME": str(tmp_path)}
    done = subprocess.run([PROGRAM], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")


@pytest.mark.parametrize(
    ("shell", "line", "expected"),
    [("bash", "nvckpt dec", "decompress"), ("bash", "nvckpt compress --output-dir-m", "--output-dir-mirror"),
     ("bash", "nvckpt compress --codec zs", "zstd"), ("zsh", "nvckpt verify --device cu", "cuda")],
)  # fmt: skip
def test_completion(shell, line, expected, tmp_path):
    """Commands, options and their values."""
    assert any(expected in candidate for candidate in complete(shell, line, tmp_path))


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete -o default -F"), ("zsh", "#compdef nvckpt")])
def test_completion_script(shell, word):
    """--show-completion, in the shell that asks."""
    env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run([PROGRAM, "--show-completion", shell], capture_output=True, text=True, env=env, check=True)
    assert word in done.stdout
    assert "_NVCKPT_COMPLETE" in done.stdout


def test_completion_is_used_by_bash(tmp_path):
    """The script, sourced: the shell's own function finds the command, and files by default."""
    env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    env["PATH"] = f"{Path(PROGRAM).parent}:{os.environ['PATH']}"
    script = (
        'eval "$(nvckpt --show-completion bash)"; complete -p nvckpt; COMP_WORDS=(nvckpt ver) COMP_CWORD=1; '
        '_nvckpt_completion nvckpt; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env, check=True, cwd=tmp_path)
    assert "-o default" in done.stdout
    assert done.stdout.splitlines()[-1] == "verify"
