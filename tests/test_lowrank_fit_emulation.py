"""The CUDA fit of `lowrank`, its kernels run on the CPU: the oracle's factors, bit for bit."""

import pytest
from cuda_emulation.device import POISON, EmulatedDevice, compiler
from lowrank_models import check, odd_matrices
from test_lowrank import as_words, low_rank
from test_lowrank_fit import golden_words

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++) to build the emulated kernels"),
]


@pytest.fixture
def folder(tmp_path_factory):
    made = tmp_path_factory.getbasetemp().parent / "emulated_kernels"
    made.mkdir(exist_ok=True)
    return made


@pytest.mark.parametrize("word", [2, 4])
def test_matrices_of_several_shapes_in_one_call(folder, word):
    shapes = [(64, 64), (70, 130), (200, 65), (64, 257)]
    matrices = [as_words(low_rank(rows, cols, seed=i), word) for i, (rows, cols) in enumerate(shapes)]
    check(matrices, EmulatedDevice(folder))


def test_the_matrix_of_the_golden_model(folder):
    check([golden_words(4)], EmulatedDevice(folder))


def test_one_pass(folder):
    check([as_words(low_rank(96, 192), 2)], EmulatedDevice(folder), 1)


@pytest.mark.parametrize("word", [2, 4])
def test_odd_matrices(folder, word):
    check(odd_matrices(word), EmulatedDevice(folder, POISON[1]))


def test_too_small_for_factors(folder):
    """Rank 0 from the start: only scales."""
    words = as_words(low_rank(2, 3), 4)
    check([words, as_words(low_rank(64, 80), 4)], EmulatedDevice(folder))
