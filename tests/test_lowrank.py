"""The codec `lowrank`: smaller on matrices of low rank, exact on every bit pattern, refused when damaged."""

import re

import numpy as np
import pytest
from test_derived_streams import words as fp32_words
from test_format_document import DOCUMENT

from nvckpt.codecs import blocks, lowrank_grid, lowrank_stream, registry
from nvckpt.codecs.blocks import Choice
from nvckpt.codecs.content import Content
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.lowrank_grid import CONTEXTS, KINDS

FLOAT = registry.FLOAT
CONTENT = {2: "bf16", 4: "fp32"}


def low_rank(rows: int, cols: int, rank: int = 5, noise: float = 0.05, seed: int = 1) -> np.ndarray:
    """A matrix such as momentum: a few directions and noise, rows and columns of different scale."""
    rng = np.random.default_rng(seed)
    made = rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, cols)) + noise * rng.standard_normal(
        (rows, cols)
    )
    made *= np.exp2(rng.normal(0, 2, (rows, 1)) + rng.normal(0, 1, cols)) * 1e-6
    return made.astype(np.float32)


def as_words(values: np.ndarray, word: int) -> np.ndarray:
    wide = np.ascontiguousarray(values, np.float32).view("<u4")
    return wide if word == 4 else (wide >> np.uint32(16)).astype("<u2")


def through(words: np.ndarray) -> bytes:
    """Code a matrix whatever it is, decode it, compare; the stream."""
    kind = KINDS[words.itemsize]
    stream = lowrank_stream.encode_matrix(words, kind, FLOAT)
    lowrank_stream.check(memoryview(stream), words.nbytes, FLOAT)
    out = bytearray(words.nbytes)
    lowrank_stream.decode(memoryview(stream), memoryview(out), FLOAT)
    assert bytes(out) == words.tobytes()
    return stream


@pytest.mark.parametrize(("word", "gain"), [(2, 3.0), (4, 3.0)])
def test_low_rank_is_found_and_saves_what_it_should(word, gain):
    """Noise of a twentieth leaves four bits less a value than a scale alone; factors cost some."""
    words = as_words(low_rank(256, 640), word)
    data = words.tobytes()
    content = Content(word, CONTENT[word], ((256, 640),))
    block = blocks.encode(data, content, Choice(level="max"))
    assert [registry.name_of(s.codec_id) for s in block.streams] == ["lowrank"]
    assert blocks.decode(block, len(data)) == data
    plain = blocks.encode(data, content, Choice())
    assert 8 * (plain.encoded_size - block.encoded_size) / words.size > gain


def test_default_level_and_other_codecs_do_not_try():
    """It is slow: only auto at max takes it."""
    data = as_words(low_rank(128, 256), 4).tobytes()
    content = Content(4, "fp32", ((128, 256),))
    for choice in (Choice(), Choice(level="fast"), Choice("float", "max")):
        assert blocks.encode(data, content, choice).streams[0].codec_id != registry.LOW_RANK.id


def test_stack_of_experts_has_a_record_each():
    """Three matrices, one all zero, one without a part of low rank."""
    stack = [low_rank(96, 128), np.zeros((96, 128), np.float32), np.random.default_rng(3).standard_normal((96, 128))]
    words = as_words(np.concatenate(stack), 4)
    stream = registry.LOW_RANK.encode_values(words.tobytes(), Content(4, "fp32", ((96, 128),) * 3))
    assert stream
    registry.LOW_RANK.check(memoryview(stream), words.nbytes)
    out = bytearray(words.nbytes)
    registry.LOW_RANK.decode(memoryview(stream), memoryview(out))
    assert bytes(out) == words.tobytes()


@pytest.mark.parametrize(
    ("values", "matrices"),
    [
        (np.random.default_rng(1).standard_normal((128, 128)), ((128, 128),)),
        (np.abs(low_rank(128, 128)), ((128, 128),)),
        (np.ones((128, 128)), ((128, 128),)),
        (np.zeros((128, 128)), ((128, 128),)),
        (low_rank(128, 128), ((128 * 128, 0),)),
        (low_rank(32, 512), ((32, 512),)),
        (low_rank(128, 128), ((64, 128),)),
        (low_rank(128, 128), ()),
    ],
    ids=["noise", "one sign", "constant", "zeros", "flat", "few rows", "not the whole", "unknown"],
)
def test_what_has_nothing_to_gain_is_left(values, matrices):
    """None, after a look at a sample at most."""
    words = as_words(values, 4)
    assert registry.LOW_RANK.encode_values(words.tobytes(), Content(4, "fp32", matrices)) is None


@pytest.mark.parametrize("word", [2, 4])
def test_adversarial_words_are_exact(word):
    """NaN payloads, infinities, denormals, both zeros, ties, outliers, random bits, rows and columns of zeros."""
    words = as_words(low_rank(140, 150), word)
    odd = as_words(fp32_words(200).view(np.float32), word)
    words.reshape(-1)[:: words.size // len(odd)][: len(odd)] = odd[: len(words.reshape(-1)[:: words.size // len(odd)])]
    words[7] = words[-1] = words[20:40] = 0
    words[:, 3] = 0
    words[50] = 1 << (8 * word - 1)
    words[60, 60] = as_words(np.array([3e38]), word)[0]
    through(words)


@pytest.mark.parametrize("word", [2, 4])
@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (2, 2), (9, 13), (5, 140_000)])
def test_every_shape_is_exact(shape, word):
    """One row, one column, rows longer than a strip."""
    values = np.random.default_rng(5).standard_normal(shape) * 1e-3
    through(as_words(values, word))


