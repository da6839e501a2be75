"""A progress bar on standard error, only where somebody sees it."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from nvckpt.cli.console import Talk

Report = Callable[[int, int], None]


@contextlib.contextmanager
def progress(talk: Talk, wanted: bool | None, name: str) -> Iterator[Report | None]:
    """Yield a function to call with bytes done and in all, or None when no bar is to be shown."""
    show = sys.stderr.isatty() and not talk.quiet and not talk.as_json if wanted is None else wanted
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
