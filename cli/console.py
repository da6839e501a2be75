"""Where words go: results on standard output, talk on standard error.

Names of files and tensors are printed as they are: never as markup, and control characters escaped.
"""

import json
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nvckpt.cli.exits import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCHEMA = 1
"""Of all JSON; README describes it."""
_FOLDED, _WIDEST = 16, 1000
"""Columns that text keeps before figures run over the edge of a terminal, and more than any table has."""


@dataclass(frozen=True)
class Talk:
    """How much to say: `quiet` 1 hides warnings and tables, 2 also errors.

    `results_to_stderr` keeps standard output for data; `as_json` and `as_lines` replace words by JSON.
    """

    quiet: int = 0
    verbose: int = 0
    as_json: bool = False
    results_to_stderr: bool = False
    as_lines: bool = False

    @classmethod
    def checked(cls, quiet: int, verbose: int, json: bool, jsonl: bool, results_to_stderr: bool = False) -> "Talk":
        """Make one of the options of a command; UsageError where they contradict each other."""
        if json and jsonl:
            raise UsageError("--json and --jsonl exclude each other")
        return cls(quiet, verbose, json, results_to_stderr, jsonl)

    @property
    def is_data(self) -> bool:
        """Tell whether results are JSON, in one document or in lines."""
        return self.as_json or self.as_lines

    @cached_property
    def results(self) -> "Console":
        """Return the console for tables."""
        from rich.console import Console

        return Console(stderr=self.results_to_stderr, markup=False, highlight=False, emoji=False)

    @property
    def _document_only(self) -> bool:
        """Tell whether standard error carries the JSON document, which then says everything."""
        return self.is_data and self.results_to_stderr

    def line(self, text: str) -> None:
        """Print a result."""
        print(text, file=sys.stderr if self.results_to_stderr else sys.stdout)

    def table(self, table: Any) -> None:
        """Print a Rich table, unless only errors or JSON are wanted.

        Text is folded to fit the terminal; figures are never cut: a table may be wider than a narrow terminal.
        """
        if not self.quiet and not self.is_data:
            console, width = self.results, self.results.width
            console.width = max(width, _least_width(console, table))
            console.print(table)
            console.width = width

    def note(self, text: str) -> None:
        """Say something that is neither result nor trouble."""
        if not self.quiet and not self.is_data:
            print(text, file=sys.stderr)

    def warning(self, text: str) -> None:
        """Say what may matter but did not stop the work."""
        if not self.quiet and not self._document_only:
            print(f"nvckpt: warning: {text}", file=sys.stderr)

    def error(self, text: str) -> None:
        """Say what went wrong."""
        if self.quiet < 2 and not self._document_only:
            print(f"nvckpt: {text}", file=sys.stderr)

    def recap(self, text: str) -> None:
        """Say at the end what was said before, unless only errors are wanted."""
        if not self.quiet:
            self.error(text)

    def record(self, command: str, entry: dict[str, Any]) -> None:
        """Print one line of JSON, at once, where lines are wanted."""
        if self.as_lines:
            self._json({"schema": SCHEMA, "command": command, **entry}, indent=None)

    def document(self, content: dict[str, Any]) -> None:
        """Print the one JSON document of a command."""
        self._json(content, indent=2)

    def _json(self, content: dict[str, Any], indent: int | None) -> None:
        """Print in UTF-8, whatever the locale."""
        stream = sys.stderr if self.results_to_stderr else sys.stdout
        if stream is not None:
            text = json.dumps(content, ensure_ascii=False, indent=indent, allow_nan=False)
            stream.flush()
            stream.buffer.write(text.encode("utf-8", "replace") + b"\n")
            stream.buffer.flush()


def _least_width(console: "Console", made: "Table") -> int:
    """Return the width below which a table's figures would be cut; columns of text are folded before."""
    from rich.cells import cell_len

    width = console.measure(made, options=console.options.update(max_width=_WIDEST)).maximum
    for column in made.columns:
        texts = [str(column.header), *map(str, column.cells)]
        if not column.no_wrap:
            words = texts if column.overflow == "fold" else [word for text in texts for word in text.split()]
            least = min(max(map(cell_len, words)), _FOLDED)
            width -= max(0, max(map(cell_len, texts)) - least)
    return width
