"""Which files the commands read, write, replace, remove and refuse; each row of the conduct a test."""

import contextlib
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from command import PROGRAM, Shell

DATA = b"weights " * 2000 + bytes(range(256)) * 40


@pytest.fixture
def sh(tmp_path):
    """A shell in a folder with x.pt, y.pt, and the archive x.pt.nvckpt of neither."""
    (tmp_path / "x.pt").write_bytes(DATA)
    (tmp_path / "y.pt").write_bytes(DATA[::-1])
    return Shell(tmp_path)


@pytest.fixture
def archive(sh):
    """x.pt.nvckpt, without x.pt and y.pt."""
    sh("compress", "-q", "x.pt", check=0)
    (sh.folder / "x.pt").unlink()
    (sh.folder / "y.pt").unlink()
    return sh.folder / "x.pt.nvckpt"


# The plain case.


def test_compress_keeps_the_source_and_adds_the_suffix(sh):
    """FILE becomes FILE.nvckpt, and FILE is kept."""
    sh("compress", "x.pt", check=0)
    assert sh.names() == ["x.pt", "x.pt.nvckpt", "y.pt"]
    assert (sh.folder / "x.pt").read_bytes() == DATA


def test_decompress_takes_the_suffix_off(sh, archive):
    """FILE.nvckpt becomes FILE, and the archive is kept."""
    sh("decompress", "x.pt.nvckpt", check=0)
    assert sh.names() == ["x.pt", "x.pt.nvckpt"]
    assert (sh.folder / "x.pt").read_bytes() == DATA


# Outputs that are there.


def test_existing_output_is_refused(sh):
    """Without -f nothing is replaced, and the sentence says how to."""
    (sh.folder / "x.pt.nvckpt").write_bytes(b"precious")
    done = sh("compress", "x.pt", check=1)
    assert "exists already; -f (force) replaces it" in done.err
    assert (sh.folder / "x.pt.nvckpt").read_bytes() == b"precious"


def test_existing_output_is_replaced_with_force(sh):
    """-f replaces it."""
    (sh.folder / "x.pt.nvckpt").write_bytes(b"old")
    sh("compress", "-f", "x.pt", check=0)
    sh("verify", "x.pt.nvckpt", check=0)


def test_existing_original_is_refused_on_the_way_back(sh):
    """Restoring never overwrites by chance."""
    sh("compress", "x.pt", check=0)
    (sh.folder / "x.pt").write_bytes(b"newer")
    assert "exists already" in sh("decompress", "x.pt.nvckpt", check=1).err
    assert (sh.folder / "x.pt").read_bytes() == b"newer"


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic link", "hard link"])
def test_output_that_is_the_input_is_refused_even_with_force(link, sh):
    """Under another name it would destroy the only copy."""
    link(sh.folder / "x.pt", sh.folder / "same")
    done = sh("compress", "-f", "x.pt", "-o", "same", check=1)
    assert "the output is the input itself" in done.err
    assert (sh.folder / "x.pt").read_bytes() == DATA


def test_output_behind_a_dangling_link_is_refused(sh):
    """Nobody can tell whether the target was meant."""
    (sh.folder / "x.pt.nvckpt").symlink_to("nowhere")
    assert "dangling" in sh("compress", "-f", "x.pt", check=1).err
    assert not (sh.folder / "nowhere").exists()


def test_output_behind_a_link_is_written_there_with_force(sh):
    """The link stays, as with a shell's redirection."""
    (sh.folder / "target").write_bytes(b"old")
    (sh.folder / "x.pt.nvckpt").symlink_to("target")
    sh("compress", "x.pt", check=1)
    sh("compress", "-f", "x.pt", check=0)
    assert (sh.folder / "x.pt.nvckpt").is_symlink()
    sh("verify", "target", check=0)


def test_output_that_is_a_directory_is_refused(sh):
    """With the directory's name in the sentence."""
    (sh.folder / "x.pt.nvckpt").mkdir()
    assert "output x.pt.nvckpt is a directory" in sh("compress", "-f", "x.pt", check=1).err


def test_output_in_a_missing_directory_is_an_error(sh):
    """Directories are not made by chance."""
    done = sh("compress", "x.pt", "-o", "no/such/x", check=1)
    assert "cannot write no/such/x: no such file or directory" in done.err


# -o, -c and pipes.


def test_one_output_for_two_inputs_is_a_usage_error(sh):
    """Nothing is joined, and nothing is begun."""
    assert "-o takes one input" in sh("compress", "x.pt", "y.pt", "-o", "z", check=2).err
    assert sh.names() == ["x.pt", "y.pt"]


