"""Every kind of checkpoint is recognised by its content, tiled exactly, and described as torch sees it."""

import shutil
import subprocess
import sys
import warnings
from collections import Counter

import pytest
from checkpoints import (
    CLEAN,
    FIXTURES,
    FORMAT,
    huge_zip,
    many_tensors,
    python2_legacy,
    safetensors_bytes,
    safetensors_length_like_zip,
    state_dict_pickle,
    torch_zip_bytes,
)

from nvckpt.formats.byte_source import FileBytes, MemoryBytes
from nvckpt.formats.opaque import FORMATS
from nvckpt.formats.pickle_walk import walk
from nvckpt.formats.segments import Source
from nvckpt.formats.sniff import read_source
from nvckpt.formats.torch_tensors import find_storages


def read(path, named=True) -> Source:
    with path.open("rb") as stream:
        return read_source(FileBytes(stream.fileno()), path if named else None)


def make(name, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FIXTURES[name](folder)


def assert_tiles(source: Source) -> None:
    position = 0
    for segment in source.segments:
        assert segment.offset == position
        assert segment.length > 0
        position = segment.end
    assert position == source.size


def views(source: Source) -> dict:
    return {view.name: (segment, view) for segment in source.segments for view in segment.views}


def names_by_group(source: Source) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for segment in source.segments:
        if segment.dtype is not None:
            found.setdefault(segment.group, set()).update(view.name for view in segment.views)
    return found


@pytest.mark.parametrize("name", FIXTURES)
def test_fixture(name, tmp_path):
    """Segments tile the file, the format is the expected one, and only doubtful files warn."""
    path = make(name, tmp_path)
    source = read(path)
    assert_tiles(source)
    assert source.format == FORMAT[name]
    assert source.format in FORMATS
    assert bool(source.warnings) == (name not in CLEAN), source.warnings
    for warning in source.warnings:
        assert "Error" not in warning
        assert "Exception" not in warning


@pytest.mark.parametrize("name", ["zip_adamw", "safetensors_model", "legacy_protocol2", "distcp", "gzip_data"])
def test_the_name_does_not_matter(name, tmp_path):
    """Content decides: under any suffix the format is the same."""
    path = make(name, tmp_path)
    expected = read(path).format
    for suffix in (".bin", ".safetensors", ".txt", ".nvckpt", ""):
        other = tmp_path / f"renamed{suffix}"
        shutil.copy(path, other)
        assert read(other).format == expected


def flatten(value, path=()) -> dict:
    """Tensors of a loaded checkpoint by the names that nvckpt gives them."""
    import torch

    if isinstance(value, torch.Tensor):
        return {".".join(path): value}
    if isinstance(value, torch.nn.Module):
        return flatten(dict(value.state_dict()), path)
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list | tuple) else items
    return {name: t for key, inner in items for name, t in flatten(inner, (*path, str(key))).items()}


SAME_AS_TORCH = [
    "zip_adamw",
    "zip_file_object",
    "zip_non_ascii_name",
    "zip_all_dtypes",
    "zip_views",
    "zip_module",
    "zip_one_tensor",
    "zip_protocol3",
    "zip_protocol4",
    "zip_protocol5",
    "zip_no_crc",
    "zip_alignment_4096",
    "zip_restored_by_python",
    "zip_trailing_junk",
    "zip_flipped_data",
    "legacy_protocol2",
    "legacy_protocol4",
    "legacy_views",
    "lightning",
    "deepspeed_zero1",
    "deepspeed_model",
    "megatron",
]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", SAME_AS_TORCH)
def test_tensors_are_those_that_torch_loads(name, tmp_path):
    """Each tensor torch loads is found under its name, with its dtype, shape and strides, on its bytes."""
    import torch

    path = make(name, tmp_path)
    raw = path.read_bytes()
    found = views(read(path))
    for tensor_name, tensor in flatten(torch.load(path, weights_only=False)).items():
        if tensor.numel() == 0:
            continue
        segment, view = found.pop(tensor_name)
        dtype = getattr(torch, view.dtype.torch_name)
        storage = torch.frombuffer(bytearray(raw[segment.offset : segment.end]), dtype=torch.uint8).view(dtype)
        assert dtype == tensor.dtype
        if tensor_name.startswith("float4"):
            # One value of torch is two of ours.
            assert view.shape == (*tensor.shape[:-1], tensor.shape[-1] * 2)
            assert torch.equal(storage.view(torch.uint8), tensor.view(torch.uint8))
            continue
        assert view.shape == tuple(tensor.shape)
        strides = view.strides or torch.empty(view.shape, device="meta").stride()
        ours = storage.as_strided(view.shape, strides, view.offset)
        assert torch.equal(as_bytes(ours), as_bytes(tensor))
    assert found == {}


