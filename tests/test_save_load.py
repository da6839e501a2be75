"""nvckpt.save and nvckpt.load in the place of torch's: equal by bytes, dtype, stride and aliasing, and safe."""

import errno
import io
import os
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import odd_states
import pytest
import torch
import xxhash
from odd_states import STATES, TRUSTED, fingerprint

import nvckpt
from nvckpt.codecs.errors import InvalidLevelError, UnknownNameError
from nvckpt.errors import InvalidRequestError, NotARegularFileError, WriteError
from nvckpt.formats.atomic import AtomicFile
from nvckpt.formats.errors import CorruptArchiveError, NotAnArchiveError, TruncatedArchiveError, UnsupportedArchiveError
from nvckpt.formats.torch_zip_writer import ZipLayout
from nvckpt.state import pickled, state_file

pytestmark = pytest.mark.filterwarnings("ignore")
# The digits that tell files apart, their CRC behind them and in the directory: torch hashes names its own way.
IDENTITY = 40 + 4 + 4
README = (Path(__file__).parents[1] / "README.md").read_text()


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def torch_bytes(obj) -> bytes:
    stream = io.BytesIO()
    torch.save(obj, stream)
    return stream.getvalue()


@pytest.mark.parametrize("name", STATES)
def test_odd_state_comes_back_and_its_file_is_torchs(name, tmp_path):
    """Saved and loaded it equals itself, and the restored file is the one torch.save writes."""
    assert len(STATES) >= 40
    torch.manual_seed(3)
    obj = STATES[name]()
    trusted = name in TRUSTED
    path = tmp_path / "x.nvckpt"
    nvckpt.save(obj, path, level="fast")
    nvckpt.decompress(path, tmp_path / "x.pt")
    restored = (tmp_path / "x.pt").read_bytes()
    theirs = torch_bytes(obj)
    assert len(restored) == len(theirs)
    differing = np.frombuffer(restored, np.uint8) != np.frombuffer(theirs, np.uint8)
    assert differing.sum() <= IDENTITY
    with zipfile.ZipFile(io.BytesIO(restored)) as archive:
        assert archive.testzip() is None
    # Two loads by torch of the same bytes, through a file and through ours.
    expected = fingerprint(torch.load(io.BytesIO(theirs), weights_only=not trusted))
    assert fingerprint(nvckpt.load(path, weights_only=not trusted)) == expected
    assert fingerprint(torch.load(tmp_path / "x.pt", weights_only=not trusted)) == expected
    if name not in ("nested_tensor", "parameters", "bare_storages"):  # torch itself gives these back otherwise
        assert fingerprint(obj) == expected


def test_fingerprint_tells_apart_what_must_not_be_confused():
    """The comparison above would notice a lost tie, another stride, another type, another bit."""
    one, other = torch.ones(4, 4), torch.ones(4, 4)
    assert fingerprint([one, one]) != fingerprint([one, other])
    assert fingerprint(one) != fingerprint(one.t())
    assert fingerprint(one) != fingerprint(torch.nn.Parameter(one, requires_grad=False))
    assert fingerprint(torch.tensor(0.0)) != fingerprint(torch.tensor(-0.0))
    assert fingerprint(one[1:]) != fingerprint(one[1:].clone())


@pytest.mark.parametrize("name", sorted(TRUSTED))
def test_only_what_torch_allows_is_unpickled(name, tmp_path):
    """By default torch's restricted reader refuses, with torch's own error."""
    nvckpt.save(STATES[name](), tmp_path / "x")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        nvckpt.load(tmp_path / "x")


class Evil:
    def __reduce__(self):
        return os.system, ("touch pwned",)


def test_a_hostile_pickle_does_not_run(tmp_path, monkeypatch):
    """Neither loading nor opening an archive runs what its pickle asks for."""
    monkeypatch.chdir(tmp_path)
    nvckpt.save({"a": torch.ones(3), "b": Evil()}, "x")
    with pytest.raises(pickle.UnpicklingError):
        nvckpt.load("x")
    with nvckpt.open("x") as opened:
        assert torch.equal(opened["a"], torch.ones(3))
    assert not (tmp_path / "pwned").exists()


def test_the_largest_files_are_laid_out_as_torch_does():
    """Above 4 GiB sizes and offsets move to zip64 fields; the bytes stand in no memory here."""
    layout = ZipLayout()
    layout.add("archive/data.pkl", 306, 1)
    before, after = layout.add("archive/data/0", (4 << 30) + 5, 7)
    # Sizes of the local header: 64-bit fields of 16 bytes, the second 0, then the padding.
    assert before[30 + 14 :].startswith(b"\x01\x00\x10\x00" + ((4 << 30) + 5).to_bytes(8, "little") + bytes(8) + b"FB")
    assert after == b"PK\x07\x08" + (7).to_bytes(4, "little") + ((4 << 30) + 5).to_bytes(8, "little") * 2
    assert layout.add("archive/data/1", 400, 0)[0].find(b"\x01\x00\x08\x00") > 0


