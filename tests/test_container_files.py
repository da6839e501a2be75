"""Outputs that appear whole or not at all, and reads that bring what was asked for."""

import errno
import os
import stat
from pathlib import Path

import pytest

from nvckpt.formats import atomic, byte_source
from nvckpt.formats.atomic import Attributes, OutputFile, atomic_file
from nvckpt.formats.byte_source import FileBytes, MemoryBytes
from nvckpt.formats.errors import MalformedCheckpointError


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


def names(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def test_file_is_private_until_it_is_committed(target):
    """Nobody reads a checkpoint half-written, or one that its owner keeps to himself."""
    with atomic_file(target) as file:
        file.write(b"whole")
        (temporary,) = target.parent.iterdir()
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        assert not target.exists()
        file.commit(Attributes(0o640, 1, 2_000_000_001, os.getuid(), os.getgid()), overwrite=False)
    assert target.read_bytes() == b"whole"
    assert (stat.S_IMODE(target.stat().st_mode), target.stat().st_mtime_ns) == (0o640, 2_000_000_001)
    assert names(target) == ["target"]


def test_nothing_is_left_without_a_commit(target):
    """Leaving is enough, by an exception or without."""
    with pytest.raises(ZeroDivisionError), atomic_file(target) as file:
        file.write(b"half")
        raise ZeroDivisionError
    with atomic_file(target):
        pass
    assert names(target) == []


NO_LINKS = [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV]


@pytest.fixture(params=[None, *NO_LINKS], ids=lambda e: errno.errorcode[e] if e else "links")
def links(request, monkeypatch):
    """File systems with hard links, and without: FAT, some network ones."""
    if request.param:

        def refuse(*_args, **_options):
            raise OSError(request.param, os.strerror(request.param))

        monkeypatch.setattr(os, "link", refuse)


def test_commit_makes_a_new_file(target, links):
    """Also where hard links are not supported."""
    with atomic_file(target) as file:
        file.write(b"new")
        file.commit(None, overwrite=False)
    assert target.read_bytes() == b"new"
    assert names(target) == ["target"]


def test_commit_never_replaces_a_file_unasked(target, links):
    """One that appeared meanwhile is another job's result."""
    with atomic_file(target) as file:
        target.write_bytes(b"other")
        with pytest.raises(FileExistsError):
            file.commit(None, overwrite=False)
    assert target.read_bytes() == b"other"
    assert names(target) == ["target"]


def test_commit_replaces_a_file_when_asked(target, links):
    """In one step: there is no moment without a file."""
    target.write_bytes(b"old")
    with atomic_file(target) as file:
        file.write(b"new")
        file.commit(None, overwrite=True)
    assert target.read_bytes() == b"new"


def test_other_errors_of_linking_are_errors(target, monkeypatch):
    """Only a lack of hard links has a second way."""

    def fail(*_args, **_options):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "link", fail)
    with atomic_file(target) as file, pytest.raises(OSError, match="broken"):
        file.commit(None, overwrite=False)
    assert names(target) == []


def test_data_reaches_the_disk_before_the_name_does(target, monkeypatch):
    """fsync, then the name, then fsync of the directory: after a power cut the name never stands for a hole."""
    events = []
    real_sync, real_link = os.fsync, os.link

    def fsync(descriptor):
        events.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "data")
        real_sync(descriptor)

    def link(source, target, **options):
        events.append("name")
        real_link(source, target, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    with atomic_file(target) as file:
        file.commit(None, overwrite=False)
    assert events == ["data", "name", "directory"]


def test_short_writes_are_continued(target, monkeypatch):
    """A pipe, or a signal, may make the system take less than it was given."""
    real = os.write
    monkeypatch.setattr(atomic.os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    data = os.urandom(1000)
    with target.open("wb") as file:
        OutputFile(file.fileno()).write(memoryview(data))
    assert target.read_bytes() == data


def test_short_reads_are_continued(target, monkeypatch):
    """Linux returns at most 2 GiB a read, network file systems less."""
    data = os.urandom(1000)
    target.write_bytes(data)
    real = os.pread
    monkeypatch.setattr(
        byte_source.os, "pread", lambda descriptor, count, offset: real(descriptor, min(count, 7), offset)
    )
    with target.open("rb") as file:
        assert FileBytes(file.fileno()).read_at(3, 900) == data[3:903]


@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (0, 11), (10, 1), (1 << 70, 1), (5, -1)])
def test_ranges_outside_are_refused(offset, length, target):
    """By files and by memory alike."""
    target.write_bytes(b"0123456789")
    with target.open("rb") as file:
        for source in (FileBytes(file.fileno()), MemoryBytes(b"0123456789")):
            assert source.read_at(10, 0) == b""
            with pytest.raises(MalformedCheckpointError):
                source.read_at(offset, length)


def test_file_that_ends_early_is_an_error(target):
    """It was cut after it was opened."""
    target.write_bytes(b"0123456789")
    with target.open("rb") as file:
        source = FileBytes(file.fileno())
        os.truncate(target, 4)
        assert source.read_at(0, 4) == b"0123"
        with pytest.raises(MalformedCheckpointError, match="ended early"):
            source.read_at(0, 10)
