"""How much memory and output an operation may take: as people write it, and what nothing said means."""

import os
import re
from pathlib import Path

from nvckpt.errors import InvalidRequestError
from nvckpt.formats.allowance import READING, Allowance

_SIZE = re.compile(r"(\d{1,18})\s*(?:([KMGT])(iB|B)?|B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
# Less would not hold one window of a file with what coding it needs.
LEAST_MEMORY = 256 << 20


def parse_size(text: str) -> int:
    """Return bytes from text such as 512M, 2G or 1GiB; K, M, G and T are powers of 1024, KB and so on of 1000.

    Empty text is 0, which means nothing was said. InvalidRequestError for anything else.
    """
    found = _SIZE.fullmatch(text.strip())
    if not text.strip():
        return 0
    if found is None:
        raise InvalidRequestError(f"'{text}' is not a size: write bytes, or 512M, 2G, 1GiB")
    base = 1000 if (found[3] or "").upper() == "B" else 1024
    power = _POWERS[(found[2] or "").upper()]
    return int(found[1]) * int(base**power)


def check_threads(requested: int) -> None:
    """InvalidRequestError for a number of threads that cannot be; 0 means one a core."""
    if requested < 0:
        raise InvalidRequestError(f"threads must be 0, for one a core, or more, not {requested}")


def check_memory(requested: int) -> None:
    """InvalidRequestError for a bound on memory that nothing fits in; 0 means the default."""
    if requested and requested < LEAST_MEMORY:
        raise InvalidRequestError(f"--max-memory must be at least {LEAST_MEMORY >> 20}M")


def share_memory(requested: int, jobs: int) -> int:
    """Return what each of `jobs` files at a time may take, so that all together stay below the bound.

    InvalidRequestError where a share of what was requested is too small to work with.
    """
    if jobs == 1:
        return requested
    share = memory_limit(requested) // jobs
    if requested and share < LEAST_MEMORY:
        raise InvalidRequestError(
            f"--max-memory must be at least {LEAST_MEMORY >> 20}M for each of the {jobs} files at a time"
        )
    return max(share, LEAST_MEMORY)


def memory_limit(requested: int) -> int:
    """Return the bytes that an operation may take: as requested, or for 0 half of what this machine has."""
    return requested or max(LEAST_MEMORY, _memory_of_machine() // 2)


def reading_allowance(requested: int) -> Allowance:
    """Return what understanding a checkpoint may take: half of what was requested.

    The default is the same on every machine with 4 GiB or more, so that the same file gives the same archive.
    """
    return Allowance(requested // 2 if requested else min(READING, memory_limit(0) // 2))


def archive_allowance(requested: int) -> Allowance:
    """Return what an archive's index may take: half of the limit."""
    return Allowance(memory_limit(requested) // 2)


def _memory_of_machine() -> int:
    """Return the bytes of memory, or of the control group that this process is confined to."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(physical, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no such group, or "max"
        return physical
