"""Pickles are read without being executed, and no pickle can make the reader crash, recurse or hang."""

import collections
import contextlib
import gc
import os
import pickle
import pickletools
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvckpt.formats.errors import MalformedCheckpointError
from nvckpt.formats.pickle_opcodes import TABLE
from nvckpt.formats.pickle_values import (
    MAX_MEMO,
    Call,
    Global,
    Key,
    PersistentId,
    Placeholder,
    TruncatedPickleError,
)
from nvckpt.formats.pickle_walk import MAX_OPCODES, walk
from nvckpt.formats.torch_tensors import find_storages

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 99), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(plain, st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_plain_values_come_back(value, protocol):
    """Plain values of every protocol are read as what they are, up to the last byte."""
    raw = pickle.dumps(value, protocol)
    assert walk(raw + b"more") == (value, len(raw))


@given(st.binary(max_size=400), st.integers(3, 5))
@settings(max_examples=50, deadline=None)
def test_bytes_come_back(value, protocol):
    """Bytes and bytearrays are read from the protocols that have opcodes for them."""
    assert walk(pickle.dumps(value, protocol))[0] == value
    assert walk(pickle.dumps(bytearray(value), 5))[0] == value


def test_every_opcode_is_known():
    """There is a handler for each opcode of the standard library's table."""
    unknown = TABLE[0]
    missing = [op.name for op in pickletools.opcodes if TABLE[ord(op.code)] is unknown and op.name != "STOP"]
    assert missing == []


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_executed(tmp_path, protocol):
    """A pickle that would make a directory when loaded is only described."""
    target = str(tmp_path / "made")
    value, _ = walk(pickle.dumps(Touch(target), protocol))
    assert not (tmp_path / "made").exists()
    assert isinstance(value, Call)
    assert (value.function.name, value.args) == ("mkdir", (target,))


def test_objects_are_described():
    """Calls keep their function, arguments, state, items and entries; classes stay names."""
    value, _ = walk(pickle.dumps([collections.OrderedDict(a=1), {1, 2}, frozenset({3}), Global("a", "b")], 4))
    ordered, plain_set, frozen, state = value
    assert ordered.function.name == "OrderedDict"
    assert ordered.entries == {"a": 1}
    assert sorted(plain_set.items) == [1, 2]
    assert frozen.items == [3]
    assert state.state == (None, {"module": "a", "name": "b"})


def test_old_opcodes_are_described():
    """INST, OBJ, text persistent ids and text strings of protocol 0 are read."""
    value, _ = walk(b"(lp0\n(imodule\nName\np1\naPkey\na(cmodule\nName\nK\x01oaS'text'\na.")
    assert isinstance(value[0], Call)
    assert value[0].function.module == "module"
    assert value[1].value == "key"
    assert value[2].args == (1,)
    assert value[3] == b"text"


def test_several_pickles_follow_one_another():
    """The end of one pickle is the start of the next."""
    raw = pickle.dumps(1) + pickle.dumps("two")
    first, position = walk(raw)
    assert first == 1
    assert walk(raw, position) == ("two", len(raw))


def test_persistent_ids_and_extensions_are_placeholders():
    """References to outside the pickle stay references."""
    value, _ = walk(b"(K\x07Q\x82\x01\x83\x01\x00\x84\x01\x00\x00\x00\x97\x98l.")
    assert isinstance(value[0], PersistentId)
    assert value[0].value == 7
    assert all(isinstance(v, Placeholder) for v in value[1:])


def test_wide_ints_are_placeholders():
    """An int of more than 16 bytes is not built, however it is written."""
    for protocol in (0, 2):
        assert isinstance(walk(pickle.dumps(1 << 5000, protocol))[0], Placeholder)
        assert walk(pickle.dumps(1 << 100, protocol))[0] == 1 << 100
    assert isinstance(walk(b"I" + b"9" * 60_000 + b"\n.")[0], Placeholder)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80",
        b".",
        b"X\xff\xff\xff\xffabc.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"B\xff\xff\xff\xffabc.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x96\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x8b\xff\xff\xff\xff\x01.",
        b"T\xff\xff\xff\x7fabc.",
        b"K\x01r\xff\xff\xff\xff.",
        b"K\x01p-5\n.",
        b"Iabc\n.",
        b"F1.2.3\n.",
        b"cmodule",
        b"t.",
        b"u.",
        b"K\x01K\x02(K\x03u.",
        b"o.",
        b"h\x05.",
        b"\xff.",
        b"K\x01K\x01\x93.",
    ],
)
def test_broken_pickles_are_refused(raw):
    """Lengths beyond the end, missing marks, bad numbers and unknown opcodes give one kind of error."""
    with pytest.raises(MalformedCheckpointError):
        walk(raw)


def test_every_cut_is_refused():
    """A pickle cut anywhere is damaged; most cuts say that more bytes would help."""
    raw = pickle.dumps({"a": [1, 2.5, "text", (None, True)], "b": collections.OrderedDict(c=b"x" * 300)}, 4)
    for length in range(len(raw)):
        with pytest.raises(TruncatedPickleError):
            walk(raw[:length])


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_random_bytes_are_a_value_or_an_error(raw):
    """Whatever the bytes, the answer is a value or the one kind of error."""
    with contextlib.suppress(MalformedCheckpointError):
        walk(raw)


