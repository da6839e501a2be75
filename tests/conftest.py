"""What the whole suite shares: the summary lines of the tests that count, and a folder in memory."""

import os
import tempfile
from pathlib import Path

import pytest

COUNTS = dict.fromkeys(("flips", "cuts", "faults", "kills", "disks", "corpus"), 0)

SENTENCES = {
    "faults": "fault injection: {:,} failed system calls, 0 sources lost, 0 partial files",
    "kills": "kill test: {:,} runs killed, 0 sources lost, 0 partial files",
    "disks": "full disk: {:,} sizes, 0 sources lost, 0 partial files",
    "corpus": "fuzzing corpus: {:,} inputs replayed, 0 crashes, 0 hangs",
}


def pytest_runtest_logreport(report):
    """Add up what tests recorded; reports reach the main process from parallel workers, too."""
    if report.when == "call" and report.passed:
        for name, count in report.user_properties:
            if name in COUNTS:
                COUNTS[name] += count


def pytest_terminal_summary(terminalreporter):
    if COUNTS["flips"]:
        terminalreporter.write_line(
            f"golden archives: {COUNTS['flips']:,} bit flips and {COUNTS['cuts']:,} cuts, all detected"
        )
    for name, sentence in SENTENCES.items():
        if COUNTS[name]:
            terminalreporter.write_line(sentence.format(COUNTS[name]))


@pytest.fixture
def shm():
    """A folder on a tmpfs of a kernel that allocates mapped pages when asked."""
    from nvckpt.formats import mapped

    try:
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
    except OSError as error:
        pytest.skip(f"no tmpfs here: {error}")
    with folder as name:
        path = Path(name)
        with (path / "probe").open("w+b") as file:
            writer = mapped.writer_for(file.fileno(), 4)
            if writer is None or not writer.write([memoryview(os.urandom(10_000))]):
                pytest.skip("no tmpfs, a kernel before 5.14, or no C compiler when nvckpt was installed")
        (path / "probe").unlink()
        yield path
