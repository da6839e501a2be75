"""What happens meanwhile: changed sources, second runs, moved folders, killed ones before, outputs that are inputs."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import PROGRAM, Shell

import nvckpt
from nvckpt.compression import CompressOptions
from nvckpt.decompression import DecompressOptions
from nvckpt.errors import DurabilityError, InvalidRequestError, OutputExistsError, SourceChangedError, WriteError
from nvckpt.formats import atomic, leftovers
from nvckpt.formats.atomic import atomic_file
from nvckpt.formats.errors import FormatError

DATA = bytes(range(256)) * 100
FORCED = CompressOptions(force=True)
REMOVING = CompressOptions(force=True, remove=True)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(DATA)
    leftovers._seen.clear()
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def midway(action, times=1):
    """A progress callback that does something once, when the archive is half written."""
    left = [times]

    def progress(_done, _total):
        if left[0]:
            left[0] -= 1
            action()

    return progress


def restores(archive: Path, content: bytes = DATA) -> bool:
    restored = archive.with_name("restored")
    nvckpt.decompress(archive, restored, DecompressOptions(force=True))
    same = restored.read_bytes() == content
    restored.unlink()
    return same


# The source.


def _append(path):
    with path.open("ab") as file:
        file.write(b"more")


def _overwrite(path):
    time.sleep(0.01)
    with path.open("r+b") as file:
        file.write(b"other")


def _replace(path):
    path.with_name("new").write_bytes(DATA)
    path.with_name("new").rename(path)


CHANGES = {"append": _append, "overwrite": _overwrite, "truncate": lambda p: os.truncate(p, 5), "replace": _replace}


@pytest.mark.parametrize("command", ["compress", "decompress"])
@pytest.mark.parametrize("remove", [False, True], ids=["keep", "rm"])
@pytest.mark.parametrize("change", CHANGES)
def test_source_that_changes_meanwhile_is_an_error(change, remove, command, source):
    """However it changes: no output, no litter, and whatever is there now stays."""
    if command == "decompress":
        nvckpt.compress(source, source.with_name("packed"))
        source.unlink()
        source = source.with_name("packed")
    act = midway(lambda: CHANGES[change](source))
    with pytest.raises((SourceChangedError, FormatError), match=r"changed|shorter|cut short|ended early"):
        if command == "compress":
            nvckpt.compress(source, source.with_name("out"), CompressOptions(remove=remove), act)
        else:
            nvckpt.decompress(source, source.with_name("out"), DecompressOptions(remove=remove), act)
    assert names(source.parent) == [source.name]


def test_removed_source_is_an_error_and_its_output_is_not_kept(source):
    """Nobody can tell whether what was read was whole."""
    with pytest.raises(SourceChangedError, match="removed while it was read"):
        nvckpt.compress(source, progress=midway(source.unlink))
    assert names(source.parent) == []


# Two runs.


@pytest.mark.parametrize("options", [CompressOptions(), CompressOptions(remove=True)], ids=["keep", "rm"])
def test_second_run_on_the_same_file_wins_or_loses_whole(options, source):
    """The one that finishes first gets the name; the other says so, and removes nothing."""
    target = source.with_name("source.nvckpt")
    other = midway(lambda: nvckpt.compress(source, target))
    with pytest.raises(WriteError, match="exists already"):
        nvckpt.compress(source, target, options, other)
    assert names(source.parent) == ["source", "source.nvckpt"]
    assert restores(target)


def test_second_run_that_removes_the_source_leaves_a_whole_archive(source):
    """With -f and --rm both: the slower one finds its source gone, and keeps its hands off the archive."""
    target = source.with_name("source.nvckpt")
    with pytest.raises(SourceChangedError):
        nvckpt.compress(source, target, REMOVING, midway(lambda: nvckpt.compress(source, target, REMOVING)))
    assert names(source.parent) == ["source.nvckpt"]
    assert restores(target)


def test_processes_racing_for_one_file(source):
    """Four at the same moment with -f and --rm: one archive, whole, and no temporary file."""
    runs = [
        subprocess.Popen([PROGRAM, "compress", "-fq", "--rm", source], stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = [run.communicate(timeout=60)[1] for run in runs]
    assert [run.returncode for run in runs].count(0) >= 1
    assert all(run.returncode in (0, 1) for run in runs)
    assert not any("Traceback" in text or "internal" in text for text in said)
    assert names(source.parent) == ["source.nvckpt"]
    assert restores(source.with_name("source.nvckpt"))


# The target and its folder.


def test_target_that_appears_meanwhile_is_not_replaced(source):
    """It is somebody's work; -f was not given."""
    target = source.with_name("out")
    with pytest.raises(WriteError, match="exists already"):
        nvckpt.compress(source, target, progress=midway(lambda: target.write_bytes(b"theirs")))
    assert target.read_bytes() == b"theirs"
    assert names(source.parent) == ["out", "source"]


