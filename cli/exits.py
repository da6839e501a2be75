"""Exit codes, and the one place that turns exceptions into them."""

from enum import IntEnum


class Exit(IntEnum):
    """What a script sees; README has the same table, compared by a test."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130
    TERMINATED = 143


class UsageError(Exception):
    """The command line contradicts itself; shown as a sentence, exit 2."""


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived; no Exception, like KeyboardInterrupt, so that only cleanup runs."""
