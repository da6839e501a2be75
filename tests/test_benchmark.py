"""`nvckpt bench`: what it measures, what every output of it says, and what it refuses."""

import csv
import io
import json
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from command import Shell
from test_cli_words import model

import nvckpt
from nvckpt import benchmark, benchmark_cuda, benchmark_peers, samples
from nvckpt.benchmark import BenchOptions, measure
from nvckpt.benchmark_codecs import parse_all
from nvckpt.benchmark_rows import as_csv, as_markdown
from nvckpt.codecs import blocks
from nvckpt.codecs.content import Content
from nvckpt.codecs.errors import CodecUnavailableError, InvalidLevelError, UnknownNameError
from nvckpt.errors import InvalidRequestError, VerificationError

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "sample_data" / "checkpoints"
FILE = SAMPLES / "dense_mixed.pt"


@pytest.fixture
def sh(tmp_path):
    model(tmp_path)
    return Shell(tmp_path)


def checkpoint(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """A safetensors file; two-byte integers stand for BF16."""
    names = {"float32": "F32", "uint16": "BF16", "int8": "I8"}
    header, offset = {}, 0
    for name, array in tensors.items():
        dtype = names[str(array.dtype)]
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in tensors.values()))
    return path


# Codecs as they are asked for.


def test_codec_specs():
    """Settings follow a colon; `all` is every codec, and a level that one of them lacks is its default there."""
    ans, zstd, fast, auto = parse_all(["ans:chunk=1MiB", "zstd:level=3", "float:level=max", "auto"])
    assert (ans.name, ans.chunk) == ("ans", 1 << 20)
    assert (zstd.name, zstd.level, fast.level, auto.text) == ("zstd", 3, "max", "auto")
    every = {spec.name: spec for spec in parse_all(["all"], 19)}
    assert {"auto", "float", "zstd", "ans"} <= set(every)
    assert [spec.level for spec in BenchOptions(level=9).specs("cpu")] == [9, "default", "fast", 9, 9, "default", 9, 9]
    assert "ans" in {spec.name for spec in BenchOptions().specs("cuda:0")}
    assert (every["zstd"].text, every["snappy"].level) == ("zstd:level=19", "default")


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("zst", UnknownNameError, "choose one of auto, store, zstd"),
        ("zstd:speed=3", InvalidRequestError, "unknown setting 'speed'"),
        ("zstd:level=99", InvalidLevelError, "levels 1 to 22"),
        ("zstd:chunk=big", InvalidRequestError, "is no size"),
        ("zstd:chunk=1GiB", InvalidRequestError, "is no size"),
        ("zstd:chunk=64MiB", InvalidLevelError, "1 byte to 16 MiB"),
        ("ans:chunk=0", InvalidLevelError, "1 byte to 16 MiB"),
        ("float:chunk=1MiB", InvalidLevelError, "no chunks"),
    ],
)
def test_codec_specs_that_cannot_be(text, error, sentence):
    """Each is a sentence that names what can."""
    with pytest.raises(error, match=sentence):
        parse_all([text])


def test_chunk_size_reaches_the_stream():
    """More and smaller chunks cost a little; each decodes."""
    data = FILE.read_bytes()[:1_000_000]
    sizes = []
    for chunk in (None, 64 << 10, 1000):
        block = blocks.encode(data, Content(), blocks.Choice("deflate", "default", chunk))
        assert blocks.decode(block, len(data)) == data
        assert struct.unpack_from("<I", block.streams[0].data)[0] == (chunk or 1 << 20)
        sizes.append(block.encoded_size)
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 3


# Samples.


