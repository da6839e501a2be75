"""Coded blocks on their way between host and device memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.base import Buffer
from nvckpt.codecs.blocks import Block, Stream
from nvckpt.codecs.chunked import align

ALIGNMENT = 16
"""Where the kernels' wide reads may begin."""


def is_array(data: Any) -> bool:
    """Tell whether a stream's data are in device memory."""
    return hasattr(data, "__cuda_array_interface__")


def address_of(array: Any) -> int:
    """Return where a CuPy array lies."""
    return int(array.data.ptr)


def replaced(stream: Stream, data: Any) -> Stream:
    """Return the stream with its data elsewhere."""
    return Stream(stream.codec_id, stream.original_size, data, stream.codec_param, stream.library_version)


def copy_to_host(coded: Sequence[Block], out: Any, stream: Any) -> tuple[list[Block], int]:
    """Start copying every stream on the device to `out`, pinned host memory, each to a multiple of 16.

    Returns the blocks with their streams there, good when the CUDA `stream` is done, and the bytes of `out` in use.
    """
    position = 0
    copied = []
    for block in coded:
        streams = []
        for one in block.streams:
            array: Any = one.data
            if is_array(array):
                target = out[position : position + int(array.size)]
                array.get(stream, out=target, blocking=False)
                position = align(position + len(target))
                streams.append(replaced(one, target.data))
            else:
                streams.append(one)
        copied.append(Block(block.transform_id, block.transform_param, tuple(streams)))
    return copied, position


def placed(block: Block, whole: Any, data: npt.NDArray[np.uint8]) -> Block:
    """Return a block whose streams are views of `data` with them in `whole`, the copy of `data` on the device."""
    base = data.ctypes.data
    streams = []
    for stream in block.streams:
        start = np.frombuffer(stream.data, np.uint8).ctypes.data - base if len(stream.data) else 0
        array = whole[start : start + len(stream.data)]
        if array.data.ptr % ALIGNMENT:
            array = array.copy()
        streams.append(replaced(stream, array))
    return Block(block.transform_id, block.transform_param, tuple(streams))


def fetched(block: Block) -> Block:
    """Return the block with all of its streams on the host."""
    streams = tuple(replaced(stream, _host(stream.data)) for stream in block.streams)
    return Block(block.transform_id, block.transform_param, streams)


def _host(data: Any) -> Buffer:
    return memoryview(data.get()) if is_array(data) else data
