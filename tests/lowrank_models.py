"""Models of matrices fitted by the CUDA `lowrank`, on a GPU or emulated, held against the oracle."""

import numpy as np
from test_lowrank import as_words, low_rank

from nvckpt.codecs import lowrank_cuda_fit, lowrank_fit
from nvckpt.codecs.lowrank_cuda_fit import OnDevice
from nvckpt.codecs.lowrank_grid import KINDS


def fitted(device, matrices, passes=lowrank_fit.PASSES):
    """Models of matrices of one word size, in one call."""
    held = [device.upload(np.ascontiguousarray(words)) for words in matrices]
    word = matrices[0].itemsize
    some = [OnDevice(device.address(h), *words.shape) for h, words in zip(held, matrices, strict=True)]
    models = []
    for words, found in zip(matrices, lowrank_cuda_fit.fit(device, word, some, passes), strict=True):
        rows, cols = words.shape
        scales = at(found.memory, device, found.scales, 2 * (rows + cols)).view("<i2").astype(np.int64)
        factors = at(found.memory, device, found.factors, 2 * found.rank * (rows + cols)).view("<u2")
        entries = ((factors >> 1).astype(np.int64) ^ -(factors & 1).astype(np.int64)).reshape(found.rank, rows + cols).T
        parts = scales[:rows], scales[rows:], entries[:rows], entries[rows:], found.multipliers
        models.append((parts, found.gain))
    return models


def at(memory, device, address, size):
    """A copy of some bytes of device memory."""
    start = address - device.address(memory)
    return device.download(memory[start : start + size], np.uint8)


def check(matrices, device, passes=lowrank_fit.PASSES):
    """Fit on the device and by the oracle, and compare bit by bit."""
    kind = KINDS[matrices[0].itemsize]
    for words, (parts, gain) in zip(matrices, fitted(device, matrices, passes), strict=True):
        model, expected = lowrank_fit.fit_passes(words, kind, passes)
        names = "rows", "cols", "left", "right", "multipliers"
        for name, part in zip(names, parts, strict=True):
            np.testing.assert_array_equal(part, getattr(model, name), err_msg=name)
        assert gain == expected


def odd_matrices(word):
    """What a fit must survive: no rank, full rank, vectors that depend on each other, values that are no numbers."""
    rng = np.random.default_rng(3)
    noise = rng.standard_normal((80, 96)).astype(np.float32)
    outer = np.outer(rng.standard_normal(70), rng.standard_normal(81)).astype(np.float32)
    odd = low_rank(72, 100)
    odd[3, 5], odd[4, 6], odd[5, 7], odd[6] = np.inf, np.nan, 1e30, 1e-42
    odd[7, :50] = -0.0
    return [as_words(m, word) for m in (noise, outer, np.ones((64, 64), np.float32), odd, low_rank(65, 64) * 1e30)]