def test_sample_is_bounded_and_spread_and_read_alone(tmp_path, monkeypatch):
    """Pieces of whole rows from all over each group, and nothing else of it is read."""
    rows = np.arange(4096, dtype=np.uint16)
    weights = np.repeat(rows[:, None], 2048, axis=1)  # 16 MiB in which each row says which it is
    path = checkpoint(tmp_path / "w.safetensors", {"a.weight": weights, "b.weight": np.ones((64, 64), np.float32)})
    read = []
    original = samples.files.FileBytes.read_at

    def counted(self, offset, length):
        read.append(length)
        return original(self, offset, length)

    monkeypatch.setattr(samples.files.FileBytes, "read_at", counted)
    sample = samples.take([str(path)], 4 << 20)
    parts = sample.parts["weights"]
    assert not sample.whole
    assert sample.sizes["weights"] == weights.nbytes + 64 * 64 * 4
    assert len(parts) == 4
    assert sum(p.represents for p in parts) == pytest.approx(sample.sizes["weights"])
    for part in parts:
        words = np.frombuffer(part.data, np.uint16)
        assert part.content.matrices == ((len(words) // 2048, 2048),)
        assert (words.reshape(-1, 2048) == words.reshape(-1, 2048)[:, :1]).all()
    middles = [np.frombuffer(part.data, np.uint16).mean() for part in parts]
    assert middles == pytest.approx([512, 1536, 2560, 3584], abs=20)
    assert sum(read) < 6 << 20


def test_sample_of_everything_is_everything(tmp_path):
    """A budget of 0, or one that suffices, takes all bytes."""
    for budget in (0, 1 << 30):
        sample = samples.take([str(FILE)], budget)
        assert sample.whole
        assert sum(sample.sizes.values()) == FILE.stat().st_size


def test_sample_of_odd_blocks_is_what_they_hold(tmp_path, monkeypatch):
    """Experts, vectors and whole numbers: each piece is a stretch of the file, its matrices account for it."""
    monkeypatch.setattr(samples, "_SMALLEST_PIECE", 40_000)
    rng = np.random.default_rng(1)
    tensors = {
        "experts.weight": rng.standard_normal((6, 100, 200)).astype(np.float32),
        "long.weight": rng.standard_normal((9, 20_000)).astype(np.float32),
        "vector.weight": rng.standard_normal(100_001).astype(np.float32),
        "codes.weight": rng.integers(-9, 9, (300, 999)).astype(np.int8),
    }
    path = checkpoint(tmp_path / "odd.safetensors", tensors)
    content = path.read_bytes()
    sample = samples.take([str(path)], 200_000)
    assert sum(len(parts) for parts in sample.parts.values()) > 8
    for parts in sample.parts.values():
        for part in parts:
            assert bytes(part.data) in content
            words = len(part.data) // part.content.word
            counted = sum(rows * (cols or 1) for rows, cols in part.content.matrices)
            assert not part.content.matrices or counted == words
            choice = blocks.Choice()
            block = blocks.encode(part.data, part.content, choice)
            assert blocks.decode(block, len(part.data)) == part.data


# Rows.


def test_rows_are_those_of_the_codec():
    """Sizes are what coding every block gives, bits and rates follow from them."""
    result = measure([FILE], BenchOptions(codecs=("zstd", "float"), runs=2))
    rows = {(r["codec"], r["group"]): r for r in result.records()}
    sample = samples.take([str(FILE)], 0)
    for codec in ("zstd", "float"):
        for group, parts in sample.parts.items():
            row = rows[codec, group]
            coded = [blocks.encode(p.data, p.content, blocks.Choice(codec)).encoded_size for p in parts]
            assert row["bytes_in"] == sum(len(p.data) for p in parts)
            assert row["bytes_out"] == sum(coded)
            values = sum(len(p.data) // p.content.word for p in parts)
            assert row["bits_per_value"] == pytest.approx(8 * sum(coded) / values, rel=1e-4)
            assert row["encode_gb_s"] == pytest.approx(row["bytes_in"] / row["encode_seconds"] / 1e9, rel=1e-3)
        every = rows[codec, "all"]
        assert every["bytes_in"] == FILE.stat().st_size
        assert every["runs"] == 2
        whole = rows[codec, "file"]
        assert whole["bytes_in"] == every["bytes_in"]
        assert whole["bytes_out"] == pytest.approx(every["bytes_out"], abs=9000)


def test_a_codec_that_lies_is_found(monkeypatch):
    """The bytes that come back are compared, all of them."""
    original = blocks.decode

    def wrong(block, size):
        out = original(block, size)
        out[-1] ^= 1
        return out

    monkeypatch.setattr(blocks, "decode", wrong)
    with pytest.raises(VerificationError, match="did not give the bytes"):
        measure([FILE], BenchOptions(codecs=("zstd",), runs=1, whole_file=False))


def test_tiles_change_no_ratio():
    """Blocks are coded alone, however often they are there."""
    once, tiled = (
        measure([FILE], BenchOptions(codecs=("float",), groups=("grads",), runs=1, tile=tile)).rows[0]
        for tile in (0, 1 << 20)
    )
    assert tiled.bytes_in >= 1 << 20
    assert tiled.ratio == once.ratio


def test_stages_of_a_file_are_in_its_row():
    """What compressing reports of its stages is added up and shown."""
    result = measure([FILE, FILE], BenchOptions(codecs=("zstd",), groups=("grads",), runs=1, whole_file=True))
    row = result.records()[-1]
    assert row["group"] == "file"
    assert {"read", "encode", "write"} <= set(row["stages"])
    assert 0 < row["stages"]["encode"] < 2 * row["encode_seconds"]
    assert (
        f"encode {row['stages']['encode']}"
        in next(reversed(list(csv.DictReader(io.StringIO(as_csv([row]))))))["stages"]
    )


# The GPU's rows, on a device that is none.


class HostDevice:
    """Arrays of NumPy and the host's clock in the place of a GPU."""

    def __init__(self):
        self.calls = 0

    def upload(self, data):
        return np.frombuffer(data, np.uint8).copy()

    def empty(self, size):
        return np.empty(size, np.uint8)

    def fill(self, array, value):
        array[:] = value

    def equal(self, one, other):
        return bool((one == other).all())

    def place(self, data):
        return self.upload(data), memoryview(data)

    def timed(self, call):
        self.calls += 1
        started = time.perf_counter()
        result = call()
        spent = time.perf_counter() - started
        return result, spent / 2, spent

    def conditions(self):
        return {"gpu": "none", "driver": "0"}


@dataclass
class HostBlocks:
    """`cuda_blocks` as it is called: one call a batch."""

    wrong: bool = False
    batches: tuple = ()

    def encode(self, arrays, contents, choice):
        self.batches += (len(arrays),)
        if choice.codec == "snappy":
            raise CodecUnavailableError("codec 'snappy' needs something else")
        return [blocks.encode(a.tobytes(), c, choice) for a, c in zip(arrays, contents, strict=True)]

    def decode(self, coded, outs, heads):
        for block, out, tables in zip(coded, outs, heads, strict=True):
            assert all(isinstance(stream.data, np.ndarray) for stream in block.streams)
            assert [bytes(table) for table in tables] == [stream.data.tobytes() for stream in block.streams]
            out[:] = np.frombuffer(blocks.decode(block, len(out)), np.uint8)
            out[:1] ^= self.wrong


class HostBatch:
    """One call for chunks of a group, in the place of nvCOMP's."""

    def __init__(self, arrays, outs=None):
        self.arrays, self.outs = arrays, outs
        self.sizes = np.array([len(a) for a in arrays])
        self.buffer_sizes = [len(a) // 2 for a in arrays]

    def encode(self):
        return self

    def decode(self):
        for array, out in zip(self.arrays, self.outs, strict=True):
            out[:] = array


class HostVendor:
    """`nvcomp` as its calls are prepared."""

    def encoding_calls(self, arrays, name, elements, level, chunk):
        assert len(elements) == len(arrays)
        assert (name, level, chunk) == ("zstd", "default", 4096)
        return [(0, HostBatch(arrays))]

    def decoding_calls(self, coded, outs, name, elements, level, chunk):
        ((_, call, _),) = coded
        return [HostBatch(call.arrays, outs)]


@pytest.fixture
def gpu(monkeypatch):
    """A benchmark that believes to have a GPU."""
    device, coder = HostDevice(), HostBlocks()
    monkeypatch.setattr(benchmark.device, "resolve", lambda name, size=None, **_: "cuda:0")
    monkeypatch.setattr(benchmark_cuda.engines, "cannot_on_gpu", lambda choice: None)
    monkeypatch.setattr(
        benchmark_cuda,
        "connect",
        lambda name, runs: benchmark_cuda.CudaCoder(device, coder, runs, name, HostVendor()),
    )
    return device, coder


def test_gpu_rows(gpu):
    """All blocks of a group go in one call; the figures are those between events, the host's stand beside them.

    nvCOMP's own calls have rows beside those of the whole way through nvckpt.
    """
    device, coder = gpu
    options = BenchOptions(codecs=("zstd:chunk=4KiB", "snappy", "zstd:chunk=1000"), runs=3, whole_file=False)
    result = measure([FILE], options)
    parts = samples.take([str(FILE)], 0).parts
    rows = {(row.codec, row.group): row for row in result.rows}
    choice = blocks.Choice("zstd", "default", 4096)
    for group in parts:
        row = rows["zstd:chunk=4KiB", group]
        assert row.device == "cuda:0"
        coded = [blocks.encode(part.data, part.content, choice).encoded_size for part in parts[group]]
        assert row.bytes_out == sum(coded)
        assert len(row.encode_runs) == 3
        assert [host / event for host, event in zip(row.host_encode_runs, row.encode_runs, strict=True)] == [2, 2, 2]
        alone = rows["zstd:chunk=4KiB, nvCOMP alone", group]
        assert alone.bytes_out == sum(len(part.data) // 2 for part in parts[group])
        assert rows["snappy", group].problem == "codec 'snappy' needs something else"
        assert "a multiple of 16" in rows["zstd:chunk=1000", group].problem
    assert set(coder.batches) == {len(p) for p in parts.values()}
    for codec in ("zstd:chunk=4KiB", "zstd:chunk=4KiB, nvCOMP alone"):
        assert rows[codec, "all"].bytes_in == FILE.stat().st_size
    assert result.conditions["gpu"] == "none"
    # Two calls more than is measured, for each direction, of both kinds of rows.
    assert device.calls == len(parts) * (2 * 2 * 5) + len(parts)


def test_gpu_round_trip_is_compared(gpu):
    """A wrong byte is no row but an error."""
    gpu[1].wrong = True
    with pytest.raises(VerificationError, match="did not give the bytes"):
        measure([FILE], BenchOptions(codecs=("zstd",), runs=1, whole_file=False))


# Peers.


def test_peers_have_rows_or_say_why_not(monkeypatch):
    """A missing program or package is a row with a sentence; the others are measured."""
    monkeypatch.setattr(benchmark_peers.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "zipnn", None)
    monkeypatch.setitem(sys.modules, "lmz.codec", None)
    options = BenchOptions(codecs=("store",), groups=("grads",), runs=1, peers=True)
    rows = {row.codec: row for row in measure([FILE], options).rows}
    assert "not installed" in rows["peer zstd -T0 -3"].problem
    assert all("not usable here" in rows[f"peer {name}"].problem for name in ("lmz", "zipnn"))
    assert rows["store"].problem is None


def test_peer_is_measured_and_compared():
    """A peer's rows are like ours; what it does not take is left out; a wrong byte is an error."""

    def peer(decode):
        return benchmark_peers.Peer(
            "peer x", lambda content: content.is_float, lambda data, _: bytes(data[:-1]), decode, len, spoils=True
        )

    parts = samples.take([str(FILE)], 0, ("grads", "rng")).parts
    last = {bytes(p.data[:-1]): bytes(p.data) for p in parts["grads"]}
    rows = list(benchmark_peers._package_rows(peer(lambda coded, *_: last[coded]), parts, 2, 1))
    figures = {row.group: row for row in rows if row.problem is None}
    assert set(figures) == {"grads", "all"}
    assert figures["grads"].bytes_out == figures["grads"].bytes_in - len(parts["grads"])
    assert len(figures["all"].decode_runs) == 2
    with pytest.raises(VerificationError, match="peer x did not give"):
        list(benchmark_peers._package_rows(peer(lambda coded, *_: coded + b"?"), parts, 1, 1))


# What the outputs say.


def cells(entry):
    return entry | {"stages": "; ".join(f"{name} {seconds}" for name, seconds in entry["stages"].items())}


def test_outputs_agree_to_the_digit(sh):
    """JSON, CSV, Markdown, table and plot show the same figures of one measurement."""
    pytest.importorskip("matplotlib")
    from nvckpt.benchmark_plot import draw

    result = measure([FILE], BenchOptions(codecs=("zstd", "float"), runs=1))
    records = json.loads(json.dumps(result.records()))
    for line, entry in zip(csv.DictReader(io.StringIO(as_csv(records))), records, strict=True):
        assert {k: v for k, v in line.items() if v} == {
            k: str(v) for k, v in cells(entry).items() if v not in (None, "")
        }
    text = as_markdown(records)
    draw(records, str(sh.folder / "x.svg"), result.conditions)
    picture = (sh.folder / "x.svg").read_text()
    for entry in records:
        assert f"| {entry['codec']} | {entry['group']} | {entry['ratio']} |" in text
        if entry["group"] == "all":
            shown = f"{entry['codec']}: {entry['ratio']:.3f}, {entry['encode_gb_s']:g} / {entry['decode_gb_s']:g}"
            assert shown in picture
    assert "GB/s of original bytes" in picture
    assert all(f">{speed}<" in picture for speed in (1, 5, 10, 25, 55))


def test_frame_is_the_records():
    """`nvckpt.bench` gives a pandas frame, with `all` and the conditions."""
    pytest.importorskip("pandas")
    frame = nvckpt.bench(FILE, BenchOptions(codecs=("zstd",), groups=("grads",), runs=1))
    assert list(frame["group"]) == ["grads", "all"]
    assert frame["ratio"].min() > 1
    assert frame.attrs["conditions"]["files"] == ["dense_mixed.pt"]


def test_frame_without_pandas_names_the_remedy(monkeypatch):
    """Before anything is measured."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidRequestError, match=r"pip install '\.\[pandas\]'"):
        nvckpt.bench(FILE)


def test_bench_of_a_checkout_takes_its_samples(monkeypatch):
    """Without arguments; an installed package has none and says so."""
    assert {Path(name) for name in benchmark._sample_files()} == set(SAMPLES.iterdir())
    monkeypatch.setattr(benchmark.conditions, "checkout", lambda: None)
    with pytest.raises(InvalidRequestError, match="name a file"):
        measure()


def test_words_csv_markdown_and_plot(sh):
    """Each shows every group of each codec, and what the figures depend on."""
    pytest.importorskip("matplotlib")
    arguments = ["bench", "--codec", "zstd", "--codec", "ans", "--runs", "1", "m.safetensors"]
    done = sh(*arguments, "--plot", "p.png", check=0)
    assert (sh.folder / "p.png").read_bytes().startswith(b"\x89PNG")
    words = done.text
    assert all(word in words for word in ("weights", "all", "file", "nvckpt", "threads", "ans: needs an NVIDIA GPU"))
    lines = sh(*arguments, "--csv", check=0).text.splitlines()
    assert lines[0].startswith("codec,group,device,ok,problem,bytes_in")
    assert len(lines) == 1 + 6
    text = sh(*arguments, "--markdown", check=0).text
    assert "| zstd | all | " in text
    assert "- On cpu" in text


def test_a_plot_that_fails_takes_no_figures_along(sh):
    """They are printed before, the error names the file, and what was there stays."""
    pytest.importorskip("matplotlib")
    (sh.folder / "full.png").symlink_to("/dev/full")
    done = sh("bench", "--codec", "lz4", "--runs", "1", "--plot", "full.png", "m.safetensors", check=1)
    assert "weights" in done.text
    assert done.err == "nvckpt: cannot write /dev/full: no space left on the device\n"
    done = sh("bench", "--codec", "ans", "--plot", "p.png", "m.safetensors", check=1)
    assert "ans: needs an NVIDIA GPU" in done.text
    assert not (sh.folder / "p.png").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--codec", "nothing"], 2, "unknown codec 'nothing': choose one of auto"),
        (["--group", "nothing"], 2, "unknown group 'nothing': choose from weights"),
        (["--group", "ema"], 2, "nothing to measure: no bytes in the groups asked for (ema)"),
        (["--codec", "ans"], 1, "ans: needs an NVIDIA GPU"),
        (["--json", "--csv"], 2, "choose one of"),
        (["--plot", "x.pdf"], 2, "a plot is a .png or .svg file"),
        (["--plot", "no/where.png"], 2, "there is no folder no"),
        (["--plot", "d.png"], 2, "d.png is a directory: name a file for the plot"),
        (["--sample", "-1"], 2, "greater than or equal to 0"),
        (["plain"], 2, "no tensors were found in 2 files"),
    ],
    ids=str,
)
def test_requests_that_cannot_be(sh, arguments, code, sentence):
    """One sentence each; a codec that cannot run is exit 1 only where it is the only one."""
    (sh.folder / "plain").write_bytes(b"no tensors here" * 100)
    (sh.folder / "d.png").mkdir()
    file = "plain" if arguments == ["plain"] else "m.safetensors"
    done = sh("bench", "--runs", "1", *arguments, file, check=code)
    assert sentence in (done.err if code == 2 else done.text)