@pytest.mark.parametrize("options", [FORCED, REMOVING], ids=["keep", "rm"])
def test_target_that_becomes_a_folder_meanwhile_is_an_error(options, source):
    """Even with -f."""
    target = source.with_name("out")
    with pytest.raises(WriteError, match="is a directory"):
        nvckpt.compress(source, target, options, midway(target.mkdir))
    assert names(source.parent) == ["out", "source"]
    assert names(target) == []


@pytest.mark.parametrize("options", [FORCED, REMOVING], ids=["keep", "rm"])
def test_target_replaced_meanwhile_is_replaced_again_when_forced(options, source):
    """One rename: there is always a whole file under the name."""
    target = source.with_name("out")
    target.write_bytes(b"old")
    nvckpt.compress(source, target, options, midway(lambda: _replace_by(target)))
    assert names(source.parent) == (["out"] if options.remove else ["out", "source"])
    assert restores(target)


def _replace_by(target):
    target.unlink()
    target.write_bytes(b"somebody else's")


@pytest.mark.parametrize("remove", [False, True], ids=["keep", "rm"])
def test_folder_removed_meanwhile_is_an_error(remove, source):
    """The source stays."""
    folder = source.with_name("folder")
    folder.mkdir()

    def remove_all():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()

    with pytest.raises(WriteError, match="no such file or directory"):
        nvckpt.compress(source, folder / "out", CompressOptions(remove=remove), midway(remove_all))
    assert names(source.parent) == ["source"]
    assert source.read_bytes() == DATA


@pytest.mark.parametrize("fail", [False, True], ids=["done", "failed"])
def test_folder_moved_meanwhile_takes_the_output_along(fail, source):
    """And no temporary file stays in it, should the run fail."""
    folder, moved = source.with_name("folder"), source.with_name("moved")
    folder.mkdir()

    def move():
        folder.rename(moved)
        if fail:
            _append(source)

    with pytest.raises(SourceChangedError) if fail else contextlib.nullcontext():
        nvckpt.compress(source, folder / "out", CompressOptions(), midway(move))
    assert names(moved) == ([] if fail else ["out"])
    assert fail or restores(moved / "out")


# What a killed run left.


def killed_run(target: Path) -> Path:
    """A process that is killed with its temporary file open; returns that file."""
    code = f"""
import os, pathlib, signal
from nvckpt.formats.atomic import atomic_file
with atomic_file(pathlib.Path({str(target)!r})) as file:
    file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = target.parent.glob(".*.tmp")
    return left


def test_leftover_of_a_killed_run_goes_with_the_next_run(source):
    """For the same target; its name says what it was."""
    target = source.with_name("source.nvckpt")
    left = killed_run(target)
    assert leftovers.is_temporary(left.name)
    assert left.name.startswith(".source.nvckpt.nvckpt-")
    nvckpt.compress(source, source.with_name("another"))
    assert left.exists()
    leftovers._seen.clear()
    nvckpt.compress(source, target)
    assert names(source.parent) == ["another", "source", "source.nvckpt"]


def test_temporary_file_of_a_living_run_stays(source):
    """Two runs for one target do not take each other's files away."""
    target = source.with_name("out")
    with atomic_file(target) as first, atomic_file(target) as second:
        leftovers._seen.clear()
        with atomic_file(target):
            assert len(list(source.parent.glob(".*.tmp"))) == 3
        first.write(b"first")
        second.write(b"second")
        first.commit(None, overwrite=False)
    assert target.read_bytes() == b"first"
    assert names(source.parent) == ["out", "source"]


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "another name"])
def test_what_is_no_leftover_is_not_touched(kind, source):
    """Only regular files of exactly such a name."""
    path = source.with_name(".out.nvckpt-0123456789ab.tmp")
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(source)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = path.with_name(".out.nvckpt-0123456789AB.tmp")
        path.write_bytes(b"")
    nvckpt.compress(source, source.with_name("out"))
    assert path.is_symlink() or path.exists()
    assert source.read_bytes() == DATA


