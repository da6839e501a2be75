"""What the commands say, where, and how much: words, tables, JSON, exit codes, environments."""

import json
import math
import os
import re
import struct
import warnings

import checkpoints
import numpy as np
import pytest
from archives import WRITER, Archive, Frame, Section, Stream, framed, string, varint
from command import Shell
from safetensors.numpy import save_file

ANSI = re.compile(r"\x1b\[")
COMMANDS = ["compress", "decompress", "list", "verify", "bench", "plan", "doctor", "extract", "diff"]
DATA = b"some words, " * 3000


def model(folder, names=("layers.0.weight", "layers.1.weight", "exp_avg.layers.0.weight")):
    numbers = np.random.default_rng(1)
    save_file({name: numbers.standard_normal((64, 64)).astype(np.float32) for name in names}, folder / "m.safetensors")


@pytest.fixture
def sh(tmp_path):
    """A shell in a folder with a model, its archive, and plain words."""
    model(tmp_path)
    (tmp_path / "words").write_bytes(DATA)
    shell = Shell(tmp_path)
    shell("compress", "-q", "m.safetensors", check=0)
    return shell


@pytest.fixture
def cut(sh):
    """A checkpoint that ends too early."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = checkpoints.FIXTURES["zip_truncated"](sh.folder)
    return path.name


# Exit codes and usage.


def test_no_command_shows_help_and_is_a_usage_error(sh):
    """Nothing was done."""
    done = sh(real=True, check=2)
    assert "Usage: nvckpt" in done.text


@pytest.mark.parametrize("command", [[], *([c] for c in COMMANDS)], ids=lambda c: " ".join(c) or "nvckpt")
def test_help_is_on_standard_output(command, sh):
    """So that it can be paged; -h is the same."""
    done = sh(*command, "--help", real=True, check=0)
    assert "Usage: nvckpt" in done.text
    assert done.err == ""
    assert sh(*command, "-h", real=True, check=0).text == done.text


def test_version_is_one_line(sh):
    """Scripts compare it."""
    from nvckpt import __version__

    assert sh("--version", check=0).text == sh("-V", check=0).text == f"nvckpt {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["compres", "words"],
        ["compress"],
        ["compress", "--no-such", "words"],
        ["compress", "-T", "-1", "words"],
        ["compress", "-T", "many", "words"],
        ["compress", "--codec", "zst", "words"],
        ["compress", "--level", "ultra", "words"],
        ["compress", "--level", "99", "words"],
        ["compress", "--codec", "snappy", "--level", "3", "words"],
        ["compress", "--device", "gpu", "words"],
        ["decompress", "--device", "cuda:x", "m.safetensors.nvckpt"],
        ["bench", "--group", "nothing", "m.safetensors"],
        ["bench", "--runs", "0", "m.safetensors"],
    ],
    ids=" ".join,
)
def test_mistake_in_the_request_is_one_sentence_and_exit_2(arguments, sh):
    """Before anything is read or written."""
    before = sh.names()
    done = sh(*arguments, check=2)
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("nvckpt: ")
    assert done.out == b""
    assert sh.names() == before


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--codec", "ans"], "needs an NVIDIA GPU"),
        (["--device", "cuda"], "use --device cpu or auto"),
        (["--device", "cuda:0"], "use --device cpu or auto"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_gpu_that_is_asked_for_and_missing_is_an_error(arguments, remedy, sh):
    """Asked for is meant: no silent fall-back. (On a machine with a GPU the remedy differs.)"""
    done = sh("compress", *arguments, "words", env={"CUDA_VISIBLE_DEVICES": ""}, check=1)
    assert remedy in done.err
    assert "words.nvckpt" not in sh.names()


# Quiet and verbose.


def test_compress_says_groups_and_where_to(sh):
    """A table, then a line with source, output, format, speed and whether it was verified."""
    done = sh("compress", "-f", "m.safetensors", check=0)
    for word in ("group", "weights", "exp_avg", "structure", "archive", "total", "100.0 %"):
        assert word in done.text
    assert re.search(
        r"^m\.safetensors -> m\.safetensors\.nvckpt \(safetensors\): [\d,]+ MB/s on cpu, verified$",
        done.text,
        re.MULTILINE,
    )
    assert "not verified" in sh("compress", "-f", "--no-verify", "words", check=0).text


def test_quiet_says_nothing_but_errors(sh):
    """-q for success, one line for each failure."""
    done = sh("compress", "-q", "words", "missing", check=1)
    assert done.out == b""
    assert done.err == "nvckpt: missing: no such file or directory\n"


def test_very_quiet_says_nothing_at_all(sh):
    """-qq leaves the exit code."""
    done = sh("compress", "-qq", "words", "missing", check=1)
    assert (done.out, done.err) == (b"", "")
    done = sh("verify", "-qq", "words", check=1)
    assert (done.out, done.err) == (b"", "")


def test_truncated_checkpoint_is_kept_with_one_warning(cut, sh):
    """Every byte is kept, exit 0; with -q not even the warning."""
    done = sh("compress", cut, check=0)
    assert [line for line in done.err.splitlines() if line.startswith(f"nvckpt: warning: {cut}: ")] == (
        done.err.splitlines()
    )
    assert len(done.err.splitlines()) == 1
    assert sh("compress", "-fq", cut, check=0).err == ""


def test_truncated_checkpoint_is_an_error_with_strict(cut, sh):
    """Exit 1, nothing written."""
    done = sh("compress", "--strict", cut, check=1)
    assert len(done.err.splitlines()) == 1
    assert f"{cut}.nvckpt" not in sh.names()
    assert sh("compress", "--strict", "--json", cut, check=1).json["results"][0]["error"]["code"] == "malformed"


def test_sound_checkpoint_passes_strict(sh):
    """No warning, no error."""
    assert sh("compress", "-f", "--strict", "m.safetensors", check=0).err == ""


# Tables.


def test_table_of_list_at_80_columns(sh):
    """Text for people: exact, so that a change is seen."""
    text = sh("list", "m.safetensors.nvckpt", env={"COLUMNS": "80"}, check=0).text
    head, *lines = text.splitlines()
    assert re.fullmatch(r"m\.safetensors\.nvckpt: safetensors, xxh3-128 [0-9a-f]{32}, written by nvckpt \S+", head)
    words = [line.split() for line in lines if line.strip(" ─")]
    assert words[0] == ["group", "tensors", "before", "after", "ratio", "of", "original"]
    assert [(row[0], row[-2:]) for row in words[1:]] == [
        ("weights", ["66.3", "%"]),
        ("exp_avg", ["33.2", "%"]),
        ("structure", ["0.5", "%"]),
        ("archive", ["0.0", "%"]),
        ("total", ["100.0", "%"]),
    ]
    assert words[1][1:4] == ["2", "32.00", "KiB"]


@pytest.mark.parametrize("columns", [40, 80, 140])
@pytest.mark.parametrize(
    "command",
    [["list"], ["compress", "-fc"], ["doctor"], ["bench", "--runs", "1", "--codec", "zstd"]],
    ids=lambda c: c[0],
)
def test_tables_fit_and_carry_no_colour_in_a_pipe(command, columns, sh):
    """Never cut, nor with escape codes, and no wider than the terminal at 80 and 140."""
    file = [] if command[0] == "doctor" else ["m.safetensors.nvckpt" if command[0] == "list" else "m.safetensors"]
    done = sh(*command, *file, env={"COLUMNS": str(columns)}, check=0)
    text = done.err if command[0] == "compress" else done.text
    assert text
    assert not ANSI.search(text)
    assert "…" not in text
    if columns >= 80:
        table = [line for line in text.splitlines() if "─" not in line and ("KiB" in line or "group" in line)]
        assert all(len(line.rstrip()) <= columns for line in table)


def test_tensors_are_lines_for_grep(sh):
    """-v: a line a tensor, never folded or cut, whatever the width and the length of its name."""
    long = "module." * 30 + "weight"
    model(sh.folder, (long, "b"))
    sh("compress", "-fq", "m.safetensors", check=0)
    lines = sh("list", "-v", "m.safetensors.nvckpt", env={"COLUMNS": "40"}, check=0).text.splitlines()
    (line,) = [line for line in lines if line.endswith(f"  {long}")]
    assert line.split()[:2] == ["16.00", "KiB"]
    assert "64x64" in line
    assert "opaque bytes at 0" not in "".join(lines)
    assert "(opaque bytes at 0)" in sh("list", "-vv", "m.safetensors.nvckpt", check=0).text


def hostile_archive() -> bytes:
    """A sound archive whose texts are an attack on a terminal and on JSON."""
    view = string("\x1b]0;owned\x07\ud800[red]x[/nope]\n") + bytes((2, 1)) + varint(1) + varint(2**64 - 1) + varint(0)
    segments = varint(1) + varint(8) + bytes((1, 2, 0, 0)) + varint(1) + view
    return Archive(
        bytes(8),
        [Frame(bytes(8))],
        segments=segments,
        source_format="\x1b[2J\ud800",
        sections={WRITER: Section(WRITER, 0, string("\x1b[31m\udfff\n"))},
    ).build()


@pytest.mark.parametrize("options", [[], ["-v"], ["--json"]], ids=str)
def test_texts_of_a_hostile_archive_do_not_reach_the_terminal(options, sh):
    """No control character of a name, format or writer; JSON stays valid UTF-8."""
    (sh.folder / "h.nvckpt").write_bytes(hostile_archive())
    done = sh("list", *options, "h.nvckpt", check=0)
    assert "\x1b" not in done.text
    assert "\x07" not in done.text
    if options == ["--json"]:
        assert done.json["results"][0]["tensors"][0]["shape"] == [2**64 - 1]
    elif options:
        assert "[red]x[/nope]\\n" in done.text


def test_hostile_name_in_a_sentence_about_damage_is_escaped(sh):
    """The name of the damaged tensor comes from the archive."""
    raw = bytearray(hostile_archive())
    at = raw.index(b"NVFR")
    size = struct.unpack_from("<I", raw, at + 4)[0]
    raw[at + size] ^= 1
    (sh.folder / "h.nvckpt").write_bytes(raw)
    done = sh("verify", "h.nvckpt", check=1)
    assert "owned" in done.err
    assert "\x1b" not in done.err + done.text


def test_part_of_an_unknown_codec_is_unsupported_and_not_damage(sh):
    """Somebody might throw the archive away; it can be listed, and a later version can decode it."""
    (sh.folder / "later.nvckpt").write_bytes(framed(Frame(DATA, [Stream(DATA, len(DATA), 200)])).build())
    assert "codec-200" in sh("list", "-vv", "later.nvckpt", check=0).text
    for command in ("verify", "decompress"):
        (result,) = sh(command, "--json", "later.nvckpt", check=1).json["results"]
        assert result["error"]["code"] == "unsupported"
    assert "a later one can read it" in sh("verify", "later.nvckpt", check=1).err


# Progress.


def test_no_progress_in_a_pipe(sh):
    """Only where somebody sees it."""
    assert sh("compress", "-fq", "m.safetensors", check=0).err == ""


def test_progress_when_asked_for(sh):
    """On standard error, and results stay on standard output."""
    done = sh("compress", "-f", "--progress", "m.safetensors", env={"FORCE_COLOR": "1", "TERM": "xterm"}, check=0)
    assert "m.safetensors" in done.err
    assert "MB/s on cpu" in done.text


# JSON.


def strictly(raw: bytes):
    """Parse one document; NaN and Infinity are no JSON."""

    def refuse(name):
        raise AssertionError(f"{name} in JSON")

    assert raw.endswith(b"}\n")
    return json.loads(raw.decode("utf-8"), parse_constant=refuse)


def test_json_of_compress(sh):
    """The schema that scripts rely on, one document, nothing else on standard output."""
    document = strictly(sh("compress", "-f", "--json", "m.safetensors", "words", check=0).out)
    assert set(document) == {"schema", "version", "command", "results", "totals"}
    assert (document["schema"], document["command"]) == (1, "compress")
    first, _ = document["results"]
    expected = {
        "input": str, "output": str, "ok": bool, "format": str, "bytes_in": int, "bytes_out": int, "ratio": float,
        "seconds": float, "device": str, "codec": str, "xxh3_128": str, "verified": bool, "groups": list,
        "warnings": list, "stages": list, "bottleneck": str, "error": type(None),
    }  # fmt: skip
    assert {key: type(value) for key, value in first.items()} == expected
    assert first["bytes_in"] == (sh.folder / "m.safetensors").stat().st_size
    assert first["bytes_out"] == (sh.folder / "m.safetensors.nvckpt").stat().st_size
    assert math.isclose(first["ratio"], first["bytes_in"] / first["bytes_out"], rel_tol=1e-5)
    for group in first["groups"]:
        assert set(group) == {"name", "tensors", "bytes_in", "bytes_out", "ratio"}
    assert sum(group["bytes_out"] for group in first["groups"]) == first["bytes_out"]
    assert document["totals"] == {
        "files": 2,
        "failed": 0,
        "bytes_in": sum(result["bytes_in"] for result in document["results"]),
        "bytes_out": sum(result["bytes_out"] for result in document["results"]),
    }


@pytest.mark.parametrize("command", ["compress", "decompress", "verify", "list"])
def test_json_is_printed_on_failure_too(command, sh):
    """With a code from the documented list, a sentence, and the exit code."""
    done = sh(command, "--json", "missing.nvckpt", check=1)
    (result,) = strictly(done.out)["results"]
    assert result == {
        "input": "missing.nvckpt",
        "ok": False,
        "error": {"code": "not_found", "message": "no such file or directory"},
    }
    assert strictly(done.out)["totals"]["failed"] == 1


def test_json_codes_of_failures(sh):
    """Scripts decide by them."""
    (sh.folder / "d.nvckpt").mkdir()
    (sh.folder / "cut.nvckpt").write_bytes((sh.folder / "m.safetensors.nvckpt").read_bytes()[:-1])
    (sh.folder / "not.nvckpt").write_bytes(DATA)
    broken = bytearray((sh.folder / "m.safetensors.nvckpt").read_bytes())
    broken[200] ^= 1
    (sh.folder / "bad.nvckpt").write_bytes(broken)
    document = strictly(
        sh(
            "decompress",
            "--json",
            "d.nvckpt",
            "cut.nvckpt",
            "not.nvckpt",
            "bad.nvckpt",
            "m.safetensors.nvckpt",
            "words",
        ).out
    )
    codes = [result["error"]["code"] for result in document["results"]]
    assert codes == ["not_a_file", "truncated", "not_an_archive", "corrupt", "exists", "usage"]


def test_json_of_decompress_verify_and_list(sh):
    """Each with the hash of the original, and list with every tensor."""
    (sh.folder / "m.safetensors").rename(sh.folder / "before")
    digests = set()
    for command in ("decompress", "verify", "list"):
        (result,) = strictly(sh(command, "--json", "m.safetensors.nvckpt", check=0).out)["results"]
        assert result["ok"]
        assert result["format"] == "safetensors"
        digests.add(result["xxh3_128"])
    assert len(digests) == 1
    tensors = [tensor for tensor in result["tensors"] if tensor["dtype"]]
    assert [tensor["names"] for tensor in tensors] == [
        ["exp_avg.layers.0.weight"],
        ["layers.0.weight"],
        ["layers.1.weight"],
    ]
    assert all(tensor["shape"] == [64, 64] and tensor["bytes_in"] == 16384 for tensor in tensors)


def test_json_of_a_damaged_archive(sh):
    """`damage` holds a sentence for each damaged part."""
    raw = bytearray((sh.folder / "m.safetensors.nvckpt").read_bytes())
    raw[len(raw) // 2] ^= 1
    (sh.folder / "m.safetensors.nvckpt").write_bytes(raw)
    (result,) = strictly(sh("verify", "--json", "m.safetensors.nvckpt", check=1).out)["results"]
    assert result["error"]["code"] == "corrupt"
    assert result["damage"][0]["reason"] == "compressed bytes are damaged"
    assert result["damage"][0]["names"]


def test_json_with_data_on_standard_output_goes_to_standard_error(sh):
    """One document there, also with warnings and failures."""
    done = sh("compress", "-c", "--json", "m.safetensors", check=0)
    assert done.out.startswith(b"\x89NVCKPT\n")
    assert strictly(done.err.encode())["results"][0]["output"] == "-"
    done = sh("decompress", "-c", "--json", "m.safetensors.nvckpt", "missing", check=1)
    assert strictly(done.err.encode())["totals"] == {
        "files": 2,
        "failed": 1,
        "bytes_in": (sh.folder / "m.safetensors.nvckpt").stat().st_size,
        "bytes_out": (sh.folder / "m.safetensors").stat().st_size,
    }


def test_json_of_a_name_that_is_not_utf8(sh):
    """Replacement text, and the bytes in base64."""
    name = os.fsdecode(b"\xff\xfe.pt")
    (sh.folder / name).write_bytes(DATA)
    (result,) = strictly(sh("compress", "--json", name, check=0).out)["results"]
    assert result["input"] == "\ufffd\ufffd.pt"
    assert result["input_b64"] == "//4ucHQ="
    assert result["output_b64"] == "//4ucHQubnZja3B0"


def test_json_of_a_skipped_file(sh):
    """ok, and marked."""
    (result,) = strictly(sh("compress", "--json", "m.safetensors.nvckpt", check=0).out)["results"]
    assert result == {
        "input": "m.safetensors.nvckpt",
        "ok": True,
        "skipped": True,
        "reason": "compressed",
        "error": None,
    }


def test_json_of_bench_and_doctor(sh):
    """Both are documents of the same schema."""
    document = strictly(sh("bench", "--json", "--runs", "1", "--codec", "zstd", "m.safetensors", check=0).out)
    assert {row["group"] for row in document["results"]} == {"weights", "exp_avg", "structure", "all", "file"}
    assert all(row["ok"] and row["bytes_in"] > 0 for row in document["results"])
    assert strictly(sh("doctor", "--json", check=0).out)["schema"] == 1


def test_empty_file_in_json_and_in_words(sh):
    """Nothing is divided by zero."""
    (sh.folder / "empty").write_bytes(b"")
    (result,) = strictly(sh("compress", "--json", "empty", check=0).out)["results"]
    assert (result["bytes_in"], result["ratio"]) == (0, None)
    assert "total" in sh("list", "empty.nvckpt", check=0).text
    (sh.folder / "empty").unlink()
    sh("decompress", "empty.nvckpt", check=0)
    assert (sh.folder / "empty").read_bytes() == b""


# Environments.


def test_environment_sets_threads(sh):
    """NVCKPT_THREADS is the default of -T, and a bad value is a usage error."""
    sh("compress", "-fq", "words", env={"NVCKPT_THREADS": "2"}, check=0)
    assert "NVCKPT_THREADS" in sh("compress", "--help", check=0).text
    assert len(sh("compress", "-f", "words", env={"NVCKPT_THREADS": "two"}, check=2).err.splitlines()) == 1


def test_environment_sets_the_device(sh):
    """NVCKPT_DEVICE is the default of --device, which wins."""
    sh("compress", "-fq", "words", env={"NVCKPT_DEVICE": "nonsense"}, check=2)
    sh("compress", "-fq", "--device", "cpu", "words", env={"NVCKPT_DEVICE": "nonsense"}, check=0)


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONUTF8": "0", "LC_ALL": "POSIX"}]
)
def test_cron(locale, sh):
    """No HOME, no terminal, a poor locale: work and words go on, with characters escaped where they must be."""
    (sh.folder / "état 漢.pt").write_bytes(DATA)
    script = 'exec env -i PATH="$PATH" ' + " ".join(f"{key}={value}" for key, value in locale.items()) + ' "$0" '
    done = sh.sh(script + "compress 'état 漢.pt' </dev/null", check=0)
    assert b"tat " in done.out
    done = sh.sh(script + "compress -f --json 'état 漢.pt' </dev/null", check=0)
    assert strictly(done.out)["results"][0]["input"] == "état 漢.pt"
    sh.sh(script + "list -v 'état 漢.pt.nvckpt' </dev/null", check=0)


def test_find_and_xargs(sh):
    """The loop of many a script."""
    for number in range(3):
        (sh.folder / f"-{number}.pt").write_bytes(DATA)
    sh.sh("find . -name '*.pt' -print0 | xargs -0 -n1 -P2 \"$0\" compress --rm -q --", check=0)
    assert [name for name in sh.names() if name.startswith("-")] == ["-0.pt.nvckpt", "-1.pt.nvckpt", "-2.pt.nvckpt"]


def test_defect_is_one_sentence(sh, monkeypatch):
    """An exception that nobody expected: no traceback, a request to report it, and the other files go on."""
    import nvckpt.compression

    real = nvckpt.compression.read_source

    def fail(data, path, *more):
        if path.name == "words":
            raise ZeroDivisionError("surprise")
        return real(data, path, *more)

    monkeypatch.setattr(nvckpt.compression, "read_source", fail)
    code, out, err = sh._fork([b"compress", b"-f", b"words", b"m.safetensors"], b"", dict(os.environ), 0o022)
    assert code == 1
    assert err.decode().splitlines()[0] == (
        "nvckpt: words: internal error (ZeroDivisionError: surprise); please report it, with NVCKPT_TRACEBACK=1 set"
    )
    assert b"m.safetensors -> " in out
