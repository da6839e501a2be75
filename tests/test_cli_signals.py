"""A stopped command leaves nothing behind and says so by its exit code."""

import os
import random
import signal
import subprocess
import time

import pytest
from command import PROGRAM

INTERRUPTED, TERMINATED = 130, 143


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A file that takes a while: 160 MiB, half of it noise; and its archive."""
    folder = tmp_path_factory.mktemp("signals")
    noise = os.urandom(16 << 20)
    with (folder / "source").open("wb") as file:
        for _ in range(5):
            file.write(noise)
            file.seek(16 << 20, os.SEEK_CUR)
        file.write(b"end")
    subprocess.run([PROGRAM, "compress", "-q", "--no-verify", folder / "source"], check=True)
    for name in ("source", "source.nvckpt"):
        (folder / f"kept-{name}").hardlink_to(folder / name)
    return folder


def stop(work, command, number, delay=0.0, times=1, start=()) -> tuple[int, str]:
    """Start a command, wait for its temporary file, then signal it; returns exit code and standard error.

    Where the machine was so busy that the command had ended before the signal, all is tried again.
    """
    for _ in range(10):
        returned, err, was_running = _stop(work, command, number, delay, times, start)
        if was_running or "--rm" not in command:
            return returned, err
        (work / "output").unlink()
    raise AssertionError("the command always ended before its signal")


def _default_signals() -> None:
    """Undo what a shell did that started the tests in the background: there, interrupts are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _stop(work, command, number, delay, times, start) -> tuple[int, str, bool]:
    output = work / "output"
    source = work / ("source" if command[0] == "compress" else "source.nvckpt")
    if not source.exists():
        source.hardlink_to(work / f"kept-{source.name}")
    process = subprocess.Popen(
        [*start, PROGRAM, *command, source, "-o", output],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=_default_signals,  # noqa: PLW1509 - nothing else runs in the child
    )
    while process.poll() is None and not list(work.glob("*.tmp")):
        time.sleep(0.001)
    time.sleep(delay)
    was_running = process.poll() is None
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.005)
    err = process.communicate(timeout=60)[1].decode()
    assert "Traceback" not in err
    assert list(work.glob("*.tmp")) == []
    was_running = was_running and process.returncode != 0
    assert source.exists() or not was_running
    return process.returncode, err, was_running


@pytest.fixture
def output(work):
    yield work / "output"
    (work / "output").unlink(missing_ok=True)


@pytest.mark.parametrize("command", [["compress", "--rm"], ["decompress", "--rm"]], ids=lambda c: c[0])
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, INTERRUPTED, "interrupted"), (signal.SIGTERM, TERMINATED, "terminated"),
     (signal.SIGHUP, TERMINATED, "terminated")],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)  # fmt: skip
def test_signal_stops_without_litter(command, number, code, word, work, output):
    """No temporary file, no output, the source as it was, the exit code of the signal, one word."""
    before = (work / "kept-source").stat().st_mtime_ns
    returned, err = stop(work, command, number)
    assert returned == code
    assert err.strip().endswith(f"nvckpt: {word}")
    assert not output.exists()
    assert (work / "source").stat().st_mtime_ns == before


@pytest.mark.parametrize("seed", range(6))
def test_signal_at_any_moment_leaves_all_or_nothing(seed, work, output):
    """Whenever it comes: either the whole output or none, and never a temporary file."""
    command = random.Random(seed).choice([["compress"], ["decompress"]])
    returned, _ = stop(work, command, signal.SIGTERM, random.Random(seed).random() * 0.4, times=2)
    assert returned in (0, TERMINATED)
    if output.exists():
        check = ["verify", "-q", output] if command == ["compress"] else ["compress", "-q", output, "-o", os.devnull]
        subprocess.run([PROGRAM, *check], check=True)
    else:
        assert returned == TERMINATED


def test_ignored_hang_up_stays_ignored(work, output):
    """`nohup nvckpt ...` goes on when the terminal closes."""
    returned, err = stop(work, ["compress", "-q"], signal.SIGHUP, start=["nohup"])
    assert returned == 0
    assert "nvckpt:" not in err
    assert output.exists()