@pytest.mark.parametrize("word", [2, 4])
@pytest.mark.parametrize("kind", ["zeros", "nan", "denormal", "constant", "one outlier", "random bits", "largest"])
def test_whole_matrices_of_odd_words_are_exact(kind, word):
    """Nothing fits; everything survives."""
    rng = np.random.default_rng(9)
    values = rng.standard_normal((40, 50)).astype(np.float32) * 1e-20
    if kind == "one outlier":
        values[11, 11] = 1e38
    made = {
        "zeros": np.zeros((40, 50), np.uint32),
        "nan": np.full((40, 50), 0x7FC00001, np.uint32),
        "denormal": rng.integers(0, 1 << 23, (40, 50), np.uint32),
        "constant": np.full((40, 50), 0xBF800000, np.uint32),
        "random bits": rng.integers(0, 1 << 32, (40, 50), np.uint32),
        "largest": np.full((40, 50), 0x7F7FFFFF, np.uint32),
    }.get(kind, values.view(np.uint32))
    through(as_words(made.view(np.float32), word))


def test_numbers_are_those_of_the_document():
    """Section 19.2, number by number, on a grid with every context."""
    found = re.search(r"```python lowrank\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found
    names: dict = {}
    exec(found[1], names)
    rng = np.random.default_rng(4)
    for word, kind in KINDS.items():
        words = as_words(low_rank(60, 50), word).reshape(-1)
        exponents = words.astype(np.int64) >> kind.mantissa & 0xFF
        over = rng.integers(-3, kind.mantissa + 3, len(words))
        scale = 8 * (exponents - over) + rng.integers(0, 8, len(words))
        full = words.astype(np.int64) & ((1 << kind.mantissa) - 1) | 1 << kind.mantissa
        size = np.where(over < 0, 0, (full << np.maximum(over, 0)) >> kind.mantissa)
        near = np.where(words >> (8 * word - 1), -1 - size, size) + rng.integers(-40, 40, len(words))
        products = np.where(rng.random(len(words)) < 0.9, near, rng.integers(-1 << 31, 1 << 31, len(words)))
        multipliers = np.array([1 << 16] * 7 + [65_000])
        grid = lowrank_grid.make_grid(scale, products, multipliers, 16, kind)
        strip = lowrank_grid.code(words, grid, kind)
        assert set(grid.context.tolist()) == set(range(CONTEXTS))
        numbers = lowrank_grid.numbers_of(strip.symbols, grid)
        widths = lowrank_grid.widths_of(numbers, strip.below, kind)
        raw = lowrank_grid.unpack(memoryview(strip.raw), widths)
        below = iter(strip.below.tolist())
        for i, symbol in enumerate(strip.symbols.tolist()):
            exponent, steps, context = names["number"](
                int(scale[i]), int(products[i]), [int(m) for m in multipliers], 16, kind.mantissa
            )
            z = next(below) if numbers.small[i] else 0
            assert context == grid.context[i]
            assert names["width"](symbol, steps, z, kind.mantissa) == widths[i]
            if symbol:
                assert names["word"](symbol, exponent, steps, z, int(raw[i]), kind.mantissa) == words[i]


@pytest.mark.parametrize("most", [0, 1, 7, 8, 9, 23])
def test_raw_bits_of_every_width_survive(most):
    """Packing is undone, and is as long as it says."""
    rng = np.random.default_rng(most)
    widths = rng.integers(0, most + 1, 1000)
    values = rng.integers(0, 1 << 23, 1000)
    packed = lowrank_grid.pack(values, widths)
    assert len(packed) == lowrank_grid.packed_size(widths)
    assert (lowrank_grid.unpack(memoryview(packed), widths) == values & ((1 << widths) - 1)).all()


def test_damaged_stream_is_refused_or_decodes_to_something(record_property):
    """Any byte changed, and any cut: CorruptChunkError or other words (the checksums see those), nothing else."""
    words = as_words(low_rank(24, 40, rank=2), 2)
    sound = through(words)
    refused = 0
    for position in range(0, len(sound), 3):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << position % 8
        refused += _is_refused(bytes(damaged), words.nbytes)
    assert refused > len(sound) // 12
    for cut in range(0, len(sound), 16):
        assert _is_refused(sound[:cut], words.nbytes)
    assert _is_refused(sound + bytes(16), words.nbytes)
    assert _is_refused(sound + sound, words.nbytes) and _is_refused(sound, words.nbytes + 2)
    record_property("flips", len(sound) // 3)


def _is_refused(stream: bytes, size: int) -> bool:
    try:
        registry.LOW_RANK.check(memoryview(stream), size)
        registry.LOW_RANK.decode(memoryview(stream), memoryview(bytearray(size)))
    except CorruptChunkError:
        return True
    return False
