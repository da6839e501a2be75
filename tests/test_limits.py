"""Bounds on memory and output: how they are written, and that hostile but legal files stay within them."""

import io
import json
import os
import subprocess
import sys
import zipfile

import pytest
import zstandard
from archives import Archive, Section, coded, stored, varint
from checkpoints import safetensors_bytes, torch_zip_bytes
from command import Shell

import nvckpt
from nvckpt.codecs import blocks
from nvckpt.codecs.content import BYTES
from nvckpt.decompression import DecompressOptions, decode_all
from nvckpt.engines import CpuEngine
from nvckpt.errors import InvalidRequestError, OutputTooLargeError
from nvckpt.formats.allowance import Allowance
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.container import ArchiveReader
from nvckpt.formats.errors import MemoryLimitError
from nvckpt.formats.sniff import read_source
from nvckpt.limits import memory_limit, parse_size
from nvckpt.pipeline import affordable_threads

DATA = bytes(5000)


@pytest.fixture
def sh(tmp_path):
    (tmp_path / "zeros").write_bytes(DATA)
    shell = Shell(tmp_path)
    shell("compress", "-q", "zeros", check=0)
    return shell


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 0), ("1000", 1000), ("512M", 512 << 20), ("2G", 2 << 30), ("1GiB", 1 << 30), ("3 kb", 3000), ("1T", 1 << 40),
     ("7B", 7), ("5mib", 5 << 20)],
)  # fmt: skip
def test_size_in_words(text, size):
    """As dd reads them: K is 1024, KB is 1000."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["much", "-1", "1.5G", "1P", "0x10", "1iB", "1 2", "G"])
def test_size_that_is_none(text):
    """A sentence that says how to write it."""
    with pytest.raises(InvalidRequestError, match="is not a size"):
        parse_size(text)


def test_memory_is_half_of_the_machine_unless_said():
    """And never less than what a window needs."""
    assert memory_limit(1 << 30) == 1 << 30
    assert memory_limit(0) >= 256 << 20


@pytest.mark.parametrize("command", ["compress", "decompress", "verify", "list"])
@pytest.mark.parametrize("size", ["some", "1M"])
def test_memory_that_cannot_be_is_a_usage_error(command, size, sh):
    """Exit 2, whether it is an option or comes from the environment."""
    assert sh(command, "--max-memory", size, "zeros.nvckpt", check=2).err.count("\n") == 1
    sh(command, "zeros.nvckpt", env={"NVCKPT_MAX_MEMORY": size}, check=2)


def test_output_larger_than_allowed_is_refused(sh):
    """Before anything is decoded or written; the sentence says how much, and what to do."""
    (sh.folder / "zeros").unlink()
    done = sh("decompress", "--max-output", "4999", "zeros.nvckpt", check=1)
    assert "restores to 5000 bytes, more than the 4999 allowed; --max-output allows more" in done.err
    assert sh.names() == ["zeros.nvckpt"]
    sh("decompress", "--max-output", "5000", "zeros.nvckpt", check=0)


def test_output_larger_than_allowed_has_a_code(sh):
    """For programs."""
    with pytest.raises(OutputTooLargeError) as caught:
        nvckpt.decompress(sh.folder / "zeros.nvckpt", sh.folder / "o", DecompressOptions(max_output=1))
    assert caught.value.code == "too_large"


# Hostile but legal: small files that describe a lot.

MiB = 1 << 20
PROBE = """
import json, sys
from pathlib import Path
from nvckpt.cli.main import main
try:
    main()
except SystemExit as end:
    # Not getrusage: its peak begins at the size of the process that forked this one.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    print(json.dumps([end.code, int(peak.split()[1]) << 10]), file=sys.stderr)
"""


def measured(*arguments, folder):
    """Run a command in a process of its own: exit code, bytes of memory at its peak, and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    *said, last = done.stderr.splitlines()
    code, memory = json.loads(last)
    return code, memory, "\n".join(said)


def tiny_tensors(count: int) -> bytes:
    """A safetensors file of so many tensors of one byte."""
    entries = (f'"t{i}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{i + 1}]}}' for i in range(count))
    return safetensors_bytes({}, bytes(count), text="{" + ",".join(entries) + "}")


def empty_objects(count: int) -> bytes:
    """A safetensors header of nothing but objects without a field."""
    return safetensors_bytes({}, b"", text="{" + '"":{},' * count + '"":{}}')


