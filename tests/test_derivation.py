"""Tensors that follow from earlier ones are found in files as frameworks lay them out, and the files come back."""

import json
import struct
import warnings

import numpy as np
import pytest

import nvckpt
from nvckpt import derivation, plan
from nvckpt.codecs.registry import COPY, REMAINDER, ROUNDED
from nvckpt.codecs.rounding import BF16, FP16, ROUNDINGS
from nvckpt.compression import CompressOptions
from nvckpt.decompression import DecompressOptions
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.container import ArchiveReader
from nvckpt.formats.sniff import read_source
from nvckpt.frames import decode_frame, references_of

RNG = np.random.default_rng(11)


def master(count: int = 70_000) -> np.ndarray:
    return RNG.normal(0, 0.02, count).astype(np.float32)


def half(values: np.ndarray, kind: int = BF16) -> np.ndarray:
    return ROUNDINGS[kind].round(values.view(np.uint32))


def safetensors(**tensors: np.ndarray) -> bytes:
    """A file with the tensors in the order given; 16-bit words are BF16, or F16 by a name that says so."""
    header, body = {}, b""
    for name, values in tensors.items():
        dtype = {4: "F32", 8: "F64"}.get(values.itemsize) or ("F16" if "fp16" in name else "BF16")
        shape = [len(values)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + values.nbytes]}
        body += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def found(data: bytes) -> list[tuple[str, str, int, int]]:
    """(target, source, codec, depth) by tensor names, in file order."""
    source = read_source(MemoryBytes(data))
    names = {s.offset: s.views[0].name for s in source.segments if s.dtype}
    runs = derivation.find_runs(source.segments, MemoryBytes(data))
    return [(names[r.offset], names[r.source], r.codec_id, r.depth) for offset in runs for r in runs[offset]]


def compressed(data: bytes, folder, **options) -> bytes:
    """Compress, decompress, compare; the archive."""
    source, archive = folder / "source", folder / "source.nvckpt"
    source.write_bytes(data)
    nvckpt.compress(source, archive, CompressOptions(force=True, **options))
    nvckpt.decompress(archive, folder / "back", DecompressOptions(force=True))
    assert (folder / "back").read_bytes() == data
    return archive.read_bytes()


def test_copies_of_masters_and_masters_of_copies_are_found():
    """In either order, BF16 and FP16, and duplicates of any of them."""
    a, b, c, d = (master(n) for n in (70_000, 70_001, 1025, 600))
    data = safetensors(
        a=a,
        b16=half(b),
        a16=half(a),
        c_fp16=half(c, FP16),
        d=d,
        b=b,
        c=c,
        d_fp16=half(d, FP16),
        a_again=a,
        b_ema=b,
        b16_ema=half(b),
    )
    assert found(data) == [
        ("a16", "a", ROUNDED, 1),
        ("b", "b16", REMAINDER, 1),
        ("c", "c_fp16", REMAINDER, 1),
        ("d_fp16", "d", ROUNDED, 1),
        ("a_again", "a", COPY, 1),
        ("b_ema", "b", COPY, 2),
        ("b16_ema", "b16", COPY, 1),
    ]


def test_nothing_is_found_where_nothing_is():
    """Equal sizes, constants, small tensors and other values are no reason."""
    a = master(4000)
    nearly = a.copy()
    nearly[:] = np.nextafter(a, np.float32(1))
    tensors = {"a": a, "b": master(4000), "zero": np.zeros(4000, np.float32), "zeros": np.zeros(4000, np.float32)}
    assert found(safetensors(**tensors, a16=half(-a), nearly=nearly, tiny=a[:200], tiny16=half(a[:200]))) == []


