"""Holes in restored files: long runs of zeros take no room, short ones are written, the bytes are the same."""

import os
import random

import pytest

from nvckpt.formats.sparse import SparseFile


def written(path, pieces):
    file = SparseFile(path)
    for piece in pieces:
        file.write(piece)
    file.commit(None, overwrite=True)
    file.close()
    return path.read_bytes()


@pytest.mark.parametrize("seed", range(30))
def test_the_bytes_are_the_same(seed, tmp_path):
    rng = random.Random(seed)
    pieces = []
    for _ in range(rng.randint(1, 8)):
        piece = bytearray(rng.randbytes(rng.choice([1, 4095, 70_000, 300_000])))
        for _ in range(rng.randint(0, 4)):
            start, size = rng.randrange(len(piece)), rng.choice([1, 4096, 65_536, 100_000, 200_000])
            piece[start : start + size] = bytes(len(piece[start : start + size]))
        pieces.append(piece)
    assert written(tmp_path / "f", pieces) == b"".join(pieces)


@pytest.mark.parametrize(("zeros", "hole"), [(32 << 10, False), (1 << 20, True)])
def test_only_long_runs_are_holes(zeros, hole, tmp_path, monkeypatch):
    moved = []
    seek = os.lseek
    monkeypatch.setattr(os, "lseek", lambda fd, by, how: moved.append(by) or seek(fd, by, how))
    data = os.urandom(10_000) + bytes(zeros) + os.urandom(10_000)
    assert written(tmp_path / "f", [data]) == data
    assert bool(moved) == hole
    assert sum(moved) <= zeros
    assert sum(moved) >= (zeros - 8192) * hole
