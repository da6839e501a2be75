"""A large file that is replaced is given up in a thread, so that nobody waits for its pages to be freed."""

import os
import threading
from pathlib import Path

from nvckpt.formats.atomic import atomic_file


def test_a_large_file_that_is_replaced_is_let_go(tmp_path, monkeypatch):
    target = tmp_path / "x"
    target.touch()
    os.truncate(target, 64 << 20)
    closed = []
    started = threading.Thread.start

    def start(thread):
        closed.append(thread)
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    before = set(Path("/proc/self/fd").iterdir())
    with atomic_file(target) as file:
        file.write(b"new")
        file.commit(None, overwrite=True)
    assert target.read_bytes() == b"new"
    assert [thread.name for thread in closed] == ["nvckpt-free"]
    closed[0].join()
    assert set(Path("/proc/self/fd").iterdir()) <= before
