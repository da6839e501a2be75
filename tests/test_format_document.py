"""FORMAT.md is a specification: what it says is compared with the code and with files."""

import math
import re
import struct
from pathlib import Path

import pytest

import nvckpt
from nvckpt.codecs import float_reference, registry
from nvckpt.codecs.chunked import MAX_CHUNK_SIZE, ChunkedCodec
from nvckpt.codecs.float_spec import FloatSpec, log256
from nvckpt.formats import dtypes, layout
from nvckpt.formats.groups import GROUPS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "formats" / "FORMAT.md").read_text()
GOLDEN = ROOT / "tests" / "golden" / "decode"


def section(heading: str) -> str:
    """The text under a heading, up to the next one of any level."""
    return re.split(r"\n#+ ", DOCUMENT.split(heading, 1)[1])[0]


def hex_block(title: str) -> bytes:
    """The bytes of a worked example: what stands between the offset and the bar."""
    block = re.search(rf"```hex {title}\n(.*?)```", DOCUMENT, re.DOTALL)
    assert block
    rows = [line.split("|")[0].split() for line in block[1].splitlines()]
    data = b""
    for offset, *values in rows:
        assert int(offset, 16) == len(data)
        data += bytes.fromhex("".join(values))
    return data


def test_worked_example_is_the_golden_file(tmp_path):
    """The hex in the document is the committed archive, and it restores the file it says."""
    assert hex_block("example") == (GOLDEN / "example.nvckpt").read_bytes()
    archive = tmp_path / "example.nvckpt"
    archive.write_bytes(hex_block("example"))
    nvckpt.decompress(archive)
    assert (tmp_path / "example").read_bytes() == b"hello!\n" == (GOLDEN / "example").read_bytes()


def test_worked_example_is_what_the_writer_writes(tmp_path, monkeypatch):
    """Compressing the example's file gives the document's bytes."""
    monkeypatch.setattr("nvckpt.compression.__version__", "0.1.0")
    source = tmp_path / "hello"
    source.write_bytes(b"hello!\n")
    nvckpt.compress(source, options=nvckpt.CompressOptions(codec="store"))
    assert (tmp_path / "hello.nvckpt").read_bytes() == hex_block("example")


def test_dtype_table_is_the_code():
    """Section 7.3 lists exactly the dtypes of the code, with their ids and bits."""
    rows = re.findall(r"(\d+) \| `(\w+)` \| (\d+)", section("### 7.3 Dtypes"))
    assert {(int(i), name, int(bits)) for i, name, bits in rows} == {
        (t.id, t.name, t.bits) for t in dtypes.BY_ID.values()
    }


def test_group_table_is_the_code():
    """Section 7.4 lists exactly the groups of the code, in order."""
    rows = sorted((int(i), name) for i, name in re.findall(r"(\d+) \| `(\w+)`", section("### 7.4 Groups")))
    assert rows == list(enumerate(GROUPS))


@pytest.mark.parametrize("codec", registry.CPU_CODECS, ids=lambda codec: codec.name)
def test_codec_table_is_the_code(codec):
    """Section 7.1 gives each codec's id, name and greatest expansion as the code has them."""
    row = re.search(rf"\| {codec.id} \| `{codec.name}` \|.*\| (\d*) ?\| 1 \|", section("### 7.1 Codecs"))
    assert row
    if isinstance(codec, ChunkedCodec):
        assert int(row[1]) == codec.max_expansion


def test_limits_are_the_code():
    """Section 10 gives the limits that the code enforces."""
    limits = section("## 10. Limits")
    assert layout.MAX_WINDOW == 256 << 20 and "window, and so frame | 256 MiB" in limits
    assert layout.MAX_STREAMS == 16 and "streams a frame | 16" in limits
    assert layout.MAX_EXTENTS == 1 << 20 and "extents a frame | 2^20" in limits
    assert layout.MAX_FRAME_HEADER == 32 << 20 and "frame header | 32 MiB" in limits
    assert MAX_CHUNK_SIZE == 16 << 20 and "chunk | 16 MiB" in limits
    assert layout.MAX_INDEX == 4 << 30 and layout.MAX_INDEX_EXPANSION == 16 and layout.INDEX_ALLOWANCE == 4 << 20
    assert "decoded index | 16 x its stored size + 4 MiB; 4 GiB" in limits


def test_float_example_is_what_the_encoder_writes():
    """The float codec's worked example is the stream of the words it says, and decodes to them."""
    values = (0x3F80, 0xBF90, 0x3F00, 0x3EA0, 0x4040, 0x3DC0)
    data = b"".join(struct.pack("<H", values[i * i % 13 % 6]) for i in range(300)) + b"\x07"
    stream = hex_block("float example")
    assert float_reference.encode(data, FloatSpec(2, "bf16", ((300, 0),)), "default") == stream
    out = bytearray(len(data))
    float_reference.decode(memoryview(stream), memoryview(out))
    assert out == data


def test_integer_logarithm_of_the_document_is_the_code():
    """The logarithm printed in section 16.10 gives the same numbers as the one that the encoders use."""
    block = re.search(r"```python log256\n(.*?)```", DOCUMENT, re.DOTALL)
    assert block
    names: dict = {}
    exec(block[1], names)
    for x in (*range(1, 3000), 10**6 + 3, 2**31 - 1, 2**31, 2**40 + 12345, 2**62):
        assert names["log256"](x) == log256(x) == math.floor(256 * math.log2(x))