def test_opcodes_are_limited():
    """A pickle that only keeps the machine busy is given up."""
    with pytest.raises(MalformedCheckpointError, match="opcodes"):
        walk(b"N0" * (MAX_OPCODES // 2 + 1) + b"N.")


def test_the_memo_is_limited():
    """The memo cannot be made larger than picklers make it."""
    with pytest.raises(MalformedCheckpointError, match="remembers"):
        walk(b"Nr" + struct.pack("<I", MAX_MEMO) + b".")


DEEP = 1_000_000
_CALL = b"cmodule\nName\nq\x010"


@pytest.mark.parametrize(
    "raw",
    [
        b"]" * DEEP + b"a" * (DEEP - 1) + b".",
        b"N" + b"\x85" * DEEP + b".",
        b"}" + b"K\x00}" * (DEEP // 2) + b"s" * (DEEP // 2) + b".",
        b"N" + b"Q" * DEEP + b".",
        _CALL + b"h\x01" * (DEEP // 2) + b")" + b"R\x85" * (DEEP // 2) + b".",
        _CALL + b"h\x01)R" * (DEEP // 4) + b"N" + b"b" * (DEEP // 4) + b".",
        b"(" * (DEEP // 2) + b"t" * (DEEP // 2) + b".",
    ],
    ids=["lists", "tuples", "dicts", "references", "calls", "states", "marks"],
)
def test_deep_nesting_is_walked_and_freed(raw):
    """A million levels neither overflow the stack nor take long, also when they are let go."""
    started = time.perf_counter()
    # As read_source does; a million live objects make each collection slow.
    gc.disable()
    try:
        value, _ = walk(raw)
        assert find_storages(value) == {}
        del value
    finally:
        gc.enable()
    assert time.perf_counter() - started < 20


def test_a_deep_tensor_has_a_short_name():
    """A tensor below 100,000 lists is found, and its name does not grow with the depth."""
    from checkpoints import state_dict_pickle

    tensor = state_dict_pickle({"w": 4})[2:-1]
    value, _ = walk(b"]" * 100_000 + tensor + b"a" * 100_000 + b".")
    (storage,) = find_storages(value).values()
    assert storage.views[0].name.endswith("0.0.w")
    assert len(storage.views[0].name) < 200


def test_cycles_end():
    """A list and a dict that hold themselves are visited once."""
    loop: list = []
    loop.append({"again": loop, "tuple": (loop,)})
    value, _ = walk(pickle.dumps(loop))
    assert value[0]["again"] is value
    assert find_storages(value) == {}


def test_a_subclass_of_itself_ends():
    """A wrapped tensor whose arguments are the call itself is visited once."""
    call = b"ctorch._tensor\n_rebuild_from_type_v2\n(h\x05h\x05h\x05NtR"
    assert find_storages(walk(b"]q\x05(" + call + call + b"e.")[0]) == {}


def test_doubling_trees_are_visited_once():
    """Sixty lists, each holding the last one twice, describe 2**60 leaves and take no time."""
    raw = b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60))
    assert find_storages(walk(raw + b".")[0]) == {}


def _calls_sharing_arguments(count: int, size: int) -> bytes:
    shared = b"(" + b"]" * size + b"tq\x01" + b"0cmodule\nName\nq\x020"
    return shared + b"](" + b"h\x02h\x01R" * count + b"e."


def _equal_keys(count: int) -> bytes:
    text = b"X" + struct.pack("<I", 1 << 20) + b"k" * (1 << 20)
    return text + b"q\x010" + text + b"q\x020}(" + b"h\x01Nh\x02N" * count + b"u."


def _colliding_keys(count: int) -> bytes:
    step = (1 << 61) - 1
    return b"}(" + b"".join(b"\x8a\x10" + (i * step).to_bytes(16, "little") + b"N" for i in range(count)) + b"u."


@pytest.mark.parametrize(
    "raw",
    [_calls_sharing_arguments(100_000, 100_000), _equal_keys(100_000), _colliding_keys(200_000)],
    ids=["arguments", "keys", "hashes"],
)
def test_work_is_proportional_to_the_pickle(raw):
    """Sharing, long equal keys and colliding hashes do not multiply the work."""
    started = time.perf_counter()
    find_storages(walk(raw)[0])
    assert time.perf_counter() - started < 20


def test_odd_keys_are_kept_apart():
    """A key that is no short plain value is wrapped, and still leads to its value."""
    value, _ = walk(pickle.dumps({("a", 1): 1, frozenset({2}): 2, None: 3, b"x": 4, 1 << 70: 5}, 4))
    assert len(value) == 5
    assert [type(k) for k in value] == [Key, Call, type(None), bytes, Key]


def test_a_checkpoint_is_walked_quickly():
    """Seventy thousand tensors, nearly two million opcodes, take seconds at most."""
    from checkpoints import state_dict_pickle

    raw = state_dict_pickle({f"layers.{i}.weight": 1 for i in range(70_000)})
    started = time.perf_counter()
    value, _ = walk(raw)
    assert len(find_storages(value)) == 70_000
    assert time.perf_counter() - started < 30
