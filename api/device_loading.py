"""Loading into a GPU's memory: frames are decoded there, straight into the tensors' storages.

torch.load still does the unpickling and decides where storages go, through the public callable `map_location`: it
hands out empty storages on the device, which are filled when the structure is known. That needs a pickle whose
objects do not look at their tensors' values while they are made.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from nvckpt.device_filling import Target
from nvckpt.formats import opaque
from nvckpt.original import Original, OriginalFile

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
        for segment in islice(self._segments, number, None):
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

    `fill` is told what is to be filled: the GPU's number, and the range. The memory stays as long as this object.
    """

    def __init__(
        self, file: DeferredFile, original: Original, map_location: Any, fill: Callable[[int, Target], None]
    ) -> None:
        self._file, self._original, self._fill = file, original, fill
        self._restore = restorer(map_location)
        self._devices: dict[str, Any] = {}
        # What torch drops again must not be given to others before it was filled.
        self._kept: list[Any] = []

    def __call__(self, storage: Any, location: str) -> Any:
        """See torch.load; `storage` is in host memory, and was not written to if its reading was left out."""
        import torch

        make: Any = torch.UntypedStorage
        offset = self._file.take(storage.nbytes())
        if offset is None:
            return self._restore(storage, location)
        if location not in self._devices:
            self._devices[location] = self._restore(make(0), location).device
        target = self._devices[location]
        if target.type == "cuda":
            placed = make(storage.nbytes(), device=target)
            self._kept.append(placed)
            self._fill(placed.device.index, Target(offset, placed.nbytes(), placed.data_ptr()))
            return placed
        memory: Any = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
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
