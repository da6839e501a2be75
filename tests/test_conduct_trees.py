"""Directories: which files are taken, where outputs go, what is never overwritten; each promise a test."""

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from command import Shell
from forest import FOREST

DATA = b"weights " * 500


def tiny(path: Path, data: bytes = b"") -> Path:
    """A safetensors file of one tensor: the smallest checkpoint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = b'{"a":{"dtype":"U8","shape":[64],"data_offsets":[0,64]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + data.ljust(64, b"x"))
    return path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def digests(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sorted(files(folder))}


@pytest.fixture
def sh(tmp_path):
    """A shell in an empty folder."""
    return Shell(tmp_path)


@pytest.fixture
def tree(sh):
    """run/ with a.pt, b.pt, sub/a.pt, and files that are no checkpoints."""
    for name in ("a.pt", "b.pt", "sub/a.pt"):
        tiny(sh.folder / "run" / name, name.encode())
    (sh.folder / "run" / "index.json").write_text("{}")
    (sh.folder / "run" / "notes.pt").write_text("not a checkpoint, whatever its suffix")
    return sh.folder / "run"


# Trees of frameworks.


@pytest.fixture(scope="module")
def forest(tmp_path_factory):
    """Each tree once; tests copy it."""
    folder = tmp_path_factory.mktemp("forest")
    for name, make in FOREST.items():
        (folder / name).mkdir()
        (folder / f"{name}.json").write_text(json.dumps(sorted(make(folder / name))))
    return folder


@pytest.mark.parametrize("name", FOREST)
def test_tree_of_a_framework_round_trips(name, forest, sh):
    """Compress with --rm, verify, restore with --rm: the same files, names and bytes; texts and indexes untouched."""
    shutil.copytree(forest / name, sh.folder / name)
    before = digests(sh.folder / name)
    taken = set(json.loads((forest / f"{name}.json").read_text()))
    sh("compress", "-r", "--rm", name, check=0)
    assert files(sh.folder / name) == (set(before) - taken) | {f"{file}.nvckpt" for file in taken}
    assert sh("verify", "-r", name, check=0).text.count(": sound, ") == len(taken)
    sh("decompress", "-r", "--rm", name, check=0)
    assert digests(sh.folder / name) == before


def test_names_of_a_dcp_folder_are_kept_when_its_files_are_removed(forest, sh):
    """.metadata, which has the names, is compressed and removed last; also with several files at a time."""
    shutil.copytree(forest / "dcp" / "dcp", sh.folder / "dcp")
    (sh.folder / "dcp" / "__9_0.distcp").write_bytes(next((sh.folder / "dcp").glob("*.distcp")).read_bytes())
    done = sh("compress", "-r", "--rm", "--jsonl", "-j2", "dcp", check=0)
    assert json.loads(done.text.splitlines()[-1])["input"] == "dcp/.metadata"
    shard = next((sh.folder / "dcp").glob("__0*.nvckpt"))
    assert "model.0.weight" in sh("list", "-v", str(shard), check=0).text


# Which files.


def test_recursion_takes_checkpoints_by_content_and_names_the_rest_with_v(sh, tree):
    """Neither by suffix nor by name; one file that is left alone gets a line with -v."""
    done = sh("compress", "-r", "run", check=0)
    assert {name for name in files(tree) if name.endswith(".nvckpt")} == {
        "a.pt.nvckpt", "b.pt.nvckpt", "sub/a.pt.nvckpt"
    }  # fmt: skip
    assert "2 files left alone: no checkpoint by its content (-v names them)" in done.err
    assert "run/notes.pt: no checkpoint by its content, left alone" in sh("compress", "-rfv", "run", check=0).err


def test_directory_without_recursion_is_refused_and_names_the_option(sh, tree):
    """Row of the design: a directory without -r."""
    assert "run: is a directory; name the files in it, or use -r" in sh("compress", "run", check=1).err


def test_include_decides_instead_of_the_content(sh, tree):
    """Repeatable; what fits is taken, whatever it holds."""
    sh("compress", "-r", "--include", "*.json", "--include", "b.*", "run", check=0)
    assert {name for name in files(tree) if name.endswith(".nvckpt")} == {"index.json.nvckpt", "b.pt.nvckpt"}


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("a.pt", {"b.pt.nvckpt"}),
        ("sub", {"a.pt.nvckpt", "b.pt.nvckpt"}),
        ("sub/", {"a.pt.nvckpt", "b.pt.nvckpt"}),
        ("sub/*.pt", {"a.pt.nvckpt", "b.pt.nvckpt"}),
        ("./a.pt", {"b.pt.nvckpt", "sub/a.pt.nvckpt"}),
        ("[ab].pt", set()),
    ],
)
def test_exclude_leaves_out_files_and_directories(pattern, left, sh, tree):
    """A glob without a slash fits names at any depth, with one the path below what was named."""
    sh("compress", "-r", "--exclude", pattern, "run", check=0)
    assert {name for name in files(tree) if name.endswith(".nvckpt")} == left


def test_exclude_wins_over_include(sh, tree):
    """Both may be given."""
    sh("compress", "-r", "--include", "*.pt", "--exclude", "notes*", "--exclude", "sub", "run", check=0)
    assert {name for name in files(tree) if name.endswith(".nvckpt")} == {"a.pt.nvckpt", "b.pt.nvckpt"}


def test_exclude_also_drops_files_that_were_named(sh, tree):
    """`nvckpt compress --exclude '*.json' run/*`."""
    sh("compress", "--exclude", "*.json", "run/a.pt", "run/index.json", check=0)
    assert "index.json.nvckpt" not in files(tree)


def test_exclude_compressed_skips_other_compressed_files(sh):
    """gzip, zstd and the like; without it they are stored, with a warning."""
    import gzip

    (sh.folder / "x.gz").write_bytes(gzip.compress(DATA))
    done = sh("compress", "--exclude-compressed", "x.gz", check=0)
    assert "x.gz: compressed already, though not by nvckpt, skipped" in done.err
    assert sh.names() == ["x.gz"]
    sh("compress", "x.gz", check=0)


def test_dotfiles_are_taken(sh):
    """A hidden directory, and a hidden file."""
    tiny(sh.folder / "run" / ".hidden" / ".x.pt")
    sh("compress", "-r", "run", check=0)
    assert ".hidden/.x.pt.nvckpt" in files(sh.folder / "run")


def test_links_in_a_tree_are_passed_over_and_counted(sh, tree):
    """To files, to directories, in a circle, and dangling."""
    (tree / "link.pt").symlink_to("a.pt")
    (tree / "sub" / "up").symlink_to("..")
    (tree / "gone").symlink_to("nowhere")
    done = sh("compress", "-r", "run", check=0)
    assert "3 symbolic links passed over" in done.err
    assert len([name for name in files(tree) if name.endswith(".nvckpt")]) == 3


def test_link_to_a_directory_that_was_named_needs_force(sh, tree):
    """As a link to a file does; a slash at its end also means what is behind it."""
    (sh.folder / "link").symlink_to("run")
    assert "link: is a symbolic link; use -f to follow it" in sh("compress", "-r", "link", check=1).err
    sh("compress", "-r", "link/", check=0)
    sh("compress", "-rf", "link", check=0)


def test_archive_in_a_tree_is_not_compressed_again(sh, tree):
    """So that a batch may be repeated with new files."""
    sh("compress", "-r", "run", check=0)
    tiny(tree / "new.pt")
    done = sh("compress", "-r", "--skip-existing", "run", check=0)
    assert "4 files: 1 compressed, 3 skipped" in done.text
    assert not any(".nvckpt.nvckpt" in name for name in files(tree))


def test_leftover_of_a_killed_run_is_not_taken(sh, tree):
    """A half-restored checkpoint begins like one."""
    left = tree / ".c.pt.nvckpt-0123456789ab.tmp"
    tiny(left)
    sh.litter = list
    sh("compress", "-r", "run", check=0)
    assert f"{left.name}.nvckpt" not in files(tree)


def test_pipes_and_sockets_in_a_tree_are_passed_over(sh, tree):
    """Opening one would wait for ever."""
    os.mkfifo(tree / "pipe")
    sh("compress", "-r", "run", check=0)


def test_empty_directory_is_nothing_to_do(sh):
    """Said, and exit 0."""
    (sh.folder / "run").mkdir()
    done = sh("compress", "-r", "run", check=0)
    assert "nothing to do: no checkpoint was found" in done.err
    assert "0 files" in done.text


def test_unreadable_directory_is_reported_and_the_rest_goes_on(sh, tree, monkeypatch):
    """Root reads everything, so the refusal is made up."""
    real = os.scandir

    def scandir(path):
        if path == "run/sub":
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    done = sh("compress", "-r", "run", check=1)
    assert "nvckpt: run/sub: permission denied" in done.err
    assert {"a.pt.nvckpt", "b.pt.nvckpt"} <= files(tree)


def test_file_named_twice_is_compressed_once(sh, tree):
    """By whatever path, or as part of its directory."""
    done = sh("compress", "-r", "run/a.pt", "./run/a.pt", "run/../run/a.pt", "run", check=0)
    assert "3 files: 3 compressed" in done.text


def test_order_is_that_of_names(sh, tree):
    """The same on every machine."""
    done = sh("compress", "-r", "--json", "run", check=0)
    assert [r["input"] for r in done.json["results"]] == ["run/a.pt", "run/b.pt", "run/sub/a.pt"]


@pytest.mark.parametrize("name", [b"new\nline.pt", b"\xff\xfe.pt", b"-x.pt", b"-"], ids=repr)
def test_strange_names_in_a_tree(name, sh):
    """Round trip, also in and out of the working directory itself."""
    folder = os.fsencode(sh.folder)
    tiny(sh.folder / "x").rename(os.fsdecode(folder + b"/" + name))
    before = digests(sh.folder)
    sh("compress", "-r", "--rm", ".", check=0)
    sh("decompress", "-r", "--rm", "--output-dir-mirror", ".", ".", check=0)
    assert digests(sh.folder) == before


# Where outputs go.


def test_output_dir_flat(sh, tree):
    """All outputs in one directory, which is made; and back."""
    shutil.rmtree(tree / "sub")
    before = {name: digest for name, digest in digests(tree).items() if name in ("a.pt", "b.pt")}
    sh("compress", "-r", "--output-dir-flat", "out/deep", "run", check=0)
    assert files(sh.folder / "out" / "deep") == {"a.pt.nvckpt", "b.pt.nvckpt"}
    sh("decompress", "-r", "--output-dir-flat", "back", "out", check=0)
    assert digests(sh.folder / "back") == before


def test_output_dir_flat_with_a_collision_is_an_error_before_any_work(sh, tree):
    """Both inputs are named; nothing is written, not even the directory."""
    done = sh("compress", "-rf", "--output-dir-flat", "out", "run", check=2)
    assert "run/a.pt and run/sub/a.pt would both become out/a.pt.nvckpt" in done.err
    assert "--output-dir-mirror" in done.err
    assert sh.names() == ["run"]


def test_output_dir_mirror(sh, tree):
    """Directories as they were given, with their modes."""
    (tree / "sub").chmod(0o750)
    before = digests(tree)
    sh("compress", "-r", "--output-dir-mirror", "out", "./run/", check=0)
    assert files(sh.folder / "out") == {"run/a.pt.nvckpt", "run/b.pt.nvckpt", "run/sub/a.pt.nvckpt"}
    assert stat.S_IMODE((sh.folder / "out" / "run" / "sub").stat().st_mode) == 0o750
    assert digests(tree) == before


def test_output_dir_mirror_nests_absolute_paths(sh, tree):
    """/data/run/x becomes DIR/data/run/x."""
    sh("compress", "-r", "--output-dir-mirror", "out", str(tree / "sub"), check=0)
    assert (sh.folder / "out" / str(tree / "sub").lstrip("/") / "a.pt.nvckpt").exists()


def test_output_dir_mirror_refuses_dot_dot(sh, tree):
    """It would lead out of DIR."""
    done = sh("compress", "-r", "--output-dir-mirror", "out", "run/../run", check=2)
    assert "a path with .. cannot be mirrored" in done.err
    assert sh.names() == ["run"]


def test_output_dir_in_the_tree_is_not_walked(sh, tree):
    """A second run does not take what the first one restored there."""
    sh("compress", "-r", "--output-dir-mirror", "run/out", "run", check=0)
    tiny(tree / "out" / "run" / "restored.pt")
    done = sh("compress", "-r", "--output-dir-mirror", "run/out", "--skip-existing", "run", check=0)
    assert "3 files: 0 compressed, 3 skipped" in done.text


def test_output_dir_that_is_a_file_is_a_usage_error(sh, tree):
    """Before any work."""
    (sh.folder / "out").write_bytes(b"")
    assert "out is there and not a directory" in sh("compress", "--output-dir-flat", "out", "run/a.pt", check=2).err


def test_output_dir_that_cannot_be_made_is_an_error(sh, tree):
    """With the system's reason; /proc takes no directories."""
    done = sh("compress", "-r", "--output-dir-flat", "/proc/nvckpt", "run/sub", check=1)
    assert done.err.startswith("nvckpt: cannot write /proc/nvckpt: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["-r", "-o", "x", "run"],
        ["-r", "-c", "run"],
        ["-o", "x", "--output-dir-flat", "out", "run/a.pt"],
        ["-c", "--output-dir-mirror", "out", "run/a.pt"],
        ["--output-dir-flat", "out", "--output-dir-mirror", "out", "run/a.pt"],
        ["--output-dir-flat", "", "run/a.pt"],
        ["--output-dir-flat", "out", "-"],
        ["--skip-existing", "-c", "run/a.pt"],
        ["--json", "--jsonl", "run/a.pt"],
        ["-j", "0", "run/a.pt"],
    ],
    ids=" ".join,
)
def test_options_that_contradict_are_a_usage_error(arguments, sh, tree):
    """One sentence, exit 2, nothing done."""
    done = sh("compress", *arguments, check=2)
    assert len(done.err.splitlines()) == 1
    assert sh.names() == ["run"]


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic link", "hard link"])
def test_force_does_not_replace_another_input_under_any_name(link, sh, tree):
    """The output of one is an alias of the next."""
    (sh.folder / "out").mkdir()
    link(tree / "b.pt", sh.folder / "out" / "a.pt.nvckpt")
    before = digests(tree)
    done = sh("compress", "-f", "--output-dir-flat", "out", "run/a.pt", "run/b.pt", check=2)
    assert "the output of run/a.pt would replace the input run/b.pt" in done.err
    assert digests(tree) == before


