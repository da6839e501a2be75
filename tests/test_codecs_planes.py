"""Transforms and the choice of codecs: FORMAT.md's own code is the reference."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nvckpt.formats
from nvckpt.codecs import blocks, planes, registry
from nvckpt.codecs.blocks import BYTE_PLANES, FLOAT_PLANES, NO_TRANSFORM, Block, Choice, Stream
from nvckpt.codecs.content import BYTES, Content
from nvckpt.codecs.errors import CorruptChunkError, UnknownCodecError

PAGE = (Path(nvckpt.formats.__file__).parent / "FORMAT.md").read_text()
WORDS = [2, 4, 8]


@pytest.fixture(scope="module")
def page():
    """The functions `split` and `join` as FORMAT.md prints them."""
    (code,) = re.findall(r"```python transforms\n(.*?)```", PAGE, re.DOTALL)
    names = {"np": np}
    exec(code, names)
    return names


def joined(parts, word, rotate, size) -> bytes:
    out = bytearray(size)
    planes.join([np.frombuffer(p, np.uint8) for p in parts], word, rotate, memoryview(out))
    return bytes(out)


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("word", WORDS)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(min_size=8, max_size=400))
def test_planes_are_those_of_the_page(page, word, rotate, data):
    """The code and the document split alike, join alike, and give the bytes back, with and without a tail."""
    expected = page["split"](data, word, rotate)
    parts = [bytes(part) for part in planes.split(data, word, rotate)]
    assert parts == expected
    assert [len(part) for part in parts] == planes.stream_sizes(len(data), word)
    assert page["join"](expected, word, rotate) == data
    assert joined(parts, word, rotate, len(data)) == data


@pytest.mark.parametrize("word", WORDS)
def test_planes_of_a_large_unaligned_block(page, word):
    """Also where the buffer starts at an odd address."""
    data = np.random.RandomState(3).bytes(200_003)
    view = memoryview(b"x" + data)[1:]
    parts = planes.split(view, word, True)
    assert [bytes(part) for part in parts] == page["split"](data, word, True)
    assert joined(parts, word, True, len(data)) == data


@pytest.mark.parametrize(("word", "dtype", "shift", "mask"), [(4, "<f4", 23, 0xFF), (2, "bf16", 7, 0xFF)])
def test_plane_0_of_a_rotated_float_is_its_exponent(word, dtype, shift, mask):
    """What the document claims for BF16 and FP32, and why the transform exists."""
    values = np.random.RandomState(4).normal(0, 1, 500).astype("<f4")
    raw = values.view("<u2")[1::2].copy() if dtype == "bf16" else values.view("<u4")
    assert bytes(planes.split(raw.tobytes(), word, True)[0]) == (raw >> shift & mask).astype(np.uint8).tobytes()


# Choosing.

CONTENTS = [
    BYTES,
    Content(2, "bf16"),
    Content(4, "fp32"),
    Content(8, "fp64"),
    Content(4),
    Content(8),
    Content(1, "fp8"),
    Content(16),
]


@pytest.mark.parametrize("codec", [registry.AUTO, *(c.name for c in registry.CPU_CODECS)])
@pytest.mark.parametrize("content", CONTENTS, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.one_of(st.binary(min_size=1, max_size=300), st.integers(1, 5000).map(bytes)))
def test_block_round_trips_and_never_grows(codec, content, data):
    """Whatever the content is said to be, every byte comes back and storing is never beaten by the result."""
    block = blocks.encode(data, content, Choice(codec))
    assert block.encoded_size <= len(data)
    assert blocks.decode(block, len(data)) == data
    assert sum(stream.original_size for stream in block.streams) == len(data)
    allowed = {0} if codec == "store" else {0, 1, 32, 33} if codec == registry.AUTO else {0, registry.by_name(codec).id}
    assert {stream.codec_id for stream in block.streams} <= allowed


def test_choice_depends_on_the_block_alone():
    """Neither neighbours nor threads change an archive: the same block gives the same streams, at any time."""
    data = np.random.RandomState(5).normal(0, 1, 300_000).astype("<f4").tobytes()
    expected = blocks.encode(data, Content(4, "fp32"), Choice())
    results = []

    def work():
        blocks.encode(bytes(1000), BYTES, Choice(level="max"))
        results.append(blocks.encode(data, Content(4, "fp32"), Choice()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert [stream.codec_id for stream in result.streams] == [registry.FLOAT.id]
        assert [bytes(s.data) for s in result.streams] == [bytes(s.data) for s in expected.streams]


def test_noise_is_stored():
    """What does not shrink is kept as it is, in one stream without planes."""
    data = np.random.RandomState(6).bytes(300_000)
    for content in (BYTES, Content(4, "fp32"), Content(8)):
        block = blocks.encode(data, content, Choice())
        assert (block.transform_id, [s.codec_id for s in block.streams]) == (NO_TRANSFORM, [0])


def test_arrays_in_unknown_formats_go_in_planes():
    """Large opaque bytes are tried as numbers, by a sample."""
    data = np.random.RandomState(7).normal(0, 0.01, 200_000).astype("<f4").tobytes()
    assert blocks.encode(data, BYTES, Choice()).transform_id == FLOAT_PLANES
    steps = (np.arange(100_000, dtype="<u8") * 999).tobytes()
    assert blocks.encode(steps, Content(8), Choice()).transform_id == BYTE_PLANES


def _block(sizes, transform, word):
    return Block(transform, word, tuple(Stream(0, size, bytes(size)) for size in sizes))


@pytest.mark.parametrize(
    ("sizes", "transform", "word", "size"),
    [
        ([9], NO_TRANSFORM, 0, 10),
        ([5, 5], NO_TRANSFORM, 0, 10),
        ([10], NO_TRANSFORM, 2, 10),
        ([5, 5], BYTE_PLANES, 0, 10),
        ([5, 5], BYTE_PLANES, 1, 10),
        ([10], BYTE_PLANES, 2, 10),
        ([5, 5, 0], BYTE_PLANES, 2, 10),
        ([5, 4, 1], BYTE_PLANES, 2, 10),
        ([1] * 16, FLOAT_PLANES, 16, 16),
        ([1], FLOAT_PLANES, 2, 1),
        ([0, 0, 1], FLOAT_PLANES, 2, 1),
    ],
)
def test_streams_that_do_not_fit_the_transform_are_an_error(sizes, transform, word, size):
    """Before any memory is reserved for them."""
    with pytest.raises(CorruptChunkError):
        blocks.decode(_block(sizes, transform, word), size)


def test_unknown_transform_is_not_called_damage():
    """A later version can read it, and the sentence says so."""
    with pytest.raises(UnknownCodecError, match="transform id 7 is unknown to this version; a later one"):
        blocks.decode(_block([4], 7, 0), 4)


def test_stream_sizes_are_checked_before_memory_is_reserved():
    """A block of 256 MiB in planes, of which the last stream is too small, costs nothing to refuse."""
    import tracemalloc

    quarter = 64 << 20
    lie = Block(FLOAT_PLANES, 4, tuple(Stream(1, quarter, bytes(40)) for _ in range(4)))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptChunkError):
            blocks.decode(lie, 4 * quarter)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