@pytest.mark.parametrize("location", ["cpu", torch.device("cpu"), {"cuda:0": "cpu"}, lambda storage, tag: storage])
def test_map_location_is_torchs(location, tmp_path):
    obj = {"w": torch.randn(100, 100), "m": torch.ones(3)}
    nvckpt.save(obj, tmp_path / "x")
    assert fingerprint(nvckpt.load(tmp_path / "x", map_location=location)) == fingerprint(obj)


def test_map_location_meta_decodes_nothing(tmp_path):
    nvckpt.save({"w": torch.randn(3, 100)}, tmp_path / "x")
    assert nvckpt.load(tmp_path / "x", map_location="meta")["w"].device.type == "meta"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_tensors_without_cuda_are_torchs_error(tmp_path):
    nvckpt.save({"w": torch.ones(3)}, tmp_path / "x")
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
        nvckpt.load(tmp_path / "x", map_location="cuda")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_archives_of_the_command_line_load(legacy, tmp_path):
    """What `nvckpt compress x.pt` wrote loads, whatever format torch wrote."""
    obj = odd_states.adamw_state()
    torch.save(obj, tmp_path / "x.pt", _use_new_zipfile_serialization=not legacy)
    nvckpt.compress(tmp_path / "x.pt")
    assert fingerprint(nvckpt.load(tmp_path / "x.pt.nvckpt")) == fingerprint(torch.load(tmp_path / "x.pt"))
    # The checkpoints from before the change still load.
    assert fingerprint(nvckpt.load(tmp_path / "x.pt")) == fingerprint(torch.load(tmp_path / "x.pt"))


def test_file_objects(tmp_path):
    """Anything to write to, and anything to read and seek in, not only from its start."""
    obj = odd_states.tied_weights()
    stream = io.BytesIO()
    stream.write(b"before")
    nvckpt.save(obj, stream)
    stream.seek(6)
    assert fingerprint(nvckpt.load(stream)) == fingerprint(obj)
    with (tmp_path / "raw").open("wb", buffering=0) as raw:
        nvckpt.save(obj, raw)
    assert fingerprint(nvckpt.load(tmp_path / "raw")) == fingerprint(obj)
    with pytest.raises(AttributeError, match="path or a file object"):
        nvckpt.save(obj, 5)


def test_saving_replaces_and_follows_links(tmp_path):
    path = tmp_path / "x"
    nvckpt.save(1, path)
    (tmp_path / "link").symlink_to("x")
    nvckpt.save(2, tmp_path / "link")
    assert (nvckpt.load(path), (tmp_path / "link").is_symlink()) == (2, True)
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_verify_and_options(tmp_path):
    obj = odd_states.adamw_state()
    result = nvckpt.save(obj, tmp_path / "x", verify=True, codec="zstd", level=1, threads=1).wait()
    assert (result.verified, result.codec, result.format) == (True, "zstd", "torch-zip")
    assert {group.name for group in result.groups} >= {"weights", "exp_avg", "exp_avg_sq"}
    assert nvckpt.verify(tmp_path / "x").damage == ()
    assert fingerprint(nvckpt.load(tmp_path / "x", threads=1)) == fingerprint(obj)


# Bad input: torch's errors, and nothing half-written.


def unpicklable():
    return {"f": lambda: 1}


@pytest.mark.parametrize(
    ("obj", "error", "sentence"),
    [
        (unpicklable(), (AttributeError, pickle.PicklingError), "pickle"),
        ({"g": (n for n in range(3))}, TypeError, "cannot pickle 'generator' object"),
        (torch.UntypedStorage(5, device="meta"), NotImplementedError, "Cannot copy out of meta tensor"),
    ],
    ids=["lambda", "generator", "meta storage"],
)
def test_what_cannot_be_saved(obj, error, sentence, tmp_path):
    """As torch.save says it; a file from before stays as it is."""
    with pytest.raises(error) as theirs:
        torch.save(obj, io.BytesIO())
    nvckpt.save("before", tmp_path / "x")
    with pytest.raises(error, match=sentence) as ours:
        nvckpt.save(obj, tmp_path / "x")
    assert str(ours.value) == str(theirs.value)
    assert names(tmp_path) == ["x"]
    assert nvckpt.load(tmp_path / "x") == "before"


