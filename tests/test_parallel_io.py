"""Reading by several threads: the bytes of the file, fewer where it ends, and the system's errors."""

import os

import numpy as np
import pytest

from nvckpt.formats import parallel_io

SIZE = 7_000_001


@pytest.fixture(params=["C", "alone"])
def descriptor(request, tmp_path, monkeypatch):
    if request.param == "alone":
        monkeypatch.setattr(parallel_io, "library", lambda: None)
    elif parallel_io.library() is None:
        pytest.skip("nvckpt was installed without a C compiler")
    (tmp_path / "f").write_bytes(np.random.default_rng(1).bytes(SIZE))
    found = os.open(tmp_path / "f", os.O_RDONLY)
    yield found
    os.close(found)


@pytest.mark.parametrize("threads", [1, 3, 40])
@pytest.mark.parametrize(("offset", "size"), [(0, SIZE), (1, 4 << 20), (5_000_000, 3), (0, 0), (6_999_990, 5000)])
def test_the_bytes_of_the_file(descriptor, offset, size, threads):
    target = np.full(size + 1, 170, np.uint8)
    got = parallel_io.read_range(descriptor, offset, target[:size], threads)
    expected = os.pread(descriptor, size, offset)
    assert got == len(expected)
    assert target[:got].tobytes() == expected
    assert target[size] == 170


def test_an_error_is_the_systems(descriptor):
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match="Illegal seek"):
            parallel_io.read_range(reading, 0, np.zeros(10, np.uint8), 4)
    finally:
        os.close(reading)
        os.close(writing)