def test_output_and_stdout_together_are_a_usage_error(sh):
    """One of the two."""
    sh("compress", "x.pt", "-o", "z", "-c", check=2)


def test_stdout_to_a_pipe_and_back(sh):
    """Words go to standard error, data alone to standard output."""
    packed = sh("compress", "-c", "x.pt", check=0)
    assert packed.out.startswith(b"\x89NVCKPT\n")
    assert "ratio" in packed.err
    back = sh("decompress", "-", stdin=packed.out, check=0)
    assert back.out == DATA
    assert sh.names() == ["x.pt", "y.pt"]


def test_dash_reads_and_writes_pipes(sh):
    """`-` in is standard input, and the default output is then standard output."""
    packed = sh("compress", "-", stdin=DATA, check=0).out
    assert sh("decompress", "-", stdin=packed, check=0).out == DATA
    assert sh("list", "-", stdin=packed, check=0).text.startswith("-: unknown, xxh3-128")
    sh("verify", "-", stdin=packed, check=0)


def test_dash_with_an_output_file(sh):
    """The mode is what the umask allows."""
    sh("compress", "-", "-o", "from-pipe", stdin=DATA, check=0, umask=0o027)
    assert (sh.folder / "from-pipe").stat().st_mode & 0o777 == 0o640
    assert sh("decompress", "from-pipe", "-c", check=0).out == DATA


def test_file_called_dash_is_reached_by_its_path(sh):
    """As with every other tool."""
    (sh.folder / "-").write_bytes(DATA)
    sh("compress", "./-", check=0)
    assert (sh.folder / "-.nvckpt").exists()


def test_archives_are_not_joined_on_standard_output(sh):
    """Two archives in a row are none: a reader looks for the end of one."""
    done = sh("compress", "-c", "x.pt", "y.pt", check=2)
    assert "cannot be joined" in done.err
    assert done.out == b""


def test_originals_are_joined_on_standard_output(sh):
    """Like zcat."""
    sh("compress", "-q", "x.pt", "y.pt", check=0)
    assert sh("decompress", "-c", "x.pt.nvckpt", "y.pt.nvckpt", check=0).out == DATA + DATA[::-1]


def test_standard_input_is_read_once(sh):
    """Twice is a usage error."""
    sh("decompress", "-c", "-", "-", check=2)


def test_binary_is_not_written_to_a_terminal(sh):
    """Unless forced."""
    master, slave = os.openpty()
    try:
        done = sh("compress", "-c", "x.pt", stdout=slave, check=2)
        assert "is a terminal" in done.err
    finally:
        os.close(master)
        os.close(slave)


