"""Golden archives of frames that refer to others (FORMAT.md 5.4, 17), and of narrowed words (18), for `make_golden`."""

import struct
from collections.abc import Callable

import numpy as np
import zstandard
from archives import FLOAT, STORE, Archive, Frame, Stream

from nvckpt.codecs import float_reference, lowrank_fit, lowrank_grid, lowrank_stream, registry
from nvckpt.codecs.float_spec import FloatSpec

NARROWED, LOW_RANK, COPY, ROUNDED, REMAINDER = 33, 34, 48, 49, 50
BF16, FP16 = 1, 2


def values(count: int = 96) -> np.ndarray:
    """Numbers like weights, with a NaN, a tie that 16 bits of difference do not hold, and both zeros."""
    made = np.random.RandomState(3).normal(0, 0.02, count).astype("<f4")
    words = made.view("<u4")
    words[[5, 17, 30, 31]] = 0x7F800001, 0x3F808000, 0, 0x80000000
    return made


def bf16(numbers: np.ndarray) -> np.ndarray:
    """Rounded as frameworks do on a CPU: every NaN is 7FC0."""
    words = numbers.view("<u4").astype(np.uint64)
    rounded = ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype("<u2")
    rounded[np.isnan(numbers)] = 0x7FC0
    return rounded


def refer(*ranges: tuple[int, int], base: int = 0, reserved: int = 0) -> bytes:
    return b"".join(struct.pack("<IIQQ", base, reserved, *each) for each in ranges)


def follow(original: bytes, at: int, codec: int, param: int, stream: bytes, references: bytes, **changes) -> Frame:
    """A frame of one derived stream, restored at `at`."""
    streams = [Stream(stream, len(original), codec, param)]
    return Frame(original, streams, [(at, len(original))], references=references, **changes)


def remainder(positions: list[int], words: np.ndarray, differences: bytes, codec: int = STORE) -> bytes:
    packed = struct.pack(f"<IB11x{len(positions)}I", len(positions), codec, *positions)
    packed += b"".join(words[i].tobytes() for i in positions)
    return packed + bytes(-len(packed) % 16) + differences


def exceptions(positions: list[int], words: np.ndarray) -> bytes:
    return struct.pack(f"<{len(positions)}I", *positions) + b"".join(words[i].tobytes() for i in positions)


def reference_copy() -> Archive:
    """Two ranges of two frames, one after the other, and a copy of the copy."""
    a, b = bytes(range(40, 90)), b"something else than the first"
    c = b[9:20] + a[:30] + b[:5]
    d = c[20:] + c[:1]
    at_c, at_d = len(a) + len(b), len(a) + len(b) + len(c)
    frames = [
        Frame(a),
        Frame(b, ranges=[(len(a), len(b))]),
        follow(c, at_c, COPY, 0, b"", refer((len(a) + 9, 11), (0, 30), (len(a), 5))),
        follow(d, at_d, COPY, 0, b"", refer((at_c + 20, len(c) - 20), (at_c, 1))),
    ]
    return Archive(a + b + c + d, frames)


