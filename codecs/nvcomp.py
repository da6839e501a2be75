"""NVIDIA's nvCOMP: its own formats, and the standard ones on the GPU, many chunks a call.

Streams are the chunked ones of FORMAT.md 5.3 with nvCOMP's RAW bitstream in each chunk. zstd, lz4, snappy, deflate and
gzip are then what CPU libraries read and write; ans, gdeflate, bitcomp and cascaded belong to nvCOMP alone, and carry
the element type they were coded for and the version that wrote them. nvCOMP does not reject damage (it may corrupt the
process), so callers check a checksum of what they hand in. The library is imported when first used.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.nvcomp_formats import ELEMENTS, FORMATS, TYPED_BY, NvcompFormat

_EFFORT = {"fast": 0, "default": 1, "max": 5}


@dataclass(slots=True)
class Coded:
    """Chunks of one buffer as nvCOMP left them in device memory: addresses and sizes in order."""

    chunk: int
    addresses: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    kept: Any


def encode(arrays: Sequence[Any], name: str, elements: Sequence[int], level: str, chunk: int = 0) -> list[Coded]:
    """Encode CuPy arrays of bytes, each cut into chunks; waits for the device.

    A chunk that does not shrink is the original's own bytes. Chunks are multiples of 16, `chunk` 0 is the format's.
    """
    form = FORMATS[name]
    step = chunk or form.chunk
    results: list[Coded | None] = [None] * len(arrays)
    for element, members in _by_element(elements).items():
        addresses, sizes, owners = _chunks([arrays[i] for i in members], step)
        call = _encoding(form, element, level, addresses, sizes, step)
        coded = call.encode()
        places, lengths, kept = call.places, np.array(coded.buffer_sizes, np.int64), (call, coded)
        kept_raw = lengths >= sizes
        places, lengths = np.where(kept_raw, addresses, places), np.where(kept_raw, sizes, lengths)
        for number, i in enumerate(members):
            mine = owners == number
            results[i] = Coded(step, places[mine], lengths[mine], (kept, arrays[i]))
    return [result for result in results if result is not None]


Places = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Addresses and sizes."""


def decode(name: str, element: int, sources: Places, targets: Places) -> None:
    """Decode chunks, at least one, from their places to others. Asynchronous but for reading headers."""
    codec = _codec(name, element, "default", FORMATS[name].chunk, _device())
    try:
        codec.decode(_batch(*sources), out=_batch(*targets))
    except (RuntimeError, ValueError) as error:
        raise CorruptChunkError(f"a {name} chunk does not decode") from error


@dataclass(slots=True)
class Call:
    """One call of nvCOMP, ready to be made: chunks of one element type, and memory for what becomes of them."""

    codec: Any
    source: Any
    into: Any
    places: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    kept: Any = None

    def encode(self) -> Any:
        """Encode, and return nvCOMP's batch, whose sizes are waited for when they are asked for."""
        return self.codec.encode(self.source, out=self.into)

    def decode(self) -> Any:
        """Decode."""
        return self.codec.decode(self.source, out=self.into)


def encoding_calls(
    arrays: Sequence[Any], name: str, elements: Sequence[int], level: str, chunk: int = 0
) -> list[tuple[int, Call]]:
    """Prepare nothing but nvCOMP's own calls for arrays as `encode` takes them, to be measured; by element type."""
    form = FORMATS[name]
    step = chunk or form.chunk
    return [
        (element, _encoding(form, element, level, *_chunks([arrays[i] for i in members], step)[:2], step))
        for element, members in _by_element(elements).items()
    ]


def decoding_calls(
    coded: Sequence[tuple[int, Call, Any]],
    outs: Sequence[Any],
    name: str,
    elements: Sequence[int],
    level: str,
    chunk: int = 0,
) -> list[Call]:
    """Prepare the calls that decode what the encoding ones gave, into arrays like those that were encoded."""
    step = chunk or FORMATS[name].chunk
    members = _by_element(elements)
    calls = []
    for element, call, batch in coded:
        addresses, sizes, _ = _chunks([outs[i] for i in members[element]], step)
        source = _batch(call.places, np.array(batch.buffer_sizes, np.int64))
        codec = _codec(name, element, level, step, _device())
        calls.append(Call(codec, source, _batch(addresses, sizes), addresses, sizes, batch))
    return calls


def _by_element(elements: Sequence[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for i, element in enumerate(elements):
        groups[element].append(i)
    return groups


def _encoding(
    form: NvcompFormat,
    element: int,
    level: str,
    addresses: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    step: int,
) -> Call:
    import cupy

    codec = _codec(form.name, element, level, step, _device())
    slot = _most(form.name, element, level, step, _device())
    room = cupy.empty(slot * len(sizes), np.uint8)
    starts = np.arange(len(sizes), dtype=np.int64) * slot
    into = _nvcomp().as_arrays(room, starts.tolist(), [slot] * len(sizes), _stream())
    return Call(codec, _batch(addresses, sizes), into, starts + int(room.data.ptr), sizes, room)


def _chunks(arrays: Sequence[Any], step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Any]:
    """Addresses, sizes and the number of the array of every chunk."""
    counts = np.array([-(-array.size // step) for array in arrays], np.int64)
    owners = np.repeat(np.arange(len(arrays)), counts)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.array([int(array.data.ptr) for array in arrays], np.int64)[owners] + within * step
    sizes = np.minimum(step, np.array([array.size for array in arrays], np.int64)[owners] - within * step)
    return starts, sizes, owners


def _batch(addresses: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Any:
    """Wrap ranges of device memory. nvCOMP carves a batch out of one buffer, so it is shown all that lies between."""
    import cupy

    first, end = int(addresses.min()), int((addresses + sizes).max())
    memory = cupy.cuda.UnownedMemory(first, end - first, None)
    span = cupy.ndarray(end - first, np.uint8, cupy.cuda.MemoryPointer(memory, 0))
    return _nvcomp().as_arrays(span, (addresses - first).tolist(), sizes.tolist(), _stream())


def _nvcomp() -> Any:
    from nvidia import nvcomp

    return nvcomp


def _device() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDevice())


def _stream() -> int:
    import cupy

    return int(cupy.cuda.get_current_stream().ptr)


def _codec(name: str, element: int, level: str, chunk: int, device: int) -> Any:
    return _codec_on(name, element, level, chunk, device, _stream())


@cache
def _codec_on(name: str, element: int, level: str, chunk: int, device: int, stream: int) -> Any:
    options: dict[str, Any] = {}
    if name in TYPED_BY:
        options["data_type"] = ELEMENTS[element]
    if name in ("deflate", "gzip", "gdeflate"):
        options["algorithm_type"] = _EFFORT[level]
    nvcomp = _nvcomp()
    return nvcomp.Codec(
        algorithm=FORMATS[name].algorithm,
        device_id=device,
        cuda_stream=stream,
        uncomp_chunk_size=chunk,
        bitstream_kind=nvcomp.BitstreamKind.RAW,
        **options,
    )


@cache
def _most(name: str, element: int, level: str, chunk: int, device: int) -> int:
    """Bytes that a chunk may take at most, a multiple of 16."""
    import cupy

    codec = _codec(name, element, level, chunk, device)
    bound = int(codec.get_max_comp_buffer_size(_nvcomp().as_array(cupy.zeros(chunk, np.uint8), _stream())))
    return -(-bound // 16) * 16
