"""A progress bar on standard error, only where somebody sees it."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from nvckpt.cli.console import Talk

Report = Callable[[int, int], None]


@contextlib.contextmanager
def progress(talk: Talk, wanted: bool | None, name: str) -> Iterator[Report | None]:
    """Yield a function to call with bytes done and in all, or None when no bar is to be shown."""
    if not _is_shown(talk, wanted):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def overall(talk: Talk, wanted: bool | None, files: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call for each finished file of a batch whose files are worked on by other processes."""
    if not _is_shown(talk, wanted):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("files"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No thread that refreshes: there may be forks. Standard output is left alone where it is a pipe.
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, auto_refresh=False, redirect_stdout=sys.stdout.isatty()
    ) as bar:
        task = bar.add_task("files", total=files)
        bar.refresh()

        def step() -> None:
            bar.update(task, advance=1, refresh=True)

        yield step


def _is_shown(talk: Talk, wanted: bool | None) -> bool:
    return sys.stderr.isatty() and not talk.quiet and not talk.is_data if wanted is None else wanted