def test_reader_that_leaves_early_is_no_disaster(sh):
    """`nvckpt decompress -c x | head -c 1`: a sentence at most, and exit 1."""
    (sh.folder / "big").write_bytes(os.urandom(3 << 20))
    process = subprocess.Popen(
        [PROGRAM, "compress", "-c", "big"], cwd=sh.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(30) == 1
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def test_listing_into_a_closed_pipe_is_quiet(sh, archive):
    """`nvckpt list -v x | head -1`."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = sh("list", "-v", "x.pt.nvckpt", stdout=write)
    finally:
        os.close(write)
    assert done.code == 1
    assert "Exception ignored" not in done.err


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_do_not_matter_to_files(closed, sh):
    """Daemons start programs so."""
    sh.sh(f'exec "$0" compress x.pt {closed}', check=0)
    sh("verify", "x.pt.nvckpt", check=0)


def test_words_for_a_closed_standard_error_do_not_get_into_the_data(sh):
    """With 2>&- Python would print them to standard output."""
    done = sh.sh('exec "$0" compress -c x.pt 2>&-', check=0)
    assert sh("decompress", "-", stdin=done.out, check=0).out == DATA


def test_data_for_a_closed_standard_output_is_an_error(sh):
    """Not silence."""
    done = sh.sh('exec "$0" compress -c x.pt 1>&-', check=1)
    assert "standard output is closed" in done.err
    done = sh.sh('exec "$0" compress - -o z 0<&-', check=1)
    assert "standard input is closed" in done.err


# Many inputs.


def test_missing_input_is_reported_and_the_others_go_on(sh):
    """Exit 1 in the end."""
    done = sh("compress", "x.pt", "missing.pt", "y.pt", check=1)
    assert "nvckpt: missing.pt: no such file or directory" in done.err
    assert sh.names() == ["x.pt", "x.pt.nvckpt", "y.pt", "y.pt.nvckpt"]


def test_damaged_archive_is_reported_and_the_others_go_on(sh):
    """Also on the way back."""
    sh("compress", "-q", "--rm", "x.pt", "y.pt", check=0)
    (sh.folder / "a.nvckpt").write_bytes(b"nothing like it")
    done = sh("decompress", "a.nvckpt", "x.pt.nvckpt", "y.pt.nvckpt", check=1)
    assert "a.nvckpt: not an nvckpt archive" in done.err
    assert sh.names() == ["a.nvckpt", "x.pt", "x.pt.nvckpt", "y.pt", "y.pt.nvckpt"]


def test_compressed_file_is_skipped(sh, archive):
    """Told by its content, said in a line, exit 0: `nvckpt compress *` may be repeated."""
    done = sh("compress", "x.pt.nvckpt", check=0)
    assert "x.pt.nvckpt: compressed already, skipped" in done.err
    assert sh.names() == ["x.pt.nvckpt"]


def test_compressed_file_with_an_explicit_output_is_not_skipped(sh, archive):
    """An empty standard output with exit 0 would be a lie."""
    packed = sh("compress", "-c", "x.pt.nvckpt", check=0).out
    assert sh("decompress", "-", stdin=packed, check=0).out == archive.read_bytes()
    sh("compress", "x.pt.nvckpt", "-o", "twice", check=0)
    assert (sh.folder / "twice").exists()


# What is no archive.


def test_unknown_suffix_is_an_error_that_names_the_remedy(sh, archive):
    """Where should the bytes go?"""
    archive.rename(sh.folder / "x.archive")
    done = sh("decompress", "x.archive", check=1)
    assert "does not end in .nvckpt; name the output with -o" in done.err
    sh("decompress", "x.archive", "-o", "x.pt", check=0)
    assert (sh.folder / "x.pt").read_bytes() == DATA


def test_name_that_is_only_the_suffix_is_an_error(sh, archive):
    """Nothing would be left of it."""
    archive.rename(sh.folder / ".nvckpt")
    sh("decompress", ".nvckpt", check=1)


@pytest.mark.parametrize("command", ["decompress", "verify", "list"])
def test_other_files_are_not_archives(command, sh):
    """Also an empty one."""
    (sh.folder / "z.nvckpt").write_bytes(DATA)
    (sh.folder / "empty.nvckpt").write_bytes(b"")
    done = sh(command, "z.nvckpt", "empty.nvckpt", check=1)
    assert done.err.count("not an nvckpt archive") == 2
    assert "z" not in sh.names()


@pytest.mark.parametrize("command", ["decompress", "verify", "list"])
def test_truncated_archive_is_called_so(command, sh, archive):
    """An interrupted download is the usual case."""
    archive.write_bytes(archive.read_bytes()[:-100])
    assert "cut short" in sh(command, "x.pt.nvckpt", check=1).err
    assert sh.names() == ["x.pt.nvckpt"]


@pytest.fixture
def damaged(sh):
    """A safetensors archive with a flipped bit in the middle tensor of three."""
    import numpy as np
    from safetensors.numpy import save_file

    numbers = np.random.default_rng(1)
    names = ("first.weight", "second.weight", "third.weight")
    tensors = {name: numbers.standard_normal((400, 400)).astype(np.float32) for name in names}
    save_file(tensors, sh.folder / "m.safetensors")
    sh("compress", "-q", "--rm", "m.safetensors", check=0)
    path = sh.folder / "m.safetensors.nvckpt"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("command", ["decompress", "verify"])
def test_damaged_archive_names_the_tensor(command, sh, damaged):
    """What is lost, and no file at the final name."""
    done = sh(command, damaged.name, check=1)
    assert "second.weight (bytes " in done.err
    assert "compressed bytes are damaged" in done.err
    assert "first.weight" not in done.err
    assert "m.safetensors" not in sh.names()


def test_damaged_archive_can_still_be_listed(sh, damaged):
    """The index is whole."""
    assert "second.weight" in sh("list", "-v", damaged.name, check=0).text


def test_verify_names_every_damaged_tensor(sh, damaged):
    """Not only the first."""
    raw = bytearray(damaged.read_bytes())
    raw[len(raw) // 6] ^= 1
    damaged.write_bytes(raw)
    err = sh("verify", damaged.name, check=1).err
    assert "first.weight" in err
    assert "second.weight" in err


def test_verify_says_sound(sh, archive):
    """One line, exit 0, nothing written."""
    assert "x.pt.nvckpt: sound" in sh("verify", "x.pt.nvckpt", check=0).text
    assert sh.names() == ["x.pt.nvckpt"]


# Links, directories, pipes and devices as inputs.


def test_symbolic_link_is_refused_and_followed_with_force(sh):
    """Like gzip."""
    (sh.folder / "link.pt").symlink_to("x.pt")
    assert "is a symbolic link; use -f to follow it" in sh("compress", "link.pt", check=1).err
    sh("compress", "-f", "link.pt", check=0)
    assert sh("decompress", "-c", "link.pt.nvckpt", check=0).out == DATA


def test_dangling_link_is_a_missing_file(sh):
    """With or without force."""
    (sh.folder / "link.pt").symlink_to("gone")
    assert "no such file" in sh("compress", "-f", "link.pt", check=1).err


def test_directory_is_refused(sh):
    """There is no recursion, and the sentence says what to do."""
    (sh.folder / "d").mkdir()
    assert "d: is a directory; name the files in it" in sh("compress", "d", "x.pt", check=1).err
    assert "x.pt.nvckpt" in sh.names()


def test_fifo_is_read_like_standard_input(sh):
    """It is spooled, since archives are read from their end."""
    os.mkfifo(sh.folder / "pipe")
    writer = threading.Thread(target=lambda: (sh.folder / "pipe").write_bytes(DATA))
    writer.start()
    sh("compress", "pipe", check=0)
    writer.join()
    assert sh("decompress", "-c", "pipe.nvckpt", check=0).out == DATA


def test_process_substitution_is_read(sh):
    """`nvckpt compress -c <(command)`: a link to a pipe."""
    done = sh.sh('"$0" compress -c <(cat x.pt) | "$0" decompress -c /dev/stdin', check=0)
    assert done.out == DATA


def test_output_to_dev_null(sh):
    """A device is written in place, not replaced."""
    sh("compress", "x.pt", "-o", "/dev/null", check=0)
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("command", [["compress", "x.pt"], ["compress", "-c", "x.pt"]], ids=["-o", "-c"])
def test_full_device_is_an_error(command, sh):
    """With the system's reason."""
    with Path("/dev/full").open("wb") as full:
        options = {"stdout": full} if "-c" in command else {}
        done = sh(*command, *([] if options else ["-o", "/dev/full"]), check=1, **options)
    assert "no space left on the device" in done.err


@contextlib.contextmanager
def small_disk(folder: Path, options: str):
    """A file system of one MiB; skips where mounting is not permitted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size=1m{options}", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_full_disk_leaves_no_file(sh):
    """On the way there and back; the source stays."""
    data = os.urandom(3 << 20)
    (sh.folder / "big").write_bytes(data)
    sh("compress", "-q", "big", check=0)
    with small_disk(sh.folder / "disk", "") as disk:
        for command, source in (("compress", "big"), ("decompress", "big.nvckpt")):
            done = sh(command, "--rm", source, "-o", "disk/out", check=1)
            assert "cannot write disk/out: no space left on the device" in done.err
            assert list(disk.iterdir()) == []
    assert (sh.folder / "big").read_bytes() == data


def test_read_only_file_system_is_an_error(sh):
    """Nothing is written, and the source stays."""
    with small_disk(sh.folder / "disk", ",ro"):
        done = sh("compress", "--rm", "x.pt", "-o", "disk/x", check=1)
    assert "the file system is read-only" in done.err
    assert (sh.folder / "x.pt").exists()


def test_read_only_directory_is_an_error(sh):
    """For everyone but root."""
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; the read-only file system stands for it")
    (sh.folder / "d").mkdir(mode=0o555)
    assert "permission denied" in sh("compress", "x.pt", "-o", "d/x", check=1).err


def test_file_instead_of_a_directory_is_an_error(sh):
    """x.pt/out cannot be."""
    assert "not a directory" in sh("compress", "y.pt", "-o", "x.pt/out", check=1).err


def test_disk_limit_of_the_shell_is_an_error(sh):
    """`ulimit -f`: the signal that comes with it must not kill without cleaning up."""
    (sh.folder / "big").write_bytes(os.urandom(3 << 20))
    done = sh.sh('ulimit -f 100; exec "$0" compress big', check=1)
    assert "larger than the system allows" in done.err
    assert "big.nvckpt" not in sh.names()


# --rm.


def test_rm_removes_the_source_after_success(sh):
    """And decompress --rm the archive."""
    sh("compress", "--rm", "x.pt", check=0)
    assert sh.names() == ["x.pt.nvckpt", "y.pt"]
    sh("decompress", "--rm", "x.pt.nvckpt", check=0)
    assert sh.names() == ["x.pt", "y.pt"]
    assert (sh.folder / "x.pt").read_bytes() == DATA


@pytest.mark.parametrize("options", [["--rm", "-c"], ["--rm", "-o", "-"], ["--rm", "--no-verify"]], ids=" ".join)
def test_rm_without_a_checked_file_is_a_usage_error(options, sh):
    """Nothing is removed that could not be restored."""
    done = sh("compress", *options, "x.pt", check=2)
    assert done.out == b""
    assert sh.names() == ["x.pt", "y.pt"]


@pytest.mark.parametrize("command", ["compress", "decompress"])
def test_rm_with_a_device_as_output_removes_nothing(command, sh):
    """`--rm -o /dev/null` would be a shredder."""
    sh("compress", "-q", "x.pt", check=0)
    done = sh(command, "--rm", "x.pt" if command == "compress" else "x.pt.nvckpt", "-o", "/dev/null", check=1)
    assert "only removed when its output is a file" in done.err
    assert sh.names() == ["x.pt", "x.pt.nvckpt", "y.pt"]


def test_rm_keeps_the_source_when_the_output_is_refused(sh):
    """Success comes first."""
    (sh.folder / "x.pt.nvckpt").write_bytes(b"precious")
    sh("compress", "--rm", "x.pt", check=1)
    assert "x.pt" in sh.names()


def test_rm_keeps_a_damaged_archive(sh, damaged):
    """It may be all there is."""
    sh("decompress", "--rm", damaged.name, check=1)
    assert damaged.name in sh.names()


def test_rm_leaves_a_skipped_file_alone(sh, archive):
    """Skipping an archive is no reason to remove it."""
    sh("compress", "--rm", "x.pt.nvckpt", check=0)
    assert archive.exists()


# Names.


@pytest.mark.parametrize(
    "name",
    [
        b"new\nline.pt",
        b"[bold]x.pt",
        b"\xff\xfe.pt",
        "état 漢.pt".encode(),
        b"-x.pt",
        b"a b'\"$.pt",
        b"\x1b[31m.pt",
    ],
    ids=repr,
)
def test_names_of_every_kind_work_and_are_shown_on_one_line(name, sh):
    """Round trip, and nothing of the name reaches the terminal but printable characters."""
    path = os.fsencode(sh.folder) + b"/" + name
    Path(os.fsdecode(path)).write_bytes(DATA)
    done = sh("compress", "--", name, check=0)
    line = done.text.strip().splitlines()[-1]
    assert ".pt -> " in line
    assert "\x1b" not in done.text + done.err
    Path(os.fsdecode(path)).unlink()
    for command in ("list", "verify"):
        assert "\x1b" not in sh(command, "--", name + b".nvckpt", check=0).text
    sh("decompress", "--", name + b".nvckpt", check=0)
    assert Path(os.fsdecode(path)).read_bytes() == DATA


def test_markup_in_a_name_is_shown_as_it_is(sh):
    """Neither swallowed nor an error."""
    (sh.folder / "[bold][x].pt").write_bytes(DATA)
    assert "[bold][x].pt -> [bold][x].pt.nvckpt" in sh("compress", "[bold][x].pt", check=0).text


def test_leading_dash_without_the_separator_is_a_usage_error(sh):
    """One line that tells where to find help."""
    done = sh("compress", "-x.pt", check=2)
    assert len(done.err.splitlines()) == 1
    assert "nvckpt compress --help" in done.err


def test_socket_is_refused(sh):
    """Neither a file nor something to read like one."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(sh.folder / "s"))
        assert "s: is not a regular file" in sh("compress", "s", check=1).err


@pytest.mark.parametrize("names", [("a", "a.nvckpt"), ("a.nvckpt", "./a")])
def test_force_does_not_replace_another_input(names, sh):
    """What is still to be read, or was just written for another input, is not overwritten, even with -f."""
    (sh.folder / "a").write_bytes(DATA)
    sh("compress", "a", check=0)
    before = (sh.folder / "a.nvckpt").read_bytes()
    done = sh("compress", "-f", *names, check=2)
    assert "would replace the input" in done.err
    assert (sh.folder / "a.nvckpt").read_bytes() == before


def test_force_does_not_restore_over_another_input(sh):
    """The same on the way back."""
    (sh.folder / "a").write_bytes(DATA)
    sh("compress", "a", check=0)
    sh("compress", "a.nvckpt", "-o", "a.nvckpt.nvckpt", check=0)
    assert "would replace the input" in sh("decompress", "-f", "a.nvckpt.nvckpt", "a.nvckpt", check=2).err
