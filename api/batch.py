"""Many files, some at a time: worker processes that are forked once, so that imports cost once.

Processes rather than threads: small files are mostly Python, and a crash in a library or a kill for want of memory
ends one file and not the batch.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_PR_SET_PDEATHSIG = 1
_FORK = get_context("fork")


@dataclass(frozen=True, slots=True)
class Lost:
    """What is known of an item whose worker died: nothing, but why."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Worker:
    process: ForkProcess
    connection: Connection


def run(items: Sequence[Item], work: Callable[[Item], Result], jobs: int) -> Iterator[tuple[int, Result | Lost]]:
    """Yield the number and the result of each item as it is finished, `jobs` at a time.

    `work` runs in processes forked from this one, which must have no threads; its results are pickled.
    Closing the generator stops the workers and waits for them.
    """
    waiting = iter(range(len(items)))
    with contextlib.ExitStack() as stack:
        workers: dict[Connection, _Worker] = {}
        at_work: dict[Connection, int] = {}
        stack.callback(_stop, workers, at_work)
        for _ in range(min(jobs, len(items))):
            _start(workers, at_work, next(waiting), items, work)
        while at_work:
            for connection in wait(list(at_work)):
                assert isinstance(connection, Connection)
                number = at_work.pop(connection)
                try:
                    result: Result | Lost = connection.recv()
                except (EOFError, ConnectionError):
                    result = Lost(_obituary(workers.pop(connection)))
                following = next(waiting, None)
                if following is not None:
                    if connection in workers:
                        at_work[connection] = following
                        _tell(connection, following)
                    else:
                        _start(workers, at_work, following, items, work)
                yield number, result


def _tell(connection: Connection, number: int) -> None:
    """Give a worker an item; that it died meanwhile is noticed when its result is awaited."""
    with contextlib.suppress(ConnectionError):
        connection.send(number)


def _start(
    workers: dict[Connection, _Worker],
    at_work: dict[Connection, int],
    number: int,
    items: Sequence[Item],
    work: Callable[[Item], Result],
) -> None:
    """Fork a worker and give it its first item."""
    ours, theirs = _FORK.Pipe()
    others = [*workers, ours]
    process = _FORK.Process(target=_serve, args=(theirs, others, os.getpid(), items, work), daemon=True)
    process.start()
    theirs.close()
    workers[ours] = _Worker(process, ours)
    at_work[ours] = number
    _tell(ours, number)


def _serve(
    connection: Connection,
    others: Sequence[Connection],
    parent: int,
    items: Sequence[Item],
    work: Callable[[Item], Result],
) -> None:
    """Work in the child until there is no more, or the parent is gone, or a signal unwinds the stack."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    for other in others:
        other.close()
    try:
        while os.getppid() == parent:
            number = connection.recv()
            connection.send(work(items[number]))
    except (EOFError, ConnectionError):
        pass
    except Exception:
        raise
    except BaseException:  # noqa: BLE001 - a signal, which the parent got too and reports
        pass


def _obituary(worker: _Worker) -> str:
    worker.connection.close()
    worker.process.join()
    code = worker.process.exitcode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    hint = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
    return f"the process that worked on it {how}{hint}"


def _stop(workers: dict[Connection, _Worker], at_work: dict[Connection, int]) -> None:
    """Tell the workers that there is no more; those still at work are stopped, and clean up."""
    for worker in workers.values():
        if worker.connection in at_work:
            worker.process.terminate()
        worker.connection.close()
    for worker in workers.values():
        worker.process.join()
