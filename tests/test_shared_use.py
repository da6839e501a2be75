"""One archive in many threads, and processes that fork while a save goes on: nobody hangs, nothing is lost."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import nvckpt
from nvckpt import original as original_module
from nvckpt import state as state_module

pytestmark = pytest.mark.filterwarnings("ignore")
SECONDS = 30


class Gate:
    """A file object whose first write waits until it is opened."""

    def __init__(self):
        self.opened = threading.Event()

    def write(self, data):
        assert self.opened.wait(SECONDS)


def in_child(work) -> int:
    """The exit code of a forked child that does the work; minus the signal if it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - nothing may return into pytest
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def some_tensors():
    """Frames of their own, several of which go into no memory that is allowed for."""
    return {f"layers.{number}.w": torch.randn(300, 300) for number in range(24)}


def test_threads_read_one_open_archive(tmp_path, monkeypatch):
    """Frames that one thread waits for are not taken from it by another that needs room."""
    state = some_tensors()
    nvckpt.save(state, tmp_path / "x")
    monkeypatch.setattr(original_module, "WINDOW", 1 << 16)
    names = list(state)
    with nvckpt.open(tmp_path / "x", threads=2) as archive, ThreadPoolExecutor(16) as pool:
        work = [pool.submit(archive.get_tensor, names[number * 7 % len(names)]) for number in range(400)]
        assert all(torch.equal(done.result(), state[names[n * 7 % len(names)]]) for n, done in enumerate(work))


def test_a_closed_archive_says_so(tmp_path):
    nvckpt.save(some_tensors(), tmp_path / "x")
    with nvckpt.open(tmp_path / "x") as archive:
        rows = archive.get_slice("layers.0.w")
    with pytest.raises(ValueError, match="the archive is closed"):
        rows[:3]


@pytest.mark.parametrize("lazy", [False, True])
def test_workers_read_what_was_opened_before_they_were_forked(lazy, tmp_path):
    """As loaders of data do: the parent's threads are not there to decode for the child."""
    state = some_tensors()
    nvckpt.save(state, tmp_path / "x")
    archive = nvckpt.load(tmp_path / "x", lazy=True) if lazy else nvckpt.open(tmp_path / "x", threads=2)
    assert torch.equal(archive["layers.3.w"][1:2], state["layers.3.w"][1:2])

    def read():
        for name, tensor in state.items():
            assert archive[name][7, 9].item() == tensor[7, 9].item()

    assert in_child(read) == 0


@pytest.mark.parametrize("work", ["load", "open", "save", "in the background"])
def test_a_fork_during_a_background_save_does_not_wait_for_it(work, tmp_path):
    """The thread that saves is the parent's; before, the child waited for ever."""
    nvckpt.save({"w": torch.ones(3)}, tmp_path / "x")
    gate = Gate()
    saving = nvckpt.save({"w": torch.ones(3)}, gate, blocking=False)

    def use():
        if work == "load":
            assert nvckpt.load(tmp_path / "x")["w"].tolist() == [1, 1, 1]
        elif work == "open":
            nvckpt.open(tmp_path / "x").close()
        else:
            nvckpt.save({"w": torch.zeros(3)}, tmp_path / "y", blocking=work == "save").wait(SECONDS)
            assert nvckpt.load(tmp_path / "y")["w"].tolist() == [0, 0, 0]
        with pytest.raises(RuntimeError, match="the process that began this save"):
            saving.wait(SECONDS)

    try:
        assert in_child(use) == 0
    finally:
        gate.opened.set()
    assert saving.wait(SECONDS).bytes_in


def test_a_fork_inside_the_laying_out_of_a_state(tmp_path, monkeypatch):
    """Python 3.11's cached_property left its lock, one for all states, taken in the child."""
    inside, go_on = threading.Event(), threading.Event()
    found = state_module.find_storages

    def waiting(values):
        if threading.current_thread().name == "nvckpt-save":
            inside.set()
            assert go_on.wait(SECONDS)
        return found(values)

    monkeypatch.setattr(state_module, "find_storages", waiting)
    saving = nvckpt.save({"w": torch.ones(3)}, tmp_path / "x", blocking=False)
    try:
        assert inside.wait(SECONDS)
        assert in_child(lambda: nvckpt.save({"w": torch.zeros(3)}, tmp_path / "y")) == 0
    finally:
        go_on.set()
    assert saving.wait(SECONDS).bytes_in
    assert nvckpt.load(tmp_path / "y")["w"].tolist() == [0, 0, 0]


def test_a_forked_child_that_ends_leaves_its_parents_files(tmp_path):
    """Its clean-up at exit took the temporary file of the save that the parent was in."""
    code = (
        "import os, sys, pathlib\n"
        "from nvckpt.formats.atomic import AtomicFile\n"
        "file = AtomicFile(pathlib.Path('x'))\n"
        "file.write(b'whole')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "file.commit(None, overwrite=False)\n"
        "file.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "x").read_bytes() == b"whole"
