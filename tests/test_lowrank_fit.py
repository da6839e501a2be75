"""The fit of `lowrank`: the same model on every machine, within bounds whatever the words are, and as documented."""

import hashlib
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from test_format_document import DOCUMENT
from test_lowrank import as_words, low_rank, through

from nvckpt.codecs import lowrank_basis, lowrank_choice, lowrank_fit
from nvckpt.codecs.float_cuda_device import KERNELS
from nvckpt.codecs.lowrank_grid import KINDS
from nvckpt.codecs.lowrank_record import MOST_FACTOR

GOLDEN = {
    2: "65267c3685f7707a9840a4415f57c4c782887d8298f2469d1ef75a3b9cf3c910",
    4: "0cfcf4e20a4a0273900f7c3820f86118ba13877a5a1c761f36179380f221fa77",
}


def golden_words(word: int) -> np.ndarray:
    """A matrix of 40 components and noise, in integers alone: nothing of it depends on a library."""
    noise = lowrank_basis.arbitrary(300, 500).astype(np.int64)
    left = lowrank_basis.arbitrary(40, 300).astype(np.int64) * (np.arange(300) % 9 + 1)
    right = lowrank_basis.arbitrary(42, 500).astype(np.int64)[2:] * (256 >> np.arange(40) // 4)[:, None]
    made = left.T @ right + noise * (64 * (np.arange(500) % 5) + 64)
    return as_words((made << np.arange(300)[:, None] % 4).astype(np.float32) * np.float32(2.0**-40), word)


def digest(model: lowrank_fit.Model) -> str:
    """A hash of all that a model is."""
    found = hashlib.sha256()
    for part in (model.rows, model.cols, model.left, model.right, model.multipliers, np.array(model.shift)):
        found.update(repr(part.shape).encode() + np.ascontiguousarray(part, "<i8").tobytes())
    return found.hexdigest()


def fitted(words: np.ndarray) -> lowrank_fit.Model:
    """What the oracle fits."""
    return lowrank_fit.fit_passes(words, KINDS[words.itemsize], lowrank_fit.PASSES)[0]


def is_within_bounds(model: lowrank_fit.Model) -> bool:
    """What a record holds."""
    scale = np.concatenate([model.rows, model.cols])
    factors = np.concatenate([model.left, model.right])
    return bool(
        (np.abs(scale) < 1 << 15).all()
        and (np.abs(factors) <= MOST_FACTOR).all()
        and (model.multipliers >= 0).all()
        and (model.multipliers < 1 << 30).all()
        and 2 * model.left.shape[1] * len(factors) <= len(model.left) * len(model.right)
    )


@pytest.mark.parametrize("word", [2, 4])
def test_model_is_the_golden_one(word):
    """On every machine, with every version of NumPy and BLAS."""
    model = fitted(golden_words(word))
    assert digest(lowrank_fit.fit(golden_words(word), KINDS[word])) == GOLDEN[word]
    assert model.left.shape[1] >= 30 and is_within_bounds(model)
    assert digest(model) == GOLDEN[word]


@pytest.mark.parametrize(
    "environment",
    [
        {"OPENBLAS_NUM_THREADS": "1"},
        {"OPENBLAS_NUM_THREADS": "2"},
        {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"},
    ],
    ids=["one thread", "two threads", "old processor"],
)
def test_model_depends_on_no_setting_of_the_machine(environment):
    """Threads, the BLAS's kernels, the vectors of NumPy; where a setting means nothing, it does no harm."""
    code = "import test_lowrank_fit as t; print(t.digest(t.fitted(t.golden_words(4))))"
    # So that `import test_lowrank_fit` finds this file: the folder of the tests alone.
    folder = os.path.dirname(__file__)  # noqa: PTH120
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **environment},
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == GOLDEN[4]


def test_order_in_memory_does_not_matter():
    """Column-major words, and every other one of a larger array."""
    words = golden_words(4)
    wide = np.zeros((300, 1000), words.dtype)
    wide[:, ::2] = words
    for same in (np.asfortranarray(words), wide[:, ::2]):
        assert digest(fitted(same)) == GOLDEN[4]
        assert digest(lowrank_fit.fit(same, KINDS[4])) == GOLDEN[4]


def odd_matrices() -> dict[str, np.ndarray]:
    """Words that no fit is made for."""
    rng = np.random.default_rng(6)
    plain = low_rank(80, 100)
    outlier = plain.copy()
    outlier[11, 11] = 3e38
    apart = plain * np.where(np.arange(100) < 50, 1e-30, 1e30).astype(np.float32)
    ends = np.where(rng.random((80, 100)) < 0.5, 1.2e-38, 3.4e38).astype(np.float32) * rng.choice([-1, 1], (80, 100))
    one_column = np.full((80, 100), 1.2e-38, np.float32)
    one_column[:, 5] = 3.4e38
    exact = np.outer(np.arange(1, 81), np.arange(-50, 50)).astype(np.float32)
    made = {
        "zeros": np.zeros((80, 100)),
        "minus zeros": np.full((80, 100), -0.0),
        "constant": np.full((80, 100), -1.5),
        "rank 1": exact,
        "rank 1 that is large": exact * np.float32(1e34),
        "rank 1 that is small": exact * np.float32(2.0**-126),
        "one outlier": outlier,
        "columns far apart": apart,
        "both ends": ends,
        "one column": one_column,
        "one number": np.eye(80, 100) * (np.arange(80) == 40)[:, None],
        "diagonal": np.eye(80, 100),
        "least size": low_rank(64, 64),
        "one row": low_rank(1, 300),
        "one column only": low_rank(300, 1),
        "four rows": low_rank(4, 5000, 1),
        "four columns": low_rank(5000, 4, 1),
        "few numbers": plain * (rng.random((80, 100)) < 0.01),
        "two values": np.where(np.outer(np.arange(80) % 3, np.arange(100) % 2), -1.0, 1.0),
    }
    words = {name: as_words(values, 4) for name, values in made.items()}
    for name, low in (("NaN", 0x7FC00001), ("infinity", 0xFF800000), ("largest", 0x7F7FFFFF), ("smallest", 1)):
        words[name] = np.full((80, 100), low, np.uint32)
    words["denormal"] = rng.integers(0, 1 << 23, (80, 100), np.uint32)
    words["random"] = rng.integers(0, 1 << 32, (80, 100), np.uint32)
    words["some NaN"] = as_words(plain, 4)
    words["some NaN"][::7, ::5] = 0x7FC00000
    return words


@pytest.mark.parametrize("word", [2, 4])
@pytest.mark.parametrize("name", list(odd_matrices()))
def test_odd_words_give_a_model_within_bounds(name, word):
    """No overflow, no subnormal number, nothing divided by zero on the way; and they survive."""
    words = odd_matrices()[name]
    words = words if word == 4 else (words >> 16).astype("<u2")
    with np.errstate(all="raise"):
        model = fitted(words)
    assert is_within_bounds(model)
    lowrank_fit.promises(words, KINDS[word])
    through(words)


def test_rank_1_is_found_and_one_outlier_does_not_hide_it():
    """The factors of an exact product, and of one with a number beyond all others."""
    exact = np.outer(np.arange(1, 200), np.arange(-150, 151)).astype(np.float32)
    assert lowrank_fit.fit(as_words(exact, 4), KINDS[4]).left.shape[1] >= 1
    exact[7, 9] = 1e30
    assert lowrank_fit.fit(as_words(exact, 4), KINDS[4]).left.shape[1] >= 1


def test_what_is_too_large_gets_no_factors():
    """Sums of its products could pass 2^53."""
    rows = lowrank_basis.MOST_SIDE + 1
    model = fitted(np.zeros((rows, 4), "<u2"))
    assert digest(lowrank_fit.fit(np.zeros((rows, 4), "<u2"), KINDS[2])) == digest(model)
    assert model.left.shape == (rows, 0)
    assert MOST_FACTOR**2 * lowrank_basis.MOST_NUMBERS < 1 << 53
    assert MOST_FACTOR * lowrank_basis.FINE * lowrank_basis.MOST_SIDE < 1 << 53


def test_products_by_bands_are_those_of_the_whole(monkeypatch):
    """Bands of a few rows."""
    rng = np.random.default_rng(3)
    z = rng.integers(-MOST_FACTOR, MOST_FACTOR + 1, (50, 30)).astype(np.int16)
    rows, columns = rng.integers(-9, 9, (4, 30)).astype(float), rng.integers(-9, 9, (4, 50)).astype(float)
    monkeypatch.setattr(lowrank_basis, "_BAND", 100)
    assert (lowrank_basis.by_rows(rows, z) == rows @ z.T).all()
    assert (lowrank_basis.by_columns(columns, z) == columns @ z).all()


def test_inverse_of_root_is_that_of_the_document():
    """Section 19.4, with a vector that depends on others and one of zeros."""
    found = re.search(r"```python fit\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found
    names: dict = {"math": math}
    exec(found[1], names)
    vectors = np.random.default_rng(2).integers(-MOST_FACTOR, MOST_FACTOR + 1, (12, 40)).astype(float)
    vectors[5], vectors[9] = vectors[1] - vectors[3], 0
    products = vectors @ vectors.T
    expected = names["inverse_of_root"](products.tolist())
    made = lowrank_basis._inverse_of_root(products)
    assert made.tolist() == expected
    assert not made[5].any() and not made[9].any()
    others = np.delete(np.arange(12), [5, 9])
    assert np.allclose((made @ products @ made.T)[np.ix_(others, others)], np.eye(10), atol=1e-9)


def test_orthogonal_spans_what_it_should():
    """Vectors of different length; each is free of the others but for its rounding."""
    vectors = np.random.default_rng(2).standard_normal((6, 500)) * np.exp2(np.arange(6) * 3)[:, None]
    basis = lowrank_basis.orthogonal(np.rint(vectors * 1000))
    unit = basis / np.linalg.norm(basis, axis=1)[:, None]
    assert np.abs(unit @ unit.T - np.eye(6)).max() < 1e-3
    assert abs(unit[0] @ vectors[5]) > 0.999 * np.linalg.norm(vectors[5])


def test_logarithms_are_near():
    """Within half a step of 8 bits of the mantissa, from one octave to the next."""
    values = np.exp2(np.random.default_rng(1).uniform(-900, 900, 1000))
    found = lowrank_choice.logarithms(values) / lowrank_choice.LOG_UNIT
    assert np.abs(found - np.log2(values)).max() < 0.0029


def test_the_kernels_have_the_same_numbers():
    """One header for C and CUDA; a constant that is off in its last bit seldom shows in what is fitted."""
    text = (KERNELS / "lowrank_fit_common.h").read_text()
    found = dict(re.findall(r"FIT_(\w+) = ([^,\n]+)", text)) | dict(re.findall(r"#define FIT_(\w+) ([^ \n]+)\n", text))
    names = {name: value for name, value in found.items() if name != "VECTORS"}
    modules = lowrank_fit, lowrank_basis, lowrank_choice
    for name, value in names.items():
        mine = [getattr(m, n) for m in modules for n in (name, f"_{name}") if hasattr(m, n)]
        assert mine, name
        number = float.fromhex(value) if "p-" in value else eval(value, {})
        assert all(each == number for each in mine), name
    assert len(names) == 20
    for name in ("OCTAVE", "INVERSE"):
        numbers = re.findall(r"[01]\.\d+", text.partition(f"#define FIT_{name}")[2].partition("}")[0])
        assert [float(number) for number in numbers] == getattr(lowrank_fit, f"_{name}").tolist()
