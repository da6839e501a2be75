"""The contract of codecs.base, for every codec that runs on a CPU."""

import gzip
import struct
import subprocess
import sys
import threading
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import archives
import cramjam
import lz4.block
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from nvckpt.codecs import registry
from nvckpt.codecs.chunked import ChunkedCodec
from nvckpt.codecs.errors import (
    CodecError,
    CodecUnavailableError,
    CorruptChunkError,
    InvalidLevelError,
    UnknownCodecError,
    UnknownNameError,
)
from nvckpt.codecs.standard import ZSTD_ENTROPY

MiB = 1 << 20
SIZES = [1, 2, 3, 15, 16, 17, 4095, MiB - 1, MiB, MiB + 1, 3 * MiB + 5]
CODECS = registry.CPU_CODECS
CHUNKED = [codec for codec in CODECS if isinstance(codec, ChunkedCodec)]
LEVELS = {"zstd": [None, ZSTD_ENTROPY, 1, 9], "lz4": [None, 1, 3, 12], "deflate": [None, 1, 9], "gzip": [None, 1]}


def _numbers(dtype: str) -> bytes:
    values = np.random.RandomState(7).normal(0, 0.02, 3 * MiB // 4 + 8).astype("<f4")
    return values.view("<u2")[1::2].tobytes() if dtype == "bf16" else values.tobytes()


def _skewed() -> bytes:
    return np.minimum(np.random.RandomState(8).geometric(0.3, 3 * MiB + 8), 255).astype(np.uint8).tobytes()


MAKERS = {
    "random": lambda: np.random.RandomState(6).bytes(3 * MiB + 8),
    "zeros": lambda: bytes(3 * MiB + 8),
    "constant": lambda: b"\xa5" * (3 * MiB + 8),
    "text": lambda: b"the quick brown fox jumps over the lazy dog; " * (3 * MiB // 45 + 1),
    "skewed": _skewed,
    "float32": lambda: _numbers("f32"),
    "bf16": lambda: _numbers("bf16") * 3,
    "ramp": lambda: np.arange(3 * MiB // 4 + 8, dtype="<u4").tobytes(),
}
REFERENCE = {
    "zstd": lambda data, size: zstandard.ZstdDecompressor().decompress(data),
    "lz4": lambda data, size: lz4.block.decompress(data, uncompressed_size=size),
    "snappy": lambda data, size: bytes(cramjam.snappy.decompress_raw(data)),
    "deflate": lambda data, size: zlib.decompress(data, wbits=-15),
    "gzip": lambda data, size: gzip.decompress(data),
}


@cache
def content(kind: str) -> bytes:
    return MAKERS[kind]()


def decode(codec, stream: bytes, size: int) -> bytes:
    out = bytearray(size)
    codec.decode(memoryview(stream), memoryview(out))
    return bytes(out)


def chunks_of(stream: bytes, size: int) -> list[tuple[bytes, int]]:
    """The chunks of a stream with their original sizes, read from FORMAT.md 5.3 alone."""
    chunk_size, count = struct.unpack_from("<II", stream)
    sizes = struct.unpack_from(f"<{count}I", stream, 8)
    position, found = 8 + 4 * count, []
    for number, length in enumerate(sizes):
        start = archives.align(position)
        assert not any(stream[position:start])
        position = start + length
        found.append((stream[start:position], min(chunk_size, size - number * chunk_size)))
    assert position == len(stream)
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
def test_round_trip_is_exact_bounded_and_repeatable(codec, kind, size):
    """The same bytes come back, the stream keeps its bound, and the same input gives the same stream."""
    data = content(kind)[:size]
    assert len(data) == size
    stream = codec.encode(memoryview(data))
    assert len(stream) <= codec.max_encoded_size(size)
    codec.check(memoryview(stream), size)
    assert decode(codec, stream, size) == data
    assert codec.encode(data) == stream


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("codec", CHUNKED, ids=lambda c: c.name)
def test_every_chunk_decodes_with_the_reference_library(codec, kind):
    """A chunk is a standard stream: nothing of ours is needed to read it, nor a GPU to read a CPU's."""
    for size in (1, 17, 4095, MiB + 1):
        data = content(kind)[:size]
        found = chunks_of(codec.encode(data), size)
        plain = [
            chunk if len(chunk) == original else REFERENCE[codec.name](chunk, original) for chunk, original in found
        ]
        assert b"".join(plain) == data
        assert all(len(part) == original for part, (_, original) in zip(plain, found, strict=True))


@pytest.mark.parametrize(("name", "level"), [(name, level) for name, levels in LEVELS.items() for level in levels])
def test_every_level_round_trips(name, level):
    """Levels change the size, never the bytes that come back."""
    codec = registry.by_name(name)
    for kind in ("zeros", "bf16", "text"):
        data = content(kind)[: 2 * MiB + 3] if level not in (9, 12) else content(kind)[:70_001]
        stream = codec.encode(data, level)
        assert len(stream) < len(data) or kind == "bf16"
        assert decode(codec, stream, len(data)) == data


@pytest.mark.parametrize("codec", CHUNKED, ids=lambda c: c.name)
def test_most_compressible_chunk_is_within_the_claimed_expansion(codec):
    """A limit that honest data could break would make archives that no reader accepts."""
    for kind in ("zeros", "constant"):
        for size in (MiB, 16 * MiB):
            data = memoryview((content(kind) * 6)[:size])
            assert size <= len(codec.encode_chunk(data, None)) * codec.max_expansion


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
def test_buffers_of_every_kind_are_taken(codec):
    """bytes, bytearray, memoryviews with an offset, and views of wider elements give the same stream."""
    data = content("text")[:70_000]
    wide = memoryview(np.frombuffer(data, "<u4"))
    expected = codec.encode(data)
    assert codec.encode(bytearray(data)) == codec.encode(memoryview(b"x" + data)[1:]) == expected
    assert codec.encode(wide) == expected


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
def test_codec_is_safe_to_share_between_threads(codec):
    """Instances are stateless: eight threads at once give what one gives."""
    parts = [content(kind)[start : start + 50_000] for kind in ("text", "bf16") for start in (0, 50_000, 100_000)]
    expected = [codec.encode(part) for part in parts]
    barrier = threading.Barrier(8)

    def work(_):
        barrier.wait()
        return [(codec.encode(p), decode(codec, e, len(p))) for p, e in zip(parts, expected, strict=True)]

    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(work, range(8)):
            assert result == list(zip(expected, parts, strict=True))


# Damaged streams.


def outcome(codec, stream: bytes, size: int) -> bytes | None:
    """What decoding gives; None for CorruptChunkError. Any other exception is the test's failure."""
    try:
        codec.check(memoryview(stream), size)
    except CorruptChunkError:
        with pytest.raises(CorruptChunkError):
            decode(codec, stream, size)
        return None
    try:
        return decode(codec, stream, size)
    except CorruptChunkError:
        return None


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
@settings(max_examples=150, deadline=None)
@given(stream=st.binary(max_size=200), size=st.integers(0, 70_000))
def test_random_bytes_as_a_stream_raise_one_error_only(codec, stream, size):
    """No byte string makes a decoder do anything but give `size` bytes or say that the stream is damaged."""
    outcome(codec, stream, size)


@pytest.mark.parametrize("codec", CHUNKED, ids=lambda c: c.name)
@settings(max_examples=150, deadline=None)
@given(chunk=st.binary(min_size=1, max_size=300), size=st.integers(1, 5_000))
def test_random_bytes_as_a_chunk_raise_one_error_only(codec, chunk, size):
    """The same behind a chunk table that is right, where the library itself meets the bytes."""
    outcome(codec, archives.chunked([chunk]), size)


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_mutated_stream_raises_one_error_only(codec, data):
    """Changed, cut, lengthened or doubled bytes of a real stream."""
    kind = data.draw(st.sampled_from(["text", "zeros", "skewed", "bf16"]))
    original = content(kind)[: data.draw(st.sampled_from([1, 16, 1000, 5000]))]
    stream = bytearray(codec.encode(original))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(stream)))
        action = data.draw(st.sampled_from(["change", "insert", "delete"]))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        stream[place : place + (0 if action == "insert" else len(piece))] = b"" if action == "delete" else piece
    outcome(codec, bytes(stream), len(original))


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
def test_wrong_size_is_an_error(codec):
    """A stream decodes at its own size alone."""
    for kind in ("text", "random"):
        stream = codec.encode(content(kind)[:5000])
        for size in (0, 1, 4999, 5001, 10_000, MiB, MiB + 5000, 256 * MiB):
            with pytest.raises(CorruptChunkError):
                codec.check(memoryview(stream), size)
                decode(codec, stream, size)


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
def test_every_cut_stream_is_an_error(codec):
    """Also where the cut falls into padding or the table."""
    stream = codec.encode(content("text")[:2000])
    for length in range(len(stream)):
        assert outcome(codec, stream[:length], 2000) is None


@pytest.mark.parametrize("codec", CHUNKED, ids=lambda c: c.name)
def test_hostile_claims_are_refused_before_memory_is_reserved(codec):
    """A stream of some hundred bytes that claims 256 MiB costs its own size to refuse."""
    claims = [
        archives.chunked([bytes(20)] * 16, 16 * MiB),
        archives.chunked([bytes(20)], 16 * MiB, count=16),
        archives.chunked([b"x"], 1, count=256 * MiB),
        archives.chunked([b"x"], 16 * MiB, sizes=[0xFFFFFFFF] * 16),
        archives.chunked([b"x"] * 16, 16 * MiB),
    ]
    tracemalloc.start()
    try:
        for stream in claims:
            with pytest.raises(CorruptChunkError):
                codec.check(memoryview(stream), 256 * MiB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MiB


HOSTILE = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import archives, zstandard, zlib, lz4.block, cramjam
from nvckpt.codecs import registry
from nvckpt.codecs.errors import CorruptChunkError
MiB = 1 << 20
zeros = bytes(64 * MiB)
bombs = {
    "zstd": zstandard.ZstdCompressor().compress(zeros),
    "lz4": lz4.block.compress(zeros, store_size=False),
    "snappy": bytes(cramjam.snappy.compress_raw(zeros)),
    "deflate": zlib.compress(zeros, wbits=-15),
    "gzip": zlib.compress(zeros, wbits=31),
}
del zeros
for name, bomb in bombs.items():
    codec = registry.by_name(name)
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 48 * MiB, resource.RLIM_INFINITY))
    for size in (len(bomb) + 1, 2 * len(bomb), 6 * MiB):
        try:
            codec.decode(memoryview(archives.chunked([bomb], 16 * MiB)), memoryview(bytearray(size)))
        except CorruptChunkError:
            continue
        sys.exit(f"{name} decoded a bomb of {len(bomb)} bytes to {size}")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def test_bombs_do_not_expand_beyond_the_size_asked_for(tmp_path):
    """Chunks that really hold 64 MiB, recorded as a few: each decoder stops at the recorded size, in 48 MiB of room."""
    script = tmp_path / "hostile.py"
    script.write_text(HOSTILE)
    done = subprocess.run(
        [sys.executable, script, Path(archives.__file__).parent], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# The registry.


def test_ids_and_names_are_unique_and_those_of_the_format():
    """An id means one thing for ever."""
    assert {codec.id: codec.name for codec in CODECS} | registry.GPU_ONLY == {
        0: "store",
        1: "zstd",
        2: "lz4",
        3: "snappy",
        4: "deflate",
        5: "gzip",
        16: "ans",
        17: "gdeflate",
        18: "bitcomp",
        19: "cascaded",
        32: "float",
    }


def test_unknown_and_missing_codecs_say_what_to_do():
    """Asked for and not available is an error that names the choice or the remedy."""
    with pytest.raises(UnknownNameError, match=r"unknown codec 'zst': choose one of auto, store, zstd"):
        registry.by_name("zst")
    with pytest.raises(CodecUnavailableError, match=r"codec 'ans' needs an NVIDIA GPU.*use auto or zstd"):
        registry.by_name("ans")
    with pytest.raises(UnknownCodecError, match="codec id 77 is unknown"):
        registry.by_id(77)
    with pytest.raises(CodecUnavailableError, match="'bitcomp', which only an NVIDIA GPU"):
        registry.by_id(18)
    assert registry.name_of(77) == "codec-77"


@pytest.mark.parametrize("text", ["", "-1", "1.5", "max ", "²", "0x3", "ultra"])
def test_level_that_is_no_level_is_refused(text):
    """Only names and plain numbers are levels."""
    with pytest.raises(InvalidLevelError):
        registry.parse_level(text)


@pytest.mark.parametrize(("name", "level"), [("zstd", 0), ("zstd", 23), ("auto", 23), ("lz4", 13), ("snappy", 1)])
def test_level_that_the_codec_lacks_is_refused(name, level):
    """Before anything is read, with the codec's own range."""
    with pytest.raises(InvalidLevelError, match=name):
        registry.check_level(name, level)


def test_every_codec_error_has_a_documented_code():
    """Scripts rely on the codes."""
    assert {error.code for error in CodecError.__subclasses__()} == {
        "corrupt",
        "unsupported",
        "gpu_unavailable",
        "usage",
        "oom",
    }