def pickle_in_zip(raw: bytes) -> bytes:
    """A torch zip with this pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", raw)
        archive.writestr("archive/data/0", bytes(8))
    return stream.getvalue()


HOSTILE = {
    "tensors": lambda: tiny_tensors(80_000),
    "objects": lambda: empty_objects(500_000),
    "nested": lambda: pickle_in_zip(b"N" + b"\x85" * 1_000_000 + b"."),
    "dicts": lambda: pickle_in_zip(b"(" + b"}" * 1_000_000 + b"t."),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_stays_below_max_memory(name, tmp_path):
    """It is compressed as plain bytes, with a warning that says why, in less memory than allowed."""
    (tmp_path / "x").write_bytes(HOSTILE[name]())
    code, memory, said = measured("compress", "-T1", "--max-memory", "256M", "x", folder=tmp_path)
    assert code == 0
    assert "takes more memory than the 128 MiB allowed for it (--max-memory allows more)" in said
    assert memory < 256 * MiB


def test_structure_within_the_bound_is_understood():
    """Two kilobytes a tensor are enough."""
    raw = tiny_tensors(3000)
    assert len(read_source(MemoryBytes(raw), memory=Allowance(6 << 20)).segments) == 3001
    assert len(read_source(MemoryBytes(raw), memory=Allowance(5 << 20)).segments) == 1


def test_deep_nesting_does_not_cost_a_generator_a_level(tmp_path):
    """What is nested deeper than any checkpoint is passed over; a million levels took most of a gigabyte."""
    (tmp_path / "x").write_bytes(pickle_in_zip(b"N" + b"\x85" * 600_000 + b"."))
    code, memory, said = measured("compress", "-T1", "x", folder=tmp_path)
    assert (code, said) == (0, "")
    assert memory < 300 * MiB


def test_zip_with_more_records_than_memory_allows_is_plain_bytes():
    """Its directory alone would take more."""
    raw = torch_zip_bytes({f"t{i}": bytes(4) for i in range(1000)})
    source = read_source(MemoryBytes(raw), memory=Allowance(100_000))
    assert [segment.dtype for segment in source.segments] == [None]
    assert "takes more memory" in source.warnings[0]


# Archives from elsewhere.


def listing_of(count: int) -> Archive:
    """An archive of zeros that describes each byte as a tensor without a name."""
    return stored(bytes(count), segments=varint(count) + (varint(1) + bytes((1, 31, 16, 0)) + varint(0)) * count)


def test_index_that_describes_too_much_is_not_built():
    """The list of tensors is refused before it is; the bytes are restored without it."""
    data = MemoryBytes(listing_of(4000).build())
    reader = ArchiveReader(data, Allowance(1 << 20))
    with pytest.raises(MemoryLimitError, match=r"takes more memory than the 1 MiB allowed .* allows more"):
        _ = reader.description
    assert decode_all(reader, CpuEngine(1)) == reader.index.original_hash
    assert len(ArchiveReader(data).description.segments) == 4000


def test_list_of_a_hostile_archive_stays_below_max_memory(tmp_path):
    """A megabyte that describes a million tensors; exit 1 and a sentence, and decompress does without the list."""
    archive = listing_of(350_000)
    archive.store_index, archive.index_codec = zstandard.ZstdCompressor().compress, 1
    # A packed index may be so many times as large; real ones are mostly names.
    archive.extra = [Section(99, 0, os.urandom(100_000))]
    (tmp_path / "x.nvckpt").write_bytes(archive.build())
    code, memory, said = measured("list", "--max-memory", "256M", "x.nvckpt", folder=tmp_path)
    assert code == 1
    assert "takes more memory than the 128 MiB allowed" in said
    assert memory < 256 * MiB
    code, memory, said = measured("decompress", "-qT1", "--max-memory", "256M", "x.nvckpt", folder=tmp_path)
    assert (code, said) == (0, "")
    assert memory < 256 * MiB
    assert (tmp_path / "x").read_bytes() == bytes(350_000)


def test_window_larger_than_memory_allows_is_refused(sh):
    """The format allows windows of 256 MiB; nvckpt itself writes 32."""
    original = bytes(200 * MiB)
    stream = blocks.encode(original, BYTES, blocks.Choice("zstd"))
    (sh.folder / "bomb").write_bytes(coded(original, 1, bytes(stream.streams[0].data)).build())
    for command in ("decompress", "verify"):
        options = ["-o", "out"] if command == "decompress" else []
        done = sh(command, "--max-memory", "512M", "bomb", *options, check=1)
        assert "896 MiB of memory are needed, more than the 512 MiB allowed; --max-memory allows more" in done.err
    assert not (sh.folder / "out").exists()


def test_threads_are_as_many_as_memory_allows():
    """And none is an error that says how much is needed."""
    assert affordable_threads(3, 1 << 40, 32 * MiB) == 3
    assert affordable_threads(64, 1 << 30, 32 * MiB) == 13
    with pytest.raises(MemoryLimitError, match="1120 MiB of memory are needed, more than the 256 MiB allowed"):
        affordable_threads(1, 256 * MiB, 256 * MiB)
