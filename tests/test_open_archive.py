"""Single tensors of an archive, and safetensors in and out: the library's file, its names, its errors."""

import io

import odd_states
import pytest
import safetensors
import safetensors.torch
import torch
from odd_states import fingerprint

import nvckpt
from nvckpt import original as original_module
from nvckpt.errors import InvalidRequestError
from nvckpt.formats.dtypes import BY_TORCH_NAME
from nvckpt.formats.errors import NotAnArchiveError, UnsupportedArchiveError
from nvckpt.frames import decode_frame

pytestmark = pytest.mark.filterwarnings("ignore")


def all_types():
    """Two tensors of every type that this safetensors and torch have, and names that need escaping."""
    tensors = {'é"x\n': torch.empty(0, 3), "z\u2028\x7f": torch.ones(2)}
    for name in BY_TORCH_NAME:
        dtype = getattr(torch, name, None)
        size = torch.empty(0, dtype=dtype).element_size() if dtype and not name.startswith("q") else 0
        if size and name not in ("complex128", "complex32"):
            raw = torch.randint(0, 2 if name == "bool" else 256, (6 * size,), dtype=torch.uint8)
            tensors[f"t.{name}"] = raw.view(dtype).reshape(2, 3)
            tensors[f"a.{name}"] = raw.view(dtype)[:1].clone().reshape(1)
    return tensors


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt", "é": '"'}], ids=["none", "empty", "some"])
def test_original_is_the_librarys_file(metadata, tmp_path):
    tensors = all_types()
    safetensors.torch.save_file(tensors, tmp_path / "theirs", metadata)
    nvckpt.save_file(tensors, tmp_path / "x.nvckpt", metadata)
    nvckpt.decompress(tmp_path / "x.nvckpt", tmp_path / "ours")
    theirs = (tmp_path / "theirs").read_bytes()
    if metadata is None or len(metadata) < 2:  # the library writes several in any order
        assert (tmp_path / "ours").read_bytes() == theirs
    loaded = safetensors.torch.load_file(tmp_path / "ours")
    assert fingerprint(dict(sorted(loaded.items()))) == fingerprint(dict(sorted(tensors.items())))
    ours = nvckpt.load_file(tmp_path / "x.nvckpt")
    assert fingerprint(dict(sorted(ours.items()))) == fingerprint(dict(sorted(tensors.items())))
    with nvckpt.open(tmp_path / "x.nvckpt") as opened, safetensors.safe_open(tmp_path / "ours", "pt") as expected:
        assert opened.metadata() == expected.metadata()
        assert sorted(opened.keys()) == sorted(expected.keys())
        assert opened.offset_keys() == expected.offset_keys()


def test_no_tensors_and_metadata(tmp_path):
    nvckpt.save_file({}, tmp_path / "x", {"a": "b"})
    assert nvckpt.load_file(tmp_path / "x") == {}
    with nvckpt.open(tmp_path / "x") as opened:
        assert (opened.metadata(), len(opened)) == ({"a": "b"}, 0)