def test_one_memory_as_two_types_is_torchs_error(tmp_path):
    base = torch.ones(4)
    with pytest.raises(RuntimeError, match="view the same data as different types"):
        nvckpt.save([base, base.view(torch.int32)], tmp_path / "x")


class Refusing(io.RawIOBase):
    """A raw file whose write answers as it is told: None where it would block, 0 where it takes nothing."""

    def __init__(self, answer):
        self.answer = answer

    def writable(self):
        return True

    def write(self, data):
        return self.answer


@pytest.mark.parametrize(("answer", "sentence"), [(None, "does not block and took nothing"), (0, "took none")])
def test_a_file_object_that_takes_nothing_is_an_error(answer, sentence):
    """Neither a save that seems to have worked nor one that never ends."""
    with pytest.raises(OSError, match=sentence):
        nvckpt.save(torch.ones(3), Refusing(answer))


@pytest.mark.parametrize("device", [None, torch.device("cpu"), "tpu"])
def test_devices_are_names(device, tmp_path):
    with pytest.raises(UnknownNameError, match=r"unknown device .*: choose auto, cpu, cuda or cuda:NUMBER"):
        nvckpt.save(1, tmp_path / "x", device=device)


def test_paths_that_cannot_be(tmp_path):
    for folder in (tmp_path, f"{tmp_path / 'new'}/"):
        with pytest.raises(NotARegularFileError, match="is a directory"):
            nvckpt.save(1, folder)
    with pytest.raises(RuntimeError, match=r"Parent directory .* does not exist"):
        nvckpt.save(1, tmp_path / "no" / "x")
    with pytest.raises(IsADirectoryError):
        nvckpt.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        nvckpt.load(tmp_path / "missing")


def test_no_space_leaves_nothing(tmp_path, monkeypatch):
    def full(self, parts):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(AtomicFile, "write_all", full)
    with pytest.raises(WriteError, match="no space left") as raised:
        nvckpt.save(torch.ones(3), tmp_path / "x")
    assert isinstance(raised.value, RuntimeError)
    assert names(tmp_path) == []


def test_damage_names_the_tensor(tmp_path):
    nvckpt.save({"good": torch.randn(100_000), "bad": torch.randn(100_000)}, tmp_path / "x", codec="store")
    raw = bytearray((tmp_path / "x").read_bytes())
    raw[len(raw) - 100_000] ^= 1
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(CorruptArchiveError, match=r"^bad \(bytes \d+ to \d+ of the original\)") as raised:
        nvckpt.load(tmp_path / "x")
    assert isinstance(raised.value, RuntimeError)
    with nvckpt.open(tmp_path / "x") as opened:
        assert opened["good"].shape == (100_000,)
        with pytest.raises(CorruptArchiveError):
            _ = opened["bad"]


