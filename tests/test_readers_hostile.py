"""Damaged, lying and hostile files are read to the end: exact tiling, a sentence, no exception, no hang."""

import functools
import os
import pickle
import random
import struct
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from checkpoints import FIXTURES, python2_legacy, safetensors_bytes, state_dict_pickle, torch_zip_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from nvckpt.formats import sniff
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.segments import Source
from nvckpt.formats.sniff import read_source

_LARGEST_SAMPLE = 1 << 18


def read(raw: bytes, path: Path | None = None) -> Source:
    """Read bytes, and check what holds for every file."""
    started = time.perf_counter()
    source = read_source(MemoryBytes(raw), path)
    assert time.perf_counter() - started < 20
    position = 0
    for segment in source.segments:
        assert (segment.offset, segment.length > 0) == (position, True)
        position = segment.end
    assert position == source.size == len(raw)
    assert not any("could not be understood" in warning for warning in source.warnings), source
    return source


def tensors(source: Source) -> list:
    return [s for s in source.segments if s.dtype is not None]


@functools.cache
def samples() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = []
        for name, function in FIXTURES.items():
            inner = Path(folder) / name
            inner.mkdir()
            made.append(function(inner).read_bytes())
    made.append(torch_zip_bytes({"a": bytes(8), "b": bytes(4)}))
    return tuple(raw for raw in made if 0 < len(raw) < _LARGEST_SAMPLE)


@given(st.binary(max_size=600))
@settings(max_examples=300, deadline=None)
def test_random_bytes(raw):
    """Any bytes are a file."""
    read(raw)


