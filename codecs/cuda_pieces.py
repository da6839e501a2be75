"""Many ranges of device memory copied or compared in one launch, whatever their alignment."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.float_cuda_device import Device
from nvckpt.codecs.float_cuda_tables import pairs

PIECE = np.dtype([("source", "<u8"), ("target", "<u8"), ("size", "<u8")])
"""Addresses and bytes, as kernels/pieces.cu declares them."""

_PART = 65536
_THREADS = 256
_KIND = (1, 0)


def copy_pieces(device: Device, pieces: npt.NDArray[Any]) -> None:
    """Launch the copy of every piece of a PIECE table, in no particular order; targets may not overlap."""
    _launch(device, "pieces.copy_pieces", pieces, device.zeros(4))


def differing(device: Device, pieces: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Compare every piece's source with its target; True where a byte differs. Waits for the device."""
    found = device.zeros(4 * len(pieces))
    _launch(device, "pieces.compare_pieces", pieces, found)
    counts: npt.NDArray[np.uint32] = device.download(found, "<u4")
    return np.not_equal(counts[: len(pieces)], 0)


Numbers = Sequence[int] | npt.NDArray[np.int64]


def piece_table(sources: Numbers, targets: Numbers, sizes: Numbers) -> npt.NDArray[Any]:
    """Return a PIECE table."""
    table = np.zeros(len(sizes), PIECE)
    table["source"], table["target"], table["size"] = sources, targets, sizes
    return table


def _launch(device: Device, kernel: str, pieces: npt.NDArray[Any], result: Any) -> None:
    items = pairs((-(-pieces["size"].astype(np.int64) // _PART)).tolist())
    if len(items):
        device.launch(kernel, _KIND, len(items), _THREADS, 0, [device.upload(pieces), device.upload(items), result])
