"""All implementations of the float codec write the oracle's bytes, and every one reads them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from float_streams import CONTENTS, WORD_SIZES, float_spec, words
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvckpt.codecs import float_native, float_reference
from nvckpt.codecs.float_spec import BLOCK, CHUNK, FloatSpec, Layout


@dataclass(frozen=True)
class Implementation:
    """One way to encode and decode; `encode` takes data, spec and level, `decode` stream and out."""

    name: str
    encode: Any
    decode: Any


def native(simd) -> Implementation:
    return Implementation(
        f"C {simd}",
        lambda data, spec, level: float_native.encode(data, spec, level, simd=simd),
        lambda stream, out: float_native.decode(stream, out, simd=simd),
    )


def cuda() -> Implementation:
    """One stream a call, from and to the host."""
    import cupy

    from nvckpt.codecs import float_cuda

    def on_gpu(data):
        return cupy.asarray(np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8))

    def encode(data, spec, level):
        buffer, offsets, sizes = float_cuda.encode([on_gpu(data)], [spec], level)
        return buffer.get()[offsets[0] : offsets[0] + sizes[0]].tobytes()

    def decode(stream, out):
        place = cupy.empty(len(out), np.uint8)
        float_cuda.decode([on_gpu(stream)], [place])
        out[:] = place.get().tobytes()

    return Implementation("CUDA", encode, decode)


def implementations() -> list[Implementation]:
    """Those that run here besides the oracle."""
    found = []
    if float_native.available() is None:
        found += [native("plain")] + [native("avx2")] * float_native.has_avx2()
    try:
        from nvckpt.codecs import float_cuda
    except ImportError:
        return found
    if float_cuda.available() is None:
        found.append(cuda())
    return found


IMPLEMENTATIONS = implementations()


def agree(data, spec, level="default", *, oracle_decodes=True):
    """The stream, which everyone writes and everyone restores exactly."""
    stream = float_reference.encode(data, spec, level)
    if oracle_decodes:
        out = bytearray(len(data))
        float_reference.decode(memoryview(stream), memoryview(out))
        assert out == data
    for other in IMPLEMENTATIONS:
        assert other.encode(data, spec, level) == stream, other.name
        assert other.encode(data, spec, level) == stream, f"{other.name}, second time"
        out = bytearray(b"\xa5" * len(data))
        other.decode(memoryview(stream), memoryview(out))
        assert out == data, other.name
    return stream


@st.composite
def cases(draw):
    kind = draw(st.sampled_from(sorted(WORD_SIZES)))
    rows, cols = draw(st.integers(8, 60)), draw(st.integers(8, 60))
    count = rows * cols + draw(st.integers(0, 40))
    shape = draw(st.sampled_from([None, (rows, cols)]))
    tail = draw(st.integers(0, WORD_SIZES[kind] - 1))
    data = words(kind, count, draw(st.sampled_from(CONTENTS)), draw(st.integers(0, 1000)))
    return data + bytes(tail), float_spec(kind, count, shape), draw(st.sampled_from(["fast", "default", "max"]))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_small_tensors(case):
    agree(*case)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=3000), st.sampled_from([1, 2, 4, 8]), st.sampled_from(["fast", "default"]))
def test_bytes(data, word, level):
    """Integers, FP8 and whatever else has no exponent."""
    agree(data, FloatSpec(word, "bytes"), level)


@pytest.mark.parametrize("kind", WORD_SIZES)
@pytest.mark.parametrize("content", CONTENTS)
def test_every_content_in_matrices_and_flat(kind, content):
    """Constant signs, zeros of every pattern, NaNs, outliers that make raw chunks, FP32 that holds BF16 values."""
    for shape in (None, (64, 64)):
        agree(words(kind, 9000, content), float_spec(kind, 9000, shape))


@pytest.mark.parametrize("kind", WORD_SIZES)
def test_sizes_around_lanes_rows_and_vectors(kind):
    sizes = [
        0,
        1,
        2,
        7,
        8,
        9,
        15,
        16,
        17,
        31,
        32,
        33,
        63,
        64,
        65,
        127,
        128,
        129,
        255,
        256,
        257,
        511,
        512,
        513,
        2047,
        2049,
    ]
    for size in sizes:
        agree(words(kind, size, "zeros"), float_spec(kind, size), "default", oracle_decodes=False)
        if size % 2:
            agree(words(kind, size, "normal"), float_spec(kind, size), "fast", oracle_decodes=False)


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 70_000, BLOCK - 1, BLOCK + 1])
def test_sizes_around_chunks_and_blocks(size):
    agree(words("bf16", size, "outliers"), float_spec("bf16", size), oracle_decodes=False)


@pytest.mark.parametrize(("kind", "content"), [("fp32", "zeros"), ("fp64", "normal"), ("fp16", "rows")])
def test_more_than_one_block(kind, content):
    agree(words(kind, BLOCK + 777, content), float_spec(kind, BLOCK + 777, (700, 187)), oracle_decodes=False)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("level", ["fast", "default"])
def test_all_patterns_of_16_bits(kind, level):
    """Every NaN payload, both zeros, denormals and infinities."""
    data = np.random.default_rng(0).permutation(np.arange(65536, dtype=np.uint16)).tobytes()
    agree(data, float_spec(kind, 65536, (256, 256)), level)


def test_many_exceptions_make_a_chunk_raw():
    """Every third of 2,048 runs is sampled, which misses the last chunk's outliers: layout kept, chunk raw."""
    values = np.tile(np.frombuffer(words("bf16", 2 * CHUNK, "normal"), np.uint16), 8)
    runs = np.arange(len(values)) // 256
    values[(runs % 3 == 1) & (runs >= len(values[:-CHUNK]) // 256)] = 0x7F00
    stream = agree(values.tobytes(), float_spec("bf16", len(values)), oracle_decodes=False)
    assert stream[1] == Layout.LOG


def test_rank_one_matrices_are_predicted_by_rows_and_columns():
    """A stack, and a matrix so wide that its columns are summed in strips."""
    rng = np.random.default_rng(0)
    for rows, cols, depth in [(96, 80, 3), (8, 5000, 1), (2000, 9, 1), (300, 2049, 1)]:
        scale = np.exp2(rng.normal(0, 3, (depth, rows, 1)) + rng.normal(0, 3, (depth, 1, cols)))
        values = (rng.standard_normal((depth, rows, cols)) * scale).astype(np.float32)
        spec = FloatSpec(4, "fp32", ((rows, cols),) * depth)
        agree(values.tobytes(), spec, oracle_decodes=False)


def test_many_tiny_matrices():
    count = 300
    data = words("bf16", count * 64, "rows")
    agree(data, FloatSpec(2, "bf16", ((8, 8),) * count))


def test_more_matrices_than_a_stream_may_have_become_one_flat_entry():
    count = 65_537
    stream = agree(words("bf16", count, "normal"), FloatSpec(2, "bf16", ((1, 0),) * count), oracle_decodes=False)
    assert int.from_bytes(stream[4:8], "little") == 1
