"""`lowrank` in C: the oracle's bytes with every set of instructions, its results, and its refusals."""

from pathlib import Path

import numpy as np
import pytest
from test_lowrank import as_words, low_rank
from test_lowrank_fit import odd_matrices

from nvckpt.codecs import lowrank_fit, lowrank_grid, lowrank_native, lowrank_record, lowrank_stream, registry
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.lowrank_fit import Model
from nvckpt.codecs.lowrank_grid import CONTEXTS, KINDS
from nvckpt.codecs.lowrank_record import MOST_FACTOR

pytestmark = pytest.mark.skipif(not lowrank_native.available(), reason="the C library is not built")

FLOAT = registry.FLOAT
SIMD = ("plain", "avx2")


def some_model(shape, rank, rng, near=None):
    """A model in whole numbers; with `near`, about that of these values, so that every context occurs."""
    left = rng.integers(-MOST_FACTOR, MOST_FACTOR + 1, (shape[0], rank))
    right = rng.integers(-MOST_FACTOR, MOST_FACTOR + 1, (shape[1], rank))
    multipliers = np.round(np.exp2(np.arange(8) / 8) * 900).astype(np.int64)
    rows = np.full(shape[0], 8 * 127) if near is None else 8 * 127 + np.round(8 * np.log2(np.abs(near).mean(1) + 1e-30))
    return Model(rows.astype(np.int64), rng.integers(-9, 10, shape[1]), left, right, multipliers, 20)


def matrix_of(words, kind, model):
    scales = np.concatenate([model.rows, model.cols]).astype("<i2")
    folded = lowrank_stream._folded(model)
    return lowrank_native.Matrix(*words.shape, kind, model.shift, model.multipliers.tolist(), scales, folded)


@pytest.mark.parametrize("word", [2, 4])
@pytest.mark.parametrize(
    ("shape", "rank"), [((1, 1), 0), ((3, 17), 1), ((37, 50), 7), ((5, 140_000), 2), ((9, 40), 1024)]
)
def test_coded_parts_are_the_oracles(shape, rank, word):
    """Last tiles and panels that are not full, strips of one row, sums beyond 32 bits."""
    rng = np.random.default_rng(rank)
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-9, 9, shape)) * 1e-3
    words = as_words(values, word)
    words.reshape(-1)[::7] = rng.integers(0, 1 << 8 * word, len(words.reshape(-1)[::7]), np.uint64)
    model = some_model(shape, rank, rng, None if rank == 7 else values)
    expected = lowrank_stream._code(words, KINDS[word], model)
    assert sum(map(len, expected[:CONTEXTS])) == words.size
    for simd in SIMD:
        coded = lowrank_native.encode(matrix_of(words, KINDS[word], model), words, simd=simd)
        assert [bytes(part) for part in coded] == expected


@pytest.mark.parametrize("word", [2, 4])
def test_every_implementation_decodes_what_every_other_coded(word, monkeypatch):
    """Contexts of coarse steps, escapes, rows of zeros; both ways."""
    words = as_words(low_rank(200, 700), word)
    words[3:9] = words[-1] = 0
    words[50, ::3] = np.arange(len(words[50, ::3])) * 40
    made = {}
    for native in (True, False):
        monkeypatch.setattr(lowrank_native, "available", lambda native=native: native)
        made[native] = lowrank_stream.encode_matrix(words, KINDS[word], FLOAT)
    assert made[True] == made[False]
    for native in (True, False):
        monkeypatch.setattr(lowrank_native, "available", lambda native=native: native)
        out = bytearray(words.nbytes)
        lowrank_stream.decode(memoryview(made[True]), memoryview(out), FLOAT)
        assert bytes(out) == words.tobytes()


@pytest.mark.parametrize("word", [2, 4])
def test_damage_is_refused_as_the_oracle_refuses_it(word, monkeypatch):
    """Any byte of the record changed: the same sentence, or the same words."""
    rng = np.random.default_rng(8)
    words = as_words(low_rank(30, 40, rank=2), word)
    model = some_model(words.shape, 2, rng, words.view("<u4" if word == 4 else "<u2").astype(float))
    sound = lowrank_stream.encode_matrix(words, KINDS[word], FLOAT, model)
    seen = set()
    for position in range(16, len(sound), 3):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << rng.integers(0, 8)
        found = []
        for native in (True, False):
            monkeypatch.setattr(lowrank_native, "available", lambda native=native: native)
            found.append(decoded(bytes(damaged), words.nbytes))
        assert found[0] == found[1]
        seen.add(found[0] if isinstance(found[0], str) else "")
    assert len(seen) > 8


def decoded(stream, size):
    """The original, or why it is refused."""
    out = bytearray(size)
    try:
        lowrank_stream.check(memoryview(stream), size, FLOAT)
        lowrank_stream.decode(memoryview(stream), memoryview(out), FLOAT)
    except CorruptChunkError as error:
        return str(error)
    return bytes(out)


