"""An archive's original as bytes that can be read anywhere, decoding only the frames that are asked for."""

import io
import os
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

from nvckpt.decompression import damage_of
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.container import ArchiveReader
from nvckpt.formats.errors import FormatError, MalformedCheckpointError
from nvckpt.frames import decode_frame, references_of
from nvckpt.limits import check_threads
from nvckpt.pipeline import thread_count
from nvckpt.plan import WINDOW

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Piece = tuple[int, int, int, int]
"""A frame's number, where in its decoded bytes to begin, where in the original that belongs, and how many bytes."""

_NOWHERE = (0, 0, -2, 0)
_SMALL = 64 << 10


class Original:
    """Random access to what an archive holds; `close` ends its threads. Safe to share between threads, and with forks.

    `read_ahead` decodes the frames behind those asked for, for readers that go from the start to the end.
    """

    def __init__(self, data: ByteSource, threads: int = 0, *, read_ahead: bool = False) -> None:
        check_threads(threads)
        self.reader = ArchiveReader(data)
        self.size = self.reader.index.original_size
        self._threads = thread_count(threads)
        self._read_ahead = self._threads if read_ahead else 0
        self._closed = False
        self._start()
        _all.add(self)
        self._extents = sorted(_extents(self.reader))
        self._starts = [extent[0] for extent in self._extents]
        self._last = (-1, memoryview(b""))

    def _start(self) -> None:
        """Make what has threads or waits for them: a forked child, which has none of the parent's, begins anew."""
        self._lock = threading.Lock()
        self.references = references_of(self.reader)
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="nvckpt")
        self._decoded: OrderedDict[int, Future[memoryview]] = OrderedDict()

    def close(self) -> None:
        """Drop what was decoded and end the threads."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._decoded.clear()
        self._last = (-1, memoryview(b""))

    def read_at(self, offset: int, length: int) -> bytes:
        """See ByteSource; CorruptArchiveError names the tensors of a damaged part."""
        out = bytearray(length)
        self.read_into(offset, memoryview(out))
        return bytes(out)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out` with the original's bytes from `offset` on."""
        if offset < 0 or offset + len(out) > self.size:
            raise MalformedCheckpointError(f"bytes {offset}..{offset + len(out)} are not in the file")
        if self._from_last(offset, out):
            return
        pieces = list(self.pieces(offset, len(out)))
        numbers = list(dict.fromkeys(piece[0] for piece in pieces))
        place = {number: index for index, number in enumerate(numbers)}
        for number, start, position, length in pieces:
            begun = self._begin(numbers[place[number] : place[number] + self._threads + 1])
            decoded = self._frame(number, begun)
            out[position - offset : position - offset + length] = decoded[start : start + length]
            self._last = (number, decoded)

    def _from_last(self, offset: int, out: memoryview) -> bool:
        """Fill `out` from the frame that was read last, if it is all there: zips are read in small steps."""
        start, size, number, position = self._extents[bisect_right(self._starts, offset) - 1] if len(out) else _NOWHERE
        last, decoded = self._last
        if number != last or offset + len(out) > start + size:
            return False
        out[:] = decoded[position + offset - start : position + offset - start + len(out)]
        return True

    def pieces(self, offset: int, length: int) -> Iterator[Piece]:
        """Where the bytes of a range come from, in order."""
        index = bisect_right(self._starts, offset) - 1
        end = offset + length
        while offset < end:
            start, size, number, position = self._extents[index]
            step = min(end, start + size) - offset
            yield number, position + offset - start, offset, step
            offset += step
            index += 1

    def prepare(self, offset: int, length: int) -> None:
        """Have the first frames of a range decoded in the background, for a read that comes soon."""
        numbers = dict.fromkeys(number for number, _, _, _ in islice(self.pieces(offset, length), self._threads + 1))
        if numbers:
            self._begin(list(numbers))

    def _begin(self, numbers: Sequence[int]) -> "Future[memoryview]":
        """Have frames decoded in the background; returns the first of them, which is wanted at once."""
        last = numbers[-1]
        with self._lock:
            if self._closed:
                raise ValueError("the archive is closed: read from it before close(), or inside its `with`")
            for number in (*numbers, *range(last + 1, last + 1 + self._read_ahead)):
                if number < len(self.reader.frames) and number not in self._decoded:
                    self._decoded[number] = self._frame_begun(number)
            self._decoded.move_to_end(numbers[0])
            wanted = self._decoded[numbers[0]]
            # Enough for all frames of one window, whose tensors may alternate, and for those in work.
            most = (2 + self._threads + self._read_ahead) * WINDOW
            held = sum(self.reader.frames[number].header.original_size for number in self._decoded)
            while held > most and len(self._decoded) > 1:
                number, future = self._decoded.popitem(last=False)
                future.cancel()
                held -= self.reader.frames[number].header.original_size
        return wanted

    def _frame_begun(self, number: int) -> "Future[memoryview]":
        """Decode a frame in a thread, or a small one at once: handing it over would take longer."""
        if self.reader.frames[number].header.original_size > _SMALL:
            return self._pool.submit(decode_frame, self.reader, number, self.references)
        done: Future[memoryview] = Future()
        try:
            done.set_result(decode_frame(self.reader, number, self.references))
        except FormatError as error:
            done.set_exception(error)
        return done

    def _frame(self, number: int, begun: "Future[memoryview]") -> memoryview:
        try:
            try:
                return begun.result()
            except CancelledError:  # another thread needed the room
                return decode_frame(self.reader, number, self.references)
        except FormatError as error:
            raise type(error)(damage_of(self.reader, number, str(error)).sentence()) from error


_all: "weakref.WeakSet[Original]" = weakref.WeakSet()


def _start_anew() -> None:
    for original in tuple(_all):
        original._start()


os.register_at_fork(after_in_child=_start_anew)


def _extents(reader: ArchiveReader) -> Iterator[tuple[int, int, int, int]]:
    """Each extent's offset, length, frame number, and place in the frame's decoded bytes."""
    for number, frame in enumerate(reader.frames):
        position = 0
        for offset, length in frame.header.extents:
            yield offset, length, number, position
            position += length


class OriginalFile(io.RawIOBase):
    """The original as a file object that is open for reading; torch.load takes it.

    `error` is the first that a read raised: torch's reader puts others in its place.
    """

    def __init__(self, original: Original) -> None:
        self._original = original
        self._position = 0
        self.error: FormatError | OSError | None = None

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The offset of the next byte read."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move, and return where to."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._original.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill the buffer as far as there are bytes."""
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._original.size - self._position))
        try:
            self.fill(self._position, view[:length])
        except (FormatError, OSError) as error:
            self.error = self.error or error
            raise
        self._position += length
        return length

    def fill(self, offset: int, view: memoryview) -> None:
        """Read a range that was asked for."""
        self._original.read_into(offset, view)