def test_file_taken_for_a_leftover_before_it_was_locked_is_made_anew(source, monkeypatch):
    """Another run may look into the folder between the making and the locking."""
    real, taken = fcntl.flock, []

    def flock(descriptor, operation):
        if not taken:
            (path,) = source.parent.glob(".*.tmp")
            path.unlink()
            taken.append(path)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    nvckpt.compress(source)
    assert taken
    assert names(source.parent) == ["source", "source.nvckpt"]


@pytest.mark.parametrize("fault", [OSError(errno.EIO, "broken"), KeyboardInterrupt()], ids=["error", "signal"])
def test_cleaning_up_is_tried_once_more(fault, source, monkeypatch):
    """An error or a signal in the middle of it leaves no temporary file."""
    real, failed = os.unlink, []

    def unlink(path, **options):
        if not failed:
            failed.append(path)
            raise fault
        real(path, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises((OSError, KeyboardInterrupt)), atomic_file(source.with_name("out")) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert failed
    assert names(source.parent) == ["source"]


# Removal.


def test_source_is_removed_last(source, monkeypatch):
    """Data on the disk, read back, name, folder on the disk, and only then the removal."""
    events = []

    def watch(name, tell):
        real = getattr(os, name)

        def call(*args, **options):
            events.append(tell(*args))
            return real(*args, **options)

        monkeypatch.setattr(os, name, call)

    archive = {}
    real_settle = atomic.AtomicFile.settle
    monkeypatch.setattr(
        atomic.AtomicFile, "settle", lambda file: (archive.update(at=file.descriptor), real_settle(file))[1]
    )
    watch("fsync", lambda d: "sync folder" if stat.S_ISDIR(os.fstat(d).st_mode) else "sync data")
    watch("posix_fadvise", lambda *args: "forget" if args[3] == os.POSIX_FADV_DONTNEED else "")
    watch("pread", lambda d, *_: "read back" if d == archive.get("at") else "read source")
    watch("link", lambda *_: "name")
    watch("unlink", lambda path, *_: "remove source" if Path(path) == source else "drop temporary name")
    nvckpt.compress(source, options=CompressOptions(remove=True, threads=1))
    written = events[events.index("sync data") :]
    steps = [e for i, e in enumerate(written) if i == 0 or e != written[i - 1]]
    assert steps == [
        "sync data",
        "forget",
        "read back",
        "read source",
        "sync data",
        "name",
        "drop temporary name",
        "sync folder",
        "remove source",
        "sync folder",
    ] or steps == [
        "sync data",
        "forget",
        "read back",
        "sync data",
        "name",
        "drop temporary name",
        "sync folder",
        "read source",
        "remove source",
        "sync folder",
    ]


@pytest.mark.parametrize("options", [CompressOptions(), CompressOptions(remove=True)], ids=["keep", "rm"])
def test_folder_that_cannot_be_synced_keeps_the_source(options, source, monkeypatch):
    """The archive has its name and is whole, but a power cut might take the name away: nothing is removed for it."""
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DurabilityError, match="is written, but the system could not make sure that it stays"):
        nvckpt.compress(source, options=options)
    assert names(source.parent) == ["source", "source.nvckpt"]
    monkeypatch.undo()
    assert restores(source.with_name("source.nvckpt"))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_file_system_that_knows_no_syncing_of_folders_is_no_error(number, source, monkeypatch):
    """Some network file systems; there is nothing that could be done."""
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    nvckpt.compress(source, options=CompressOptions(remove=True))
    assert names(source.parent) == ["source.nvckpt"]


