"""Copies, roundings and remainders: exact on every bit pattern, or not made; and no stream is believed."""

import re
import struct

import numpy as np
import pytest
from test_format_document import DOCUMENT

from nvckpt.codecs import derived, derived_native
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.registry import COPY, REMAINDER, ROUNDED
from nvckpt.codecs.rounding import BF16, FP16, ROUNDINGS, narrow_to_fp16, narrow_to_fp32, widen_fp32

KINDS = {"bf16": BF16, "fp16": FP16}
EDGES = (0, 1, 0x7FFFFF, 0x800000, 0x33000000, 0x33000001, 0x387FE000, 0x38800000, 0x477FEFFF, 0x477FF000, 0x7F7FFFFF)
NANS = (0x7F800000, 0x7F800001, 0x7F80FFFF, 0x7FC00000, 0x7FFFFFFF)


def words(count: int = 40_000) -> np.ndarray:
    """FP32 words: every class of number and its neighbours, ties, all exponents, and random bits."""
    rng = np.random.default_rng(7)
    near = [base + step for base in EDGES + NANS for step in (-1, 0, 1)]
    halfway = [e << 23 | m << 16 | 0x8000 for e in (1, 100, 120, 254) for m in (0, 1, 0x7F)]
    ties = [tie + step for tie in halfway for step in (-1, 0, 1)]
    fixed = np.array([w & 0x7FFFFFFF for w in near + ties] + [e << 23 | 0x345678 for e in range(256)], np.uint32)
    many = rng.integers(0, 1 << 32, count, np.uint32)
    return np.concatenate([fixed, fixed | np.uint32(1 << 31), many])


def printed() -> dict:
    """The functions of FORMAT.md 17.1."""
    block = re.search(r"```python rounding\n(.*?)```", DOCUMENT, re.DOTALL)
    assert block
    names: dict = {}
    exec(block[1], names)
    return names


def test_c_and_numpy_write_the_same_streams(monkeypatch):
    """Words of every class, some that follow and some that do not; each reads the other's."""
    if not derived_native.available():
        pytest.skip("the C functions are not built")
    wide = words(300_001)
    narrow = ROUNDINGS[BF16].round(wide)
    far = np.arange(0, len(wide), 997)
    wide[far] ^= np.uint32(0x5A5A5A5A)
    streams, restored = [], []
    for native in (True, False):
        monkeypatch.setattr(derived_native, "available", lambda native=native: native)
        streams.append(
            [
                derived.encode(REMAINDER, BF16, wide.tobytes(), narrow.tobytes()),
                derived.encode(ROUNDED, BF16, narrow.tobytes(), wide.tobytes()),
            ]
        )
    assert streams[0] == streams[1]
    assert all(streams[0])
    for native in (True, False):
        monkeypatch.setattr(derived_native, "available", lambda native=native: native)
        outs = [bytearray(wide.nbytes), bytearray(narrow.nbytes)]
        sources = [narrow.tobytes(), wide.tobytes()]
        for codec, stream, source, out in zip((REMAINDER, ROUNDED), streams[0], sources, outs, strict=True):
            derived.decode(codec, BF16, memoryview(stream), source, memoryview(out))
        restored.append(outs)
    assert restored[0] == restored[1] == [wide.tobytes(), narrow.tobytes()]
    unlike = np.zeros(len(wide), np.uint16)
    for native in (True, False):
        monkeypatch.setattr(derived_native, "available", lambda native=native: native)
        assert derived.encode(REMAINDER, BF16, wide.tobytes(), unlike.tobytes()) is None


@pytest.mark.parametrize("name", KINDS)
def test_rounding_is_the_one_of_the_document(name):
    """Section 17.1, word by word; numbers agree with NumPy's or torch's own conversion."""
    theirs, ours = printed()[f"to_{name}"], ROUNDINGS[KINDS[name]].round
    given = words(4000)
    assert ours(given).tolist() == [theirs(int(word)) for word in given]
    if name == "bf16":
        torch = pytest.importorskip("torch")
        numbers = given[(given & 0x7FFFFFFF) <= 0x7F800000]
        expected = torch.from_numpy(numbers.view(np.float32)).to(torch.bfloat16).view(torch.int16).numpy()
        assert (ours(numbers) == expected.view(np.uint16)).all()


@pytest.mark.parametrize("name", KINDS)
def test_widening_is_the_one_of_the_document_and_is_undone(name):
    """All 65,536 words; rounding gives each number back, narrowing also each NaN."""
    given = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    wide = ROUNDINGS[KINDS[name]].widen(given)
    theirs = printed()[f"widen_{name}"]
    assert wide.tolist() == [theirs(int(word)) for word in given]
    is_nan = (wide & np.uint32(0x7FFFFFFF)) > 0x7F800000
    assert (ROUNDINGS[KINDS[name]].round(wide) == given)[~is_nan].all()
    if name == "fp16":
        assert (narrow_to_fp16(wide) == given).all()


def test_fp32_is_widened_to_fp64_exactly():
    """Denormals and NaN included."""
    given = words()
    wide = widen_fp32(given)
    is_nan = (given & np.uint32(0x7FFFFFFF)) > 0x7F800000
    assert (wide.view(np.float64) == given.view(np.float32))[~is_nan].all()
    assert (narrow_to_fp32(wide) == given).all()


def through(codec: int, kind: int, data: np.ndarray, references: np.ndarray) -> int | None:
    """Code and decode; the stream's length, None where the encoder gives up."""
    stream = derived.encode(codec, kind, data.tobytes(), references.tobytes())
    if stream is None:
        return None
    derived.check(codec, kind, memoryview(stream), data.nbytes, references.nbytes)
    out = bytearray(data.nbytes)
    derived.decode(codec, kind, memoryview(stream), references.tobytes(), memoryview(out))
    assert bytes(out) == data.tobytes()
    return len(stream)


