"""How long each stage of an operation was busy, and so which one holds up the others."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """Bytes that went through a stage, and the seconds in which it was busy; stages overlap in time."""

    name: str
    bytes: int
    seconds: float


class Stages:
    """Collects times from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, tuple[int, float]] = {}

    def add(self, name: str, size: int, seconds: float) -> None:
        """Add to a stage; its work of one moment counts once, so threads that share it each add their part of it."""
        with self._lock:
            before = self._found.get(name, (0, 0.0))
            self._found[name] = (before[0] + size, before[1] + seconds)

    @contextmanager
    def timed(self, name: str, size: int, threads: int = 1) -> Iterator[None]:
        """Add the time inside the block, shared by as many `threads` that do the same."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, size, (time.perf_counter() - started) / threads)

    def report(self) -> tuple[Stage, ...]:
        """Return the stages in the order in which they first ended."""
        with self._lock:
            return tuple(Stage(name, size, seconds) for name, (size, seconds) in self._found.items() if size)


def bottleneck(stages: Sequence[Stage]) -> Stage | None:
    """Return the stage that was busy longest; None of nothing."""
    return max(stages, key=lambda stage: stage.seconds, default=None)
