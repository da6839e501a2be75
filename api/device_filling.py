"""Memory of GPUs filled from an archive: one thread reads frames, a batch at a time, another decodes them there."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvckpt.codecs import registry
from nvckpt.codecs.cuda_checksum import SHORTEST, xxh3_64
from nvckpt.codecs.cuda_pieces import copy_pieces, piece_table
from nvckpt.codecs.cuda_state import Bytes, StateCoder
from nvckpt.codecs.cuda_transfer import ALIGNMENT
from nvckpt.codecs.errors import CodecError
from nvckpt.decompression import damage_of
from nvckpt.formats.checksum import checksum
from nvckpt.formats.errors import FormatError
from nvckpt.frames import as_format_error, block_of, check_original, decode_frame
from nvckpt.original import Original
from nvckpt.streaming import Output, read_into, stages_of, take

BATCH = 128 << 20

_READERS = 16
# While one batch is decoded, another is made ready.
_AT_A_TIME = 2
# Reading what lies between frames that are asked for is faster than a second call, up to this.
_GAP = 1 << 20

Wanted = dict[int, list[tuple[int, int, int]]]
"""By a frame's number: where in its decoded bytes, to which address, how many bytes."""


@dataclass(frozen=True, slots=True)
class Target:
    """A range of the original and the device memory that it goes to."""

    offset: int
    size: int
    address: int


@dataclass(frozen=True, slots=True)
class _Batch:
    device: int
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class _Read:
    """A batch with its bytes of the archive, and what came of sending them to the device.

    `payloads` are checked views of the bytes, or what the CPU decodes.
    """

    batch: _Batch
    data: Bytes
    sent: Any
    payloads: "dict[int, Future[memoryview]]"


class Filling:
    """Takes what is to be filled, in any order; best in that of the original, where each frame is decoded once."""

    def __init__(self, original: Original) -> None:
        self._original = original
        self._open: dict[int, _Batch] = {}
        self._sizes: dict[int, int] = {}
        self.whole: queue.Queue[_Batch | None] = queue.Queue()

    def add(self, device: int, target: Target) -> None:
        """Have device memory filled, which stays as it is until then."""
        frames = self._original.reader.frames
        for number, start, position, length in self._original.pieces(target.offset, target.size):
            batch = self._open.get(device)
            if batch is None or (number not in batch.wanted and self._sizes[device] >= BATCH):
                if batch is not None:
                    self.whole.put(batch)
                batch = self._open[device] = _Batch(device, {})
                self._sizes[device] = 0
            if number not in batch.wanted:
                batch.wanted[number] = []
                self._sizes[device] += frames[number].header.original_size
            batch.wanted[number].append((start, target.address + position - target.offset, length))

    def end(self) -> list[int]:
        """Say that this was all; returns the devices."""
        for batch in self._open.values():
            self.whole.put(batch)
        self.whole.put(None)
        return list(self._open)


@contextmanager
def filling(
    original: Original, coder_of: Callable[[int], StateCoder], pool: ThreadPoolExecutor, wait: Callable[[int], None]
) -> Iterator[Filling]:
    """Fill what was asked for inside the block at its end; raises a FormatError naming what is damaged.

    `wait` returns when a device has done what may still use memory that was given out since. Beside the block only the
    first batches are read: each call for a device lets go of the interpreter, which a thread that unpickles keeps then.
    """
    asked = Filling(original)
    may_decode = threading.Event()

    def read(out: Output) -> None:
        while (batch := take(asked.whole, out.stop)) is not None:
            for part in _contiguous(original, batch):
                out.put(_read(original, part, coder_of(part.device), pool))

    def decode(source: Output, out: Output) -> None:
        while not may_decode.wait(0.1):
            if out.stop.is_set():
                return
        under_way: deque[Future[None]] = deque()
        with ThreadPoolExecutor(_AT_A_TIME, "nvckpt-device") as workers:
            for some in source:
                under_way.append(workers.submit(_decode, original, some, coder_of(some.batch.device)))
                if len(under_way) > _AT_A_TIME:
                    under_way.popleft().result()
            for future in under_way:
                future.result()

    with stages_of(read, decode) as results:
        yield asked
        for device in asked.end():
            wait(device)
        may_decode.set()
        for _ in results:
            raise AssertionError("nothing is handed on")


