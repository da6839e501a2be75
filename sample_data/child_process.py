"""Run a program and measure it: seconds, and the most host and device memory it took."""

import ctypes
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

INTERVAL = 0.02


@dataclass
class Measured:
    """One run. Memory in bytes; None where it could not be seen.

    `peak_host` is the kernel's `ru_maxrss`. `peak_anonymous` leaves out pages of mapped files, which on a tmpfs are the
    file itself. `peak_device` is what the whole GPU had in use more than before the start, context included.
    """

    seconds: float
    peak_host: int
    peak_anonymous: int | None
    peak_device: int | None
    output: str = ""

    def figures(self) -> dict[str, Any]:
        """Return what is worth keeping."""
        return {name: value for name, value in asdict(self).items() if name != "output"}


class ChildError(RuntimeError):
    """A program failed or took too long; the message ends with what it said last."""


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class DeviceMemory:
    """Bytes in use on the first GPU, asked of NVML; None on a machine without."""

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        try:
            self._nvml: ctypes.CDLL | None = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self._nvml = None
            return
        if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._handle)):
            self._nvml = None

    def used(self) -> int | None:
        """Return bytes; None where they cannot be asked for."""
        found = _Memory()
        if self._nvml is None or self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(found)):
            return None
        return int(found.used)


class _Watch(threading.Thread):
    """Looks at a process's memory until told to stop, and kills it after `timeout` seconds."""

    def __init__(self, pid: int, device: DeviceMemory, idle: int | None, timeout: float) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.late = False
        self.anonymous: int | None = None
        self.device: int | None = None
        self._pid, self._memory, self._idle = pid, device, idle
        self._deadline = time.monotonic() + timeout

    def run(self) -> None:
        """Sample until `done`."""
        while not self.done.wait(INTERVAL):
            if (size := _anonymous(self._pid)) is not None:
                self.anonymous = max(self.anonymous or 0, size)
            if self._idle is not None and (used := self._memory.used()) is not None:
                self.device = max(self.device or 0, used - self._idle)
            if not self.late and time.monotonic() > self._deadline:
                self.late = True
                # The child leads a session of its own and is not waited for yet, so the number is still its own.
                os.killpg(self._pid, signal.SIGKILL)


def _anonymous(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith(b"RssAnon:"):
            return int(line.split()[1]) << 10
    return None


def run(command: Sequence[str], timeout: float, device: DeviceMemory | None = None) -> Measured:
    """Run to the end; ChildError unless it exits with 0 in time.

    Only a small process may call this: `ru_maxrss` of a child starts at the size of the process that forked it.
    """
    memory = device or DeviceMemory()
    idle = memory.used()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        watch = _Watch(child.pid, memory, idle, timeout)
        watch.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        finally:
            watch.done.set()
        seconds = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        watch.join()
        said, complained = (_text(stream) for stream in (out, err))
    if child.returncode or watch.late:
        why = f"took longer than {timeout:.0f} s" if watch.late else f"exited with {child.returncode}"
        raise ChildError(f"{' '.join(_short(command))} {why}: {(complained or said).strip()[-600:]}")
    return Measured(seconds, usage.ru_maxrss << 10, watch.anonymous, watch.device, said)


def _text(stream: Any) -> str:
    stream.seek(0)
    return str(stream.read().decode(errors="replace"))


def _short(command: Sequence[str]) -> list[str]:
    """Leave out folders, which differ from machine to machine."""
    return [Path(word).name if os.sep in word else word for word in command]
