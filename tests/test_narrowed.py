"""Wide words that hold narrow floats: smaller, exact on every bit pattern, and refused when damaged."""

import re

import numpy as np
import pytest
from test_derived_streams import words
from test_format_document import DOCUMENT

from nvckpt.codecs import blocks, registry
from nvckpt.codecs.blocks import Choice
from nvckpt.codecs.content import Content, Kind
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.rounding import widen_fp16, widen_fp32

EVERY_FP16 = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def normal(count: int = 100_000) -> np.ndarray:
    return np.random.default_rng(2).normal(0, 0.02, count).astype(np.float32)


def coded(values: np.ndarray, kind: Kind, codec: str = "auto") -> blocks.Block:
    """Code and decode a block; the block."""
    data = values.tobytes()
    block = blocks.encode(data, Content(values.itemsize, kind, ((len(values), 0),)), Choice(codec))
    assert blocks.decode(block, len(data)) == data
    return block


def codecs_of(block: blocks.Block) -> set[str]:
    return {registry.name_of(stream.codec_id) for stream in block.streams}


@pytest.mark.parametrize(
    ("narrow", "wide", "kinds", "bits"),
    [
        (normal().astype(np.float16), np.float32, ("fp16", "fp32"), 13.7),
        (normal(), np.float64, ("fp32", "fp64"), 26.8),
        ((normal().view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32), np.float64, ("fp32", "fp64"), 10.8),
    ],
    ids=["fp16 in fp32", "fp32 in fp64", "bf16 in fp64"],
)
def test_wide_words_cost_what_the_narrow_ones_do(narrow, wide, kinds, bits):
    """To the head of the stream and the bytes of a frame."""
    block = coded(narrow.astype(wide), kinds[1])
    assert codecs_of(block) == {"narrowed"}
    assert block.encoded_size <= coded(narrow, kinds[0]).encoded_size + 64
    assert 8 * block.encoded_size <= bits * len(narrow)


def test_every_fp16_word_survives_in_fp32():
    """NaN payloads, infinities, denormals, -0.0."""
    assert codecs_of(coded(widen_fp16(np.random.default_rng(1).permutation(EVERY_FP16)), "fp32")) == {"narrowed"}


def test_every_class_of_fp32_word_survives_in_fp64_as_the_document_widens_it():
    """NaN payloads, infinities, denormals, -0.0; the formula of section 18."""
    given = words()
    assert coded(widen_fp32(given), "fp64")
    block = re.search(r"```python widen\n(.*?)```", DOCUMENT, re.DOTALL)
    assert block
    names: dict = {}
    exec(block[1], names)
    some = given[:3000]
    assert widen_fp32(some).tolist() == [names["widen_fp32"](int(word)) for word in some]


@pytest.mark.parametrize("at", [-1, 50_001])
def test_one_word_that_is_not_narrow_makes_it_plain(at):
    """Found by the whole comparison where the sample does not see it."""
    for values, kind, step in (
        (normal().astype(np.float16).astype(np.float32).view(np.uint32), "fp32", np.uint32(1)),
        (normal().astype(np.float64).view(np.uint64), "fp64", np.uint64(1)),
    ):
        values[at] ^= step
        assert "narrowed" not in codecs_of(coded(values, kind))


def test_only_auto_narrows_and_bf16_is_left_to_float():
    """FP32 that holds BF16 is `float`'s; a codec asked for by name is what is used."""
    values = normal().astype(np.float16).astype(np.float32)
    assert codecs_of(coded(values, "fp32", "float")) == {"float"}
    bf16 = (normal().view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert codecs_of(coded(bf16, "fp32")) == {"float"}


def test_damaged_head_is_refused_before_decoding():
    """Kind, reserved bytes, length and size."""
    values = normal(4000).astype(np.float16).astype(np.float32)
    stream = registry.NARROWED.encode_values(values.tobytes(), Content(4, "fp32"), "default")
    assert stream
    check, size = registry.NARROWED.check, values.nbytes
    check(memoryview(stream), size)
    for damaged in (
        b"",
        stream[:15],
        b"\0" + stream[1:],
        b"\3" + stream[1:],
        stream[:9] + b"\1" + stream[10:],
        stream[:-1],
    ):
        with pytest.raises(CorruptChunkError):
            check(memoryview(damaged), size)
    for other in (size - 4, size + 4, size + 1, 2 * size, 0):
        with pytest.raises(CorruptChunkError):
            check(memoryview(stream), other)