def test_restoring_flat_over_another_input_is_refused(sh):
    """An archive of an archive, and the archive it would become, in one batch."""
    tiny(sh.folder / "x")
    sh("compress", "-q", "x", check=0)
    sh("compress", "-q", "x.nvckpt", "-o", "d.nvckpt", check=0)
    (sh.folder / "d").mkdir()
    (sh.folder / "d.nvckpt").rename(sh.folder / "d" / "x.nvckpt.nvckpt")
    arguments = ("--output-dir-flat", ".", "x.nvckpt", "d/x.nvckpt.nvckpt")
    assert "would replace the input" in sh("decompress", "-f", *arguments, check=2).err


# Resuming.


def test_skip_existing_resumes_a_batch(sh, tree):
    """Exit 0, and only what is missing is done; the same on the way back."""
    sh("compress", "-q", "run/a.pt", check=0)
    before = (tree / "a.pt.nvckpt").stat().st_mtime_ns
    done = sh("compress", "-r", "--skip-existing", "run", check=0)
    assert "run/a.pt: run/a.pt.nvckpt exists, skipped" in done.err
    assert "3 files: 2 compressed, 1 skipped" in done.text
    assert (tree / "a.pt.nvckpt").stat().st_mtime_ns == before
    (tree / "b.pt").unlink()
    assert "3 files: 1 restored, 2 skipped" in sh("decompress", "-r", "--skip-existing", "run", check=0).text


def test_skip_existing_does_not_take_a_cut_output_for_a_whole_one(sh, tree):
    """An archive that was copied halfway, or of another file, is an error; with -f it is made anew."""
    sh("compress", "-q", "run/a.pt", "run/b.pt", check=0)
    archive = tree / "a.pt.nvckpt"
    archive.write_bytes(archive.read_bytes()[:-9])
    done = sh("compress", "-r", "--skip-existing", "run", check=1)
    assert "output run/a.pt.nvckpt exists, but is not a whole one of this file" in done.err
    assert "3 files: 1 compressed, 1 skipped, 1 failed" in done.text
    sh("compress", "-rf", "--skip-existing", "run", check=0)
    sh("verify", "-r", "run", check=0)


def test_skip_existing_with_rm_keeps_what_was_skipped(sh, tree):
    """Its archive was not read back in this run."""
    sh("compress", "-q", "run/a.pt", check=0)
    sh("compress", "-r", "--rm", "--skip-existing", "run", check=0)
    assert "a.pt" in files(tree)
    assert "b.pt" not in files(tree)
