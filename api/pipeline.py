"""Work in threads with the order kept and memory bounded by depth, not by file size."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from nvckpt.formats.errors import MemoryLimitError

# What the interpreter and its libraries take before any work.
_INTERPRETER = 96 << 20

Item = TypeVar("Item")
Part = TypeVar("Part")
Result = TypeVar("Result")


def thread_count(requested: int) -> int:
    """Return the number of worker threads: as asked, or one for each usable core for 0."""
    return requested or len(os.sched_getaffinity(0))


def share_threads(requested: int, jobs: int) -> int:
    """Return the threads of each of `jobs` files at a time: as asked, or the cores shared out for 0."""
    return requested if requested or jobs == 1 else max(1, thread_count(0) // jobs)


def affordable_threads(requested: int, memory: int, window: int) -> int:
    """Return the threads asked for, or as many as `memory` bytes allow when items of up to `window` bytes are in work.

    An item costs about its size twice: as it is read and as it is written. MemoryLimitError when not even one
    thread can work.
    """
    affordable = (memory - _INTERPRETER) // (2 * max(window, 1)) - 1
    if affordable < 1:
        raise MemoryLimitError(
            f"{4 * window + _INTERPRETER >> 20} MiB of memory are needed, more than the {memory >> 20} MiB allowed; "
            "--max-memory allows more"
        )
    return min(thread_count(requested), affordable)


def ordered_map(
    items: Iterable[Item],
    parts: Callable[[Item], Iterable[Part]],
    work: Callable[[Part], Result],
    threads: int,
) -> Iterator[tuple[Item, list[Result]]]:
    """Yield each item with the results of `work` on its parts, in order.

    `items` is drawn, and `parts` called, in the caller's thread; at most `threads` + 1 items are in work ahead of
    the one yielded, so the caller's pace holds back the reading. An exception in `work` is raised
    here at its item's turn, and what was not begun is dropped.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="nvckpt") as pool:
        waiting: deque[tuple[Item, list[Future[Result]]]] = deque()
        try:
            for item in items:
                waiting.append((item, [pool.submit(work, part) for part in parts(item)]))
                if len(waiting) > threads + 1:
                    yield _finish(waiting)
            while waiting:
                yield _finish(waiting)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _finish(waiting: "deque[tuple[Item, list[Future[Result]]]]") -> tuple[Item, list[Result]]:
    item, futures = waiting.popleft()
    return item, [future.result() for future in futures]
