"""Room allocated ahead of the writes: as much as fits, never in the way, given back behind the end."""

import os
import time

import pytest

from nvckpt.formats import reservation
from nvckpt.formats.atomic import AtomicFile
from nvckpt.formats.reservation import Reservation
from nvckpt.formats.sparse import SparseFile

MIB = 1 << 20


def blocks(descriptor):
    return os.fstat(descriptor).st_blocks * 512


def until(condition):
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(reservation, "_STEP", MIB)
    monkeypatch.setattr(reservation, "_AHEAD", 4 * MIB)


@pytest.fixture
def allocates(tmp_path):
    with (tmp_path / "probe").open("w") as file:
        if not reservation._fallocate(file.fileno(), 1, 0, MIB) or blocks(file.fileno()) < MIB:
            pytest.skip("this file system allocates nothing ahead")


def test_stays_a_little_ahead_and_gives_the_rest_back(allocates, tmp_path):
    with (tmp_path / "f").open("wb", buffering=0) as file:
        room = Reservation(file.fileno(), 20 * MIB)
        until(lambda: blocks(file.fileno()) >= 4 * MIB)
        time.sleep(0.05)
        assert blocks(file.fileno()) <= 5 * MIB + 4096
        file.write(bytes(MIB))
        room.written(MIB)
        until(lambda: blocks(file.fileno()) >= 5 * MIB)
        room.end()
        assert os.fstat(file.fileno()).st_size == MIB
        assert blocks(file.fileno()) <= MIB + 65536


def test_a_file_system_that_cannot_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(reservation, "_fallocate", lambda *_: False)
    file = AtomicFile(tmp_path / "f")
    file.reserve(10 * MIB)
    file.write_all([b"abc", b"", bytes(3 * MIB), memoryview(b"xyz")])
    file.commit(None, overwrite=False)
    file.close()
    assert (tmp_path / "f").read_bytes() == b"abc" + bytes(3 * MIB) + b"xyz"


def test_holes_are_holes_also_where_room_was_reserved(allocates, tmp_path):
    data = os.urandom(MIB) + bytes(2 * MIB) + os.urandom(MIB)
    file = SparseFile(tmp_path / "f")
    file.reserve(len(data))
    until(lambda: blocks(file.descriptor) >= len(data))
    file.write(data)
    file.commit(None, overwrite=False)
    file.close()
    assert (tmp_path / "f").read_bytes() == data
    assert (tmp_path / "f").stat().st_blocks * 512 <= 2 * MIB + 65536


def test_leaving_without_a_commit_ends_the_thread_and_the_file(tmp_path):
    file = AtomicFile(tmp_path / "f")
    file.reserve(100 * MIB)
    file.close()
    assert not list(tmp_path.iterdir())


def test_more_parts_than_one_call_takes(tmp_path):
    parts = [bytes([i % 256]) * (i % 5) for i in range(1500)]
    file = AtomicFile(tmp_path / "f")
    file.write_all(parts)
    file.commit(None, overwrite=False)
    file.close()
    assert (tmp_path / "f").read_bytes() == b"".join(parts)
