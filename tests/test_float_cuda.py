"""The float codec on a GPU: the oracle's bytes, any mix of tensors in a call, and totals beyond 4 GiB."""

import numpy as np
import pytest
from float_cases import cases

from nvckpt.codecs import float_cuda, float_reference
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_spec import FloatSpec

REASON = float_cuda.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

CASES = {name: (data, spec) for name, data, spec in cases()}


def on_gpu(data):
    import cupy

    return cupy.asarray(np.frombuffer(data, np.uint8))


def encoded(inputs, level):
    arrays, specs = [on_gpu(data) for data, _ in inputs], [spec for _, spec in inputs]
    buffer, offsets, sizes = float_cuda.encode(arrays, specs, level)
    host = buffer.get()
    return [host[start : start + size].tobytes() for start, size in zip(offsets, sizes, strict=True)]


def decoded(streams, sizes):
    import cupy

    outs = [cupy.full(size, 0xDD, np.uint8) for size in sizes]
    float_cuda.decode([on_gpu(stream) for stream in streams], outs)
    return [out.get().tobytes() for out in outs]


@pytest.mark.parametrize("level", ["fast", "default"])
def test_the_oracles_bytes_and_back(level):
    wrong = []
    for name, (data, spec) in CASES.items():
        expected = float_reference.encode(data, spec, level)
        if encoded([(data, spec)], level) != [expected]:
            wrong.append(f"encode {name}")
        if decoded([expected], [len(data)]) != [data]:
            wrong.append(f"decode {name}")
    assert not wrong


@pytest.mark.parametrize("level", ["fast", "default"])
def test_all_cases_in_one_call(level):
    inputs = list(CASES.values())
    expected = [float_reference.encode(data, spec, level) for data, spec in inputs]
    for _ in range(3):
        assert encoded(inputs, level) == expected
    assert decoded(expected, [len(data) for data, _ in inputs]) == [data for data, _ in inputs]


def test_misaligned_memory():
    import cupy

    data, spec = CASES["bf16 rows and columns"]
    base = cupy.zeros(len(data) + 64, np.uint8)
    base[1 : 1 + len(data)] = on_gpu(data)
    buffer, offsets, sizes = float_cuda.encode([base[1 : 1 + len(data)]], [spec])
    stream = cupy.zeros(int(sizes[0]) + 64, np.uint8)
    stream[3 : 3 + int(sizes[0])] = buffer[int(offsets[0]) : int(offsets[0] + sizes[0])]
    out = cupy.zeros(len(data) + 64, np.uint8)
    float_cuda.decode([stream[3 : 3 + int(sizes[0])]], [out[5 : 5 + len(data)]])
    assert out[5 : 5 + len(data)].get().tobytes() == data


@pytest.mark.parametrize("name", ["bf16 few zeros", "fp32 sparse", "fp16 rows and columns", "integers of 4"])
def test_damaged_streams(name):
    data, spec = CASES[name]
    stream = float_reference.encode(data, spec, "default")
    rng = np.random.default_rng(7)
    for _ in range(40):
        damaged = bytearray(stream)
        for at in rng.integers(0, len(stream) if rng.random() < 0.5 else 200, 1 + rng.integers(0, 3)):
            damaged[at] ^= 1 << rng.integers(0, 8)
        try:
            theirs = bytearray(len(data))
            float_reference.decode(memoryview(damaged), memoryview(theirs))
        except CorruptChunkError:
            with pytest.raises(CorruptChunkError):
                decoded([bytes(damaged)], [len(data)])
        else:
            assert decoded([bytes(damaged)], [len(data)]) == [bytes(theirs)]


@pytest.mark.slow
def test_more_than_4_gib_in_one_call():
    import cupy

    part = 250 << 20
    tensors = [cupy.random.standard_normal(part // 4, dtype=np.float32) for _ in range(18)]
    arrays = [tensor.view(np.uint8) for tensor in tensors]
    buffer, offsets, sizes = float_cuda.encode(arrays, [FloatSpec(4, "fp32", ((part // 4, 0),))] * 18, "fast")
    outs = [cupy.full(part, 0xDD, np.uint8) for _ in arrays]
    streams = [buffer[int(start) : int(start + size)] for start, size in zip(offsets, sizes, strict=True)]
    float_cuda.decode(streams, outs)
    assert all(bool((out == array).all()) for out, array in zip(outs, arrays, strict=True))
