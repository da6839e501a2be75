"""Large data in files on a tmpfs, written through memory maps: the same bytes, errors and leftovers as plain writes."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faults import faults
from reliability import NoMountsError, small_file_system

from nvckpt.formats import atomic, leftovers, mapped
from nvckpt.formats.atomic import AtomicFile, OutputFile
from nvckpt.formats.sparse import SparseFile

MIB = 1 << 20
NOISE = os.urandom(3 * MIB)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(atomic, "LEAST", 100_000)
    monkeypatch.setattr(mapped, "_PIECE", 64 << 10)


def opened(path, kind=AtomicFile, threads=4):
    file = kind(path)
    file.use_threads(threads)
    return file


def finish(file, path):
    file.commit(None, overwrite=False)
    file.close()
    return path.read_bytes()


def open_or_mapped(name):
    """What this process has open, or in its memory, of files with a name in their path."""
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if name in line]
    return maps + [link for fd in Path("/proc/self/fd").iterdir() if name in (link := os.path.realpath(fd))]


@pytest.mark.parametrize("seed", range(6))
def test_the_bytes_are_those_of_plain_writes(seed, shm):
    """Large and small writes after one another, from any position, in parts of odd sizes."""
    rng = random.Random(seed)
    file, expected = opened(shm / "f"), bytearray()
    for _ in range(25):
        sizes = [rng.choice((0, 1, 63, 500, 4095, 4096, 70_001, 300_000)) for _ in range(rng.randint(1, 12))]
        starts = [rng.randrange(MIB) for _ in sizes]
        parts = [memoryview(NOISE)[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        if rng.random() < 0.3:
            parts = [b"".join(parts)]
            file.write(parts[0])
        else:
            file.write_all(parts)
        expected += b"".join(parts)
        if rng.random() < 0.3:
            at = rng.randrange(len(expected) + 1)
            file.write_at(b"patch", at)
            expected[at : at + 5] = b"patch"
            assert os.lseek(file.descriptor, 0, os.SEEK_CUR) <= len(expected)
            os.lseek(file.descriptor, 0, os.SEEK_END)
    assert not file._mapped._refused
    assert finish(file, shm / "f") == expected
    assert not open_or_mapped(str(shm))


def test_pieces_as_they_really_are(shm, monkeypatch):
    monkeypatch.undo()
    file = opened(shm / "f")
    data = os.urandom(3 * mapped._PIECE + 12345) * 4
    file.write(b"head")
    file.write(data)
    file.write_all([b"middle", data[:-7], b"", memoryview(data)[3:]])
    assert not file._mapped._refused
    assert finish(file, shm / "f") == b"head" + data + b"middle" + data[:-7] + data[3:]


def test_a_longer_file_keeps_what_lies_behind(shm):
    file = opened(shm / "f")
    file.write_at(b"end", 2 * MIB)
    file.write(NOISE[:MIB])
    assert finish(file, shm / "f") == NOISE[:MIB] + bytes(MIB) + b"end"


def test_holes_stay_holes(shm):
    data = NOISE[:MIB] + bytes(4 * MIB) + NOISE[MIB:] + bytes(MIB)
    file = opened(shm / "f", SparseFile)
    file.write(b"")
    file.write_all([data[: 2 * MIB], data[2 * MIB :]])
    assert not file._mapped._refused
    assert finish(file, shm / "f") == data
    assert (shm / "f").stat().st_blocks * 512 == 3 * MIB


def test_only_where_it_is_faster(shm, tmp_path):
    """With several threads, in a regular file on a tmpfs."""
    assert opened(shm / "f", threads=2)._mapped is None
    with (shm / "f").open("w+b") as file:
        assert mapped.writer_for(file.fileno(), 4) is not None
    reading, writing = os.pipe()
    assert mapped.writer_for(writing, 4) is None
    OutputFile(writing).use_threads(4)
    os.close(reading)
    os.close(writing)
    if tmp_path.stat().st_dev != shm.stat().st_dev:
        file = opened(tmp_path / "f")
        kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True).stdout
        assert (file._mapped is None) == (kind.strip() != "tmpfs")
        file.write(NOISE)
        assert finish(file, tmp_path / "f") == NOISE


def test_where_the_system_refuses_pages_the_writes_are_plain(shm, monkeypatch):
    """And nothing stays of what was allocated until then."""
    real, asked, before_plain = mapped.MappedWriter._copy, [], []

    def refused(writer, views, position, end):
        asked.append(end)
        real(writer, [views[0][: len(views[0]) // 2]], position, position + len(views[0]) // 2)
        return False

    def plain(file, data):
        status = os.fstat(file.descriptor)
        before_plain.append((status.st_size, status.st_blocks))
        os.write(file.descriptor, data)

    file = opened(shm / "f")
    file.write_all([b"head", NOISE[:100_000]])
    status = os.fstat(file.descriptor)
    monkeypatch.setattr(mapped.MappedWriter, "_copy", refused)
    monkeypatch.setattr(OutputFile, "write", plain)
    file.write(NOISE)
    assert before_plain == [(status.st_size, status.st_blocks)]
    file.write(NOISE)
    assert len(asked) == 1, "asked again"
    file.write_all([b"tail", NOISE])
    assert finish(file, shm / "f") == b"head" + NOISE[:100_000] + NOISE * 2 + b"tail" + NOISE


def test_without_the_c_function_the_writes_are_plain(shm, monkeypatch):
    monkeypatch.setattr(mapped, "library", lambda: None)
    file = opened(shm / "f")
    assert file._mapped is None
    file.write(NOISE)
    assert finish(file, shm / "f") == NOISE


def test_a_full_file_system_says_so_and_gets_its_room_back(tmp_path):
    """At whatever piece it is full; a plain write finds the same error after as many bytes."""
    try:
        with small_file_system(tmp_path / "disk", MIB + 4096) as disk:
            for head in (0, 5, 4096, MIB // 2 + 77, MIB - 100_000):
                taken = []
                for threads in (1, 4):  # written plainly, and mapped
                    file = opened(disk / "f", threads=threads)
                    file.write(NOISE[:head])
                    with pytest.raises(OSError, match="No space left"):
                        file.write_all([NOISE, NOISE])
                    taken.append(os.fstat(file.descriptor).st_size)
                    file.close()
                    assert not list(disk.iterdir())
                    assert os.statvfs(disk).f_bfree == os.statvfs(disk).f_blocks
                assert taken[0] == taken[1] >= MIB
            # It can only be unmounted when nothing holds on to it.
    except NoMountsError as error:
        pytest.skip(f"no small file system can be made here: {error}")


LIMITED = """
import errno, os, resource, signal, sys
from pathlib import Path
from nvckpt.formats.atomic import AtomicFile
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, resource.RLIM_INFINITY))
data = os.urandom(1 << 20) * 16
for threads in (1, 4):
    file = AtomicFile(Path(sys.argv[1]) / "f")
    file.use_threads(threads)
    file.write(data)
    try:
        file.write_all([data, data])
    except OSError as error:
        assert error.errno == errno.EFBIG
    assert os.fstat(file.descriptor).st_size == 20_000_000
    file.close()
