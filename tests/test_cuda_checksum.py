"""Checksums made on the device are the libraries'; the kernels run on the CPU, or on a GPU where there is one."""

import itertools
import re
import zlib

import numpy as np
import pytest
import xxhash
from cuda_emulation.device import EmulatedDevice, compiler

from nvckpt.codecs import crc32, float_cuda
from nvckpt.codecs.cuda_checksum import BLOCK, SECRET, SHORTEST, Xxh3State, crc32_of, xxh3_64
from nvckpt.codecs.float_cuda_device import KERNELS, CupyDevice

NO_GPU = float_cuda.available()
NO_COMPILER = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++) to build the emulated kernels")


@pytest.fixture(
    params=[
        pytest.param("emulated", marks=NO_COMPILER),
        pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(NO_GPU is not None, reason=str(NO_GPU))]),
    ]
)
def device(request, tmp_path_factory):
    if request.param == "cuda":
        return CupyDevice()
    folder = tmp_path_factory.getbasetemp().parent / "emulated_kernels"
    folder.mkdir(exist_ok=True)
    return EmulatedDevice(folder)


@pytest.fixture
def data():
    return np.random.default_rng(3).integers(0, 256, 700_000, np.uint8)


def places(device, memory, sizes, alignment):
    """Ranges one after the other, each aligned."""
    base, position, found = device.address(memory), 0, []
    for size in sizes:
        found.append((base + position, size))
        position += -(-size // alignment) * alignment
    return found, base


def bytes_of(data, base, place):
    return data[place[0] - base : place[0] - base + place[1]].tobytes()


def test_xxh3_of_many_ranges(device, data):
    """Every length around the ends of stripes and blocks."""
    sizes = [SHORTEST, 242, 255, 256, 257, 1023, 1024, 1025, 1087, 1088, 1089, 2047, 2048, 2049, 5000, 65536, 65537]
    sizes += [200_000, *range(64 * 70 - 3, 64 * 70 + 4)]
    memory = device.upload(data)
    found, base = places(device, memory, sizes, 16)
    assert xxh3_64(device, found) == [xxhash.xxh3_64_intdigest(bytes_of(data, base, place)) for place in found]
    assert xxh3_64(device, []) == []


@pytest.mark.parametrize("size", [1025, 2048, 2049, 5000, 300_000, 512 * 1024, 512 * 1024 + 1, 699_999])
def test_xxh3_128_of_a_stream(device, data, size):
    """Whole blocks in several steps, the end from the host."""
    memory = device.upload(data)
    state = Xxh3State(device)
    folded = (size - 1) // BLOCK * BLOCK
    cuts = sorted({0, folded, folded // 3 // BLOCK * BLOCK, folded // 2 // BLOCK * BLOCK})
    for start, end in itertools.pairwise(cuts):
        state.update(device.address(memory) + start, end - start)
    tail = data[max(0, folded - 64) : size].tobytes()
    assert state.digest128(size, tail) == xxhash.xxh3_128_digest(data[:size].tobytes())
    with pytest.raises(ValueError, match="whole blocks"):
        state.update(device.address(memory), 1000)


def test_crc_of_many_ranges(device, data):
    sizes = [0, 1, 3, 15, 16, 17, 511, 512, 513, 1024, 1537, 65536, 262_143, 262_144, 0, 262_145]
    sizes += [786_432, 786_437, 1_310_719]
    data = np.resize(data, 4_500_000)
    memory = device.upload(data)
    found, base = places(device, memory, sizes, 16)
    found = [place for place in found if place[0] + place[1] <= base + len(data)]
    assert crc32_of(device, found) == [zlib.crc32(bytes_of(data, base, place)) for place in found]
    assert crc32_of(device, found[:1]) == [0]
    assert crc32_of(device, []) == []


def test_secret_is_the_librarys():
    """The kernels hold the same bytes."""
    words = re.findall(r"0x([0-9a-f]{16})ull", (KERNELS / "checksum.cu").read_text())
    assert b"".join(int(word, 16).to_bytes(8, "little") for word in words) == SECRET


@pytest.mark.parametrize(("first", "second"), [(0, 0), (5, 0), (0, 7), (3, 1000), (10, (1 << 20) + 3)])
def test_crcs_are_combined(first, second):
    a, b = np.random.default_rng(1).bytes(first), np.random.default_rng(2).bytes(second)
    assert crc32.combine(zlib.crc32(a), zlib.crc32(b), second) == zlib.crc32(a + b)