@given(
    st.sampled_from(
        [b"PK\x03\x04", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", b"\x20\0\0\0\0\0\0\0{", b"version https:"]
    ),
    st.binary(max_size=300),
    st.sampled_from([b"", b"PK\x05\x06" + bytes(18), struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, 46, 0, 0)]),
)
@settings(max_examples=300, deadline=None)
def test_random_bytes_with_a_known_start_and_end(start, middle, end):
    """Bytes that claim to be a format, and are none."""
    read(start + middle + end)


@given(st.integers(0, 10**9), st.integers(1, 12))
@settings(max_examples=600, deadline=None)
def test_flipped_bits(seed, count):
    """Every fixture with a few bits flipped; half of the flips hit the ends, where the structure is."""
    rng = random.Random(seed)
    raw = bytearray(rng.choice(samples()))
    for _ in range(count):
        position = rng.randrange(len(raw))
        if rng.random() < 0.5:
            position = rng.choice((position % 300, -1 - position % 300)) % len(raw)
        raw[position] ^= 1 << rng.randrange(8)
    read(bytes(raw))


@given(st.integers(0, 10**9))
@settings(max_examples=400, deadline=None)
def test_extreme_fields(seed):
    """Every fixture with some bytes set to extremes, as a length or an offset would be attacked."""
    rng = random.Random(seed)
    raw = bytearray(rng.choice(samples()))
    for _ in range(rng.randrange(1, 5)):
        width = rng.choice((1, 2, 4, 8))
        position = rng.choice((rng.randrange(len(raw)), max(0, len(raw) - rng.randrange(1, 200))))
        raw[position : position + width] = rng.choice((b"\xff", b"\x00", b"\x7f")) * width
    read(bytes(raw))


@given(st.integers(0, 10**9))
@settings(max_examples=300, deadline=None)
def test_cuts(seed):
    """Every fixture cut at either end."""
    rng = random.Random(seed)
    raw = rng.choice(samples())
    read(raw[: rng.randrange(len(raw) + 1)])
    read(raw[rng.randrange(len(raw)) :])


@given(st.integers(0, 10**9))
@settings(max_examples=400, deadline=None)
def test_splices(seed):
    """Pieces of one fixture inside, before or behind another."""
    rng = random.Random(seed)
    first, second = rng.choice(samples()), rng.choice(samples())
    start, end = sorted(rng.randrange(len(second) + 1) for _ in range(2))
    at = rng.choice((0, len(first), rng.randrange(len(first))))
    read(first[:at] + second[start:end] + first[at + rng.choice((0, end - start)) :])


def test_every_cut_of_a_zip():
    """A torch zip cut at any length is kept as plain bytes and said to be cut short."""
    raw = torch_zip_bytes({"a": bytes(8)})
    for length in range(4, len(raw)):
        source = read(raw[:length])
        assert tensors(source) == []
        assert source.warnings == ("the zip directory is missing: the file is cut short",)


def test_every_cut_of_a_legacy_file():
    """A legacy file cut at any length keeps no tensors, and says so."""
    raw = python2_legacy()
    for length in range(14, len(raw)):
        source = read(raw[:length])
        assert tensors(source) == []
        assert source.warnings


def test_every_byte_of_a_small_zip_flipped():
    """No single damaged byte of a zip leads to an exception or a wrong tiling."""
    raw = torch_zip_bytes({"a": bytes(8), "b": bytes(4)})
    for position in range(len(raw)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(raw)
            damaged[position] ^= mask
            read(bytes(damaged))


def test_the_size_comes_from_the_zip():
    """A pickle that claims another size than the record is not believed, and warned about."""
    raw = torch_zip_bytes({"a": bytes(8), "b": bytes(8)})
    source = read(raw.replace(b"cpuJ\x02\x00\x00\x00", b"cpuJ\x09\x00\x00\x00"))
    assert [s.length for s in tensors(source)] == [8, 8]
    assert source.warnings == ("storages of another size than the pickle says: 2",)


def test_a_size_that_is_no_multiple_is_opaque():
    """A record that holds no whole number of elements is plain bytes."""
    source = read(torch_zip_bytes({"a": bytes(7), "b": bytes(8)}))
    assert [s.length for s in tensors(source)] == [8]
    assert len(source.warnings) == 1


def test_a_missing_record_is_noticed():
    """A storage without a record is a warning; the others stay."""
    raw = torch_zip_bytes({"a": bytes(8), "b": bytes(8)}).replace(b"archive/data/1", b"archive/mist/1")
    source = read(raw)
    assert len(tensors(source)) == 1
    assert source.warnings == ("storages missing from the zip: 1",)


def test_a_lying_header_offset_is_noticed():
    """A directory entry that points to another record's header is not believed."""
    raw = torch_zip_bytes({"a": bytes(8), "b": bytes(8)})
    end = raw.rindex(b"archive/data/1")
    other = struct.pack("<I", raw.index(b"archive/data/0") - 30)
    source = read(raw[: end - 4] + other + raw[end:])
    assert len(tensors(source)) == 1
    assert source.warnings == ("storages that are not where the zip directory says: 1",)


def test_overlapping_records_are_opaque():
    """Two records that claim the same bytes are both kept as plain bytes."""
    raw = bytearray(torch_zip_bytes({"a": bytes(8), "b": bytes(8)}))
    first, second = tensors(read(bytes(raw)))
    size = second.offset + 4 - first.offset
    entry = raw.rindex(b"archive/data/0") - 46
    struct.pack_into("<II", raw, entry + 20, size, size)
    source = read(bytes(raw))
    assert tensors(source) == []
    assert any("overlap" in warning for warning in source.warnings)


def test_a_zip_behind_other_bytes_is_found():
    """Bytes that are no zip before a zip are kept, and the zip behind them is still read."""
    zipped = torch_zip_bytes({"a": bytes(8)})
    source = read(b"PK\x03\x04 no zip at all" + zipped)
    assert len(tensors(source)) == 1
    assert source.warnings == ("the file does not start with a zip; its first part is kept as plain bytes",)


def test_many_concatenated_zips_are_read():
    """A thousand zips in a row, as torch.distributed.checkpoint writes them."""
    source = read(torch_zip_bytes({"": bytes(8)}) * 1000)
    assert (source.format, len(tensors(source)), source.warnings) == ("distcp", 1000, ())


def test_empty_zips_in_a_row_end():
    """A file of nothing but end records takes time in proportion to its size."""
    read(b"PK\x03\x04" + (b"PK\x05\x06" + bytes(18)) * 50_000)


def test_trailing_end_records_do_not_hide_the_zip():
    """Junk behind a zip that contains the end record's magic is passed over."""
    source = read(torch_zip_bytes({"a": bytes(8)}) + b"PK\x05\x06 is the magic " + b"PK\x05\x06" * 3)
    assert len(tensors(source)) == 1


def zip_with_pickle(raw: bytes) -> bytes:
    """A torch zip whose data.pkl is `raw`."""
    plain = torch_zip_bytes({"a": bytes(8)})
    old = state_dict_pickle({"a": 2})
    assert plain.count(old) == 1
    room = len(old)
    if len(raw) <= room:
        return plain.replace(old, raw.ljust(room, b"\0"))
    import io
    import zipfile

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", raw)
        archive.writestr("archive/data/0", bytes(8))
    return stream.getvalue()


@pytest.mark.parametrize(
    "raw",
    [
        b"N.",
        b"garbage",
        b"]" * 300_000 + b"a" * 299_999 + b".",
        b"((((((.",
        pickle.dumps({"storage": ("storage", None, "0", "cpu", 2)}),
        b"(X\x07\x00\x00\x00storageNNNNtQ.",
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000NJ\xff\xff\xff\xfftQ.",
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x07\x00\x00\x00../../0NK\x01tQ.",
        b"ctorch._utils\n_rebuild_tensor_v2\nN\x85R.",
        b"ctorch._utils\n_rebuild_qtensor\n(NNNNNtR.",
        b"ctorch._utils\n_rebuild_sparse_tensor\n(NNtR.",
        b"ctorch._utils\n_rebuild_parameter\n)R.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(NNNNtR.",
        b"ccollections\nOrderedDict\n](K\x01K\x02e\x85R.",
    ],
)
def test_hostile_pickles_in_a_zip(raw):
    """Pickles that are broken, deep or of wrong types leave a readable file without wrong tensors."""
    assert all(s.length == 8 for s in tensors(read(zip_with_pickle(raw))))


def test_shapes_are_not_trusted():
    """Shapes of absurd sizes and types give no shape, and the tensor keeps its bytes."""
    head = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    head += b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"
    huge = b"\x8a\x10" + b"\x7f" * 16
    for offset, shape, strides in (
        (huge, huge + b"\x85", b"K\x01\x85"),
        (b"N", b"N", b"N"),
        (b"K\x00", b"(" + b"K\x01" * 1000 + b"t", b")"),
        (b"J\xff\xff\xff\xff", b"J\xff\xff\xff\xff\x85", b"X\x01\x00\x00\x00a\x85"),
    ):
        (segment,) = tensors(read(zip_with_pickle(head + offset + shape + strides + b"\x89NtR.")))
        assert segment.length == 8
        assert segment.views[0].shape in {None, (1,) * 1000}
        assert segment.views[0].offset == 0


def test_legacy_lies_are_noticed():
    """Counts that are negative, too large or leave a rest make the whole file plain bytes."""
    raw = python2_legacy()
    first = raw.index(struct.pack("<q", 6) + struct.pack("<f", 1))
    for count in (-1, 5, 7, 1 << 40, -(1 << 63), (1 << 63) - 1):
        source = read(raw[:first] + struct.pack("<q", count) + raw[first + 8 :])
        assert tensors(source) == []
        assert source.warnings


def test_a_legacy_storage_listed_twice_is_refused():
    """Every storage stands once in the list of keys."""
    raw = python2_legacy().replace(b"(U\x03111U\x03222e.", b"(U\x03111U\x03111e.")
    assert tensors(read(raw)) == []


def test_safetensors_with_a_million_levels():
    """Deep JSON is refused by the parser, not by the stack."""
    for text in ("{" + '"a":{' * 500_000, '{"a":' + "[" * 1_000_000):
        assert tensors(read(safetensors_bytes({}, b"", text=text))) == []


def test_a_header_longer_than_allowed_is_not_read():
    """A length above the library's limit is refused before the header is read."""

    class Huge:
        size = 1 << 36

        def read_at(self, offset, length):
            assert length <= 512
            return (struct.pack("<Q", 1 << 35) + b"{" + bytes(512))[offset : offset + length]

    source = read_source(Huge())
    assert source.format == "safetensors"
    assert "longer than" in source.warnings[0]


def test_a_metadata_pipe_does_not_block(tmp_path):
    """A `.metadata` that is a pipe, a folder, too large or damaged is as good as none."""
    raw = torch_zip_bytes({"a": bytes(8)})
    metadata = tmp_path / ".metadata"
    os.mkfifo(metadata)
    assert read(raw, tmp_path / "__0_0.distcp").format == "torch-zip"
    metadata.unlink()
    metadata.mkdir()
    assert read(raw, tmp_path / "__0_0.distcp").format == "torch-zip"
    metadata.rmdir()
    with metadata.open("wb") as out:
        out.truncate(1 << 33)
    assert read(raw, tmp_path / "__0_0.distcp").format == "torch-zip"
    metadata.write_bytes(b"garbage")
    assert read(raw, tmp_path / "__0_0.distcp").format == "torch-zip"
    assert read(raw, tmp_path / "missing" / "x").format == "torch-zip"


def test_a_mistake_in_a_reader_is_survived(monkeypatch):
    """Should a reader fail in a way nobody thought of, the file is kept as plain bytes."""

    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(sniff, "_read", fail)
    source = read_source(MemoryBytes(b"some bytes"))
    assert source.warnings == ("the file could not be understood; kept as plain bytes",)
    assert [s.length for s in source.segments] == [10]


def test_read_errors_pass():
    """An OSError is not the file's fault, and is left to the caller."""

    class Failing:
        size = 100

        def read_at(self, _offset, _length):
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        read_source(Failing())


def test_the_collector_is_left_as_it_was():
    """Reading pauses the garbage collector, and puts it back as it found it."""
    import gc

    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            read(torch_zip_bytes({"a": bytes(8)}))
            assert gc.isenabled() == enabled
        finally:
            gc.enable()