@pytest.mark.parametrize("flat_first", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1)])
def test_tensors_in_a_flat_buffer_are_found(flat_first, order, tmp_path):
    """ZeRO's and FSDP's masters: one after the other in any order, with padding, one that begins with zeros."""
    parts = [master(n) for n in (5000, 700, 4096, 3001)]
    parts[0][:40] = 0
    pieces = []
    for number in order:
        pieces += [parts[number], np.zeros(-len(parts[number]) % 128, np.float32)]
    flat = np.concatenate([*pieces, np.zeros(999, np.float32)])
    halves = {f"w{i}": half(part) for i, part in enumerate(parts)}
    tensors = {"flat": flat, **halves} if flat_first else {**halves, "flat": flat}
    data = safetensors(**tensors)
    runs = derivation.find_runs(read_source(MemoryBytes(data)).segments, MemoryBytes(data))
    codec = ROUNDED if flat_first else REMAINDER
    every = [run for offset in runs for run in runs[offset]]
    assert len(every) == 4 and {run.codec_id for run in every} == {codec}
    assert sum(run.length for run in every) == (2 if flat_first else 4) * sum(map(len, parts))
    assert len(compressed(data, tmp_path)) < 4 * len(flat) * 0.86


def test_torch_file_with_shared_and_strided_storages(tmp_path):
    """Views of one flat storage are found one by one; transposed and tied tensors come back."""
    torch = pytest.importorskip("torch")
    flat = torch.from_numpy(master(12_000))
    views = [flat[:6000].view(60, 100), flat[6000:].view(80, 75).t()]
    model = {"w1": flat[:6000].view(60, 100).bfloat16(), "w2": flat[6000:].bfloat16(), "tied": None}
    model["tied"] = model["w1"]
    path = tmp_path / "state.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save({"model": model, "optimizer": {"state": {0: {"param": views[0]}, 1: {"param": views[1]}}}}, path)
    data = path.read_bytes()
    runs = derivation.find_runs(read_source(MemoryBytes(data)).segments, MemoryBytes(data))
    assert sorted(run.length for offset in runs for run in runs[offset]) == [24_000, 24_000]
    assert len(compressed(data, tmp_path)) < 0.80 * 12_000 * 6


def test_archive_does_not_depend_on_threads_or_pipes(tmp_path, monkeypatch):
    """Small windows: sources lie in other windows, are cut elsewhere, and pooled."""
    monkeypatch.setattr(plan, "WINDOW", 96 << 10)
    monkeypatch.setattr(plan, "_OWN_BLOCK", 16 << 10)
    a = master(60_000)
    small = {f"n{i}": master(400 + i) for i in range(300)}
    copies = {f"n{i}_copy": v for i, v in reversed([*enumerate(small.values())])}
    data = safetensors(a16=half(a), **small, a=a, again=a, **copies, a16_again=half(a))
    archives = {compressed(data, tmp_path, threads=n) for n in (1, 2, 5)}
    assert len(archives) == 1
    archive = archives.pop()
    assert len(archive) < 60_000 * 4 * 1.01 + sum(v.nbytes for v in small.values()) * 0.98
    reader = ArchiveReader(MemoryBytes(archive))
    references = references_of(reader)
    for number, frame in enumerate(reader.frames):
        alone = decode_frame(reader, number)
        assert alone == decode_frame(reader, number, references)
        assert alone == b"".join(data[at : at + length] for at, length in frame.header.extents)
    assert max(len(frame.header.references) for frame in reader.frames) > 1
    assert nvckpt.verify(tmp_path / "source.nvckpt").damage == ()


def test_claim_that_does_not_hold_costs_nothing(tmp_path):
    """The sampled words agree, others do not: coded as if nothing had been found."""
    a = master(300_000)
    wrong = half(a)
    wrong[1000:40_000] ^= 1
    again = a.copy()
    again[150_001] = 7
    data = safetensors(a=a, wrong=wrong, again=again)
    assert [codec for _, _, codec, _ in found(data)] == [ROUNDED, COPY]
    plain = compressed(data, tmp_path, codec="float")
    assert len(compressed(data, tmp_path)) <= len(plain) + 64
    assert not any(
        f.header.references for f in ArchiveReader(MemoryBytes((tmp_path / "source.nvckpt").read_bytes())).frames
    )


def test_few_exceptions_are_paid_one_by_one(tmp_path):
    """A NaN that another framework rounds otherwise does not spoil a tensor."""
    a = master(80_000)
    a[500::999] = np.nan
    copied = half(a)
    copied[np.isnan(a)] = 0x7FFF
    archive = compressed(safetensors(a=a, copied=copied), tmp_path)
    frames = ArchiveReader(MemoryBytes(archive)).frames
    assert [f.header.payload_size for f in frames if f.header.references] == [6 * int(np.isnan(a).sum())]