SHARED = torch.ones(10)
BAD = {
    "list": [torch.ones(1)],
    "no tensor": {"a": 1},
    "sparse": {"a": torch.eye(2).to_sparse()},
    "shared": {"a": SHARED, "b": SHARED},
    "overlapping": {"a": SHARED[:6], "b": SHARED[5:]},
    "not contiguous": {"a": torch.ones(2, 3).t()},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tensors_are_the_librarys_errors(name, tmp_path):
    with pytest.raises((ValueError, RuntimeError)) as theirs:
        safetensors.torch.save_file(BAD[name], tmp_path / "x")
    with pytest.raises(type(theirs.value)) as ours:
        nvckpt.save_file(BAD[name], tmp_path / "x")
    assert str(ours.value)[:40].split() == str(theirs.value).strip()[:40].split()
    assert list(tmp_path.iterdir()) == []


def test_bad_metadata_and_types(tmp_path):
    with pytest.raises(TypeError, match="strings to strings"):
        nvckpt.save_file({"a": torch.ones(1)}, tmp_path / "x", {"a": 1})
    with pytest.raises(ValueError, match="complex128, which safetensors does not have"):
        nvckpt.save_file({"a": torch.ones(1, dtype=torch.complex128)}, tmp_path / "x")
    with pytest.raises(RuntimeError, match="directory"):
        nvckpt.save_file({}, tmp_path)


def test_pieces_of_one_memory_that_do_not_overlap_may_be_saved(tmp_path):
    """As the library allows."""
    base = torch.arange(10.0)
    nvckpt.save_file({"a": base[:5], "b": base[5:]}, tmp_path / "x")
    assert nvckpt.load_file(tmp_path / "x")["b"].tolist() == [5, 6, 7, 8, 9]


def test_tensors_loaded_lazily_may_be_saved(tmp_path):
    """They have no memory yet, and seemed to share it."""
    state = {"a": torch.arange(5.0), "b": torch.ones(2)}
    nvckpt.save(state, tmp_path / "x")
    nvckpt.save_file(nvckpt.load(tmp_path / "x", lazy=True), tmp_path / "y")
    assert fingerprint(nvckpt.load_file(tmp_path / "y")) == fingerprint(state)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_default_device_is_not_where_bytes_are_decoded(device, tmp_path):
    """As torch.load, which goes by where tensors were."""
    state = {"a": torch.arange(5.0), "b": torch.ones(2)}
    nvckpt.save(state, tmp_path / "x")
    nvckpt.save_file(state, tmp_path / "y")
    with torch.device(device):
        lazy = nvckpt.load(tmp_path / "x", lazy=True)
        with nvckpt.open(tmp_path / "x") as archive:
            found = [nvckpt.load_file(tmp_path / "y"), {name: lazy[name].materialize() for name in lazy}, dict(archive)]
    assert [fingerprint(entry) for entry in found] == [fingerprint(state)] * 3


def test_fewer_threads_than_none(tmp_path):
    nvckpt.save(1, tmp_path / "x")
    for read in (nvckpt.load, nvckpt.open):
        with pytest.raises(InvalidRequestError, match="threads must be 0, for one a core, or more, not -1"):
            read(tmp_path / "x", threads=-1)


def test_load_file_of_other_things(tmp_path):
    nvckpt.save({"a": torch.ones(3)}, tmp_path / "torch")
    with pytest.raises(NotAnArchiveError, match=r"torch-zip, not safetensors; use nvckpt\.load"):
        nvckpt.load_file(tmp_path / "torch")
    safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / "plain.safetensors")
    assert nvckpt.load_file(tmp_path / "plain.safetensors")["a"].tolist() == [1, 1, 1]
    nvckpt.compress(tmp_path / "plain.safetensors")
    assert nvckpt.load_file(tmp_path / "plain.safetensors.nvckpt")["a"].tolist() == [1, 1, 1]
    assert nvckpt.load(tmp_path / "plain.safetensors.nvckpt", "cpu")["a"].tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="no locations to map"):
        nvckpt.load(tmp_path / "plain.safetensors.nvckpt", {"cuda": "cpu"})
    (tmp_path / "foreign").write_bytes(b"x" * 100)
    with pytest.raises(safetensors.SafetensorError):
        nvckpt.load_file(tmp_path / "foreign")
    with pytest.raises(NotAnArchiveError):
        nvckpt.open(tmp_path / "foreign")


# nvckpt.open


@pytest.fixture
def count_frames(monkeypatch):
    """The numbers of the frames that are decoded."""
    seen = []

    def counting(reader, number, *references):
        seen.append(number)
        return decode_frame(reader, number, *references)

    monkeypatch.setattr(original_module, "decode_frame", counting)
    return seen


