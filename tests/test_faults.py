"""Every call to the system fails once, in every way: the source stays, outputs are whole or absent, and it is said."""

import errno
import os

import pytest
import typer.main
from faults import SHORT, faults

import nvckpt
from nvckpt.cli.exits import Exit
from nvckpt.cli.main import app
from nvckpt.decompression import DecompressOptions
from nvckpt.formats import atomic, leftovers, mapped

PROGRAM = typer.main.get_command(app)
DATA = bytes(range(256)) * 30 + bytes(9000) + b"end"
OLD = b"what was there before"
ERRORS = (errno.EIO, errno.ENOSPC, errno.EINTR, errno.EACCES)
COMMANDS = [
    ("compress", ()),
    ("compress", ("--rm",)),
    ("compress", ("-f",)),
    ("compress", ("-f", "--rm")),
    ("decompress", ()),
    ("decompress", ("--rm",)),
    ("decompress", ("-f", "--rm")),
]


class Case:
    """A command in a folder of its own; `run` makes the folder anew and calls the program in this process."""

    def __init__(self, folder, command, options) -> None:
        self.folder, self.command, self.options = folder, command, options
        self.target = folder / "target"
        self.old = OLD if "-f" in options else None
        (folder / "original").write_bytes(DATA)
        nvckpt.compress(folder / "original", folder / "packed")
        self.source_bytes = DATA if command == "compress" else (folder / "packed").read_bytes()
        (folder / "original").unlink()
        (folder / "packed").unlink()
        self.source = folder / "source"

    def run(self, fail_at=-1, error=errno.EIO):
        for path in self.folder.iterdir():
            path.unlink()
        self.source.write_bytes(self.source_bytes)
        if self.old is not None:
            self.target.write_bytes(self.old)
        arguments = [self.command, "-q", "-T", "1", *self.options, str(self.source), "-o", str(self.target)]
        leftovers._seen.clear()  # as in a new process
        with faults(fail_at, error) as made:
            code = PROGRAM.main(arguments, standalone_mode=False)
        return code, made

    def check(self, code, said):
        """Whatever failed: nothing is lost, nothing is half there, and the exit code tells the truth."""
        assert code in (Exit.OK, Exit.FAILED)
        names = {path.name for path in self.folder.iterdir()}
        assert names <= {"source", "target"}, "litter"
        whole = "target" in names and self.is_whole()
        if self.old is None:
            assert whole or "target" not in names, "a part under the final name"
        else:
            assert whole or self.target.read_bytes() == self.old, "what was there before is neither kept nor replaced"
        if "source" in names:
            assert self.source.read_bytes() == self.source_bytes
        else:
            assert "--rm" in self.options
            assert whole, "the source is gone without an output"
        if code == Exit.OK:
            assert whole
            assert said == ""
            assert ("source" in names) == ("--rm" not in self.options)
        else:
            assert said.startswith("nvckpt: ")
            assert said.count("\n") == 1
            assert "internal error" not in said
            assert os.fspath(self.source) in said

    def is_whole(self):
        content = self.target.read_bytes()
        if self.command == "decompress":
            return content == DATA
        if not content.startswith(b"\x89NVCKPT"):
            return False
        restored = self.folder.parent / "restored"
        nvckpt.decompress(self.target, restored, DecompressOptions(force=True))
        return restored.read_bytes() == DATA


@pytest.mark.parametrize(("command", "options"), COMMANDS, ids=lambda v: v if isinstance(v, str) else " ".join(v))
def test_every_system_call_fails_once(command, options, tmp_path, capsys, record_property):
    """Call by call, each of the errors, and half a read or write."""
    folder = tmp_path / "work"
    folder.mkdir()
    case = Case(folder, command, options)
    case.run()  # loads what is loaded when first used
    code, clean = case.run()
    case.check(code, capsys.readouterr().err)
    assert code == Exit.OK
    writing = "writev" if command == "compress" else "write"
    assert {"open", writing, "pread", "fsync", "close", "utime", "fchmod"} <= set(clean.made)
    errors = ERRORS if options == ("-f", "--rm") else ERRORS[:1]
    record_property("faults", fail_each(case, clean, errors, capsys))


@pytest.mark.parametrize("command", ["compress", "decompress"])
def test_every_system_call_fails_once_where_files_are_mapped(command, shm, monkeypatch, capsys, record_property):
    """As above, with large outputs on a tmpfs, which threads write."""
    monkeypatch.setattr(atomic, "LEAST", 100)
    monkeypatch.setattr(mapped, "_PIECE", 4096)
    create = atomic.AtomicFile._create

    def create_for_threads(file):
        created = create(file)
        file.use_threads(4)
        return created

    monkeypatch.setattr(atomic.AtomicFile, "_create", create_for_threads)
    folder = shm / "work"
    folder.mkdir()
    case = Case(folder, command, ("-f", "--rm"))
    case.run()
    code, clean = case.run()
    case.check(code, capsys.readouterr().err)
    assert code == Exit.OK
    assert {"mmap", "ftruncate"} <= set(clean.made)
    record_property("faults", fail_each(case, clean, ERRORS[:2], capsys))


def fail_each(case, clean, errors, capsys):
    """Run once for each call of a clean run and each error, and half a read or write; returns how often."""
    runs = 0
    for number, name in enumerate(clean.made):
        for error in (*errors, SHORT) if name in ("write", "writev", "pread") else errors:
            code, _ = case.run(number, error)
            said = capsys.readouterr().err
            try:
                case.check(code, said)
            except AssertionError as failure:
                raise AssertionError(f"call {number} ({name}) failed with {error}: {code} {said}") from failure
            assert code == Exit.OK or error != SHORT, said
            runs += 1
    return runs
