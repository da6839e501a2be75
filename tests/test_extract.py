"""`nvckpt extract`: the values that torch or safetensors would load, decoded from what they need and nothing else."""

import json
import struct
import warnings
from collections import Counter

import checkpoints
import numpy as np
import pytest
from command import Shell
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import nvckpt
from nvckpt import original, tensors
from nvckpt.errors import InvalidRequestError, NoSuchTensorError, OutputExistsError, UnusableTensorError
from nvckpt.extraction import ExtractOptions
from nvckpt.formats import dtypes
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.container import ArchiveReader
from nvckpt.formats.segments import Segment, View
from nvckpt.tensors import Tensor


@pytest.fixture(params=["plain", "archive"])
def opened(request, tmp_path):
    """Make a checkpoint by name, as it is or compressed."""

    def make(name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = checkpoints.FIXTURES[name](tmp_path)
        if request.param == "plain":
            return path, path
        archive = tmp_path / "made.nvckpt"
        nvckpt.compress(path, archive, nvckpt.CompressOptions(force=True))
        return path, archive

    return make


def values(source, folder, *names, **options):
    """Extract, and read back with the safetensors library."""
    import safetensors.torch

    output = folder / "out.safetensors"
    nvckpt.extract(source, output, ExtractOptions(names, force=True, threads=1, **options))
    return safetensors.torch.load_file(output)


def same(extracted, expected) -> bool:
    """Shape, dtype and bytes."""
    import torch

    expected = expected.detach().contiguous()
    if (extracted.shape, extracted.dtype) != (expected.shape, expected.dtype):
        return False
    raw = [
        t.reshape(-1).view(torch.uint8) if t.dim() else t.reshape(1).view(torch.uint8) for t in (extracted, expected)
    ]
    return torch.equal(*raw)


def flat(state, prefix=""):
    """Tensors of nested dicts and lists by the names that nvckpt gives them."""
    import torch

    if isinstance(state, torch.Tensor):
        return {prefix: state}
    entries = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return {
        name: tensor
        for key, value in entries
        for name, tensor in flat(value, f"{prefix}.{key}" if prefix else str(key)).items()
    }


@pytest.mark.parametrize("name", ["zip_adamw", "zip_views", "legacy_views"])
def test_values_are_those_torch_loads(name, opened, tmp_path):
    """All tensors with bytes: plain ones, slices, tied, transposed and expanded ones."""
    import torch

    path, source = opened(name)
    expected = {key: t for key, t in flat(torch.load(path, weights_only=True)).items() if t.numel()}
    extracted = values(source, tmp_path, "*")
    assert set(extracted) == set(expected)
    assert all(same(extracted[key], expected[key]) for key in expected)


def test_big_endian_values_are_turned(opened, tmp_path):
    """safetensors is little-endian; torch swaps them while loading, too."""
    import torch

    path, source = opened("zip_big_endian")
    expected = flat(torch.load(path, weights_only=True))
    extracted = values(source, tmp_path, *expected)
    assert all(same(extracted[key], expected[key]) for key in expected)


def test_safetensors_come_back_with_their_empty_ones(opened, tmp_path):
    """Every tensor of the header, also one of no bytes."""
    _, source = opened("safetensors_zero_size")
    extracted = values(source, tmp_path, "*")
    assert {name: list(tensor.shape) for name, tensor in extracted.items()} == {"a": [0, 3], "b": []}
    _, source = opened("safetensors_f4")
    nvckpt.extract(source, tmp_path / "f4", ExtractOptions(("*",)))
    length = struct.unpack("<Q", (tmp_path / "f4").read_bytes()[:8])[0]
    header = json.loads((tmp_path / "f4").read_bytes()[8 : 8 + length])
    assert {name: header[name]["dtype"] for name in "ab"} == {"a": "F4", "b": "F6_E2M3"}


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype_is_written_or_refused_by_name(opened, tmp_path):
    """What safetensors has; the others only as bare bytes."""
    import torch

    path, source = opened("zip_all_dtypes")
    state = torch.load(path, weights_only=True)
    known = [name for name in state if name not in ("complex128", "complex32", "float4_e2m1fn_x2")]
    extracted = values(source, tmp_path, *known)
    assert all(same(extracted[name], state[name]) for name in known)
    for name, called in (("complex128", "C128"), ("complex32", "C32")):
        with pytest.raises(UnusableTensorError, match=f"{name} is {called}, which safetensors does not have; --raw"):
            values(source, tmp_path, name)
        nvckpt.extract(source, tmp_path / "raw", ExtractOptions((name,), raw=True, force=True))
        assert (tmp_path / "raw").read_bytes() == state[name].view(torch.uint8).numpy().tobytes()


def test_quantised_tensor_is_refused_with_the_way_out(tmp_path):
    """Its scale and zero point are elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = checkpoints.FIXTURES["zip_quantized"](tmp_path)
    with pytest.raises(UnusableTensorError, match=r"QU?INT8, which safetensors does not have"):
        nvckpt.extract(path, tmp_path / "out", ExtractOptions(("*",)))
    assert not (tmp_path / "out").exists()


def test_parts_of_sparse_tensors_have_names(opened, tmp_path):
    """Indices and values are tensors; the whole is none, and its parts are suggested."""
    _, source = opened("zip_odd_tensors")
    assert values(source, tmp_path, "sparse.values")["sparse.values"].tolist() == [1.5, 2.5]
    with pytest.raises(NoSuchTensorError, match=r"no tensor is called 'sparse'; did you mean sparse\.\w+ or sparse"):
        values(source, tmp_path, "sparse")


# Only what is needed.


@pytest.fixture
def large(tmp_path):
    """An archive of eight tensors of 300 KiB and more, and of many small ones."""
    numbers = np.random.default_rng(2)
    made = {f"block.{n}.weight": numbers.standard_normal((300, 300)).astype(np.float32) for n in range(8)}
    made |= {f"block.{n}.norm": numbers.standard_normal(300).astype(np.float32) for n in range(8)}
    save_file(made, tmp_path / "large.safetensors")
    nvckpt.compress(tmp_path / "large.safetensors")
    return tmp_path / "large.safetensors.nvckpt"


@pytest.fixture
def decoded(monkeypatch):
    """Frames by number, with how often each was decoded."""
    counts = Counter()
    decode = original.decode_frame

    def count(reader, number, *more):
        counts[number] += 1
        return decode(reader, number, *more)

    monkeypatch.setattr(original, "decode_frame", count)
    return counts


def frames_of(archive, *names):
    """The frames that restore tensors, from the index."""
    reader = ArchiveReader(MemoryBytes(archive.read_bytes()))
    wanted = [s for s in reader.description.segments if any(view.name in names for view in s.views)]
    return {
        number
        for number, frame in enumerate(reader.frames)
        for offset, length in frame.header.extents
        if any(offset < s.end and s.offset < offset + length for s in wanted)
    }


@pytest.mark.parametrize(
    "names", [["block.3.weight"], ["block.0.weight", "block.7.weight"], ["block.2.norm", "block.5.norm"]], ids=str
)
def test_only_the_frames_touched_are_decoded(names, large, decoded, tmp_path):
    """One decoding a frame, and none of another frame."""
    extracted = load_file(tmp_path / "large.safetensors")
    result = values(large, tmp_path, *names)
    assert set(result) == set(names)
    assert all(np.array_equal(result[name].numpy(), extracted[name]) for name in names)
    assert decoded == dict.fromkeys(frames_of(large, *names), 1)
    assert len(decoded) < len(ArchiveReader(MemoryBytes(large.read_bytes())).frames) / 2


def test_everything_decodes_each_frame_once(large, decoded, tmp_path):
    """Apart from the frame of the header alone, perhaps."""
    values(large, tmp_path, "*")
    assert set(decoded.values()) == {1}


def test_only_the_frames_touched_must_be_sound(large, tmp_path):
    """A tensor comes out of an archive in which another one is damaged, and the damaged one is named."""
    archive = bytearray(large.read_bytes())
    (number,) = frames_of(large, "block.3.weight")
    frame = ArchiveReader(MemoryBytes(bytes(archive))).frames[number]
    archive[frame.offset + len(frame.packed) + 1000] ^= 1
    large.write_bytes(archive)
    assert list(values(large, tmp_path, "block.4.weight")) == ["block.4.weight"]
    with pytest.raises(nvckpt.formats.errors.CorruptArchiveError, match=r"block\.3\.weight"):
        values(large, tmp_path, "block.3.weight")


# Strides.


class Bytes:
    """What Checkpoint.values needs of a checkpoint."""

    def __init__(self, data):
        self.data = data

    def stream(self, ranges):
        for offset, length in ranges:
            yield self.data[offset : offset + length]


@st.composite
def strided(draw):
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    strides = tuple(draw(st.lists(st.integers(0, 7), min_size=len(shape), max_size=len(shape))))
    return (
        shape,
        strides,
        draw(st.integers(0, 9)),
        draw(st.booleans()),
        draw(st.sampled_from(["I16", "F32", "C128", "U8"])),
    )


@given(case=strided(), chunk=st.sampled_from([16, 64, 1 << 20]))
@settings(max_examples=150, deadline=None)
def test_any_strides_give_the_values_in_row_major_order(case, chunk):
    """As numpy sees them, in pieces no larger than said, in either byte order."""
    shape, strides, offset, big_endian, name = case
    dtype = dtypes.BY_NAME[name]
    data = np.random.default_rng(0).bytes(4000)
    tensor = Tensor(Segment(0, len(data), dtype, "other", (), big_endian), View("x", dtype, shape, strides, offset))
    item = dtype.bits // 8
    elements = np.frombuffer(data, f"V{item}")[offset:]
    expected = np.lib.stride_tricks.as_strided(elements, shape, [s * item for s in strides]).tobytes()
    if big_endian:
        expected = np.frombuffer(expected, f"u{dtype.word}").byteswap().tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "CHUNK", chunk)
        pieces = [piece for _, piece in tensors.Checkpoint.values(Bytes(data), [tensor])]
    assert b"".join(pieces) == expected
    assert all(len(piece) <= max(chunk, item) for piece in pieces)
    assert tensor.size == len(expected)


@pytest.mark.parametrize(
    "view",
    [
        View("x", dtypes.BY_NAME["F32"], (101,)),
        View("x", dtypes.BY_NAME["F32"], (1,), None, 100),
        View("x", dtypes.BY_NAME["F32"], (2, 2), (99, 1), 1),
        View("x", dtypes.BY_NAME["F32"], (1 << 70,), (0,)),
        View("x", dtypes.BY_NAME["F32"], (2, 2), (1,)),
        View("x", dtypes.BY_NAME["F32"], (1,) * 65, (1,) * 65),
        View("x", dtypes.BY_NAME["F4"], (3,)),
        View("x", dtypes.BY_NAME["F4"], (4,), (2,)),
    ],
    ids=lambda view: f"{view.dtype.name}{view.shape[:3]}{view.strides and view.strides[:3]}",
)
def test_tensor_that_lies_is_refused(view):
    """Nothing is read beyond a storage, whatever an archive or a pickle claims."""
    with pytest.raises(UnusableTensorError):
        _ = Tensor(Segment(0, 400, view.dtype, "other", (view,)), view).span


def test_broadcast_tensor_is_written_in_pieces():
    """A small storage may stand for a huge tensor."""
    view = View("x", dtypes.BY_NAME["F32"], (1 << 22, 16), (0, 1))
    tensor = Tensor(Segment(0, 64, view.dtype, "other", (view,)), view)
    sizes = [len(piece) for _, piece in tensors.Checkpoint.values(Bytes(bytes(64)), [tensor])]
    assert sum(sizes) == tensor.size == 256 << 20
    assert max(sizes) <= tensors.CHUNK


# Choosing, and the command.


NAMES = ("layer.weight", "layer.bias", "head.weight")


@pytest.fixture
def sh(tmp_path):
    """A shell in a folder with a model, its optimizer state, and the archive."""
    numbers = np.random.default_rng(1)
    made = {
        name: numbers.standard_normal((8, 8)).astype(np.float32)
        for name in ("layer.weight", "layer.bias", "head.weight")
    }
    made |= {f"optimizer.exp_avg.{name}": value for name, value in list(made.items())}
    save_file(made, tmp_path / "m.safetensors")
    shell = Shell(tmp_path)
    shell("compress", "-q", "m.safetensors", check=0)
    (tmp_path / "m.safetensors.nvckpt").chmod(0o640)
    return shell


def got(sh, *args, source="m.safetensors.nvckpt"):
    sh("extract", source, *args, "-f", "-o", "out", check=0)
    with safe_open(sh.folder / "out", "numpy") as file:
        return set(file.keys())


def test_names_globs_and_groups(sh):
    """A name, several, a pattern, a group, and a pattern within a group."""
    assert got(sh, "head.weight") == {"head.weight"}
    assert got(sh, "head.weight", "layer.bias") == {"head.weight", "layer.bias"}
    assert got(sh, "layer.*") == {"layer.weight", "layer.bias"}
    assert got(sh, "--group", "exp_avg") == {
        f"optimizer.exp_avg.{n}" for n in ("layer.weight", "layer.bias", "head.weight")
    }
    assert got(sh, "*.weight", "--group", "weights") == {"layer.weight", "head.weight"}
    assert got(sh, "layer.*", source="m.safetensors") == {"layer.weight", "layer.bias"}


def test_output_is_a_file_that_libraries_take(sh):
    """Metadata as Transformers wants it, a header that ends at a multiple of eight, the mode of the source."""
    got(sh, "*")
    with safe_open(sh.folder / "out", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    assert struct.unpack("<Q", (sh.folder / "out").read_bytes()[:8])[0] % 8 == 0
    assert (sh.folder / "out").stat().st_mode & 0o777 == 0o640
    expected, extracted = (load_file(sh.folder / name) for name in ("m.safetensors", "out"))
    assert all(np.array_equal(extracted[name], expected[name]) for name in expected)


def test_raw_is_the_values_alone(sh):
    """On standard output, too, with the words on standard error."""
    expected = load_file(sh.folder / "m.safetensors")["head.weight"].tobytes()
    done = sh("extract", "m.safetensors.nvckpt", "head.weight", "--raw", "-o", "-", check=0)
    assert done.out == expected
    assert "1 tensor, 256 B" in done.err
    done = sh(
        "extract", "-", "head.weight", "--raw", "-q", "-o", "-", stdin=(sh.folder / "m.safetensors.nvckpt").read_bytes()
    )
    assert (done.out, done.err) == (expected, "")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "name the tensors to extract, or a group"),
        (["layer.bias"], 2, "name the output with -o"),
        (["--group", "nonsense", "-o", "x"], 2, "unknown group 'nonsense': choose from weights"),
        (["layer.bia", "-o", "x"], 1, "no tensor is called 'layer.bia'; did you mean layer.bias"),
        (["bais", "-o", "x"], 1, "did you mean layer.bias?"),
        (["zzzzzz", "-o", "x"], 1, "no tensor is called 'zzzzzz'; `nvckpt list -v` shows the names"),
        (["zz*", "-o", "x"], 1, "no tensor's name fits 'zz*'"),
        (["head.*", "--group", "ema", "-o", "x"], 1, "is in group ema; groups here: "),
        (["*", "--raw", "-o", "x"], 1, "--raw writes one tensor, and 6 fit"),
        (["layer.bias", "-o", "m.safetensors"], 1, "exists already; -f (force) replaces it"),
        (["layer.bias", "-f", "-o", "m.safetensors.nvckpt"], 1, "the output is the input itself"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_a_sentence(arguments, code, says, sh):
    """And nothing is written."""
    before = {name: (sh.folder / name).read_bytes() for name in sh.names()}
    done = sh("extract", "m.safetensors.nvckpt", *arguments, check=code)
    assert says in done.err
    assert {name: (sh.folder / name).read_bytes() for name in sh.names()} == before


def test_json_lists_what_was_written(sh):
    """One entry, with the tensors in the order of the file."""
    result = sh("extract", "--json", "m.safetensors.nvckpt", "head.*", "-o", "out", check=0).json["results"][0]
    assert (result["input"], result["output"], result["ok"], result["format"]) == (
        "m.safetensors.nvckpt",
        "out",
        True,
        "safetensors",
    )
    assert result["extracted"] == [
        {"name": "head.weight", "group": "weights", "dtype": "F32", "shape": [8, 8], "bytes": 256}
    ]
    assert result["bytes_out"] == (sh.folder / "out").stat().st_size
    failed = sh("extract", "--json", "m.safetensors.nvckpt", "nope", "-o", "x", check=1).json["results"][0]
    assert failed["error"]["code"] == "not_found"


def test_names_of_every_sort_are_written_or_refused(tmp_path):
    """A quote, a newline, brackets: in the file as they are. The exact name wins over what it would fit."""
    path = checkpoints.FIXTURES["safetensors_names"](tmp_path)
    assert list(values(path, tmp_path, 'q"\n🙂[bold]')) == ['q"\n🙂[bold]']
    with pytest.raises(OutputExistsError):
        nvckpt.extract(path, tmp_path / "out.safetensors", ExtractOptions(("*",)))
    with pytest.raises(InvalidRequestError):
        ExtractOptions()
    (tmp_path / "words").write_bytes(b"no tensors here" * 100)
    with pytest.raises(NoSuchTensorError, match="has no tensors that nvckpt knows by name"):
        nvckpt.extract(tmp_path / "words", tmp_path / "x", ExtractOptions(("a",)))