def reference_rounded() -> Archive:
    """BF16 and FP16 copies of a master, the first with two exceptions."""
    master = values()
    halves = bf16(master), master.astype("<f2").view("<u2")
    halves[1][5] = 0x7E00
    size = master.nbytes
    halves[0][[7, 90]] = 0x7FFF, 0
    frames = [
        Frame(master.tobytes()),
        follow(halves[0].tobytes(), size, ROUNDED, BF16, exceptions([7, 90], halves[0]), refer((0, size))),
        follow(halves[1].tobytes(), size + size // 2, ROUNDED, FP16, b"", refer((0, size))),
    ]
    return Archive(master.tobytes() + halves[0].tobytes() + halves[1].tobytes(), frames)


def reference_remainder() -> Archive:
    """A master after its BF16 copy, with two exceptions, differences stored."""
    master = values()
    half = bf16(master)
    wide = half.astype("<u4") << np.uint32(16)
    differences = (master.view("<u4") - wide).astype("<u2")
    differences[[5, 17]] = 0
    stream = remainder([5, 17], master.view("<u4"), differences.tobytes())
    original = half.tobytes() + master.tobytes()
    return Archive(
        original,
        [
            Frame(half.tobytes()),
            follow(master.tobytes(), half.nbytes, REMAINDER, BF16, stream, refer((0, half.nbytes))),
        ],
    )


def reference_remainder_float() -> Archive:
    """A master after its FP16 copy, the differences coded."""
    rng = np.random.RandomState(4)
    half = rng.normal(0, 1, 300).astype("<f2")
    master = (half.astype("<f4").view("<u4") + rng.randint(0, 2, 300).astype("<u4") * 2).view("<f4")
    differences = (master.view("<u4") - half.astype("<f4").view("<u4")).astype("<u2")
    coded = float_reference.encode(differences.tobytes(), FloatSpec(2, "bytes"), "default")
    stream = remainder([], master.view("<u4"), coded, FLOAT)
    frames = [
        Frame(half.tobytes()),
        follow(master.tobytes(), half.nbytes, REMAINDER, FP16, stream, refer((0, half.nbytes))),
    ]
    return Archive(half.tobytes() + master.tobytes(), frames)


def codec_narrowed() -> Archive:
    """FP32 words that hold FP16 values, and FP64 words that hold FP32 values."""
    half, single = values(64).astype("<f2"), values(40)
    single.view("<u4")[5] = 0x3F800001
    frames, original = [], b""
    for kind, narrow, wide in ((1, half[8:], "<f4"), (2, single, "<f8")):
        data = narrow.astype(wide).tobytes()
        spec = FloatSpec(narrow.itemsize, "fp16" if kind == 1 else "fp32", ((len(narrow), 0),))
        stream = bytes([kind]).ljust(16, b"\0") + float_reference.encode(narrow.tobytes(), spec, "default")
        frames.append(Frame(data, [Stream(stream, len(data), NARROWED)], [(len(original), len(data))]))
        original += data
    return Archive(original, frames)


def narrowed(head: bytes, size: int = 8) -> Archive:
    stream = head + float_reference.encode(bytes(4), FloatSpec(2, "fp16", ((2, 0),)), "default")
    return Archive(bytes(size), [Frame(bytes(size), [Stream(stream, size, NARROWED)])])


def lowrank_matrix() -> tuple[np.ndarray, bytes]:
    """A BF16 matrix of rank 1 and its stream, by a model given in whole numbers; an infinity, zeros, a row of zeros."""
    rng = np.random.RandomState(6)
    left, right = rng.randint(-9, 10, (11, 1)), rng.randint(-9, 10, (24, 1))
    words = bf16((left * right.T + rng.normal(0, 1, (11, 24))).astype("<f4"))
    words[2, 3], words[4, 5], words[6, 7] = 0x7F80, 0, 0x8000
    held = words.copy()
    words = np.insert(held, 5, 0, axis=0)
    scale = np.full(11, 8 * 126), np.zeros(24, int)
    model = lowrank_fit.Model(*scale, left, right, np.full(8, 2 << 20), 20)
    return words, lowrank_stream.encode_matrix(words, lowrank_grid.KINDS[2], registry.FLOAT, model)


def codec_lowrank() -> Archive:
    words, stream = lowrank_matrix()
    return lowrank(stream, words.tobytes())


def lowrank(stream: bytes, original: bytes) -> Archive:
    return Archive(original, [Frame(original, [Stream(stream, len(original), LOW_RANK)])])


def lowrank_with(at: int, value: int, cut: int | None = None) -> Archive:
    """The stream with a byte replaced, cut."""
    words, stream = lowrank_matrix()
    changed = bytearray(stream)
    changed[at] = value
    return lowrank(bytes(changed[:cut]), words.tobytes())


SOUND: tuple[Callable[[], Archive], ...] = (
    reference_copy,
    reference_rounded,
    reference_remainder,
    reference_remainder_float,
    codec_narrowed,
    codec_lowrank,
)

A = bytes(range(64))


def copied(
    references: bytes, size: int = 32, codec: int = COPY, param: int = 0, stream: bytes = b"", **changes
) -> Archive:
    """64 bytes, and a frame that says it follows from them."""
    tail = (A * 8)[:size]
    return Archive(A + tail, [Frame(A), follow(tail, 64, codec, param, stream, references, **changes)])


def _chain() -> Archive:
    """Four frames, each a copy of the one before: the last one has depth 3."""
    frames = [Frame(A)] + [follow(A, 64 * i, COPY, 0, b"", refer((64 * (i - 1), 64))) for i in range(1, 4)]
    return Archive(A * 4, frames)


def _loop() -> Archive:
    """Two frames that are each a copy of the other."""
    return Archive(A * 2, [follow(A, 0, COPY, 0, b"", refer((64, 64))), follow(A, 64, COPY, 0, b"", refer((0, 64)))])


def _many_parts() -> Archive:
    """255 references to 260 extents each."""
    size = 130
    interleaved = [Frame(bytes(size), ranges=[(i, 1), *[(1, 1)] * (size - 1)]) for i in range(2)]
    target = bytes(2 * size * 255)
    last = follow(target, 2 * size, COPY, 0, b"", refer(*[(0, 2 * size)] * 255))
    return Archive(bytes(2 * size) + target, [*interleaved, last], store_index=zstandard.compress, index_codec=1)


def _two_streams() -> Archive:
    frame = follow(A, 64, COPY, 0, b"", refer((0, 64)))
    frame.streams = [Stream(b"", 32, COPY), Stream(b"", 32, COPY)]
    return Archive(A * 2, [Frame(A), frame])


UNFIT = "impossible size or parameter"
LENGTH = "range of the wrong length"
CORRUPT: tuple[tuple[str, str, Callable[[], Archive]], ...] = (
    ("reference_reserved", "reference breaks the format", lambda: copied(refer((0, 32), reserved=1))),
    ("reference_empty", "outside the original", lambda: copied(refer((0, 32), (0, 0)))),
    ("reference_outside", "outside the original", lambda: copied(refer((80, 32)))),
    ("reference_far_outside", "outside the original", lambda: copied(refer((1 << 63, 32)))),
    ("reference_itself", "not restored before it", lambda: copied(refer((64, 32)))),
    ("reference_partly_itself", "not restored before it", lambda: copied(refer((40, 32)))),
    ("reference_loop", "not restored before it", _loop),
    ("reference_chain", "through more than one", _chain),
    ("reference_many_parts", "too many ranges", _many_parts),
    ("reference_short", LENGTH, lambda: copied(refer((0, 31)))),
    ("reference_long", LENGTH, lambda: copied(refer((0, 32), (0, 1)))),
    ("reference_missing", "nothing is referred to", lambda: copied(b"")),
    ("reference_two_streams", "do not fit the transform", _two_streams),
    ("reference_transform", "transform 1", lambda: copied(refer((0, 32)), transform=1, param=2)),
    ("copy_with_bytes", "bytes of its own", lambda: copied(refer((0, 32)), stream=b"x")),
    ("copy_param", UNFIT, lambda: copied(refer((0, 32)), param=1)),
    ("copy_of_other_bytes", "another checksum", lambda: copied(refer((1, 32)))),
    ("rounded_kind", UNFIT, lambda: copied(refer((0, 64)), codec=ROUNDED, param=3)),
    ("rounded_odd_size", UNFIT, lambda: copied(refer((0, 62)), size=31, codec=ROUNDED, param=1)),
    ("rounded_length", LENGTH, lambda: copied(refer((0, 32)), codec=ROUNDED, param=1)),
    ("rounded_exceptions_cut", "exceptions", lambda: copied(refer((0, 64)), codec=ROUNDED, param=1, stream=bytes(7))),
    (
        "rounded_exceptions_many",
        "exceptions",
        lambda: copied(refer((0, 64)), codec=ROUNDED, param=1, stream=bytes(102)),
    ),
    (
        "rounded_exceptions_order",
        "out of order",
        lambda: copied(refer((0, 64)), codec=ROUNDED, param=1, stream=bytes(12)),
    ),
    (
        "rounded_exception_outside",
        "out of order",
        lambda: copied(refer((0, 64)), codec=ROUNDED, param=1, stream=struct.pack("<IH", 16, 0)),
    ),
    ("remainder_kind", UNFIT, lambda: copied(refer((0, 16)), codec=REMAINDER, stream=bytes(32))),
    (
        "remainder_cut",
        "head of a remainder",
        lambda: copied(refer((0, 16)), codec=REMAINDER, param=1, stream=bytes(15)),
    ),
    (
        "remainder_reserved",
        "head of a remainder",
        lambda: copied(refer((0, 16)), codec=REMAINDER, param=1, stream=bytes(5) + b"x" + bytes(26)),
    ),
    (
        "remainder_exceptions",
        "parts of a remainder",
        lambda: copied(refer((0, 16)), codec=REMAINDER, param=1, stream=b"\x09" + bytes(103)),
    ),
    (
        "remainder_codec",
        "parts of a remainder",
        lambda: copied(refer((0, 16)), codec=REMAINDER, param=1, stream=bytes(4) + b"\1" + bytes(27)),
    ),
    (
        "remainder_differences",
        "stored stream",
        lambda: copied(refer((0, 16)), codec=REMAINDER, param=1, stream=bytes(31)),
    ),
)
CORRUPT += (
    ("narrowed_kind", "head of a narrowed", lambda: narrowed(b"\3" + bytes(15))),
    ("narrowed_reserved", "head of a narrowed", lambda: narrowed(b"\1" + bytes(14) + b"x")),
    ("narrowed_size", "impossible size", lambda: narrowed(b"\1" + bytes(15), 10)),
    ("narrowed_other_size", "another size", lambda: narrowed(b"\1" + bytes(15), 12)),
    ("lowrank_cut", "head of a lowrank record", lambda: lowrank_with(0, 0, 90)),
    ("lowrank_reserved", "head of a lowrank record", lambda: lowrank_with(20, 1)),
    ("lowrank_length", "sections of a lowrank", lambda: lowrank_with(0, 16)),
    ("lowrank_rows", "bitmap of a lowrank", lambda: lowrank_with(4, 20)),
    ("lowrank_no_rows", "contradicts itself", lambda: lowrank_with(4, 0)),
    ("lowrank_rank", "contradicts itself", lambda: lowrank_with(12, 9)),
    ("lowrank_word", "contradicts itself", lambda: lowrank_with(14, 8)),
    ("lowrank_groups", "contradicts itself", lambda: lowrank_with(15, 0)),
    ("lowrank_shift", "contradicts itself", lambda: lowrank_with(16, 33)),
    ("lowrank_multiplier", "contradicts itself", lambda: lowrank_with(35, 64)),
    ("lowrank_counts", "do not add up", lambda: lowrank_with(64, 7)),
    ("lowrank_section", "sections of a lowrank", lambda: lowrank_with(94, 1)),
)
UNSUPPORTED: tuple[tuple[str, str, Callable[[], Archive]], ...] = (
    ("reference_base", "of another file", lambda: copied(refer((0, 32), base=1))),
    ("reference_other_codec", "bytes from elsewhere", lambda: copied(refer((0, 32)), codec=STORE, stream=A[:32])),
)