def weights(count: int = 100_003) -> np.ndarray:
    return np.random.default_rng(5).normal(0, 0.02, count).astype(np.float32).view(np.uint32)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("count", [0, 1, 2, 100_003])
def test_rounded_copy_costs_nothing(name, count):
    """No bytes at all for the 16-bit copy of a master."""
    master = weights(count)
    assert through(ROUNDED, KINDS[name], ROUNDINGS[KINDS[name]].round(master), master) == 0


@pytest.mark.parametrize(("name", "most"), [("bf16", 16.01), ("fp16", 13.4)])
def test_master_after_its_copy_costs_its_low_bits(name, most):
    """16 bits a word for BF16, whatever the values; for FP16 the 13 low bits and what denormals cost."""
    master = weights()
    copied = ROUNDINGS[KINDS[name]].round(master)
    size = through(REMAINDER, KINDS[name], master, copied)
    assert size is not None and size * 8 <= most * len(master)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("codec", [ROUNDED, REMAINDER])
def test_adversarial_words_are_exact_among_ordinary_ones(name, codec):
    """NaN, infinities, denormals, -0.0, ties and random bits: exceptions where they do not follow, and never wrong."""
    kind = KINDS[name]
    odd = words(100)
    master = weights(70 * len(odd) + 10)
    master[:: len(master) // len(odd) + 1][: len(odd)] = odd[: len(master[:: len(master) // len(odd) + 1])]
    copied = ROUNDINGS[kind].round(master)
    copied[::997] ^= 1
    data, references = (copied, master) if codec == ROUNDED else (master, copied)
    assert through(codec, kind, data, references) is not None


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("value", [0, 0x80000000, 0x3F800000, 0x7F800000, 0x7FC00000, 0x7F800001, 1, 0x007FFFFF])
def test_constant_tensors_are_exact_or_given_up(name, value):
    """All zeros, all NaN, all denormals."""
    kind = KINDS[name]
    master = np.full(2000, value, np.uint32)
    copied = ROUNDINGS[kind].round(master)
    assert through(ROUNDED, kind, copied, master) == 0
    through(REMAINDER, kind, master, copied)


def test_fresh_master_costs_next_to_nothing():
    """A master that was just widened from its copy has no low bits."""
    copied = ROUNDINGS[BF16].round(weights())
    size = through(REMAINDER, BF16, ROUNDINGS[BF16].widen(copied), copied)
    assert size is not None and size < 300


def test_what_does_not_follow_is_not_claimed():
    """Other words, truncation instead of rounding, a copy with one bit changed, a length that does not fit."""
    master = weights()
    truncated = (master >> np.uint32(16)).astype(np.uint16)
    assert through(ROUNDED, BF16, truncated, master) is None
    assert through(ROUNDED, FP16, truncated, master) is None
    assert through(REMAINDER, FP16, master, truncated) is None
    changed = master.copy()
    changed[-1] ^= np.uint32(1)
    assert through(COPY, 0, changed, master) is None
    assert through(COPY, 0, master, master) == 0
    assert through(ROUNDED, BF16, truncated[1:], master) is None


BASE = np.arange(64, dtype=np.uint32) * np.uint32(77777)
STREAM = derived.encode(REMAINDER, BF16, BASE.tobytes(), ROUNDINGS[BF16].round(BASE).tobytes()) or b""


@pytest.mark.parametrize(
    ("codec", "param", "stream", "size", "references"),
    [
        (COPY, 0, b"x", 8, 8),
        (COPY, 1, b"", 8, 8),
        (COPY, 0, b"", 8, 9),
        (ROUNDED, 0, b"", 8, 16),
        (ROUNDED, 3, b"", 8, 16),
        (ROUNDED, 1, b"", 7, 14),
        (ROUNDED, 1, b"", 8, 8),
        (ROUNDED, 1, bytes(7), 8, 16),
        (ROUNDED, 1, bytes(30), 8, 16),
        (REMAINDER, 1, b"", 256, 128),
        (REMAINDER, 1, STREAM, 252, 126),
        (REMAINDER, 1, STREAM, 254, 127),
        (REMAINDER, 1, STREAM, 256, 256),
        (REMAINDER, 1, STREAM[:-1], 256, 128),
        (REMAINDER, 1, STREAM + b"\0", 256, 128),
        (REMAINDER, 1, struct.pack("<I", 65) + STREAM[4:], 256, 128),
        (REMAINDER, 1, STREAM[:4] + b"\1" + STREAM[5:], 256, 128),
        (REMAINDER, 1, STREAM[:9] + b"\1" + STREAM[10:], 256, 128),
        (REMAINDER, 1, STREAM[:4] + b"\x20" + STREAM[5:], 256, 128),
    ],
)
def test_stream_that_does_not_fit_is_refused_before_decoding(codec, param, stream, size, references):
    """`check` alone refuses; nothing was reserved for what the stream claims."""
    with pytest.raises(CorruptChunkError):
        derived.check(codec, param, memoryview(stream), size, references)


@pytest.mark.parametrize("positions", [(3, 3), (4, 3), (0, 64), (0, 0xFFFFFFFF)])
def test_exceptions_out_of_order_or_outside_are_refused(positions):
    """Never an IndexError, never a word outside."""
    stream = struct.pack("<II", *positions) + bytes(4)
    derived.check(ROUNDED, BF16, memoryview(stream), 128, 256)
    with pytest.raises(CorruptChunkError):
        derived.decode(ROUNDED, BF16, memoryview(stream), BASE.tobytes(), memoryview(bytearray(128)))