def test_archive_that_reads_back_wrong_is_not_kept(source, monkeypatch):
    """A disk that returns other bytes than were written costs the run, never the source."""
    real = atomic.AtomicFile.settle

    def spoil(file):
        real(file)
        os.pwrite(file.descriptor, b"\xff\xff", 60)

    monkeypatch.setattr(atomic.AtomicFile, "settle", spoil)
    with pytest.raises(nvckpt.errors.VerificationError, match="did not verify and was not kept"):
        nvckpt.compress(source, options=CompressOptions(remove=True))
    assert names(source.parent) == ["source"]


# The output is the input.


@pytest.fixture
def sh(tmp_path):
    (tmp_path / "x").write_bytes(DATA)
    shell = Shell(tmp_path)
    shell("compress", "-q", "x", check=0)
    return shell


@contextlib.contextmanager
def mounted(*command):
    done = subprocess.run(["mount", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", command[-1]], check=True)


ALIASES = ["x", "./x", "hard", "soft", "deep/../x", "/proc/self/fd/9"]


@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize("command", ["compress", "decompress"])
def test_output_that_is_the_input_is_refused(command, alias, sh):
    """By whatever name; -f does not change that."""
    name = "x" if command == "compress" else "x.nvckpt"
    before = (sh.folder / name).read_bytes()
    (sh.folder / "hard").hardlink_to(sh.folder / name)
    (sh.folder / "soft").symlink_to(name)
    (sh.folder / "deep").mkdir()
    alias = alias.replace("x", name) if alias.endswith("x") else alias
    arguments = (command, "-f", "--rm", name, "-o", alias)
    if alias.startswith("/proc"):
        done = sh.sh(f"exec 9<{name}; $0 {' '.join(arguments)}", check=1)
    else:
        done = sh(*arguments, check=1)
    assert "the output is the input itself" in done.err
    assert (sh.folder / name).read_bytes() == before


def test_output_that_is_the_input_of_another_mount_is_refused(sh):
    """A bind mount has the same device and inode."""
    (sh.folder / "mount").mkdir()
    with mounted("--bind", str(sh.folder), str(sh.folder / "mount")):
        assert "the output is the input itself" in sh("compress", "-f", "x", "-o", "mount/x", check=1).err
    assert (sh.folder / "x").read_bytes() == DATA


def test_output_that_is_the_input_in_other_letters_is_refused(sh):
    """Where a file system takes x and X for the same."""
    (sh.folder / "mount").mkdir()
    with mounted("-t", "tmpfs", "-o", "casefold", "tmpfs", str(sh.folder / "mount")):
        folder = sh.folder / "mount" / "folded"
        folder.mkdir()
        if subprocess.run(["chattr", "+F", folder], capture_output=True, check=False).returncode:
            pytest.skip("folders cannot be made blind to case here")
        (folder / "x").write_bytes(DATA)
        done = sh("compress", "-f", "mount/folded/x", "-o", "mount/folded/X", check=1)
        assert "the output is the input itself" in done.err


def test_redirected_input_that_is_the_output_is_refused(sh):
    """`nvckpt compress - -o x < x` would replace what it reads."""
    assert "the output is the input itself" in sh.sh("$0 compress -f - -o x < x", check=1).err
    assert "the output is the input itself" in sh.sh("$0 decompress -f - -o x.nvckpt < x.nvckpt", check=1).err
    assert (sh.folder / "x").read_bytes() == DATA


def test_appending_to_the_input_is_refused(sh):
    """`nvckpt compress -c x >> x` would lengthen what it reads."""
    assert "the output is the input itself" in sh.sh("$0 compress -c x >> x", check=1).err
    assert (sh.folder / "x").read_bytes() == DATA


def test_python_gets_the_same_refusals(source):
    """InvalidRequestError, and OutputExistsError without `force`."""
    with pytest.raises(InvalidRequestError, match="the output is the input itself"):
        nvckpt.compress(source, source, FORCED)
    source.with_name("there").write_bytes(b"")
    with pytest.raises(OutputExistsError):
        nvckpt.compress(source, source.with_name("there"))
