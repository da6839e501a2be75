"""The fit of `lowrank` on a GPU: the oracle's factors, bit for bit, with its tensor cores and its order of threads."""

import numpy as np
import pytest
from lowrank_models import check, odd_matrices
from test_lowrank import as_words, low_rank
from test_lowrank_fit import golden_words

from nvckpt.codecs import float_cuda

REASON = float_cuda.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


@pytest.fixture
def device():
    from nvckpt.codecs.float_cuda_device import CupyDevice

    return CupyDevice()


@pytest.mark.parametrize("word", [2, 4])
def test_odd_matrices(device, word):
    check(odd_matrices(word), device)


@pytest.mark.parametrize("word", [2, 4])
def test_many_matrices_of_all_ranks_in_one_call(device, word):
    shapes = [(64, 64), (1024, 1024), (333, 2816), (4096, 130), (700, 65)]
    some = [low_rank(rows, cols, rank=7 * i + 1, noise=0.3, seed=i) for i, (rows, cols) in enumerate(shapes)]
    check([as_words(m, word) for m in some], device)


@pytest.mark.parametrize("word", [2, 4])
def test_the_matrix_of_the_golden_model(device, word):
    check([golden_words(word)], device)


def test_a_large_matrix_and_one_pass(device):
    words = as_words(low_rank(2048, 8192, rank=150, noise=1.0), 2)
    check([words], device)
    check([np.ascontiguousarray(words[::11, ::22])], device, 1)
