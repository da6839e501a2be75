"""`nvckpt diff`: every difference of bytes is found, between checkpoints and archives in any combination."""

import itertools
import json
import warnings
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from command import Shell
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import nvckpt
from nvckpt import CompressOptions, original
from nvckpt.difference import DiffOptions
from nvckpt.errors import InvalidRequestError

SHAPES = {"a.weight": (300, 300), "b.weight": (300, 300), "c.weight": (40, 50), "norm": (7,), "step": ()}


def state(seed=1):
    numbers = np.random.default_rng(seed)
    return {name: numbers.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def write(path, tensors, metadata=None):
    save_file(tensors, path, metadata=metadata)
    nvckpt.compress(path, f"{path}.nvckpt", CompressOptions(force=True, threads=1))
    return path


@pytest.fixture
def pair(tmp_path):
    """Write two states, and return their paths, as files and as archives."""

    def make(first, second, metadata=None):
        a = write(tmp_path / "a.safetensors", first)
        b = write(tmp_path / "b.safetensors", second, metadata)
        return [[a, f"{a}.nvckpt"], [b, f"{b}.nvckpt"]]

    return make


def compare(first, second, **options):
    return nvckpt.diff(first, second, DiffOptions(threads=1, **options))


def kinds(result):
    return {difference.name: difference.kind for difference in result.differences}


@pytest.fixture
def decoded(monkeypatch):
    """Numbers of the frames that are decoded."""
    numbers = []
    decode = original.decode_frame

    def note(reader, number, *more):
        numbers.append(number)
        return decode(reader, number, *more)

    monkeypatch.setattr(original, "decode_frame", note)
    return numbers


def test_the_same_in_every_combination(pair, decoded):
    """Files that are equal are identical; where an archive tells the hash, nothing is decoded."""
    for first, second in itertools.product(*pair(state(), state())):
        result = compare(first, second)
        assert result.is_identical
        assert (result.differences, result.rest_differs) == ((), False)
        assert (result.same_tensors, result.same_bytes) == (len(SHAPES), sum(v.nbytes for v in state().values()))
        plain = not (str(first) + str(second)).count(".nvckpt")
        assert result.how == ("tensors" if plain else "hash")
    assert decoded == []


def test_a_file_is_identical_to_itself(pair, decoded):
    """Nothing is read but what tells the tensors."""
    (a, archive), _ = pair(state(), state())
    assert compare(a, a).how == compare(archive, archive).how == "hash"
    assert decoded == []


def test_one_bit_of_one_tensor(pair):
    """Named, with the count of elements, in every combination; a NaN's payload and a zero's sign are bits, too."""
    first, second = state(), state()
    first["c.weight"][3, 4] = np.nan
    second["c.weight"][3, 4] = np.nan
    second["c.weight"].view(np.uint32)[3, 4] ^= 1
    first["norm"][:2] = 0.0
    second["norm"][:2] = [-0.0, 0.0]
    for one, other in itertools.product(*pair(first, second)):
        result = compare(one, other)
        assert not result.is_identical
        assert {d.name: (d.kind, d.changed, d.bytes) for d in result.differences} == {
            "c.weight": ("values", 1, 8000),
            "norm": ("values", 1, 28),
        }
        assert (result.same_tensors, result.rest_differs) == (3, False)


def test_what_is_there_once_or_of_another_type(pair):
    """Names of one side, and tensors of another shape or dtype; the header differs then as well."""
    first, second = state(), state()
    del first["norm"]
    del second["step"]
    second["c.weight"] = second["c.weight"].reshape(50, 40)
    second["b.weight"] = second["b.weight"].view(np.int32)
    for one, other in itertools.product(*pair(first, second)):
        result = compare(one, other)
        assert kinds(result) == {
            "norm": "only_second",
            "step": "only_first",
            "c.weight": "type",
            "b.weight": "type",
        }
        (retyped,) = (d for d in result.differences if d.name == "b.weight")
        assert (retyped.first, retyped.second) == (("F32", (300, 300)), ("I32", (300, 300)))
        assert result.same_tensors == 1
        assert result.rest_differs


def test_bytes_outside_tensors(pair):
    """Metadata alone: no tensor differs, and the files do."""
    for one, other in itertools.product(*pair(state(), state(), {"step": "5"})):
        result = compare(one, other)
        assert (result.differences, result.rest_differs, result.is_identical) == ((), True, False)
        assert not result.is_same
        result = compare(one, other, tensors_only=True)
        assert (result.rest_differs, result.is_same, result.is_identical) == (None, True, False)


def test_only_what_differs_is_decoded(pair, decoded):
    """Frames whose checksums agree are the same: of two archives only those of the changed tensor are decoded."""
    second = state()
    second["a.weight"][0, 0] += 1
    (_, one), (_, other) = pair(state(), second)
    assert kinds(compare(one, other)) == {"a.weight": "values"}
    # Twice the changed tensor, and the header that tells of tensors without bytes.
    assert len(decoded) <= 4
    assert len(set(decoded)) <= 2


def test_damage_that_must_be_decoded_is_an_error(pair):
    """A difference is never made of damage."""
    second = state()
    second["a.weight"][0, 0] += 1
    (_, one), (_, other) = pair(state(), second)
    archive = bytearray(Path(other).read_bytes())
    archive[20_000] ^= 1
    Path(other).write_bytes(archive)
    with pytest.raises(nvckpt.formats.errors.CorruptArchiveError, match=r"weight"):
        compare(one, other)


def test_formats_differ_and_tensors_do_not(tmp_path):
    """The same state by torch.save and by safetensors."""
    import torch

    tensors = {name: torch.from_numpy(np.atleast_1d(value)) for name, value in state().items()}
    torch.save(tensors, tmp_path / "a.pt")
    save_file({name: value.numpy() for name, value in tensors.items()}, tmp_path / "b.safetensors")
    nvckpt.compress(tmp_path / "a.pt")
    for first in ("a.pt", "a.pt.nvckpt"):
        result = compare(tmp_path / first, tmp_path / "b.safetensors")
        assert (result.same_tensors, result.differences, result.rest_differs) == (5, (), True)
        assert compare(tmp_path / first, tmp_path / "b.safetensors", tensors_only=True).is_same


def test_big_endian_values_are_compared_as_values(tmp_path):
    """The fixture's bytes are those of a little-endian machine: as values they are others."""
    little, big = checkpoints.FIXTURES["zip_adamw"](tmp_path), checkpoints.FIXTURES["zip_big_endian"](tmp_path)
    result = compare(little, big)
    assert not result.is_identical
    assert {d.kind for d in result.differences} == {"values"}


@pytest.mark.parametrize("name", ["zip_views", "zip_odd_tensors", "zip_quantized", "legacy_views", "safetensors_f4"])
def test_every_flipped_byte_is_found(name, tmp_path):
    """Of strided, shared, overlapping and odd tensors, and of everything around them; an equal copy is identical."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = checkpoints.FIXTURES[name](tmp_path)
    data = path.read_bytes()
    copy = tmp_path / "copy"
    copy.write_bytes(data)
    assert compare(path, copy).is_identical
    for position in range(0, len(data), max(1, len(data) // 60)):
        copy.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        assert not compare(path, copy).is_identical, position


def test_tensors_that_changed_places_are_a_difference(tmp_path):
    """The same values and the same bytes between them, in another order: no tensor differs, and the file does."""
    entries = [checkpoints.entry("U8", [4], 0, 4), checkpoints.entry("U8", [4], 4, 8)]
    for name, order in (("a", entries), ("b", entries[::-1])):
        data = b"1111" + b"2222" if name == "a" else b"2222" + b"1111"
        text = checkpoints.safetensors_bytes(dict(zip("xy", order, strict=True)), data)
        (tmp_path / name).write_bytes(text)
    result = compare(tmp_path / "a", tmp_path / "b")
    assert (result.differences, result.is_identical, result.rest_differs) == ((), False, True)


def test_files_that_hold_no_tensors(tmp_path):
    """Compared as bytes."""
    (tmp_path / "a").write_bytes(b"some words " * 1000)
    (tmp_path / "b").write_bytes(b"some words " * 999 + b"other word ")
    nvckpt.compress(tmp_path / "b")
    for other in ("b", "b.nvckpt"):
        result = compare(tmp_path / "a", tmp_path / other)
        assert (result.is_identical, result.rest_differs, result.rest_first) == (False, True, 11_000)
    (tmp_path / "empty").write_bytes(b"")
    assert compare(tmp_path / "empty", tmp_path / "a").rest_differs
    (tmp_path / "none").write_bytes(b"")
    assert compare(tmp_path / "empty", tmp_path / "none").is_identical


def test_two_tensors_of_one_name(tmp_path):
    """Paired in the order of the files."""
    entries = ",".join(f'"a":{json.dumps(checkpoints.entry("U8", [4], at, at + 4))}' for at in (0, 4))
    first = checkpoints.safetensors_bytes({}, b"1234abcd", text=f"{{{entries}}}")
    (tmp_path / "a").write_bytes(first)
    (tmp_path / "b").write_bytes(first[:-1] + b"X")
    result = compare(tmp_path / "a", tmp_path / "b")
    assert kinds(result) == {"a": "values"}


CHANGE = st.tuples(
    st.sampled_from(sorted(SHAPES)), st.sampled_from(["bit", "drop", "type", "add"]), st.integers(0, 10**6)
)


@given(changes=st.lists(CHANGE, max_size=4), combination=st.integers(0, 3))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changes_are_those_found(changes, combination, pair):
    """Against what is known of the change."""
    first, second = state(), state()
    expected = {}
    for name, kind, position in changes:
        if name not in second or expected.get(name):
            continue
        expected[name] = {"bit": "values", "drop": "only_first", "type": "type", "add": "only_second"}[kind]
        if kind == "bit":
            second[name] = second[name].copy()
            second[name].reshape(-1).view(np.uint8)[position % second[name].nbytes] ^= 1 << position % 8
        elif kind == "type":
            second[name] = second[name].view(np.uint32)
        elif kind == "drop":
            del second[name]
        else:
            del first[name]
    one, other = list(itertools.product(*pair(first, second)))[combination]
    result = compare(one, other)
    assert kinds(result) == expected
    assert result.is_identical == (not expected)
    changed = sum(kind in ("values", "type") for kind in expected.values())
    assert result.same_tensors == len(set(first) & set(second)) - changed


# The command.


@pytest.fixture
def sh(tmp_path):
    """A shell in a folder with two states that differ in one tensor, as files and archives."""
    second = state()
    second["c.weight"][0, :2] += 1
    write(tmp_path / "a.safetensors", state())
    write(tmp_path / "b.safetensors", second)
    return Shell(tmp_path)


def test_exit_codes_are_those_of_diff(sh):
    """0 identical, 1 different, 2 trouble: a script that tests for 1 never takes an unreadable file for a change."""
    sh("diff", "a.safetensors", "a.safetensors.nvckpt", check=0)
    sh("diff", "a.safetensors", "b.safetensors.nvckpt", check=1)
    assert "were not compared: nothing: no such file" in sh("diff", "a.safetensors", "nothing", check=2).err
    (sh.folder / "cut.nvckpt").write_bytes((sh.folder / "a.safetensors.nvckpt").read_bytes()[:-1])
    assert "were not compared: the archive is cut short" in sh("diff", "cut.nvckpt", "a.safetensors", check=2).err
    assert "Missing argument" in sh("diff", "a.safetensors", check=2).err
    assert "read only once" in sh("diff", "-", "-", check=2).err


def test_words(sh):
    """A line a difference, names last; -q says nothing, as cmp -s."""
    done = sh("diff", "a.safetensors", "b.safetensors", check=1)
    header, line, verdict = done.text.splitlines()
    assert header.split() == ["what", "first", "second", "elements", "differ", "tensor"]
    assert line.split() == ["values", "F32", "40x50", "F32", "40x50", "2", "of", "2,000", "c.weight"]
    assert verdict.startswith("a.safetensors and b.safetensors: 1 tensor with other values; 4 tensors the same (703")
    assert verdict.endswith("; other bytes the same")
    assert sh("diff", "-q", "a.safetensors", "b.safetensors", check=1).out == b""
    assert "identical, by the hash of the whole" in sh("diff", "a.safetensors", "a.safetensors.nvckpt").text
    data = (sh.folder / "b.safetensors").read_bytes()
    assert "1 tensor with other values" in sh("diff", "a.safetensors.nvckpt", "-", stdin=data, check=1).text


def test_many_differences_are_cut_without_v(tmp_path):
    """Fifty lines, and how many more."""
    for name, value in (("a", 0), ("b", 1)):
        save_file({f"t{n}": np.full(3, value, np.int16) for n in range(70)}, tmp_path / name)
    sh = Shell(tmp_path)
    done = sh("diff", "a", "b", check=1)
    assert "and 20 more; -v lists all" in done.text
    assert len(sh("diff", "-v", "a", "b", check=1).text.splitlines()) == 72


def test_json(sh):
    """One entry; `ok` says that they were compared."""
    result = sh("diff", "--json", "a.safetensors.nvckpt", "b.safetensors.nvckpt", check=1).json["results"][0]
    assert (result["input"], result["other"]) == ("a.safetensors.nvckpt", "b.safetensors.nvckpt")
    assert (result["ok"], result["identical"], result["how"], result["error"]) == (True, False, "tensors", None)
    side = {"dtype": "F32", "shape": [40, 50]}
    assert result["differences"] == [
        {"name": "c.weight", "kind": "values", "first": side, "second": side, "bytes": 8000, "changed": 2}
    ]
    assert result["same"]["tensors"] == 4
    assert not result["rest"]["differs"]
    failed = sh("diff", "--json", "a.safetensors", "nothing", check=2).json["results"][0]
    assert (failed["ok"], failed["error"]["code"]) == (False, "not_found")


def test_python_api(sh):
    """`nvckpt.diff` raises what cannot be."""
    assert nvckpt.diff(sh.folder / "a.safetensors", sh.folder / "a.safetensors.nvckpt").is_identical
    with pytest.raises(InvalidRequestError):
        nvckpt.diff("-", "-")