def test_only_what_is_asked_for_is_decoded(tmp_path, count_frames):
    """A tensor of 40 MB is two frames and more; rows of one of them need no other."""
    large = torch.arange(10_000_000, dtype=torch.int32).reshape(1000, 10_000)
    nvckpt.save({"large": large, "other": torch.randn(300, 300)}, tmp_path / "x", level="fast")
    with nvckpt.open(tmp_path / "x") as opened:
        assert count_frames == []
        assert list(opened) == ["large", "other"]
        assert count_frames == []
        part = opened.get_slice("large")
        assert (part.get_shape(), part.get_dtype()) == ([1000, 10_000], "I32")
        assert torch.equal(part[2:5], large[2:5])
        assert len(count_frames) == 1
        assert torch.equal(part[990:], large[990:])
        assert len(count_frames) == 2


@pytest.mark.parametrize(
    "index",
    [
        *(0, -1, slice(None), slice(2, 5), slice(-3, None), slice(1, 9, 3), slice(5, 2), slice(100, 200), ..., None),
        *((2,), (slice(1, 3), 4), (0, 0), (..., 1), (slice(None), slice(2, 4)), (None, 2)),
    ],
    ids=str,
)
def test_slices_are_those_of_the_tensor(index, tmp_path):
    base = torch.arange(200.0)
    obj = {"t": base[20:170].view(10, 15), "strided": torch.arange(24.0).view(4, 6).t()}
    nvckpt.save(obj, tmp_path / "x")
    with nvckpt.open(tmp_path / "x") as opened:
        for name, tensor in obj.items():
            expected = error = None
            try:
                expected = tensor[index]
            except (IndexError, ValueError) as caught:
                error = caught
            if error is None:
                assert torch.equal(opened.get_slice(name)[index], expected)
            else:
                with pytest.raises(type(error)):
                    _ = opened.get_slice(name)[index]


@pytest.mark.parametrize("index", [10, -11, slice(None, None, -1), (slice(0, 5, 0),)], ids=str)
def test_slices_that_cannot_be(index, tmp_path):
    nvckpt.save(torch.ones(10, 2), tmp_path / "x")
    with nvckpt.open(tmp_path / "x") as opened, pytest.raises((IndexError, ValueError)):
        _ = opened.get_slice(next(iter(opened)))[index]


def test_every_type_and_stride_by_name(tmp_path):
    obj = odd_states.every_dtype() | odd_states.same_storage_twice() | odd_states.four_bit_floats()
    obj |= {"scalar": torch.tensor(2.5), "t": torch.randn(7, 9).t(), "expanded": torch.ones(1, 4).expand(3, 4)}
    nvckpt.save(obj, tmp_path / "x")
    with nvckpt.open(tmp_path / "x") as opened:
        assert set(opened) == set(obj)
        for name, tensor in opened.items():
            got, expected = tensor.contiguous(), obj[name].contiguous()
            assert (got.dtype, got.shape, tensor.stride()) == (expected.dtype, expected.shape, obj[name].stride()), name
            assert got.reshape(-1).view(torch.uint8).tolist() == expected.reshape(-1).view(torch.uint8).tolist()


def test_names_that_do_not_lead_to_a_tensor(tmp_path):
    nvckpt.save({**odd_states.same_names(), **odd_states.quantized()}, tmp_path / "x")
    with nvckpt.open(tmp_path / "x") as opened:
        assert "nothing" not in opened
        with pytest.raises(KeyError, match="no tensor 'nothing'"):
            opened.get_tensor("nothing")
        with pytest.raises(KeyError, match=r"several tensors of the archive are called 'a\.b'"):
            _ = opened["a.b"]
        with pytest.raises(UnsupportedArchiveError, match=r"QUINT8 cannot be made from bytes alone; use nvckpt\.load"):
            _ = opened["tensor"]


def test_archives_of_pipes_and_of_no_tensors(tmp_path):
    stream = io.BytesIO()
    nvckpt.save(5, stream)
    (tmp_path / "x").write_bytes(stream.getvalue())
    with nvckpt.open(tmp_path / "x") as opened:
        assert (list(opened), opened.metadata()) == ([], None)
