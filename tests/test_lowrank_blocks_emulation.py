"""Blocks coded by factors by the CUDA code, its kernels run on the CPU: chosen as the CPU chooses, the same streams."""

import numpy as np
import pytest
from cuda_emulation.device import EmulatedDevice, compiler
from lowrank_models import odd_matrices
from test_lowrank import as_words, low_rank

from nvckpt.codecs import lowrank_cuda_blocks, registry
from nvckpt.codecs.content import Content

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++) to build the emulated kernels"),
]
KIND = {2: "bf16", 4: "fp32"}


@pytest.fixture
def device(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp().parent / "emulated_kernels"
    folder.mkdir(exist_ok=True)
    return EmulatedDevice(folder)


def block_of(matrices):
    """Bytes and content of matrices that lie one after the other."""
    word = matrices[0].itemsize
    return b"".join(m.tobytes() for m in matrices), Content(word, KIND[word], tuple(m.shape for m in matrices))


def some_blocks():
    """Those that promise something in their first, or second, matrix or not at all; rows of zeros; odd values."""
    rng = np.random.default_rng(5)
    noise = rng.standard_normal((64, 72)).astype(np.float32)
    gaps = low_rank(90, 66)
    gaps[[0, 3, 4, 5, 89]] = 0
    yield block_of([as_words(noise, 2), as_words(gaps, 2), np.zeros((64, 64), "<u2")])
    yield block_of([as_words(noise, 4)])
    yield block_of([as_words(abs(low_rank(64, 64)), 2)])
    yield block_of([as_words(low_rank(64, 65), 4), as_words(gaps, 4)])
    yield block_of([m for m in odd_matrices(2) if min(m.shape) >= 64])
    yield block_of([np.zeros((64, 64), "<u4")])


def test_the_streams_of_the_cpu(device):
    blocks = list(some_blocks())
    held = [device.upload(np.frombuffer(data, np.uint8)) for data, _ in blocks]
    assert all(registry.LOW_RANK.takes(content, len(data)) for data, content in blocks)
    streams = lowrank_cuda_blocks.encode(device, [device.address(h) for h in held], [content for _, content in blocks])
    device.check_guards()
    expected = {i: registry.LOW_RANK.encode_values(data, content) for i, (data, content) in enumerate(blocks)}
    assert {i: stream.tobytes() for i, stream in streams.items()} == {
        i: s for i, s in expected.items() if s is not None
    }
    assert len(streams) == 3
