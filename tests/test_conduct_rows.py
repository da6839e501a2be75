"""The conduct that hands and scripts know from gzip, xz and zstd: each row of the design that no other file tests."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from command import PROGRAM, Shell

from nvckpt.cli.exits import Exit

DATA = b"weights " * 2000 + bytes(range(256)) * 40


@pytest.fixture
def sh(tmp_path):
    """A shell in a folder with x.pt and y.pt."""
    (tmp_path / "x.pt").write_bytes(DATA)
    (tmp_path / "y.pt").write_bytes(DATA[::-1])
    return Shell(tmp_path)


# What the known tools do.


@pytest.mark.parametrize("place", [[], ["-o", "out"], ["--output-dir-flat", "d"]], ids=" ".join)
def test_mode_and_time_are_copied_both_ways(place, sh):
    """Also with -o; set-user-id is not."""
    (sh.folder / "x.pt").chmod(0o4640)
    os.utime(sh.folder / "x.pt", ns=(1, 1_234_567_890_123_456_789))
    archive = {"-o": "out", "--output-dir-flat": "d/x.pt.nvckpt"}.get((place or [""])[0], "x.pt.nvckpt")
    sh("compress", *place, "x.pt", check=0)
    sh("decompress", archive, "-o", "back", check=0)
    for name in (archive, "back"):
        status = (sh.folder / name).stat()
        assert (status.st_mode & 0o7777, status.st_mtime_ns) == (0o640, 1_234_567_890_123_456_789)


def test_file_with_another_hard_link_is_fine(sh):
    """gzip refuses; zstd does not, and nothing is lost."""
    (sh.folder / "same.pt").hardlink_to(sh.folder / "x.pt")
    sh("compress", "--rm", "x.pt", check=0)
    assert (sh.folder / "same.pt").read_bytes() == DATA


@pytest.mark.parametrize("command", ["decompress", "verify", "list"])
def test_trailing_junk_and_joined_archives_are_errors(command, sh):
    """A reader looks for the end: what follows it is not guessed at."""
    sh("compress", "-q", "x.pt", "y.pt", check=0)
    one, two = ((sh.folder / f"{name}.pt.nvckpt").read_bytes() for name in "xy")
    (sh.folder / "junk.nvckpt").write_bytes(one + b"junk")
    (sh.folder / "joined.nvckpt").write_bytes(one + two)
    done = sh(command, "junk.nvckpt", "joined.nvckpt", check=1)
    assert len([line for line in done.err.splitlines() if re.match("nvckpt: (junk|joined).nvckpt: ", line)]) == 2


def test_no_file_is_a_usage_error_that_does_not_read_the_pipe(sh):
    """`find | xargs nvckpt compress` with nothing found must not write an archive of nothing; - asks for the pipe."""
    done = sh("compress", stdin=DATA, check=2)
    assert done.out == b""
    assert "FILE" in done.err


def disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def zeros(folder: Path, size: int = 8 << 20) -> Path:
    """A file of zeros with words at both ends of its middle."""
    path = folder / "z"
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size // 2 - 3)
        file.write(b"words")
    return path


def test_zeros_come_back_as_holes(sh):
    """By default, and with --sparse; --no-sparse writes them. The bytes are the same."""
    original = zeros(sh.folder).read_bytes()
    sh("compress", "-q", "z", check=0)
    for options, is_sparse in ((["--sparse"], True), ([], True), (["--no-sparse"], False)):
        sh("decompress", "-qf", *options, "z.nvckpt", "-o", "back", check=0)
        assert (sh.folder / "back").read_bytes() == original
        assert (disk(sh.folder / "back") < len(original) // 8) == is_sparse


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 3 * 4096 + 5])
def test_holes_at_the_end_are_part_of_the_file(size, sh):
    """Whatever the size is modulo a block."""
    (sh.folder / "z").write_bytes(bytes(size))
    sh("compress", "-q", "--rm", "z", check=0)
    sh("decompress", "-q", "z.nvckpt", check=0)
    assert (sh.folder / "z").read_bytes() == bytes(size)


def test_no_holes_on_standard_output(sh):
    """Not even where it is a file: it may be one that something else appends to."""
    original = zeros(sh.folder).read_bytes()
    sh("compress", "-q", "z", check=0)
    sh.sh('exec "$0" decompress --sparse -c z.nvckpt > back', check=0)
    assert (sh.folder / "back").read_bytes() == original
    assert disk(sh.folder / "back") >= len(original)


# The options of the design.


def test_test_option_is_the_command_verify(sh):
    """`-t`, which hands know; nothing is written or removed."""
    sh("compress", "-q", "x.pt", check=0)
    assert sh("decompress", "-t", "x.pt.nvckpt", check=0).text.startswith("x.pt.nvckpt: sound")
    (sh.folder / "x.pt.nvckpt").write_bytes(b"nothing like it")
    sh("decompress", "-qt", "x.pt.nvckpt", check=1)
    for option in (["-o", "z"], ["-c"], ["--rm"], ["--output-dir-flat", "d"], ["--skip-existing"]):
        sh("decompress", "-t", *option, "x.pt.nvckpt", check=2)
    assert sh.names() == ["x.pt", "x.pt.nvckpt", "y.pt"]


def test_keep_is_the_default_and_may_be_said(sh):
    """-k, as in gzip; the last of -k and --rm wins."""
    sh("compress", "-kq", "x.pt", check=0)
    sh("compress", "-fq", "--rm", "-k", "x.pt", check=0)
    assert "x.pt" in sh.names()


@pytest.mark.parametrize("option", ["-1", "-9"])
def test_numbers_are_levels(option, sh):
    """-1 to -9, as in gzip and zstd, for the codec that was chosen."""
    sh("compress", "-q", "--codec", "zstd", option, "x.pt", check=0)
    long = sh("compress", "-q", "--codec", "zstd", "--level", option[1], "x.pt", "-c", check=0).out
    assert (sh.folder / "x.pt.nvckpt").read_bytes() == long


def test_numbers_are_no_levels_where_they_are_values_or_names(sh):
    """After an option that takes a value, and after --."""
    (sh.folder / "-9").write_bytes(DATA)
    sh("compress", "-q", "x.pt", "-o", "-1", check=0)
    sh("compress", "-q", "--", "-9", check=0)
    assert {"-1", "-9.nvckpt"} <= set(sh.names())


def test_jobs_give_the_same_archives(sh):
    """Several files at a time; results are reported as they are finished."""
    for number in range(6):
        (sh.folder / f"{number}.pt").write_bytes(DATA * (number + 1))
    names = [f"{number}.pt" for number in range(6)]
    sh("compress", "-q", "--output-dir-flat", "one", *names, check=0)
    done = sh("compress", "-j3", "--json", "--output-dir-flat", "three", *names, check=0)
    assert [result["input"] for result in done.json["results"]] == names
    for name in names:
        assert (sh.folder / "one" / f"{name}.nvckpt").read_bytes() == (
            sh.folder / "three" / f"{name}.nvckpt"
        ).read_bytes()


def test_jsonl_is_a_line_for_each_file(sh):
    """As it is finished: a failure, too, and nothing else."""
    done = sh("compress", "--jsonl", "x.pt", "missing", "y.pt", check=1)
    lines = [json.loads(line) for line in done.text.splitlines()]
    assert [(line["input"], line["ok"], line["schema"], line["command"]) for line in lines] == [
        ("x.pt", True, 1, "compress"), ("missing", False, 1, "compress"), ("y.pt", True, 1, "compress")
    ]  # fmt: skip
    (entry,) = sh("compress", "-f", "--json", "x.pt", check=0).json["results"]
    assert set(lines[0]) == {"schema", "command", *entry}
    assert lines[1]["error"]["code"] == "not_found"


def test_jsonl_comes_before_the_next_file(sh):
    """A reader sees the first line while the second input is still to come."""
    os.mkfifo(sh.folder / "later")
    with subprocess.Popen(
        [PROGRAM, "compress", "--jsonl", "x.pt", "later"], cwd=sh.folder, stdout=subprocess.PIPE, text=True
    ) as process:
        assert json.loads(process.stdout.readline())["input"] == "x.pt"
        (sh.folder / "later").write_bytes(DATA)
        assert json.loads(process.stdout.readline())["input"] == "later"
    assert process.returncode == 0


def test_jsonl_with_data_on_standard_output_goes_to_standard_error(sh):
    """As --json does."""
    done = sh("compress", "-c", "--jsonl", "x.pt", check=0)
    assert json.loads(done.err)["output"] == "-"


def test_progress_is_shown_on_a_terminal_only_and_can_be_refused(sh):
    """By default where standard error is a terminal; --no-progress there, --progress elsewhere."""

    def shown(*options) -> bool:
        master, slave = os.openpty()
        done = subprocess.Popen(
            [PROGRAM, "compress", "-f", *options, "x.pt"],
            cwd=sh.folder, stdout=subprocess.DEVNULL, stderr=slave,
        )  # fmt: skip
        done.wait()
        os.close(slave)
        os.set_blocking(master, False)
        try:
            return b"MiB" in (said := os.read(master, 1 << 16)) or b"KiB" in said
        except (OSError, BlockingIOError):
            return False
        finally:
            os.close(master)

    assert shown()
    assert not shown("--no-progress")
    assert not shown("-q")


# Batches.


def test_batch_ends_with_a_total_table_and_names_what_failed(sh):
    """A line a file, a table over all by group, a line with the counts, and on standard error what failed."""
    done = sh("compress", "x.pt", "gone.pt", "y.pt", check=1)
    assert done.text.count("ratio") == 3
    assert "Total of 2 files" in done.text
    assert re.search(r"^3 files: 2 compressed, 1 failed; 51\.25 KiB -> .* MB/s$", done.text, re.MULTILINE)
    assert done.err.splitlines()[-2:] == ["nvckpt: 1 of 3 files failed:", "nvckpt:   gone.pt"]


def test_summary_shows_names_as_everything_else_does(sh):
    """A name that is not UTF-8 is escaped, not replaced; one file alone needs no summary of failures."""
    done = sh("verify", b"\xff\n", "x.pt", check=1)
    assert "nvckpt:   \\xff\\n" in done.err.splitlines()
    (sh.folder / "one").mkdir()
    (sh.folder / "one" / "z.nvckpt").write_bytes(DATA)
    assert len(sh("verify", "-r", "one", check=1).err.splitlines()) == 1


@pytest.mark.parametrize("columns", [80, 140])
def test_total_table_is_readable(columns, sh):
    """In a pipe: no colour, no line of the table beyond the width, nothing cut."""
    done = sh("compress", "x.pt", "y.pt", env={"COLUMNS": str(columns), "FORCE_COLOR": ""}, check=0)
    start = done.text.index("Total of")
    table = done.text[start:].splitlines()
    assert "\x1b" not in done.text
    assert "…" not in done.text
    assert max(len(line.rstrip()) for line in table) <= columns
    assert [line.split()[0] for line in table if line.strip(" ─")][:4] == ["Total", "group", "structure", "archive"]


def test_many_failures_are_not_all_named_twice(sh):
    """Fifty, and how many more."""
    done = sh("compress", *(f"gone{number}" for number in range(60)), check=1)
    assert "nvckpt:   and 10 more, each named above" in done.err
    assert len(done.err.splitlines()) == 60 + 1 + 50 + 1


def test_worker_that_is_killed_fails_its_file_and_no_other(sh, monkeypatch):
    """As when memory runs out."""
    import nvckpt.compression

    real = nvckpt.compression.read_source

    def read_source(data, path, *more):
        if path.name == "x.pt":
            os.kill(os.getpid(), signal.SIGKILL)
        return real(data, path, *more)

    monkeypatch.setattr(nvckpt.compression, "read_source", read_source)
    (sh.folder / "z.pt").write_bytes(DATA)
    done = sh("compress", "-j2", "x.pt", "y.pt", "z.pt", check=1)
    assert "x.pt: the process that worked on it was killed by SIGKILL, as the system does when memory" in done.err
    assert sh.names() == ["x.pt", "y.pt", "y.pt.nvckpt", "z.pt", "z.pt.nvckpt"]


def test_one_file_at_a_time_on_a_gpu(tmp_path, monkeypatch):
    """The others wait for their turn, which a dead process gives back."""
    from nvckpt import batch, turns

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = tmp_path / "log"

    def work(number: int) -> int:
        with turns.turn("cuda:0"), log.open("a") as file:
            print("begin", file=file, flush=True)
            time.sleep(0.01)
            print("end", file=file, flush=True)
            if number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        return number

    results = dict(batch.run(range(8), work, 4))
    assert isinstance(results.pop(2), batch.Lost)
    assert results == {number: number for number in range(8) if number != 2}
    assert log.read_text().split() == ["begin", "end"] * 8


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)])
def test_batch_of_several_at_a_time_stops_without_litter(number, code, sh):
    """The workers clean up before the command ends, and nothing of it is left running."""
    for name in "abc":
        with (sh.folder / name).open("wb") as file:
            file.write(os.urandom(8 << 20))
            file.truncate(200 << 20)
    process = subprocess.Popen(
        [PROGRAM, "compress", "-j2", "a", "b", "c"], cwd=sh.folder, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip
    while len(sh.litter()) < 2:
        time.sleep(0.005)
    process.send_signal(number)
    err = process.communicate(timeout=60)[1].decode()
    assert (process.returncode, err) == (code, f"nvckpt: {'interrupted' if code == 130 else 'terminated'}\n")
    assert sh.names() == ["a", "b", "c", "x.pt", "y.pt"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_workers_end_with_their_parent(sh):
    """Killed by SIGKILL it cannot tell them; they stop all the same, and clean up."""
    for name in "ab":
        with (sh.folder / name).open("wb") as file:
            file.write(os.urandom(8 << 20))
            file.truncate(200 << 20)
    process = subprocess.Popen([PROGRAM, "compress", "-qj2", "a", "b"], cwd=sh.folder, start_new_session=True)
    while len(sh.litter()) < 2:
        time.sleep(0.005)
    process.kill()
    process.wait()
    for _ in range(2000):
        if not sh.litter():
            break
        time.sleep(0.01)
    assert sh.names() == ["a", "b", "x.pt", "y.pt"]


def test_time_of_a_batch_grows_with_the_files_and_no_faster():
    """The recorded run, whose figures README has: below 2.2 times for twice the work, start-up once a process."""
    root = Path(__file__).resolve().parent.parent
    recorded = json.loads((root / "sample_data/runs/2026-11-30-2-core-x86/batch.json").read_text())
    readme = (root / "README.md").read_text()
    for table, work, digits in zip(recorded["tables"], (2000, 70_000), (".1f", ".2g"), strict=True):
        assert all(ratio < 2.2 for ratios in table["ratio_for_twice"].values() for ratio in ratios)
        each = [1000 * figures["cpu_seconds"] / work for figures in table["results"][str(work)].values()]
        for milliseconds in each:
            assert f"{milliseconds:{digits}}" in readme
            assert milliseconds < 100 * recorded["one_process"]["cpu_seconds"]


# Exit codes.


def test_every_exit_code_is_produced(sh):
    """0, 1 and 2 here; 130 and 143 by the signals above, of which one more is sent here."""
    codes = {sh("compress", "x.pt").code, sh("compress", "gone").code, sh("compress", "--no-such").code}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.mkfifo(sh.folder / f"pipe{number}")
        process = subprocess.Popen(
            [PROGRAM, "compress", f"pipe{number}"], cwd=sh.folder, stderr=subprocess.PIPE,
            preexec_fn=lambda number=number: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509
        )  # fmt: skip
        with (sh.folder / f"pipe{number}").open("wb"):  # the program has opened it, so its signals are set
            process.send_signal(number)
            process.communicate(timeout=60)
        codes.add(process.returncode)
    assert codes == set(Exit)


# Shell patterns.


def test_pipe_to_cat_and_back(sh):
    """`nvckpt compress -c a.pt | ssh h 'cat > a.pt.nvckpt'`, with a shell for ssh."""
    sh.sh(
        '"$0" compress -c x.pt | bash -c \'cat > z.nvckpt\'; cat z.nvckpt | "$0" decompress -c - | cmp - x.pt', check=0
    )


def test_loop_that_stops_at_the_first_failure(sh):
    """`for f in *.pt; do nvckpt compress "$f" || exit 1; done`, and `set -e`."""
    (sh.folder / "xx.pt").symlink_to("nowhere")
    assert sh.sh('for f in *.pt; do "$0" compress -q "$f" || exit 7; done', check=7)
    assert sh.names() == ["x.pt", "x.pt.nvckpt", "xx.pt", "y.pt"]
    sh.sh('set -e; "$0" compress -q xx.pt; touch never', check=1)
    assert "never" not in sh.names()


def test_find_and_xargs_with_several_files_a_call(sh):
    """`find . -name '*.pt' -print0 | xargs -0 -P4 nvckpt compress`: names with line feeds, and a failure is seen."""
    (sh.folder / "new\nline.pt").write_bytes(DATA)
    sh.sh("find . -name '*.pt' -print0 | xargs -0 -n2 -P4 \"$0\" compress --rm -q --", check=0)
    assert sh.names() == ["new\nline.pt.nvckpt", "x.pt.nvckpt", "y.pt.nvckpt"]
    (sh.folder / "bad.pt").symlink_to("nowhere")
    sh.sh("find . -name '*.pt' -print0 | xargs -0 -P4 \"$0\" compress -qq --", check=123)


def test_xargs_that_finds_nothing_makes_nothing(sh):
    """Its command then runs once without a file."""
    done = sh.sh('find . -name nothing -print0 | xargs -0 "$0" compress', check=123)
    assert done.out == b""


def test_tar_compresses_and_restores_through_the_program(sh):
    """tar -I 'nvckpt compress -': it adds -d to restore; `decompress -` takes that, too."""
    sh.sh('tar -I "$0 compress -q -" -cf t.tar.nvckpt x.pt y.pt', check=0)
    for program in ("compress", "decompress"):
        restore = f'mkdir {program} && tar -I "$0 {program} -q -" -C {program} -xf t.tar.nvckpt'
        sh.sh(f"{restore} && cmp x.pt {program}/x.pt && cmp y.pt {program}/y.pt", check=0)


@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq here")
def test_json_is_for_jq(sh):
    """Lines and the document; a failure is found by a script."""
    lines = "\"$0\" compress -f --jsonl x.pt gone | jq -r 'select(.ok | not) | .error.code'"
    whole = "\"$0\" list --json x.pt.nvckpt | jq '.results[0].bytes_in'"
    assert sh.sh(f"{lines}; {whole}", check=0).text.split() == ["not_found", str(len(DATA))]


def test_cron_compresses_a_tree(sh):
    """No terminal, no HOME, the C locale, another working directory, names that are not ASCII, several at a time."""
    (sh.folder / "run").mkdir()
    header = b'{"a":{"dtype":"U8","shape":[64],"data_offsets":[0,64]}}'
    for name in ("état.safetensors", "漢.safetensors"):
        (sh.folder / "run" / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    script = 'cd /; exec env -i PATH=/usr/bin:/bin LC_ALL=C "$0" compress -r -j2 --rm "$OLDPWD"/run </dev/null'
    done = sh.sh(script, check=0)
    assert b"2 files: 2 compressed" in done.out
    assert {os.fsencode(path.name) for path in (sh.folder / "run").iterdir()} == {
        "état.safetensors.nvckpt".encode(), "漢.safetensors.nvckpt".encode()
    }  # fmt: skip
