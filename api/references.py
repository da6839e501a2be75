"""The bytes that frames refer to, got by decoding the frames that restore them; the last few are kept."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from nvckpt.formats.byte_source import FileBytes
from nvckpt.formats.container import FrameReader
from nvckpt.formats.errors import FormatError, MalformedCheckpointError, SourceReadError
from nvckpt.formats.layout import Reference
from nvckpt.formats.references import Part

_KEPT_BYTES = 64 << 20


class References:
    """Resolves the references of an archive's frames; safe to share between threads.

    `decode` decodes a frame by number. What earlier windows restored is read back from `restored` where there is
    such a file: its size is what was written so far.
    """

    def __init__(self, reader: FrameReader, decode: Callable[[int], memoryview]) -> None:
        self.restored: FileBytes | None = None
        self._reader = reader
        self._decode = decode
        self._kept: OrderedDict[int, memoryview] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()
        self._working: dict[int, threading.Lock] = {}

    def read(self, number: int) -> memoryview:
        """Return the bytes that a frame refers to, one range after the other.

        FormatError for references that break FORMAT.md 5.4, and when a frame that restores them is damaged.
        """
        header = self._reader.frames[number].header
        parts = self._reader.reference_map.parts(number)
        return self._read_restored(header.references) or self._decode_parts(header.references, parts)

    def _read_restored(self, references: tuple[Reference, ...]) -> memoryview | None:
        """Return the ranges from the restored file; None where it does not hold them (yet): it may end in a hole."""
        if self.restored is None or any(r.offset + r.length > self.restored.size for r in references):
            return None
        try:
            return memoryview(b"".join(self.restored.read_at(r.offset, r.length) for r in references))
        except (MalformedCheckpointError, SourceReadError):
            return None

    def _decode_parts(self, references: tuple[Reference, ...], parts: list[Part]) -> memoryview:
        try:
            pieces = [self._part(part) for part in parts]
        except FormatError as error:
            raise type(error)(f"follows from {_places(references)}: {error}") from error
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _part(self, part: Part) -> memoryview:
        return self._frame(part.number)[part.start : part.start + part.length]

    def _frame(self, number: int) -> memoryview:
        """Decode a frame, or find it among the last ones. Frames refer to lower numbers only, so locks never cross."""
        with self._lock:
            working = self._working.setdefault(number, threading.Lock())
        with working:
            with self._lock:
                if number in self._kept:
                    self._kept.move_to_end(number)
                    return self._kept[number]
            data = self._decode(number)
            self._keep(number, data)
        return data

    def _keep(self, number: int, data: memoryview) -> None:
        with self._lock:
            self._kept[number] = data
            self._kept_bytes += len(data)
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                _, gone = self._kept.popitem(last=False)
                self._kept_bytes -= len(gone)


def _places(references: tuple[Reference, ...]) -> str:
    first = references[0]
    more = f" and {len(references) - 1} more ranges" if len(references) > 1 else ""
    return f"bytes {first.offset} to {first.offset + first.length - 1}{more}, which cannot be restored"
