"""`-1` to `-9`, which hands know from gzip and zstd, as short forms of `--level`."""

import re
from collections.abc import Iterator
from typing import Any

from typer.core import TyperCommand, TyperOption

_SHORT = re.compile("-[1-9]")


class LevelCommand(TyperCommand):
    """A command with the option `--level`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse `-9` as `--level 9`, unless it is the value of another option or comes after `--`."""
        return super().parse_args(ctx, list(self._expanded(args)))

    def _expanded(self, args: list[str]) -> Iterator[str]:
        with_value = {
            name
            for option in self.params
            if isinstance(option, TyperOption) and not option.is_flag and not option.count
            for name in option.opts
        }
        remaining = iter(args)
        for arg in remaining:
            if arg == "--":
                yield arg
                yield from remaining
            elif _SHORT.fullmatch(arg):
                yield f"--level={arg[1]}"
            else:
                yield arg
                if arg in with_value:
                    yield from (value for value in [next(remaining, None)] if value is not None)
