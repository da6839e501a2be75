"""Chunks of nvCOMP's streams laid out and found again on a device: kernels in emulation, nvCOMP itself not at all."""

from types import SimpleNamespace

import numpy as np
import pytest
from cuda_emulation.device import EmulatedDevice, compiler

from nvckpt.codecs import cuda_blocks, cuda_decoding, nvcomp, nvcomp_formats
from nvckpt.codecs.blocks import Stream
from nvckpt.codecs.chunked import pack_table, parse_table
from nvckpt.codecs.errors import CorruptChunkError

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++) to build the emulated kernels")
CHUNK, ANS = 4096, nvcomp_formats.FORMATS["ans"].id


@pytest.fixture
def device(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp().parent / "emulated_kernels"
    folder.mkdir(exist_ok=True)
    made = EmulatedDevice(folder)
    monkeypatch.setattr(cuda_blocks, "CupyDevice", lambda: made)
    monkeypatch.setattr(cuda_decoding, "CupyDevice", lambda: made)
    monkeypatch.setattr(nvcomp_formats, "check_version", lambda *_: None)
    return made


def coded(device, sizes, seed):
    """Chunks of noise that lie apart, as nvCOMP leaves them."""
    noise = np.random.default_rng(seed).integers(0, 256, (len(sizes), CHUNK), np.uint8)
    memory = device.upload(noise)
    addresses = device.address(memory) + np.arange(len(sizes), dtype=np.int64) * CHUNK
    found = nvcomp.Coded(CHUNK, addresses, np.array(sizes, np.int64), memory)
    return found, [row[:size].tobytes() for row, size in zip(noise, sizes, strict=True)]


def test_streams_are_the_format_s(device):
    """Tables, chunks at multiples of 16, zeros between them: what `parse_table` accepts and takes apart again."""
    cases = [[1], [4096, 17, 4096, 300], [16, 16], [5, 4096, 3]]
    made = [coded(device, sizes, seed) for seed, sizes in enumerate(cases)]
    streams = cuda_blocks._packed([found for found, _ in made])
    for stream, (_, chunks), sizes in zip(streams, made, cases, strict=True):
        raw = memoryview(device.download(stream, np.uint8).tobytes())
        chunk, starts, found = parse_table(raw, CHUNK * len(sizes))
        assert (chunk, found) == (CHUNK, sizes)
        assert [bytes(raw[a : a + n]) for a, n in zip(starts, found, strict=True)] == chunks
    assert cuda_blocks._packed([]) == []


class Array:
    """Device memory as far as its place goes."""

    def __init__(self, address, size):
        self.data, self.size = SimpleNamespace(ptr=address), size

    def __len__(self):
        return self.size


def added(sizes, original, element=0):
    table = pack_table(CHUNK, sizes)
    starts = [len(table)]
    for size in sizes:
        starts.append(-(-(starts[-1] + size) // 16) * 16)
    head = table + bytes(starts[-2] + sizes[-1] - len(table))
    work = cuda_decoding.Decoding()
    work.add(Stream(ANS, original, Array(1 << 20, len(head)), element), Array(1 << 30, original), memoryview(head))
    return work, starts


def test_chunks_are_found_again(device):
    sizes, original = [100, 4096, 333, 7], 3 * CHUNK + 8
    work, starts = added(sizes, original)
    (sources, before, targets, after), *rest = work._chunks["ans", 0]
    assert rest == []
    assert sources.tolist() == [(1 << 20) + starts[i] for i in (0, 2, 3)]
    assert before.tolist() == [100, 333, 7]
    assert targets.tolist() == [(1 << 30) + i * CHUNK for i in (0, 2, 3)]
    assert after.tolist() == [CHUNK, CHUNK, 8]
    (copied,) = work._copies
    assert [column.tolist() for column in copied] == [[(1 << 20) + starts[1]], [(1 << 30) + CHUNK], [CHUNK]]


def test_streams_that_contradict_themselves(device):
    with pytest.raises(CorruptChunkError, match="ans chunk 1 is larger than what it holds"):
        added([100, 9], CHUNK + 8)
    with pytest.raises(CorruptChunkError, match="holds a part of an element"):
        added([100], 10, element=4)
    with pytest.raises(CorruptChunkError, match="unknown element type"):
        added([100], 10, element=9)
