"""Loading into a GPU's memory: frames are decoded there, straight into the tensors' storages.

torch.load still does the unpickling and decides where storages go, through the public callable `map_location`: it
hands out empty storages on the device, which are filled when the structure is known. That needs a pickle whose
objects do not look at their tensors' values while they are made.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvckpt.codecs import registry
from nvckpt.codecs.cuda_checksum import SHORTEST, xxh3_64
from nvckpt.codecs.cuda_pieces import copy_pieces, piece_table
from nvckpt.codecs.cuda_state import ALIGNMENT, StateCoder
from nvckpt.codecs.errors import CodecError
from nvckpt.decompression import damage_of
from nvckpt.formats import opaque
from nvckpt.formats.checksum import checksum
from nvckpt.formats.errors import FormatError
from nvckpt.frames import as_format_error, block_of, check_original, decode_frame
from nvckpt.original import Original, OriginalFile
from nvckpt.streaming import batches

BATCH = 128 << 20

# Names in a pickle whose rebuilding reads values, or asks torch.load where to put them.
_FORCED = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""With this in the environment torch.load unpickles everything unless told otherwise."""
_CAREFUL = (
    b"_rebuild_sparse",
    b"_rebuild_nested",
    b"_rebuild_qtensor",
    b"_rebuild_wrapper_subclass",
    b"_rebuild_device_tensor",
    b"_rebuild_from_type",
    b"NestedTensor",
    b"_rebuild_njt",
)


def may_be_deferred(original: Original) -> bool:
    """Tell whether what weights_only allows makes the tensors of an original without looking into them."""
    segments = original.reader.description.segments
    if original.reader.index.source_format != opaque.TORCH_ZIP or not segments or segments[0].dtype:
        return False
    if any(segment.big_endian for segment in segments) or os.environ.get(_FORCED):
        return False
    head = original.read_at(0, segments[0].length)
    return not any(name in head for name in (*_CAREFUL, *_allowed_by_users()))


def _allowed_by_users() -> Iterator[bytes]:
    import torch

    for entry in torch.serialization.get_safe_globals():
        target = entry[1] if isinstance(entry, tuple) else getattr(entry, "__qualname__", "")
        yield str(target).rpartition(".")[2].encode()


class DeferredFile(OriginalFile):
    """The original for torch.load, whose storages are not read where their place is known: `take` tells of the last."""

    def __init__(self, original: Original) -> None:
        super().__init__(original)
        self._segments = original.reader.description.segments
        self._starts = [segment.offset for segment in self._segments]
        self._last: tuple[int, int] | None = None

    def fill(self, offset: int, view: memoryview) -> None:
        """Leave a whole storage for later, and read what is between storages.

        A search for the directory from the file's end also sees the last storage, as zeros.
        """
        number = bisect_right(self._starts, offset) - 1
        segment = self._segments[number]
        if segment.dtype and (segment.offset, segment.length) == (offset, len(view)):
            self._last = (offset, len(view))
            return
        end = offset + len(view)
        for segment in self._segments[number:]:
            low, high = max(segment.offset, offset), min(segment.end, end)
            if low >= high:
                break
            if segment.dtype:
                view[low - offset : high - offset] = bytes(high - low)
            else:
                super().fill(low, view[low - offset : high - offset])

    def take(self, size: int) -> int | None:
        """The offset of the storage of `size` bytes that was just asked for and not read."""
        last, self._last = self._last, None
        return last[0] if last is not None and last[1] == size else None


class Placement:
    """The `map_location` for a DeferredFile: where torch would put a storage, it makes one of that size there.

    `jobs` are what is to be filled: offset in the original, and storage.
    """

    def __init__(self, file: DeferredFile, original: Original, map_location: Any) -> None:
        self._file, self._original = file, original
        self._restore = restorer(map_location)
        self.jobs: list[tuple[int, Any]] = []

    def __call__(self, storage: Any, location: str) -> Any:
        """See torch.load; `storage` is in host memory, and was not written to if its reading was left out."""
        import torch

        make: Any = torch.UntypedStorage
        offset = self._file.take(storage.nbytes())
        if offset is None:
            return self._restore(storage, location)
        target = self._restore(make(0), location).device
        if target.type == "cuda":
            placed = make(storage.nbytes(), device=target)
            self.jobs.append((offset, placed))
            return placed
        memory: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        self._original.read_into(offset, memoryview(memory))
        return self._restore(storage, location)