def test_foreign_cut_and_newer_files(tmp_path):
    (tmp_path / "foreign").write_bytes(b"something else entirely")
    with pytest.raises(NotAnArchiveError, match="neither an nvckpt archive nor one of torch"):
        nvckpt.load(tmp_path / "foreign")
    (tmp_path / "cut.pt").write_bytes(torch_bytes(torch.ones(3))[:-7])
    with pytest.raises(RuntimeError, match="central directory"):
        nvckpt.load(tmp_path / "cut.pt")
    nvckpt.save(torch.ones(3), tmp_path / "x")
    raw = (tmp_path / "x").read_bytes()
    (tmp_path / "cut").write_bytes(raw[:-7])
    with pytest.raises(TruncatedArchiveError, match="cut short"):
        nvckpt.load(tmp_path / "cut")
    head = raw[:8] + b"\x09\x00" + raw[10:24]
    (tmp_path / "newer").write_bytes(head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little") + raw[32:])
    with pytest.raises(UnsupportedArchiveError, match="format version 9"):
        nvckpt.load(tmp_path / "newer")


# In the background.


def test_a_background_save_keeps_the_state_of_its_call(tmp_path):
    obj = {"w": torch.randn(500, 500), "list": [1]}
    expected = fingerprint(obj)
    saving = nvckpt.save(obj, tmp_path / "x", blocking=False)
    obj["w"].zero_()
    obj["list"].append(2)
    assert saving.wait(60).bytes_in > 1_000_000
    assert saving.done()
    assert fingerprint(nvckpt.load(tmp_path / "x")) == expected


def test_an_error_in_the_background_is_not_lost(tmp_path, monkeypatch):
    real = AtomicFile.write_all

    def full(self, parts):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(AtomicFile, "write_all", full)
    first = nvckpt.save(torch.ones(3), tmp_path / "x", blocking=False)
    with pytest.raises(WriteError):
        first.wait(60)
    second = nvckpt.save(torch.ones(3), tmp_path / "y", blocking=False)
    while not second.done():
        pass
    monkeypatch.setattr(AtomicFile, "write_all", real)
    with pytest.raises(WriteError) as raised:
        nvckpt.save(torch.ones(3), tmp_path / "z")
    assert "earlier" in raised.value.__notes__[0]
    assert names(tmp_path) == []
    nvckpt.save(torch.ones(3), tmp_path / "z")


def test_the_interpreters_end_waits_for_the_file(tmp_path):
    code = (
        "import torch, nvckpt\n"
        "nvckpt.save({'w': torch.arange(3_000_000.0)}, 'x', blocking=False)\n"
        "print('end of the script')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert names(tmp_path) == ["x"]
    assert nvckpt.load(tmp_path / "x")["w"][-1] == 2_999_999


def test_the_interpreters_end_tells_what_nobody_waited_for(tmp_path):
    """The last checkpoint of a training: no next save raises its error."""
    code = (
        "import torch, nvckpt\n"
        "saving = nvckpt.save({'w': torch.ones(3)}, '/dev/full', blocking=False)\n"
        "try:\n"
        "    WAIT\n"
        "except RuntimeError:\n"
        "    print('told')\n"
    )
    for wait, told in (("saving.wait()", ""), ("pass", "the last save in the background failed")):
        command = [sys.executable, "-W", "ignore", "-c", code.replace("WAIT", wait)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert told in done.stderr
        assert ("told" in done.stdout) == (done.stderr == "") == (not told)
        assert len(done.stderr.splitlines()) == bool(told)


def test_the_state_file_reads_like_a_file(tmp_path):
    """Any range, across the parts it is made of."""
    file = state_file(*pickled(odd_states.same_storage_twice()))
    whole = file.read_at(0, file.size)
    for offset, length in ((0, 1), (5, 1000), (700, 0), (len(whole) - 3, 3), (60, 4000)):
        piece = whole[offset : offset + length]
        assert file.read_at(offset, len(piece)) == piece


def test_readme_training_section_runs_as_it_stands(tmp_path):
    """The block of the section "In training", pasted whole; each change of the diff is a call that exists."""
    section = README.split("## In training", 1)[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == ["last.nvckpt", "model.nvckpt"]
    for module, name in re.findall(r"from (nvckpt\.integrations\.\w+) import (\w+)", section):
        source = Path(nvckpt.__file__).parent / "integrations" / f"{module.rpartition('.')[2]}.py"
        assert f"class {name}(" in source.read_text()


@pytest.mark.parametrize(
    "make", [lambda: {torch.ones(3)}, lambda: torch.ones(3)._typed_storage()], ids=["set", "storage"]
)
def test_lazy_loading_refuses_what_it_would_leave_empty(make, tmp_path):
    """A tensor that is not reached would be one without values."""
    nvckpt.save({"s": make()}, tmp_path / "x")
    with pytest.raises(ValueError, match="cannot be loaded lazily"):
        nvckpt.load(tmp_path / "x", lazy=True)


def test_a_lazy_tensor_has_no_memory_to_share(tmp_path):
    nvckpt.save({"a": torch.arange(3.0)}, tmp_path / "x")
    loaded = nvckpt.load(tmp_path / "x", lazy=True)
    with pytest.raises(RuntimeError, match="materialize"):
        loaded["a"].share_memory_()
    assert loaded["a"].materialize().share_memory_().tolist() == [0, 1, 2]


def test_open_waits_for_what_is_written_in_the_background(tmp_path):
    nvckpt.save({"a": torch.zeros(4)}, tmp_path / "x")
    nvckpt.save({"a": torch.arange(2_000_000.0)}, tmp_path / "x", blocking=False)
    with nvckpt.open(tmp_path / "x") as archive:
        assert archive["a"].shape == (2_000_000,)


@pytest.mark.parametrize("index", [(), True, False, None, (..., 0), (True, 1)])
def test_indices_that_are_no_rows(index, tmp_path):
    values = torch.arange(24.0).reshape(4, 3, 2)
    nvckpt.save_file({"a": values}, tmp_path / "x")
    with nvckpt.open(tmp_path / "x") as archive:
        assert torch.equal(archive.get_slice("a")[index], values[index])


@pytest.mark.parametrize("options", [{"level": "zz"}, {"threads": -1}])
def test_options_that_cannot_be_are_told_before_anything_is_done(options, tmp_path):
    with pytest.raises((InvalidLevelError, InvalidRequestError), match=r"unknown level|threads must be"):
        nvckpt.save({}, tmp_path / "x", **options)
    assert not list(tmp_path.iterdir())
