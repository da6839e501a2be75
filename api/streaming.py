"""Stages in threads that hand batches on, in order and in memory of a fixed size."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import numpy as np

from nvckpt.codecs.blocks import Block, Choice
from nvckpt.codecs.cuda_coder import Bytes, Clock, Part
from nvckpt.formats import parallel_io
from nvckpt.formats.byte_source import ByteSource, FileBytes
from nvckpt.formats.errors import SourceReadError

DEPTH = 3
"""Batches in work at a time: one is read, one is coded, one is written."""

# How often a waiting stage looks whether the pipeline has ended, in seconds.
_PATIENCE = 0.1

Item = TypeVar("Item")


class Coder(Protocol):
    """A device that codes batches; `nvckpt.codecs.cuda_coder.CudaCoder` tells more of each."""

    def pinned(self, size: int) -> Bytes:
        """Host memory that the device copies fast."""

    def room_for(self, size: int) -> int:
        """Bytes that the output of a batch may take."""

    def encode(
        self, data: Bytes, parts: Sequence[Part], choice: Choice, out: Bytes, verify: bool, clock: Clock
    ) -> list[Block]:
        """Blocks whose streams lie in `out`, in `data`, or in memory of their own."""

    def decode(self, data: Bytes, coded: Sequence[Block], parts: Sequence[Part], out: Bytes, clock: Clock) -> None:
        """Fill the parts' ranges of `out`."""

    def release(self) -> None:
        """Free what can be freed on the device."""


class StoppedError(Exception):
    """The pipeline is ending; never seen outside it."""


class Slots:
    """Memory for DEPTH batches, made when first needed, handed out and taken back."""

    def __init__(self, make: Callable[[int], Bytes], size: int) -> None:
        self._make, self._size = make, size
        self._made: list[Bytes] = []
        self._free: queue.Queue[Bytes] = queue.Queue()

    def reset(self) -> None:
        """Take everything back; for when nobody works any more, however that ended."""
        self._free = queue.Queue()
        for memory in self._made:
            self._free.put(memory)

    def take(self, stop: threading.Event) -> Bytes:
        """Wait for memory; StoppedError when the pipeline ends meanwhile."""
        if self._free.empty() and len(self._made) < DEPTH:
            self._made.append(self._make(self._size))
            return self._made[-1]
        memory: Bytes = take(self._free, stop)
        return memory

    def give(self, memory: Bytes) -> None:
        """Take memory back."""
        self._free.put(memory)


class Output:
    """A queue to the next stage that also carries the end, and an exception."""

    _END = object()

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self._items: queue.Queue[Any] = queue.Queue(DEPTH)

    def put(self, item: Any) -> None:
        """Hand an item on; StoppedError when the pipeline ends meanwhile."""
        while not self.stop.is_set():
            with suppress(queue.Full):
                self._items.put(item, timeout=_PATIENCE)
                return
        raise StoppedError

    def run(self, work: Callable[[], None]) -> None:
        """Do a stage's work, then mark the end, or pass on what went wrong."""
        with suppress(StoppedError):
            try:
                work()
                self.put(self._END)
            except StoppedError:
                raise
            except BaseException as error:  # noqa: BLE001 - it is raised again where the items are taken
                self.put(error)

    def __iter__(self) -> Iterator[Any]:
        """Take items until the end; raises what the stage before raised."""
        while (item := take(self._items, self.stop)) is not self._END:
            if isinstance(item, BaseException):
                raise item
            yield item


def take(source: "queue.Queue[Any]", stop: threading.Event) -> Any:
    """Wait for the next item of a queue; StoppedError when the pipeline ends meanwhile."""
    while not stop.is_set():
        with suppress(queue.Empty):
            return source.get(timeout=_PATIENCE)
    raise StoppedError


@contextmanager
def stages_of(first: Callable[[Output], None], second: Callable[[Output, Output], None]) -> Iterator[Output]:
    """Run two stages in threads; yields what the second hands on. An exception in either comes out there."""
    stop = threading.Event()
    middle, last = Output(stop), Output(stop)
    threads = [
        threading.Thread(target=middle.run, args=(lambda: first(middle),), name="nvckpt-read"),
        threading.Thread(target=last.run, args=(lambda: second(middle, last),), name="nvckpt-device"),
    ]
    for thread in threads:
        thread.start()
    try:
        yield last
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def read_into(source: ByteSource, offset: int, target: Bytes, threads: int) -> int:
    """Fill `target` from a source, a file by several threads; returns the bytes read, fewer where it ends.

    SourceReadError.
    """
    if not isinstance(source, FileBytes):
        target[:] = np.frombuffer(source.read_at(offset, len(target)), np.uint8)
        return len(target)
    try:
        return parallel_io.read_range(source.descriptor, offset, target, threads)
    except OSError as error:
        raise SourceReadError(error.errno, error.strerror) from error


def batches(items: Iterable[Item], size_of: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """Cut a sequence into runs of at most `limit` bytes, of at least one item each."""
    pending: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if pending and total + size > limit:
            yield pending
            pending, total = [], 0
        pending.append(item)
        total += size
    if pending:
        yield pending
