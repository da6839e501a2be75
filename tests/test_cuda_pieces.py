"""Copies and comparisons of ranges of device memory, the kernels run on the CPU or on a GPU."""

import numpy as np
import pytest
from cuda_emulation.device import EmulatedDevice, compiler

from nvckpt.codecs import float_cuda
from nvckpt.codecs.cuda_pieces import copy_pieces, differing, piece_table
from nvckpt.codecs.float_cuda_device import CupyDevice

NO_GPU = float_cuda.available()


@pytest.fixture(
    params=[
        pytest.param(
            "emulated", marks=pytest.mark.skipif(compiler() is None, reason="no C++ compiler to build the kernels")
        ),
        pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(NO_GPU is not None, reason=str(NO_GPU))]),
    ]
)
def device(request, tmp_path_factory):
    if request.param == "cuda":
        return CupyDevice()
    folder = tmp_path_factory.getbasetemp().parent / "emulated_kernels"
    folder.mkdir(exist_ok=True)
    return EmulatedDevice(folder)


@pytest.fixture
def ranges():
    """(source, target, size) of ranges with every pair of alignments, and sizes around the parts' limits."""
    rng = np.random.default_rng(3)
    made, source, target = [], 0, 0
    for i, size in enumerate([1, 15, 16, 17, 64, 65535, 65536, 65537, 200001, *rng.integers(1, 300, 40).tolist()]):
        source, target = source + i % 17, target + i * 7 % 19
        made.append((source, target, size))
        source, target = source + size, target + size
    return made


def table(device, left, right, ranges):
    a, b = device.address(left), device.address(right)
    return piece_table([a + s for s, _, _ in ranges], [b + t for _, t, _ in ranges], [n for _, _, n in ranges])


def test_copies_every_alignment_and_nothing_else(device, ranges):
    source = device.upload(np.random.default_rng(1).integers(0, 256, ranges[-1][0] + ranges[-1][2], np.uint8))
    target = device.zeros(ranges[-1][1] + ranges[-1][2])
    copy_pieces(device, table(device, source, target, ranges))
    original = device.download(source, np.uint8)
    expected = np.zeros(ranges[-1][1] + ranges[-1][2], np.uint8)
    for s, t, n in ranges:
        expected[t : t + n] = original[s : s + n]
    assert (device.download(target, np.uint8) == expected).all()


def test_finds_each_byte_that_differs(device, ranges):
    rng = np.random.default_rng(2)
    host = rng.integers(0, 256, ranges[-1][1] + ranges[-1][2], np.uint8)
    same = [(t, t, n) for _, t, n in ranges]
    left, right = device.upload(host), device.upload(host)
    assert not differing(device, table(device, left, right, same)).any()
    for number in (3, 8, len(ranges) - 1):
        _, t, n = ranges[number]
        for at in (t, t + n - 1):
            other = host.copy()
            other[at] ^= 1
            right = device.upload(other)  # named, for it must outlive the launch
            found = differing(device, table(device, left, right, same))
            assert found.nonzero()[0].tolist() == [number]


def test_no_pieces_are_no_launch(device):
    copy_pieces(device, piece_table([], [], []))
    assert not len(differing(device, piece_table([], [], [])))
