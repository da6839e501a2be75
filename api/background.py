"""Saves that go on while the training does: one at a time, and none of their errors is lost."""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

from nvckpt.results import CompressResult


class Saving:
    """A save that was begun; returned by `nvckpt.save`."""

    def __init__(self) -> None:
        self._future: Future[CompressResult] = Future()
        self._seen = False

    def wait(self, timeout: float | None = None) -> CompressResult:
        """Return the result when all is written, or raise what went wrong; TimeoutError after `timeout` seconds."""
        result = self._future.exception(timeout)
        self._seen = True
        if result is not None:
            raise result
        return self._future.result()

    def done(self) -> bool:
        """Tell whether nothing is left to do, be it for an error."""
        return self._future.done()

    def _run(self, work: Callable[[], CompressResult]) -> None:
        try:
            self._future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits, or to the next save
            self._future.set_exception(error)

    def _leave(self) -> None:
        """Make of this the copy in a forked child: the thread that saves is the parent's, and is not waited for."""
        if not self._future.done():
            self._future = Future()
            self._future.set_exception(RuntimeError("the process that began this save waits for it, not its child"))

    def _finish(self) -> None:
        """Wait, and raise an error that nobody has been told."""
        if self._seen:
            self._future.exception()
            return
        try:
            self.wait()
        except BaseException as error:
            error.add_note("this happened to an earlier nvckpt.save(..., blocking=False), whose file was not written")
            raise


_lock = threading.Lock()
_last: Saving | None = None


def run(work: Callable[[], CompressResult], *, blocking: bool) -> Saving:
    """Do the work now, or in a thread; either way after the save before has ended, whose error is raised here."""
    global _last  # noqa: PLW0603 - there is one writer a process, so that memory holds one state at most
    saving = Saving()
    with _lock:
        before, _last = _last, None
        if before is not None:
            before._finish()
        if not blocking:
            _last = saving
            _wait_at_exit()
            threading.Thread(target=saving._run, args=(work,), name="nvckpt-save").start()
            return saving
    saving._run(work)
    saving.wait()
    return saving


def _forget() -> None:
    """Begin anew in a forked child, such as a worker that loads data: no thread of the parent's goes on there."""
    global _lock, _last  # noqa: PLW0603 - see `run`
    _lock = threading.Lock()
    before, _last = _last, None
    if before is not None:
        before._leave()


os.register_at_fork(after_in_child=_forget)


def wait() -> None:
    """Wait for the save in the background, if there is one, and raise its error if nobody was told."""
    global _last
    with _lock:
        before, _last = _last, None
    if before is not None:
        before._finish()


def settle() -> None:
    """Wait for the save in the background; its error stays for the next save."""
    last = _last
    if last is not None:
        last._future.exception()


def _end() -> None:
    """Wait before the interpreter ends; an error that no next save will raise is printed."""
    last = _last
    error = last._future.exception() if last is not None and not last._seen else None
    if error is not None:
        sentence = f"{type(error).__name__}: {error}"
        print(
            f"nvckpt: the last save in the background failed, and its file was not written: {sentence}", file=sys.stderr
        )


_registered = False


def _wait_at_exit() -> None:
    """Let a save end before the interpreter takes its thread pools away, which it does ahead of `atexit`."""
    global _registered  # noqa: PLW0603 - once a process
    if not _registered:
        _registered = True
        getattr(threading, "_register_atexit", atexit.register)(_end)
