"""What a batch comes to: the total table, a line, and the names of what failed."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nvckpt.cli import report
from nvckpt.cli.console import Talk
from nvckpt.files import show

if TYPE_CHECKING:
    from nvckpt.results import GroupSize
    from nvckpt.trees import Finds

# A full disk may fail thousands, and each was named with its reason when its turn came.
_MOST_NAMES = 50
_DONE = {"compress": "compressed", "decompress": "restored", "verify": "sound", "list": "listed"}


class Tally:
    """Adds up the entries of a batch."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._started = time.perf_counter()
        self._groups: list[GroupSize] = []
        self._bytes_in = self._bytes_out = self._done = self._files = 0
        self._skipped: dict[str, int] = {}
        self.failed: list[str] = []

    def add(self, source: str, entry: dict[str, Any], groups: "Iterable[GroupSize]") -> None:
        """Count one input, whose name in the entry may be no path any more."""
        self._files += 1
        if not entry["ok"]:
            self.failed.append(source)
        elif entry.get("skipped"):
            self._skipped[entry["reason"]] = self._skipped.get(entry["reason"], 0) + 1
        else:
            self._done += 1
            self._bytes_in += entry["bytes_in"]
            self._bytes_out += entry["bytes_out"]
            if groups:
                from nvckpt.results import add_up

                self._groups = add_up((*self._groups, *groups))

    def say(self, talk: Talk, found: "Finds") -> None:
        """Print the totals on standard output, and what was not done on standard error."""
        if self._done and self._groups:
            talk.table(report.group_table(self._groups, self._bytes_in, self._bytes_out, self._title()))
        if not talk.quiet:
            talk.line(self._line())
        self._say_passed_over(talk, found)
        if self.failed and self._files > 1:
            named = self.failed[:_MOST_NAMES]
            talk.recap(f"{len(self.failed):,} of {self._files:,} files failed:")
            for name in named:
                talk.recap(f"  {show(name)}")
            if len(self.failed) > len(named):
                talk.recap(f"  and {len(self.failed) - len(named):,} more, each named above")

    def _say_passed_over(self, talk: Talk, found: "Finds") -> None:
        """Tell what was found and not taken; for other commands than `compress` that is no news."""
        compresses = self._command == "compress"
        left = found.left_alone if compresses else []
        if talk.verbose:
            for path in left:
                talk.note(f"{show(path)}: no checkpoint by its content, left alone")
        elif left:
            talk.note(f"{_count(len(left), 'file')} left alone: no checkpoint by its content (-v names them)")
        if found.links:
            talk.note(f"{_count(found.links, 'symbolic link')} passed over")
        if not self._files:
            talk.note(f"nothing to do: no {'checkpoint' if compresses else 'archive'} was found")

    def _title(self) -> str:
        return f"Total of {_count(self._done, 'file')}"

    def _line(self) -> str:
        counts = [f"{self._done:,} {_DONE[self._command]}"]
        counts += [f"{sum(self._skipped.values()):,} skipped"] if self._skipped else []
        counts += [f"{len(self.failed):,} failed"] if self.failed else []
        line = f"{_count(self._files, 'file')}: {', '.join(counts)}"
        if not self._done or self._command == "list":
            return line
        seconds = time.perf_counter() - self._started
        sizes = f"{report.size(self._bytes_in)} -> {report.size(self._bytes_out)}"
        original = self._bytes_in if self._command == "compress" else self._bytes_out
        return f"{line}; {sizes} in {seconds:.1f} s, {report.rate(original, seconds)}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