def _contiguous(original: Original, batch: _Batch) -> Iterator[_Batch]:
    """Cut a batch where the archive has much between its frames that nobody asked for."""
    reader = original.reader
    run: list[int] = []
    for number in sorted(batch.wanted):
        if run and reader.start_of(number) - reader.frames[run[-1]].end > _GAP:
            yield _Batch(batch.device, {n: batch.wanted[n] for n in run})
            run = []
        run.append(number)
    yield _Batch(batch.device, {n: batch.wanted[n] for n in run})


def _read(original: Original, batch: _Batch, coder: StateCoder, pool: ThreadPoolExecutor) -> _Read:
    reader = original.reader
    numbers = sorted(batch.wanted)
    start = reader.start_of(numbers[0]) // ALIGNMENT * ALIGNMENT
    size = reader.frames[numbers[-1]].end - start
    # Of one size as a rule, so that the memory is used again.
    data = coder.pinned(max(size, BATCH + _GAP) if size > _GAP else size)[:size]
    view = data[: read_into(reader.data, start, data, _READERS)].data
    sent = coder.send(data)

    def payload(number: int) -> memoryview:
        if _for_device(original, number):
            return reader.check_payload(number, view, start)
        return decode_frame(reader, number, original.references)

    return _Read(batch, data, sent, {number: pool.submit(payload, number) for number in numbers})


def _decode(original: Original, some: _Read, coder: StateCoder) -> None:
    """Decode a batch; CodecErrors and FormatErrors name the tensors of the frame."""
    payloads = {number: _result(original, number, future) for number, future in some.payloads.items()}
    try:
        with coder.here():
            _fill(original, some, payloads, coder)
    except CodecError as error:
        raise as_format_error(error) from error


def _result(original: Original, number: int, future: "Future[memoryview]") -> memoryview:
    try:
        return future.result()
    except FormatError as error:
        raise type(error)(damage_of(original.reader, number, str(error)).sentence()) from error


def _fill(original: Original, some: _Read, payloads: dict[int, memoryview], coder: StateCoder) -> None:
    device, frames, wanted = coder.device, original.reader.frames, some.batch.wanted
    here = [number for number in payloads if _for_device(original, number)]
    outs: dict[int, Any] = {}
    direct = set()
    for number, payload in payloads.items():
        size = frames[number].header.original_size
        start, address, length = wanted[number][0]
        if number not in here:
            outs[number] = device.upload(np.frombuffer(payload, np.uint8))
        elif (start, length) == (0, size) and address % ALIGNMENT == 0:
            outs[number] = coder.adopt(address, size)
            direct.add(number)
        else:
            outs[number] = device.empty(size)[:size]
    coded = [block_of(frames[number].header, payloads[number]) for number in here]
    coder.decode(some.data, some.sent, coded, [outs[number] for number in here])
    _check(original, here, outs, coder)
    copies = [
        (device.address(outs[number]) + start, address, length)
        for number in payloads
        for start, address, length in wanted[number][number in direct :]
    ]
    if copies:
        copy_pieces(device, piece_table(*zip(*copies, strict=True)))


_ON_DEVICE = frozenset({0, registry.FLOAT.id, registry.LOW_RANK.id, *registry.GPU_ONLY})


def _for_device(original: Original, number: int) -> bool:
    """Tell whether a frame is decoded on the device: standard streams and references are the CPU's."""
    header = original.reader.frames[number].header
    return not header.references and all(s.codec_id in _ON_DEVICE for s in header.streams)


def _check(original: Original, numbers: Iterable[int], outs: dict[int, Any], coder: StateCoder) -> None:
    """Compare the checksums of what was decoded; the first frame that is wrong is named."""
    device = coder.device
    long = [n for n in numbers if len(outs[n]) >= SHORTEST]
    found = dict(zip(long, xxh3_64(device, [(device.address(outs[n]), len(outs[n])) for n in long]), strict=True))
    for number in numbers:
        total = found[number] if number in found else checksum(device.download(outs[number], np.uint8).data)
        try:
            check_original(original.reader.frames[number].header, total)
        except FormatError as error:
            raise type(error)(damage_of(original.reader, number, str(error)).sentence()) from error