def as_bytes(tensor):
    import torch

    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def test_safetensors_are_those_that_the_library_loads(tmp_path):
    """The same for safetensors, by its own library."""
    from safetensors.torch import load_file

    path = make("safetensors_model", tmp_path)
    raw = path.read_bytes()
    found = views(read(path))
    tensors = load_file(path)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        segment, view = found[name]
        assert view.shape == tuple(tensor.shape)
        assert raw[segment.offset : segment.end] == bytes(as_bytes(tensor).tolist())


@pytest.mark.parametrize("name", [n for n in FIXTURES if FORMAT[n] == "safetensors"])
def test_safetensors_warnings_follow_the_library(name, tmp_path):
    """What the library accepts warns nothing, what it refuses warns; a new dtype is no reason to warn."""
    from safetensors import SafetensorError, deserialize

    path = make(name, tmp_path)
    try:
        deserialize(path.read_bytes())
        accepted = True
    except SafetensorError:
        accepted = False
    if name not in {"safetensors_unknown_dtype", "safetensors_two_of_a_name"}:
        assert accepted == (not read(path).warnings)


def test_a_storage_is_one_segment_with_all_its_views(tmp_path):
    """Slices, tied tensors and overlapping views share the segment of their storage."""
    source = read(make("zip_views", tmp_path))
    shared = {frozenset(v.name for v in s.views): s.length for s in source.segments if s.dtype}
    assert shared[frozenset({"slice", "overlap", "tail"})] == 2400
    assert shared[frozenset({"embed", "head"})] == 96


def test_parts_of_composite_tensors_are_named(tmp_path):
    """Sparse, nested and quantised tensors are found as the tensors they are made of."""
    names = set(views(read(make("zip_odd_tensors", tmp_path))))
    assert {"sparse.indices", "sparse.values", "csr.crow_indices", "csr.col_indices", "csr.values"} <= names
    assert {"nested", "nested.sizes", "conj", "parameter", "parameter.tag", "storage"} <= names
    assert set(views(read(make("zip_quantized", tmp_path)))) == {"a", "b", "b.scales", "b.zero_points"}


def test_packed_values_keep_their_shape(tmp_path):
    """Quantised values that share a byte have the shape torch shows, over fewer bytes."""
    found = views(read(make("zip_quantized_packed", tmp_path)))
    assert [(found[n][1].shape, found[n][0].length) for n in ("four", "two")] == [((4, 8), 16), ((4, 8), 8)]


def test_a_subclass_is_named_as_its_user_knows_it(tmp_path):
    """The tensor inside a wrapper subclass has the wrapper's name and group."""
    found = names_by_group(read(make("zip_subclass", tmp_path)))
    assert found == {"weights": {"w"}, "exp_avg": {"optimizer.state.0.exp_avg"}}


def test_names_can_be_encoded():
    """Half a surrogate pair in a name, which JSON and old pickles can spell, is replaced."""
    entry = '{"a\\ud800": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}'
    source = read_source(MemoryBytes(safetensors_bytes({}, b"12", text=entry)))
    assert set(views(source)) == {"a?"}
    tensor = state_dict_pickle({"w": 4})
    (storage,) = find_storages(walk(tensor.replace(b"X\x01\0\0\0w", b"Vw\\udfff\n"))[0]).values()
    assert storage.views[0].name == "w?"