"""

GROWTH = """
import os, resource, sys
from pathlib import Path
from nvckpt.formats.atomic import AtomicFile
data = os.urandom(1 << 20) * 16
file = AtomicFile(Path(sys.argv[1]) / "f")
file.use_threads(4)
file.write_all([data])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(6):
    file.write_all([data] * 2)
assert file._mapped and not file._mapped._refused
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 12 << 10, grown
file.close()
"""


@pytest.mark.parametrize("program", [LIMITED, GROWTH], ids=["a limit on the size of files", "memory of the process"])
def test_in_a_process_of_its_own(program, shm):
    """The error at a limit is that of a plain write; what was copied does not count as the process's memory."""
    done = subprocess.run([sys.executable, "-c", program, shm], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in shm.iterdir()] == []


def test_from_any_thread(shm):
    def write(number):
        path = shm / str(number)
        file = opened(path)
        file.write_all([bytes([number]), NOISE, NOISE])
        assert not file._mapped._refused
        return finish(file, path)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(write, range(6))) == [bytes([number]) + NOISE * 2 for number in range(6)]


def test_interrupted_at_any_moment_nothing_stays(shm):
    """The exception comes through, no thread touches memory that is gone, and the file is removed."""

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for delay in [0.0002 * number**2 for number in range(1, 13)]:
            file = opened(shm / "f")
            with pytest.raises(KeyboardInterrupt):
                deadline = time.monotonic() + 20
                signal.setitimer(signal.ITIMER_REAL, delay)
                while time.monotonic() < deadline:
                    file.write_all([NOISE] * 4)
                    os.ftruncate(file.descriptor, 0)
                    os.lseek(file.descriptor, 0, os.SEEK_SET)
            file.close()
            assert not list(shm.iterdir())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def written(path):
    leftovers._seen.clear()  # as in a new process
    with atomic.atomic_file(path) as file:
        file.use_threads(4)
        file.write(b"head")
        file.write_all([NOISE[:200_000], b"x", NOISE[:200_001]])
        file.write(b"tail")
        file.commit(None, overwrite=False)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EINTR, errno.ENOMEM])
def test_every_call_fails_once(error, shm):
    """An exception and no file, or all of it."""
    expected = b"head" + NOISE[:200_000] + b"x" + NOISE[:200_001] + b"tail"
    with faults() as clean:
        written(shm / "f")
    assert {"ftruncate", "mmap", "lseek", "fstat"} <= set(clean.made)
    for number, name in enumerate(clean.made):
        (shm / "f").unlink(missing_ok=True)
        try:
            with faults(number, error) as made:
                written(shm / "f")
        except OSError as failure:
            assert failure.errno == error, f"call {number} ({name})"
        assert len(made.made) > number
        names = [path.name for path in shm.iterdir()]
        assert names in ([], ["f"]), f"call {number} ({name})"
        if names:
            assert (shm / "f").read_bytes() == expected, f"call {number} ({name})"


def test_more_parts_than_one_call_takes(tmp_path):
    parts = [bytes([i % 256]) * (i % 5) for i in range(1500)]
    file = AtomicFile(tmp_path / "f")
    file.write_all(parts)
    assert finish(file, tmp_path / "f") == b"".join(parts)