def test_only_auto_derives(tmp_path):
    """A codec asked for by name codes everything."""
    a = master()
    data = safetensors(a=a, a16=half(a))
    for codec in ("zstd", "float", "store"):
        archive = compressed(data, tmp_path, codec=codec)
        assert not any(f.header.references for f in ArchiveReader(MemoryBytes(archive)).frames)


def test_damage_names_every_tensor_that_depends_on_it(tmp_path):
    """A lost master takes its copy and the copy's duplicate with it, and says why; others are sound."""
    a, b = master(), master()
    data = safetensors(a16=half(a), other=b, a=a, a_ema=a, other16=half(b))
    archive = bytearray(compressed(data, tmp_path))
    reader = ArchiveReader(MemoryBytes(bytes(archive)))
    frame = next(
        f
        for f in reader.frames
        if f.header.extents[0][0] == min(s.offset for s in read_source(MemoryBytes(data)).segments if s.dtype)
    )
    archive[frame.end - 100] ^= 1
    (tmp_path / "damaged.nvckpt").write_bytes(archive)
    damage = nvckpt.verify(tmp_path / "damaged.nvckpt").damage
    assert [d.names for d in damage] == [("a16",), ("a",), ("a_ema",)]
    assert all("compressed bytes are damaged" in d.reason for d in damage)
    assert all("follows from bytes" in d.reason for d in damage[1:])


def test_file_that_shrinks_while_it_is_searched_is_told(tmp_path, monkeypatch):
    """The sampler reads where the file no longer is."""
    a = master()
    path = tmp_path / "source"
    path.write_bytes(safetensors(a=a, a16=half(a)))
    find = derivation.find_runs

    def shrink(segments, data):
        path.write_bytes(b"")
        return find(segments, data)

    monkeypatch.setattr("nvckpt.compression.find_runs", shrink)
    with pytest.raises(nvckpt.errors.SourceChangedError, match="shorter"):
        nvckpt.compress(path)


def test_stretch_of_many_equal_tensors_reads_little(tmp_path):
    """Searching costs a few KiB a tensor, whatever the file's size."""

    class Counted(MemoryBytes):
        taken = 0

        def read_at(self, offset, length):
            self.taken += length
            return super().read_at(offset, length)

    data = safetensors(
        **{f"w{i}": master(200_000) for i in range(8)}, **{f"h{i}": half(master(200_000)) for i in range(8)}
    )
    counted = Counted(data)
    assert derivation.find_runs(read_source(MemoryBytes(data)).segments, counted) == {}
    assert counted.taken < 16 * 4096


def test_list_tells_the_models_and_what_they_saved(tmp_path):
    """What each tensor follows from, by name, and what it would have cost, told by its source."""
    from nvckpt.listing import inspect

    a, b = master(), master(50_000)
    sparse = np.where(RNG.random(70_000) < 0.5, master(), 0).astype(np.float32)
    wide = master(80_000).astype(np.float16).astype(np.float32)
    compressed(safetensors(a=a, a16=half(a), b16=half(b), b=b, b_ema=b, sparse=sparse, wide=wide), tmp_path)
    told = {t.names[0]: t for t in inspect(tmp_path / "source.nvckpt", models=True).tensors if t.names}
    assert {name: t.model for name, t in told.items()} == {
        "a": "float log",
        "a16": "rounded from a",
        "b16": "float log",
        "b": "low bits beside b16",
        "b_ema": "copy of b",
        "sparse": "float log zeros",
        "wide": "FP16 in FP32, float rotated",
    }
    alone = {name: (t.saved or 0) + t.bytes_out for name, t in told.items()}
    assert alone["a16"] == pytest.approx(told["b16"].bytes_out * 1.4, rel=0.02)
    assert alone["b"] == pytest.approx(alone["b_ema"], rel=0.01)
    assert alone["b"] == pytest.approx(told["a"].bytes_out * 5 / 7, rel=0.02)
    assert all(t.model == "" and t.saved is None for t in inspect(tmp_path / "source.nvckpt").tensors)