def test_big_endian_is_marked(tmp_path):
    """The byteorder record of a zip is passed on with each storage."""
    tensors = [s for s in read(make("zip_big_endian", tmp_path)).segments if s.dtype]
    assert tensors
    assert all(s.big_endian for s in tensors)


def test_deflated_records_are_not_opened(tmp_path):
    """A zip written again with compression is known as a checkpoint, and kept as plain bytes."""
    source = read(make("zip_deflated", tmp_path))
    assert [s.dtype for s in source.segments] == [None]


def test_python2_names(tmp_path):
    """Byte strings of Python 2 give names, and pairs of an OrderedDict are read."""
    found = views(read(make("legacy_python2", tmp_path)))
    assert {n: v.shape for n, (_, v) in found.items()} == {"fc.weight": (6,), "fc.bias": (3,)}


def test_distcp_names_come_from_the_metadata(tmp_path):
    """The name of each zip of a shard stands in `.metadata`; without it tensors are found without names."""
    path = make("distcp", tmp_path)
    found = names_by_group(read(path))
    assert "model.0.weight" in found["weights"]
    assert "optim.state.0.weight.exp_avg" in found["exp_avg"]
    assert "optim.state.0.weight.exp_avg_sq" in found["exp_avg_sq"]
    assert set(views(read(path, named=False))) == {""}


def test_one_zip_of_a_shard_is_named(tmp_path):
    """A shard of a single zip is told from torch.save by the `.metadata` that lists it."""
    import torch
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"only": torch.randn(6)}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    (path,) = (tmp_path / "dcp").glob("*.distcp")
    source = read(path)
    assert source.format == "distcp"
    assert set(views(source)) == {"only"}
    assert read(path, named=False).format == "torch-zip"


def test_seventy_thousand_tensors(tmp_path):
    """An archive with more records than a zip's 16-bit count is read whole, in seconds."""
    source = read(many_tensors(tmp_path))
    assert source.warnings == ()
    assert Counter(s.dtype is not None for s in source.segments)[True] == 70_000


def test_sizes_beyond_four_gigabytes(tmp_path):
    """A 4.4 GB tensor and one behind it are found without reading them."""
    path = huge_zip(tmp_path)
    if path.stat().st_blocks * 512 > 1 << 20:
        path.unlink()
        pytest.skip("this file system has no sparse files")
    source = read(path)
    assert source.warnings == ()
    (large, _), (small, _) = (views(source)[n] for n in ("large.weight", "small.weight"))
    assert (large.length, small.length) == (4_400_000_000, 64)
    assert small.offset > 1 << 32


def test_a_header_length_that_looks_like_a_zip(tmp_path):
    """A safetensors header of 67324752 bytes starts the file like a zip, and is none."""
    source = read(safetensors_length_like_zip(tmp_path))
    assert (source.format, source.warnings) == ("safetensors", ())
    assert set(views(source)) == {"a"}


def test_readers_import_nothing_heavy():
    """Reading needs the standard library only, so that the command line starts quickly."""
    code = (
        "import sys; from nvckpt.formats.sniff import read_source;"
        "from nvckpt.formats.byte_source import MemoryBytes;"
        "read_source(MemoryBytes(sys.stdin.buffer.read()));"
        "print([m for m in ('torch', 'numpy', 'safetensors', 'pickle', 'zipfile') if m in sys.modules])"
    )
    raw = torch_zip_bytes({"w": bytes(8)})
    done = subprocess.run([sys.executable, "-c", code], input=raw, capture_output=True, check=True)
    assert done.stdout.split() == [b"[]"]


def test_memory_and_files_read_alike(tmp_path):
    """A source in memory gives the same segments as the file."""
    path = make("zip_adamw", tmp_path)
    assert read_source(MemoryBytes(path.read_bytes())) == read(path)


def test_legacy_files_are_little_endian():
    """A legacy file written on a big-endian machine has its numbers swapped by torch: nothing to mark."""
    raw = python2_legacy(little_endian=False)
    assert raw != python2_legacy()
    source = read_source(MemoryBytes(raw))
    assert set(views(source)) == {"fc.weight", "fc.bias"}
    assert not any(s.big_endian for s in source.segments)
