"""What is looked at of a block before it is tried with another codec; places depend on its length alone."""

_PIECE = 32 << 10
_PIECES = 4
_GLANCE = 4 << 10

Range = tuple[int, int]
"""Where it begins, and its bytes."""


def sample_ranges(size: int) -> list[Range]:
    """Where the pieces of a sample of `size` bytes lie."""
    if size <= _PIECE * _PIECES:
        return [(0, size)]
    step = (size - _PIECE) // (_PIECES - 1) // 8 * 8
    return [(i * step, _PIECE) for i in range(_PIECES)]


def glance_ranges(size: int) -> list[Range]:
    """Where the pieces of a glance lie: at the beginnings of the sample's."""
    ranges = sample_ranges(size)
    return ranges if len(ranges) == 1 else [(start, _GLANCE) for start, _ in ranges]


def sample(data: memoryview) -> memoryview:
    """Take a few evenly spread pieces."""
    ranges = sample_ranges(len(data))
    return data if len(ranges) == 1 else joined(data, ranges)


def glance(sampled: memoryview, size: int) -> memoryview:
    """Take of the sample of a block of `size` bytes what a glance at the block takes."""
    if len(sample_ranges(size)) == 1:
        return sampled
    return joined(sampled, [(i * _PIECE, _GLANCE) for i in range(_PIECES)])


def joined(data: memoryview, ranges: list[Range]) -> memoryview:
    """Take ranges of bytes, one after the other; a view where it is one."""
    pieces = [data[start : start + size] for start, size in ranges]
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
