"""Exit codes, and the one place that turns exceptions into them."""

from enum import IntEnum


class Exit(IntEnum):
    """What a script sees; README has the same table, compared by a test."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    Exit.OK: "everything was done (what was skipped included)",
    Exit.FAILED: "a file failed, was refused or is damaged; the others were done. `diff`: they differ",
    Exit.USAGE: "the command line makes no sense; nothing was done. `diff`: they could not be compared",
    Exit.INTERRUPTED: "interrupted (SIGINT)",
    Exit.TERMINATED: "terminated (SIGTERM, SIGHUP)",
}
"""For the manual page and README."""


class UsageError(Exception):
    """The command line contradicts itself; shown as a sentence, exit 2."""


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived; no Exception, like KeyboardInterrupt, so that only cleanup runs."""
