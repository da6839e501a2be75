"""The CUDA float codec, its kernels run on the CPU: the same bytes as the oracle, and the oracle's streams decoded."""

import numpy as np
import pytest
from cuda_emulation.device import POISON, EmulatedDevice, compiler
from float_cases import cases

from nvckpt.codecs import float_reference
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_cuda_decode import Decoding
from nvckpt.codecs.float_cuda_encode import encode_on, max_encoded_size

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++) to build the emulated kernels"),
]

CASES = {name: (data, spec) for name, data, spec in cases()}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.getbasetemp().parent / "emulated_kernels"


@pytest.fixture
def device(folder):
    folder.mkdir(exist_ok=True)
    return EmulatedDevice(folder)


def place(device, data):
    memory = device.empty(len(data))
    memory[...] = np.frombuffer(data, np.uint8)
    return device.address(memory), len(data), memory


def encoded(device, inputs, level):
    places = [place(device, data) for data, _ in inputs]
    specs = [spec for _, spec in inputs]
    buffer, offsets, sizes = encode_on(device, [p[:2] for p in places], specs, level)
    assert all(size <= max_encoded_size(len(data), spec) for size, (data, spec) in zip(sizes, inputs, strict=True))
    return [buffer[start : start + size].tobytes() for start, size in zip(offsets, sizes, strict=True)]


def decoded(device, streams, sizes):
    places = [place(device, stream) for stream in streams]
    outs = [device.empty(size) for size in sizes]
    targets = [(device.address(out), size) for out, size in zip(outs, sizes, strict=True)]
    Decoding(device, [p[:2] for p in places], targets).run()
    device.check_guards()
    return [out.tobytes() for out in outs]


@pytest.mark.parametrize("level", ["fast", "default"])
@pytest.mark.parametrize("name", CASES)
def test_the_oracles_bytes_and_back(device, name, level):
    data, spec = CASES[name]
    expected = float_reference.encode(data, spec, level)
    assert encoded(device, [(data, spec)], level) == [expected]
    assert decoded(device, [expected], [len(data)]) == [data]


@pytest.mark.parametrize("level", ["fast", "default"])
def test_many_streams_in_one_call_whatever_memory_holds(folder, level):
    folder.mkdir(exist_ok=True)
    chosen = [case for name, case in CASES.items() if len(case[0]) < 50000]
    expected = [float_reference.encode(data, spec, level) for data, spec in chosen]
    for poison in POISON:
        assert encoded(EmulatedDevice(folder, poison), chosen, level) == expected
    assert decoded(EmulatedDevice(folder), expected, [len(data) for data, _ in chosen]) == [data for data, _ in chosen]


@pytest.mark.parametrize("name", ["bf16 few zeros", "fp32 sparse", "fp16 rows and columns", "integers of 4"])
def test_damaged_streams_never_leave_their_memory(device, name):
    data, spec = CASES[name]
    stream = float_reference.encode(data, spec, "default")
    rng = np.random.default_rng(5)
    for _ in range(30):
        damaged = bytearray(stream)
        for at in rng.integers(0, len(stream) if rng.random() < 0.5 else 200, 1 + rng.integers(0, 3)):
            damaged[at] ^= 1 << rng.integers(0, 8)
        try:
            theirs = bytearray(len(data))
            float_reference.decode(memoryview(damaged), memoryview(theirs))
        except CorruptChunkError:
            with pytest.raises(CorruptChunkError):
                decoded(device, [bytes(damaged)], [len(data)])
        else:
            assert decoded(device, [bytes(damaged)], [len(data)]) == [bytes(theirs)]