@pytest.mark.parametrize("simd", SIMD)
def test_parts_that_contradict_each_other_are_refused(simd):
    """What `check` cannot see: symbols, escapes and raw bits that are too few or too many, factors out of range."""
    rng = np.random.default_rng(2)
    words = as_words(rng.standard_normal((20, 30)) * 1e-3, 4)
    words[4, 4] = 0x7F800000
    kind, model = KINDS[4], some_model(words.shape, 3, rng)
    matrix = matrix_of(words, kind, model)
    *values, raw = [np.frombuffer(part, np.uint8) for part in lowrank_native.encode(matrix, words)]
    bitmap, out = np.full(3, 0xFF, np.uint8), np.empty_like(words)
    lowrank_native.decode(matrix, values, raw, bitmap, out, simd=simd)
    assert (out == words).all()
    used = [i for i, value in enumerate(values) if len(value)]
    assert len(used) >= 4
    for i in used:
        unit = 4 if i == CONTEXTS + 1 else 1
        for changed, reason in ((values[i][:-unit], "too few"), (np.pad(values[i], (0, unit)), "left over")):
            with pytest.raises(CorruptChunkError, match=reason):
                lowrank_native.decode(matrix, [*values[:i], changed, *values[i + 1 :]], raw, bitmap, out, simd=simd)
    for changed in (raw[:-1], raw[:2], np.concatenate([raw, raw])):
        if len(changed) > len(raw):
            changed[:4] = np.frombuffer((len(raw)).to_bytes(4, "little"), np.uint8)
        with pytest.raises(CorruptChunkError, match="raw bits"):
            lowrank_native.decode(matrix, values, changed, bitmap, out, simd=simd)
    matrix.folded[1, 5] = 2 * MOST_FACTOR + 1
    with pytest.raises(CorruptChunkError, match="out of range"):
        lowrank_native.decode(matrix, values, raw, bitmap, out, simd=simd)


def fitted_alike(words: np.ndarray, passes: int) -> lowrank_native.Fitted:
    """What C fits, after comparing it with the oracle, gain and all."""
    kind = KINDS[words.itemsize]
    model, gain = lowrank_fit.fit_passes(words, kind, passes)
    for simd in SIMD:
        made = lowrank_native.fit(words, kind, lowrank_fit.most_rank(*words.shape), passes, simd=simd)
        assert (made.scales == np.concatenate([model.rows, model.cols])).all()
        assert made.factors.T.tolist() == np.concatenate([model.left, model.right]).tolist()
        assert made.multipliers == model.multipliers.tolist() and made.gain == gain
    return made


@pytest.mark.parametrize("word", [2, 4])
@pytest.mark.parametrize("name", list(odd_matrices()))
def test_fit_of_odd_words_is_the_oracles(name, word):
    """Overflow, rows and columns far apart, nothing to find; one pass as the look at a sample makes it, and all."""
    words = odd_matrices()[name]
    words = words if word == 4 else (words >> 16).astype("<u2")
    for passes in (1, lowrank_fit.PASSES):
        fitted_alike(words, passes)


@pytest.mark.parametrize("word", [2, 4])
@pytest.mark.parametrize(
    "shape",
    [(5, 9), (17, 16), (64, 65), (66, 1000), (1027, 66), (131, 517), (516, 515), (1100, 70), (300, 1031)],
    ids=str,
)
def test_fit_of_every_shape_is_the_oracles(shape, word):
    """Tiles, panels, parts of sums and blocks of rows that are full or not; few components, and all there may be."""
    rng = np.random.default_rng(shape[0])
    count = min(shape)
    sizes = 30.0 / np.arange(1, count + 1)
    values = low_rank(*shape, rank=3) * 0.01
    values += (rng.standard_normal((shape[0], count)) * sizes) @ rng.standard_normal((count, shape[1])) * 1e-6
    made = fitted_alike(as_words(values, word), lowrank_fit.PASSES)
    assert min(shape) < 17 or len(made.factors) > 1


@pytest.mark.parametrize("word", [2, 4])
def test_fit_is_the_oracles_where_numbers_are_cut(word):
    """A signal so far above its noise that numbers are rounded more coarsely, with outliers."""
    rng = np.random.default_rng(word)
    values = low_rank(160, 200, rank=2, noise=1e-5)
    values[rng.random((160, 200)) < 1e-4] *= 1e4
    fitted_alike(as_words(values, word), lowrank_fit.PASSES)


def test_grid_and_record_agree_on_their_bounds():
    """The oracle's numbers are those of the C header."""
    header = (Path(lowrank_native.__file__).parent / "kernels" / "lowrank_common.h").read_text()
    for name, value in (
        ("CONTEXTS", CONTEXTS),
        ("MOST_FACTOR", MOST_FACTOR),
    ):
        assert f"LOWRANK_{name} = {value}," in header
    assert f"LOWRANK_STRIP = 1 << {lowrank_record.STRIP.bit_length() - 1}," in header
    assert f"LOWRANK_MOST_STEPS = 1 << {lowrank_grid.MOST_STEPS.bit_length() - 1}," in header
