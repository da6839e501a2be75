"""Where the bytes that frames refer to are restored (FORMAT.md 5.4): by which frames, and which part of each."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from nvckpt.formats.errors import CorruptArchiveError, UnsupportedArchiveError
from nvckpt.formats.index import PlacedFrame

MAX_PARTS = 65536
"""Extents that a frame's references may touch."""


class Part(NamedTuple):
    """`length` bytes from `start` of what frame `number` decodes to."""

    number: int
    start: int
    length: int


class ReferenceMap:
    """The frames of an archive by the ranges of the original that they restore."""

    def __init__(self, frames: Sequence[PlacedFrame]) -> None:
        self._frames = frames
        places: list[tuple[int, int, int, int]] = []
        for number, frame in enumerate(frames):
            position = 0
            for offset, length in frame.header.extents:
                places.append((offset, length, number, position))
                position += length
        places.sort()
        self._places = places
        self._starts = [place[0] for place in places]
        self._refers_to_referring: dict[int, bool] = {}

    def parts(self, number: int) -> list[Part]:
        """Return what a frame refers to, in the order of its references.

        CorruptArchiveError for a range that is empty, outside the original or not restored by earlier frames, and for
        frames that refer through more than one other; UnsupportedArchiveError for ranges of another file.
        """
        found = self._parts_of(number)
        if any(self._is_second(middle) for middle in {part.number for part in found}):
            raise CorruptArchiveError("the frame refers to bytes through more than one other frame")
        return found

    def _is_second(self, number: int) -> bool:
        """Tell whether a frame refers to frames that have references themselves."""
        if number not in self._refers_to_referring:
            touched = {part.number for part in self._parts_of(number)}
            self._refers_to_referring[number] = any(self._frames[other].header.references for other in touched)
        return self._refers_to_referring[number]

    def _parts_of(self, number: int) -> list[Part]:
        found: list[Part] = []
        for base, offset, length in self._frames[number].header.references:
            if base:
                raise UnsupportedArchiveError(
                    "needs bytes of another file, which this nvckpt cannot use: install a newer one"
                )
            found += self._covering(number, offset, length, MAX_PARTS - len(found))
        return found

    def _covering(self, number: int, offset: int, length: int, most: int) -> list[Part]:
        end = offset + length
        if not length or not self._places or end > sum(self._places[-1][:2]):
            raise CorruptArchiveError("the frame refers to a range outside the original")
        found: list[Part] = []
        at = max(bisect_right(self._starts, offset) - 1, 0)
        while offset < end:
            start, size, restoring, position = self._places[at]
            if not start <= offset < start + size:
                # Only in an archive whose frames had to be searched for.
                raise CorruptArchiveError("the frame refers to a range that is lost")
            if restoring >= number:
                raise CorruptArchiveError("the frame refers to a range that is not restored before it")
            if len(found) == most:
                raise CorruptArchiveError("the frame refers to too many ranges")
            step = min(end, start + size) - offset
            found.append(Part(restoring, position + offset - start, step))
            offset += step
            at += 1
        return found
