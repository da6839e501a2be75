"""Memory to decode into: never handed out twice while anything looks at it."""

import gc
import mmap
import threading

import numpy as np
import pytest

from nvckpt.codecs import memory

LARGE = 3 << 20
needs_huge_pages = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages")


@pytest.fixture(autouse=True)
def nothing_kept():
    memory._kept.clear()
    yield
    memory._kept.clear()


def place(view) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


@pytest.mark.parametrize("size", [0, 1, 4095, (512 << 10) - 1, 512 << 10, (2 << 20) - 1, 2 << 20, 5 << 20, 33 << 20])
def test_has_the_size_that_was_asked_for(size):
    room = memory.unfilled(size)
    assert len(room) == size
    room[:] = bytes(size)
    assert not any(room[-4096:])


@needs_huge_pages
def test_is_used_again_when_the_last_view_is_gone():
    first = memory.unfilled(LARGE)
    where, part = place(first), first[1 << 20 : 2 << 20]
    part[:] = b"x" * len(part)
    del first
    gc.collect()
    second = memory.unfilled(LARGE)
    assert place(second) != where
    second[:] = bytes(LARGE)
    assert bytes(part) == b"x" * len(part)
    del part
    gc.collect()
    assert place(memory.unfilled(LARGE - 5)) == where


@needs_huge_pages
def test_an_array_over_a_view_keeps_the_memory():
    array = np.frombuffer(memory.unfilled(LARGE), np.uint8)[100:]
    gc.collect()
    assert array.ctypes.data - 100 != place(memory.unfilled(LARGE))


@needs_huge_pages
def test_keeps_little():
    held = [memory.unfilled(40 << 20) for _ in range(5)]
    del held
    gc.collect()
    assert 0 < sum(map(len, memory._kept)) <= memory._MOST_KEPT


@needs_huge_pages
def test_does_not_hand_out_far_more_than_was_asked_for():
    del (room := [memory.unfilled(32 << 20)])[0]
    assert not room
    small = memory.unfilled(1 << 20)
    assert len(memory._kept) == 1
    del small


def test_threads_never_share_it():
    wrong = []

    def work(number):
        for turn in range(60):
            room = np.frombuffer(memory.unfilled(LARGE), np.uint32)
            room[::1024] = number << 16 | turn
            if (room[::1024] != number << 16 | turn).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_too_little_memory_is_a_memory_error(monkeypatch):
    def refused(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    assert len(memory.unfilled(LARGE)) == LARGE
    with pytest.raises(MemoryError):
        memory.unfilled(1 << 60)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000, 4096])
def test_same_bytes_sees_every_byte(size):
    data = np.random.default_rng(size).bytes(size + 3)
    ours, theirs = memoryview(data)[3:], bytearray(data[3:])
    assert memory.same_bytes(ours, theirs)
    assert not memory.same_bytes(ours, theirs + b"x")
    for place in range(size):
        theirs[place] ^= 1
        assert not memory.same_bytes(ours, theirs)
        theirs[place] ^= 1