def restorer(map_location: Any) -> Callable[[Any, str], Any]:
    """What torch.load makes of a map_location."""
    import torch

    restore: Any = torch.serialization.default_restore_location
    if map_location is None:
        return restore  # type: ignore[no-any-return]
    if callable(map_location):
        return lambda storage, location: (
            restore(storage, location) if (placed := map_location(storage, location)) is None else placed
        )
    if isinstance(map_location, dict):
        return lambda storage, location: restore(storage, map_location.get(location, location))
    return lambda storage, location: restore(storage, str(map_location))


@dataclass(frozen=True, slots=True)
class Target:
    """A range of the original and the device memory that it goes to."""

    offset: int
    size: int
    address: int


def fill(
    original: Original, targets: Iterable[Target], coder: StateCoder, run: Callable[..., Iterable[Any]] = map
) -> None:
    """Decode into device memory, a batch of frames at a time; FormatError names what is damaged."""
    wanted: dict[int, list[tuple[int, int, int]]] = {}
    for target in targets:
        for number, start, position, length in original.pieces(target.offset, target.size):
            wanted.setdefault(number, []).append((start, target.address + position - target.offset, length))
    frames = original.reader.frames
    for numbers in batches(sorted(wanted), lambda n: frames[n].header.original_size, BATCH):
        try:
            with coder.here():
                _fill_batch(original, numbers, wanted, coder, run)
        except CodecError as error:
            raise as_format_error(error) from error


def _fill_batch(
    original: Original,
    numbers: Sequence[int],
    wanted: dict[int, list[tuple[int, int, int]]],
    coder: StateCoder,
    run: Callable[..., Iterable[Any]],
) -> None:
    device = coder.device
    got = dict(zip(numbers, run(lambda number: _payload(original, number), numbers), strict=True))
    for number, value in got.items():
        if isinstance(value, FormatError):
            raise type(value)(damage_of(original.reader, number, str(value)).sentence()) from value
    here = [number for number in numbers if _for_device(original, number)]
    outs: dict[int, Any] = {}
    direct = set()
    for number in numbers:
        size = original.reader.frames[number].header.original_size
        start, address, length = wanted[number][0]
        if number not in here:
            outs[number] = device.upload(np.frombuffer(got[number], np.uint8))
        elif (start, length) == (0, size) and address % ALIGNMENT == 0:
            outs[number] = coder.adopt(address, size)
            direct.add(number)
        else:
            outs[number] = device.empty(size)[:size]
    coder.decode(
        [block_of(original.reader.frames[number].header, got[number]) for number in here],
        [outs[number] for number in here],
    )
    _check(original, here, outs, coder)
    copies = [
        (device.address(outs[number]) + start, address, length)
        for number in numbers
        for start, address, length in wanted[number][number in direct :]
    ]
    copy_pieces(device, piece_table(*zip(*copies, strict=True)) if copies else piece_table((), (), ()))


def _payload(original: Original, number: int) -> memoryview | FormatError:
    """A frame's payload, or what it decodes to where the device does not do that."""
    try:
        if _for_device(original, number):
            return original.reader.read_payload(number)
        return decode_frame(original.reader, number, original.references)
    except FormatError as error:
        return error


_ON_DEVICE = frozenset({0, registry.FLOAT.id, *registry.GPU_ONLY})


def _for_device(original: Original, number: int) -> bool:
    """Tell whether a frame is decoded on the device: standard streams and references are the CPU's."""
    header = original.reader.frames[number].header
    return not header.references and all(s.codec_id in _ON_DEVICE for s in header.streams)


def _check(original: Original, numbers: Sequence[int], outs: dict[int, Any], coder: StateCoder) -> None:
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
