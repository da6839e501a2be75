"""Bounds on memory and output: how they are written, and that hostile but legal files stay within them."""

import pytest
from command import Shell

import nvckpt
from nvckpt.decompression import DecompressOptions
from nvckpt.errors import InvalidRequestError, OutputTooLargeError
from nvckpt.limits import memory_limit, parse_size

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
    assert memory_limit(0) >= 128 << 20


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
