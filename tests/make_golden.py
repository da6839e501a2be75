"""Write tests/golden anew: `python tests/make_golden.py`. Run it only when the format gains something.

Files that exist are archives which every later version must still read, or refuse, in the same way; a
changed byte in one of them is a change of the format.
"""

import gzip
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import cramjam
import golden_references
import lz4.block
import numpy as np
import xxhash
import zstandard
from archives import (
    BASES,
    BYTE_PLANES,
    DEFLATE,
    FILE,
    FLOAT,
    FLOAT_PLANES,
    FRAMES,
    GZIP,
    LZ4,
    SEGMENTS,
    SNAPPY,
    WRITER,
    ZSTD,
    Archive,
    Frame,
    Section,
    Stream,
    chunked,
    coded,
    framed,
    stored,
    string,
    varint,
)

from nvckpt.codecs import float_reference
from nvckpt.codecs.float_spec import FloatSpec, LevelName

GOLDEN = Path(__file__).parent / "golden"
EXAMPLE = "example"
"""The worked example of FORMAT.md 12, which is written from that page and not from here."""

SOUND: dict[str, Callable[[], Archive]] = {}
BROKEN: dict[str, tuple[str, str, Callable[[], Archive]]] = {}

TEXT = b"It is a truth universally acknowledged, that a single word in a truth is a single word in want of a word.\n"
MiB = 1 << 20


def sound(make: Callable[[], Archive]) -> Callable[[], Archive]:
    SOUND[make.__name__] = make
    return make


def broken(name: str, error: str, says: str) -> Callable[[Callable[[], Archive]], Callable[[], Archive]]:
    """Register an archive that breaks one rule: the class raised, and a part of its sentence."""

    def register(make: Callable[[], Archive]) -> Callable[[], Archive]:
        assert name not in BROKEN
        BROKEN[name] = (error, says, make)
        return make

    return register


def corrupt(name: str, says: str, make: Callable[[], Archive]) -> None:
    broken(name, "CorruptArchiveError", says)(make)


def unsupported(name: str, says: str, make: Callable[[], Archive]) -> None:
    broken(name, "UnsupportedArchiveError", says)(make)


def truncated(name: str, make: Callable[[], Archive]) -> None:
    broken(name, "TruncatedArchiveError", "cut short, or something was appended")(make)


def zstd(data: bytes, level: int = 3, **options: object) -> bytes:
    return zstandard.ZstdCompressor(level=level, **options).compress(data)


def deflate(data: bytes) -> bytes:
    coder = zlib.compressobj(6, zlib.DEFLATED, -15)
    return coder.compress(data) + coder.flush()


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def lz4_block(data: bytes) -> bytes:
    return lz4.block.compress(data, store_size=False)


def snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def weights(count: int, dtype: str = "<f4") -> bytes:
    """Numbers like trained weights, the same in every version of NumPy's legacy generator."""
    return np.random.RandomState(1).normal(0, 0.02, count).astype(dtype).tobytes()


def reference_split(data: bytes, w: int, rotate: bool) -> list[bytes]:
    """FORMAT.md 7.2, in whole numbers."""
    words = [int.from_bytes(data[i : i + w], "little") for i in range(0, len(data) // w * w, w)]
    if rotate:
        shift = 8 * w - 16
        words = [
            (((word >> shift << 1 | word >> shift >> 15) & 0xFFFF) << shift) | (word & ((1 << shift) - 1))
            for word in words
        ]
    planes = [bytes(word >> (8 * (w - 1 - j)) & 0xFF for word in words) for j in range(w)]
    tail = data[len(data) // w * w :]
    return [*planes, tail] if tail else planes


def planes(data: bytes, w: int, transform: int, extents: list[tuple[int, int]] | None = None) -> Frame:
    """A frame in planes, the first of them coded with zstd."""
    parts = reference_split(data, w, transform == FLOAT_PLANES)
    streams = [Stream(part, len(part)) for part in parts]
    first = zstd(parts[0], 19)
    if len(first) < len(parts[0]):
        streams[0] = Stream(chunked([first]), len(parts[0]), ZSTD)
    return Frame(data, streams, extents or [], transform=transform, param=w)


def float_stream(data: bytes, spec: FloatSpec, level: LevelName = "default") -> bytes:
    """A stream as the oracle writes it; the worked example of FORMAT.md 16.11 was checked by hand against that page."""
    return float_reference.encode(data, spec, level)


def bf16_words(count: int) -> bytes:
    words = np.frombuffer(weights(count), "<u2")[1::2].copy()
    words[::7] = 0
    return words.tobytes()


def rank_one() -> bytes:
    """16 x 20 values whose size is a row's scale times a column's."""
    rows, columns = np.float32(2) ** np.arange(-8, 8), np.float32(2) ** (np.arange(20) % 9)
    noise = np.random.RandomState(2).uniform(1, 2, (16, 20)).astype("<f4")
    return (rows[:, None] * columns * noise).astype("<f4").tobytes()


FLOAT_LOG = bf16_words(300), FloatSpec(2, "bf16", ((300, 0),))


# Sound archives: every reader decodes these.


@sound
def codec_float_log_zeros_removed() -> Archive:
    data, spec = FLOAT_LOG
    return coded(data + b"\x05", FLOAT, float_stream(data + b"\x05", spec))


@sound
def codec_float_rowcol() -> Archive:
    return coded(rank_one(), FLOAT, float_stream(rank_one(), FloatSpec(4, "fp32", ((16, 20),))))


@sound
def codec_float_rotated() -> Archive:
    return coded(weights(250), FLOAT, float_stream(weights(250), FloatSpec(4, "fp32", ((250, 0),)), "fast"))


@sound
def codec_float_fp64() -> Archive:
    data = weights(150, "<f8")
    return coded(data, FLOAT, float_stream(data, FloatSpec(8, "fp64", ((150, 0),))))


@sound
def codec_float_bytes() -> Archive:
    data = (np.arange(300, dtype="<u4") // 3).tobytes()
    return coded(data, FLOAT, float_stream(data, FloatSpec(4, "bytes")))


@sound
def codec_float_exceptions() -> Archive:
    """Two values far outside the window of the others."""
    data = np.frombuffer(weights(300), "<f4").copy()
    data[[150, 250]] = 1e30, -1e-30
    return coded(data.tobytes(), FLOAT, float_stream(data.tobytes(), FloatSpec(4, "fp32", ((300, 0),))))


@sound
def empty_original() -> Archive:
    return stored(b"")


@sound
def codec_store() -> Archive:
    return stored(TEXT)


@sound
def codec_zstd() -> Archive:
    return coded(TEXT, ZSTD, chunked([zstd(TEXT)]))


@sound
def codec_zstd_three_chunks() -> Archive:
    """Chunks of 64 bytes, one of them kept as it is, the last one short."""
    data = bytes(64) + weights(16) + TEXT[:40] * 2
    parts = [data[i : i + 64] for i in range(0, len(data), 64)]
    chunks = [zstd(parts[0]), parts[1], *(part if len(zstd(part)) >= len(part) else zstd(part) for part in parts[2:])]
    return coded(data, ZSTD, chunked(chunks, 64))


@sound
def codec_lz4() -> Archive:
    return coded(TEXT * 3, LZ4, chunked([lz4_block(TEXT * 3)]))


@sound
def codec_snappy() -> Archive:
    return coded(TEXT * 3, SNAPPY, chunked([snappy(TEXT * 3)]))


@sound
def codec_deflate() -> Archive:
    return coded(TEXT * 3, DEFLATE, chunked([deflate(TEXT * 3)]))


@sound
def codec_gzip() -> Archive:
    return coded(TEXT * 3, GZIP, chunked([gz(TEXT * 3)]))


@sound
def byte_planes_2_odd_tail() -> Archive:
    data = np.arange(500, 580, dtype="<u2").tobytes() + b"\x07"
    return framed(planes(data, 2, BYTE_PLANES))


@sound
def byte_planes_4_odd_tail() -> Archive:
    data = np.arange(70_000, 70_060, dtype="<u4").tobytes() + b"\x01\x02\x03"
    return framed(planes(data, 4, BYTE_PLANES))


@sound
def byte_planes_8() -> Archive:
    return framed(planes(np.arange(40, dtype="<u8").tobytes(), 8, BYTE_PLANES))


@sound
def float_planes_2() -> Archive:
    bf16 = np.frombuffer(weights(100), "<u2")[1::2].tobytes()
    return framed(planes(bf16, 2, FLOAT_PLANES))


@sound
def float_planes_4_odd_tail() -> Archive:
    return framed(planes(weights(60) + b"\x80\xff", 4, FLOAT_PLANES))


@sound
def float_planes_8_odd_tail() -> Archive:
    return framed(planes(weights(30, "<f8") + b"1234567", 8, FLOAT_PLANES))


@sound
def two_windows_interleaved() -> Archive:
    """Two windows; in each, two frames whose extents take turns, and the frame with the later start comes first."""
    data = bytes(range(96)) + TEXT[:64]
    first = Frame(data[16:32] + data[48:64], ranges=[(16, 16), (16, 16)])
    second = Frame(data[:16] + data[32:48], ranges=[(0, 16), (16, 16)])
    third = Frame(data[64:70] + data[100:160], ranges=[(64, 6), (30, 60)])
    fourth = Frame(data[70:100], ranges=[(70, 30)])
    return Archive(data, [first, second, third, fourth])


def _tensor(length: int, dtype: int, group: int, name: str, shape: tuple[int, ...], flags: int = 1) -> bytes:
    dims = varint(len(shape)) + b"".join(map(varint, shape))
    view = string(name) + bytes((dtype, flags)) + dims + varint(0)
    return varint(length) + bytes((1, dtype, group, 0)) + varint(1) + view


@sound
def safetensors_two_groups() -> Archive:
    """A real safetensors file: weights in BF16 planes, a momentum in F32 planes, the header stored."""
    bf16 = np.frombuffer(weights(64), "<u2")[1::2].tobytes()
    f32 = weights(40)
    entries = {
        "exp_avg.w": {"dtype": "F32", "shape": [40], "data_offsets": [128, 288]},
        "w": {"dtype": "BF16", "shape": [8, 8], "data_offsets": [0, 128]},
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    frames = [
        Frame(head),
        planes(bf16, 2, FLOAT_PLANES, [(len(head), 128)]),
        planes(f32, 4, FLOAT_PLANES, [(len(head) + 128, 160)]),
    ]
    tensors = _tensor(128, 4, 0, "w", (8, 8)) + _tensor(160, 2, 2, "exp_avg.w", (40,))
    segments = varint(3) + varint(len(head)) + b"\0" + tensors
    return Archive(head + bf16 + f32, frames, segments=segments, source_format="safetensors")


@sound
def index_in_zstd() -> Archive:
    """Sixty segments with every kind of view: strides, no shape, several names, unknown dtype and group, big-endian."""
    data = bytes(60 * 8)
    parts = [_tensor(8, 2, number % 16, f"layers.{number}.weight", (2,)) for number in range(54)]
    parts += [
        varint(8) + b"\0",
        varint(8) + bytes((1, 2, 0, 1)) + varint(0),
        varint(8) + bytes((1, 250, 99, 0x80)) + varint(1) + string("unknown") + bytes((251, 0)) + varint(0),
        varint(8) + bytes((1, 2, 0, 0)) + varint(2)
        + string("a") + bytes((2, 3)) + varint(2) + varint(1) + varint(2) + varint(2) + varint(1) + varint(0)
        + string("b") + bytes((2, 1)) + varint(0) + varint(1),
        varint(8) + bytes((1, 2, 0, 0)) + varint(1) + string("\ud800") + bytes((2, 0)) + varint(0),
        _tensor(8, 2, 16, "rank 64", (1,) * 63 + (2,)),
    ]  # fmt: skip
    segments = varint(len(parts)) + b"".join(parts)
    return framed(
        Frame(data, [Stream(chunked([zstd(data)]), len(data), ZSTD)]),
        segments=segments,
        store_index=lambda raw: zstd(raw, 9),
        index_codec=1,
    )


@sound
def optional_parts() -> Archive:
    """What a reader must ignore: optional feature bits, an unknown section, no segments, no writer."""
    return stored(
        TEXT,
        optional=0x80000001,
        sections={SEGMENTS: None, WRITER: None},
        extra=[Section(900, 0, b"from the future")],
    )


@sound
def gaps() -> Archive:
    """Padding longer than alignment needs, before a frame and before the index."""
    return framed(Frame(b"x" * 16, before=bytes(32)), before_index=bytes(48))


# Broken archives. Section 4: header.

broken("magic", "NotAnArchiveError", "not an nvckpt archive")(lambda: stored(TEXT, magic=b"\x89NVCKPT\r"))
unsupported("future_version", "format version 2", lambda: stored(TEXT, version=2))
unsupported("version_0", "format version 0", lambda: stored(TEXT, version=0))
unsupported("unknown_mandatory_feature", "feature bits 0x8", lambda: stored(TEXT, mandatory=8))
corrupt("header_reserved_1", "header breaks the format", lambda: stored(TEXT, reserved_1=1))
corrupt("header_reserved_2", "header breaks the format", lambda: stored(TEXT, reserved_2=1))
corrupt("header_checksum", "header is damaged", lambda: stored(TEXT, header_checksum=1))
corrupt("header_checksum_before_version", "header is damaged", lambda: stored(TEXT, version=2, header_checksum=1))

# Section 5.1 and 5.2: frame header.

LIMITS = "outside the format's limits"
ADD_UP = "do not add up"

corrupt("frame_magic", "does not begin where", lambda: framed(Frame(TEXT, magic=b"NVFX")))
corrupt("frame_header_size_not_16", "impossible size", lambda: framed(Frame(TEXT, header_size=88)))
corrupt("frame_header_size_0", "impossible size", lambda: framed(Frame(TEXT, header_size=0)))
corrupt("frame_header_size_over_32_mib", "impossible size", lambda: framed(Frame(TEXT, header_size=32 * MiB + 16)))
corrupt("frame_header_checksum", "frame header is damaged", lambda: framed(Frame(TEXT, header_checksum=1)))
corrupt("frame_header_padding", "not padded with zeros", lambda: framed(Frame(TEXT, header_fill=b"\1")))
corrupt("frame_header_too_long", "not padded with zeros", lambda: framed(Frame(TEXT, header_extra=16)))
corrupt("stream_count_0", LIMITS, lambda: framed(Frame(TEXT, stream_count=0)))
corrupt("stream_count_17", LIMITS, lambda: framed(Frame(bytes(17), [Stream(b"\0", 1) for _ in range(17)])))
corrupt("extent_count_0", LIMITS, lambda: framed(Frame(TEXT, extent_count=0)))
corrupt("extent_count_over_2_20", LIMITS, lambda: framed(Frame(TEXT, extent_count=(1 << 20) + 1)))
corrupt("extent_count_too_high", "not in order", lambda: framed(Frame(TEXT, extent_count=2)))
corrupt(
    "extent_cut", "middle of a field", lambda: framed(Frame(bytes(8), ranges=[(0, 1), *[(1, 1)] * 7], extent_count=9))
)
corrupt("frame_original_size_0", LIMITS, lambda: framed(Frame(TEXT, original_size=0)))
corrupt("frame_over_256_mib", LIMITS, lambda: framed(Frame(TEXT, original_size=256 * MiB + 1)))
corrupt("frame_original_size", ADD_UP, lambda: framed(Frame(TEXT, original_size=len(TEXT) - 1)))
corrupt("frame_payload_size", ADD_UP, lambda: framed(Frame(TEXT, payload_size=len(TEXT) - 1)))
corrupt("stream_sizes_do_not_add_up", ADD_UP, lambda: framed(Frame(TEXT, [Stream(TEXT, len(TEXT) - 1)])))
corrupt("extent_of_no_length", "not in order", lambda: framed(Frame(TEXT, ranges=[(0, len(TEXT)), (1, 0)])))
corrupt("extents_that_touch", "not in order", lambda: framed(Frame(TEXT, ranges=[(0, 1), (0, len(TEXT) - 1)])))
corrupt("payload_checksum", "compressed bytes are damaged", lambda: framed(Frame(TEXT, payload_checksum=1)))
corrupt("original_checksum", "another checksum", lambda: framed(Frame(TEXT, original_checksum=1)))
corrupt("stream_reserved", "stream record", lambda: framed(Frame(TEXT, [Stream(TEXT, len(TEXT), reserved=1)])))
corrupt("codec_param", "parameter", lambda: framed(Frame(TEXT, [Stream(TEXT, len(TEXT), param=1)])))
corrupt("library_version", "parameter", lambda: framed(Frame(TEXT, [Stream(TEXT, len(TEXT), library=1)])))
unsupported("reference", "bytes from elsewhere", lambda: framed(Frame(TEXT, references=bytes(24))))
unsupported("unknown_codec", "codec id 200", lambda: framed(Frame(TEXT, [Stream(TEXT, len(TEXT), 200)])))

# Section 5.3: payload and chunks.

PACKED = zstd(TEXT)
UNFIT = "do not make"


def _zstd(*chunks: bytes, **options: object) -> Archive:
    return coded(TEXT, ZSTD, chunked(chunks, **options))


def _halves(chunk_size: int, fill: bytes = b"\0") -> Archive:
    parts = [TEXT[i : i + chunk_size] for i in range(0, len(TEXT), chunk_size)]
    return _zstd(*parts, chunk_size=chunk_size, fill=fill)


corrupt(
    "padding_between_streams",
    "padding",
    lambda: framed(
        Frame(bytes(10), [Stream(bytes(5), 5), Stream(bytes(5), 5)], transform=BYTE_PLANES, param=2, gap_fill=b"\1")
    ),
)
corrupt("store_size", "stored stream", lambda: framed(Frame(TEXT, [Stream(TEXT + b"\0", len(TEXT))])))
corrupt("chunk_table_cut", "cut short", lambda: coded(TEXT, ZSTD, b"\0\0\x10\0\1\0\0"))
corrupt("chunk_table_cut_in_sizes", "cut short", lambda: coded(TEXT, ZSTD, struct.pack("<II", 1, len(TEXT))))
corrupt("chunk_size_0", UNFIT, lambda: _zstd(PACKED, chunk_size=0))
corrupt("chunk_size_over_16_mib", UNFIT, lambda: _zstd(PACKED, chunk_size=16 * MiB + 1))
corrupt("chunk_count_too_high", UNFIT, lambda: _zstd(PACKED, count=2))
corrupt("chunk_count_too_low", UNFIT, lambda: _zstd(TEXT[:64], chunk_size=64))
corrupt("chunk_of_0_bytes", "account for", lambda: _zstd(b"", TEXT[64:], chunk_size=64))
corrupt("chunk_table_lies_long", "account for", lambda: _zstd(PACKED, sizes=[len(PACKED) + 1]))
corrupt("chunk_table_lies_short", "account for", lambda: _zstd(PACKED, sizes=[len(PACKED) - 1]))
corrupt("bytes_after_last_chunk", "account for", lambda: coded(TEXT, ZSTD, chunked([PACKED]) + b"\0"))
corrupt("chunk_larger_than_original", "cannot hold", lambda: _zstd(TEXT + b"\0"))
corrupt("chunk_table_padding", "padding", lambda: _zstd(PACKED, table_fill=b"\1"))
corrupt("padding_between_chunks", "padding", lambda: _halves(56, b"\1"))
corrupt("zstd_other_content_size", "another size", lambda: _zstd(zstd(TEXT + b"!")))
corrupt("zstd_without_content_size", "another size", lambda: _zstd(zstd(TEXT, write_content_size=False)))
corrupt("zstd_two_frames", "does not decode", lambda: coded(bytes(300), ZSTD, chunked([zstd(bytes(300)) * 2])))
corrupt("zstd_garbage", "zstd chunk 0", lambda: _zstd(PACKED[:9] + bytes(20)))
corrupt("lz4_shorter", "lz4 chunk 0", lambda: coded(TEXT * 3, LZ4, chunked([lz4_block(TEXT * 3 + b"!")[:-9]])))
corrupt("lz4_longer", "lz4 chunk 0", lambda: coded(TEXT * 3, LZ4, chunked([lz4_block(TEXT * 4)])))
corrupt("snappy_other_size", "another size", lambda: coded(TEXT * 3, SNAPPY, chunked([snappy(TEXT * 4)])))
corrupt("deflate_longer", "does not end", lambda: coded(TEXT * 3, DEFLATE, chunked([deflate(TEXT * 4)])))
corrupt("deflate_shorter", "deflate chunk 0", lambda: coded(TEXT * 3, DEFLATE, chunked([deflate(TEXT * 2)])))
corrupt("deflate_unfinished", "does not end", lambda: coded(TEXT * 3, DEFLATE, chunked([deflate(TEXT * 3)[:-1]])))
corrupt("deflate_bytes_after", "does not end", lambda: coded(TEXT * 3, DEFLATE, chunked([deflate(TEXT * 3) + b"\0"])))
corrupt("gzip_two_members", "does not end", lambda: coded(TEXT * 3, GZIP, chunked([gz(TEXT) + gz(TEXT * 2)])))
corrupt("gzip_checksum", "gzip chunk 0", lambda: coded(TEXT * 3, GZIP, chunked([gz(TEXT * 3)[:-8] + bytes(8)])))
for _name, _codec, _most in (
    ("zstd", ZSTD, 32768),
    ("lz4", LZ4, 255),
    ("snappy", SNAPPY, 64),
    ("deflate", DEFLATE, 1032),
    ("gzip", GZIP, 1032),
):
    corrupt(
        f"{_name}_claims_too_much",
        "cannot hold",
        lambda codec=_codec, most=_most: framed(
            Frame(
                b"?",
                [Stream(chunked([b"12345678"], 16 * MiB), 8 * most + 1, codec)],
                [(0, 8 * most + 1)],
            ),
            original_size=8 * most + 1,
        ),
    )

# Section 7.2: transforms.

UNFIT_STREAMS = "do not fit the transform"


def _split(sizes: list[int], transform: int, param: int) -> Archive:
    total = sum(sizes)
    return framed(Frame(bytes(total), [Stream(bytes(size), size) for size in sizes], transform=transform, param=param))


unsupported("unknown_transform", "transform id 99", lambda: framed(Frame(TEXT, transform=99)))
corrupt("no_transform_two_streams", UNFIT_STREAMS, lambda: _split([5, 5], 0, 0))
corrupt("no_transform_with_word", "not defined for words", lambda: framed(Frame(TEXT, param=2)))
corrupt("planes_of_3", "not defined for words", lambda: _split([4, 4, 4], BYTE_PLANES, 3))
corrupt("planes_unequal", UNFIT_STREAMS, lambda: _split([4, 6], BYTE_PLANES, 2))
corrupt("planes_without_tail", UNFIT_STREAMS, lambda: _split([5, 6], FLOAT_PLANES, 2))
corrupt("planes_with_tail_too_long", UNFIT_STREAMS, lambda: _split([2, 2, 2, 2, 4], FLOAT_PLANES, 4))
corrupt("planes_of_less_than_a_word", "not defined for words", lambda: _split([3], BYTE_PLANES, 4))

# Section 5.5: windows.

TILING = "overlap or leave a part"
BEYOND = "too large or reaches beyond"


def _ranges(size: int, *frames: list[tuple[int, int]]) -> Archive:
    """Stored frames of zeros with the given (offset, length) extents."""
    made = []
    for extents in frames:
        ranges, position = [], 0
        for offset, length in extents:
            ranges.append((offset - position, length))
            position = offset + length
        made.append(Frame(bytes(sum(length for _, length in extents)), ranges=ranges))
    return Archive(b"", made, original_size=size, original_hash=xxhash.xxh3_128_digest(bytes(min(size, 1 << 16))))


corrupt("extents_overlap", TILING, lambda: _ranges(8, [(0, 1), (2, 6)], [(1, 3)]))
corrupt("extents_twice", TILING, lambda: _ranges(8, [(0, 8)], [(0, 8)]))
corrupt("extent_in_closed_window", TILING, lambda: _ranges(8, [(0, 4)], [(2, 4)], [(6, 2)]))
corrupt("overlap_hides_a_gap", TILING, lambda: _ranges(8, [(0, 1), (3, 5)], [(3, 2)]))
corrupt("gap_in_tiling", "leave a part", lambda: _ranges(8, [(0, 3)], [(4, 4)]))
corrupt("gap_at_start", "leave a part", lambda: _ranges(8, [(1, 7)]))
corrupt("gap_at_end", "leave a part", lambda: _ranges(8, [(0, 7)]))
corrupt("extent_beyond_the_original", BEYOND, lambda: _ranges(8, [(0, 9)]))
corrupt("window_over_256_mib", BEYOND, lambda: _ranges(256 * MiB + 2, [(0, 1)], [(256 * MiB + 1, 1)]))
corrupt("original_size_2_60", "leave a part", lambda: _ranges(1 << 60, [(0, 8)]))
corrupt(
    "original_size_without_frames", "leave a part", lambda: stored(b"", original_size=1, segments=varint(1) + b"\1\0")
)

# Section 3 and 6.1: gaps, footer.

FOOTER = "footer breaks the format"

corrupt("padding_before_frame", "frame header is damaged", lambda: framed(Frame(TEXT, before=b"\1" * 16)))
corrupt(
    "padding_before_index", "padding before the index", lambda: stored(TEXT, before_index=b"\1" * (-len(TEXT) % 16))
)
corrupt("frame_not_aligned", "not aligned", lambda: framed(Frame(bytes(8), before=bytes(8))))
corrupt("gap_of_4096_before_frame", "leaves a part of the archive", lambda: framed(Frame(TEXT, before=bytes(4096))))
corrupt("gap_of_4096_before_index", "behind the last frame", lambda: stored(bytes(16), before_index=bytes(4096)))
corrupt("index_not_aligned", FOOTER, lambda: stored(bytes(16), before_index=bytes(8)))
corrupt("frames_behind_index", "behind the last frame", lambda: _count(b"\1\0" + Frame(TEXT).header()))
corrupt("index_checksum", "index is damaged", lambda: stored(TEXT, footer={"checksum": 1}))
corrupt("index_bomb", FOOTER, lambda: _bomb(64 << 20))
corrupt("index_raw_size_of_store", FOOTER, lambda: stored(TEXT, footer={"raw_size": 8}))
corrupt("index_zstd_other_size", "another size", lambda: _packed_index(footer={"raw_size": 9}))
corrupt("index_zstd_garbage", "does not decode", lambda: _packed_index(store_index=lambda raw: b"garbage!" * 4))
corrupt(
    "index_zstd_two_frames", "does not decode", lambda: _packed_index(store_index=lambda raw: zstd(raw) + zstd(b""))
)
unsupported("index_codec", "index codec 2", lambda: stored(TEXT, index_codec=2))
corrupt("footer_checksum", "footer is damaged", lambda: stored(TEXT, footer={"footer_checksum": 1}))
truncated("end_magic", lambda: stored(TEXT, end_magic=b"\x89NVCEND\r"))
truncated("trailing_bytes", lambda: stored(TEXT, after=b"\n"))
truncated("two_archives", lambda: stored(TEXT, after=stored(TEXT).build()))
truncated("index_size", lambda: stored(TEXT, footer={"size": 16}))
truncated("index_offset_2_63", lambda: stored(TEXT, footer={"offset": 1 << 63}))
truncated("index_in_header", lambda: stored(b"", footer={"offset": 16}))


def _packed_index(**changes: object) -> Archive:
    return stored(TEXT, **{"store_index": zstd, "index_codec": 1, **changes})


def _bomb(size: int) -> Archive:
    return _packed_index(store_index=lambda raw: zstd(bytes(size)), footer={"raw_size": size})


# Section 6.2 and 6.3: the index.

BREAKS = "index breaks the format"
LEFT = "left over"
FIELD = "middle of a field"


def _segments(*parts: bytes, count: int | None = None) -> Archive:
    return stored(TEXT, segments=varint(len(parts) if count is None else count) + b"".join(parts))


def _view(view: bytes, count: int = 1) -> Archive:
    return _segments(varint(len(TEXT)) + bytes((1, 2, 0, 0)) + varint(count) + view)


WHOLE = varint(len(TEXT)) + b"\0"

corrupt("section_file_missing", "lacks a section", lambda: stored(TEXT, sections={FILE: None}))
corrupt("section_frames_missing", "lacks a section", lambda: stored(TEXT, sections={FRAMES: None}))
corrupt("section_twice", BREAKS, lambda: stored(TEXT, extra=[Section(WRITER, 0, string("again"))]))
corrupt("sections_out_of_order", BREAKS, lambda: stored(TEXT, extra=[Section(4, 0, b"")]))
corrupt("section_tag_0", BREAKS, lambda: stored(TEXT, sections={FILE: Section(0, 0, b"")}))
corrupt("section_reserved", BREAKS, lambda: stored(TEXT, extra=[Section(9, 0, b"", reserved=1)]))
corrupt("section_flag_reserved", BREAKS, lambda: stored(TEXT, extra=[Section(9, 2, b"")]))
corrupt("section_cut", FIELD, lambda: stored(TEXT, extra=[Section(9, 0, b"", size=1)]))
corrupt("section_size_2_63", FIELD, lambda: stored(TEXT, extra=[Section(9, 0, b"", size=1 << 63)]))
unsupported("unknown_mandatory_section", "index section 9", lambda: stored(TEXT, extra=[Section(9, 1, b"")]))
unsupported(
    "section_bases",
    "index section 4",
    lambda: stored(TEXT, sections={WRITER: None}, extra=[Section(BASES, 1, varint(1) + bytes(24))]),
)
unsupported("unknown_hash_id", "hash id 2", lambda: stored(TEXT, hash_id=2))
corrupt("file_reserved", BREAKS, lambda: stored(TEXT, file_reserved=b"\0\0\0\0\0\0\1"))
corrupt("file_bytes_left", LEFT, lambda: _file_and(b"\0"))
corrupt("file_format_not_utf8", "not UTF-8", lambda: stored(TEXT, source_format=b"\xff"))
corrupt("file_hash", "hash of the original", lambda: stored(TEXT, original_hash=bytes(15) + b"\1"))
corrupt("frame_count_too_high", FIELD, lambda: stored(TEXT, frame_count=2))
corrupt("frame_count_2_64", "64 bits", lambda: _count(b"\xff" * 9 + b"\x02"))
corrupt("frame_count_of_eleven_bytes", "ten bytes", lambda: _count(b"\x80" * 10 + b"\1"))
corrupt("frame_count_too_low", LEFT, lambda: Archive(b"", [Frame(TEXT)], frame_count=0))
corrupt("frames_bytes_left", LEFT, lambda: stored(TEXT, frames_extra=b"\0"))
corrupt(
    "frame_header_not_in_index",
    "frame header is damaged",
    lambda: Archive(TEXT, [Frame(TEXT)], index_frames=[Frame(TEXT, original_checksum=1)]),
)
corrupt("segment_of_no_length", "impossible segment", lambda: _segments(WHOLE, b"\0\0"))
corrupt("segment_kind", "impossible segment", lambda: _segments(varint(len(TEXT)) + b"\2"))
corrupt("segments_too_short", "do not cover", lambda: _segments(varint(len(TEXT) - 1) + b"\0"))
corrupt("segments_too_long", "do not cover", lambda: _segments(WHOLE, b"\1\1\x1f\0\0\0"))
corrupt("segments_opaque_twice", "impossible segment", lambda: _segments(varint(len(TEXT) - 1) + b"\0", b"\1\0"))
corrupt("segments_bytes_left", "do not cover", lambda: _segments(WHOLE, b"\0", count=1))
corrupt("segments_cut", FIELD, lambda: _segments(WHOLE, count=2))
corrupt("view_of_rank_65", "impossible rank", lambda: _view(string("w") + bytes((2, 1)) + varint(65) + bytes(66)))
corrupt("view_name_not_utf8", "not UTF-8", lambda: _view(string(b"\xc3") + bytes((2, 0, 0))))
corrupt("view_name_2_63_bytes", FIELD, lambda: _view(varint(1 << 63) + bytes((2, 0, 0))))
corrupt("view_count_2_63", FIELD, lambda: _view(b"", count=1 << 63))
corrupt("writer_bytes_left", LEFT, lambda: stored(TEXT, sections={WRITER: Section(WRITER, 0, string("x") + b"\0")}))


def _count(table: bytes) -> Archive:
    """An archive without frames whose FRAMES section is the given one."""
    return Archive(TEXT, sections={FRAMES: Section(FRAMES, 1, table)})


def _file_and(more: bytes) -> Archive:
    head = struct.pack("<QB7s16s", len(TEXT), 1, bytes(7), xxhash.xxh3_128_digest(TEXT)) + string("opaque")
    return stored(TEXT, sections={FILE: Section(FILE, 1, head + more)})


def _damaged_float(position: int, value: int) -> Archive:
    data, spec = FLOAT_LOG
    stream = bytearray(float_stream(data, spec))
    stream[position] = value
    return coded(data, FLOAT, bytes(stream))


def _cut_float(left: int) -> Archive:
    data, spec = FLOAT_LOG
    return coded(data, FLOAT, float_stream(data, spec)[:left])


corrupt("float_version", "unknown header", lambda: _damaged_float(0, 2))
corrupt("float_layout", "unknown header", lambda: _damaged_float(1, 3))
corrupt("float_flags", "contradicts itself", lambda: _damaged_float(3, 64))
corrupt("float_words", "another size", lambda: _damaged_float(8, 1))
corrupt("float_tail", "another size", lambda: _damaged_float(32, 1))
corrupt("float_matrix_kind", "impossible matrix", lambda: _damaged_float(58, 2))
corrupt("float_matrix_rows", "do not add up", lambda: _damaged_float(48, 1))
corrupt("float_cut", "", lambda: _cut_float(150))
corrupt("float_longer", "longer or shorter", lambda: coded(FLOAT_LOG[0], FLOAT, float_stream(*FLOAT_LOG) + bytes(16)))

# Sections 5.4, 17 and 18: references and narrowed words.

for _make in golden_references.SOUND:
    sound(_make)
for _name, _says, _make in golden_references.CORRUPT:
    corrupt(_name, _says, _make)
for _name, _says, _make in golden_references.UNSUPPORTED:
    unsupported(_name, _says, _make)


def main() -> None:
    """Write both folders from nothing, but for the example of FORMAT.md."""
    for folder in (GOLDEN / "decode", GOLDEN / "fail"):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if old.stem != EXAMPLE:
                old.unlink()
    for name, make in SOUND.items():
        archive = make()
        (GOLDEN / "decode" / f"{name}.nvckpt").write_bytes(archive.build())
        (GOLDEN / "decode" / name).write_bytes(archive.original)
    expected = {}
    for name, (error, says, make) in BROKEN.items():
        (GOLDEN / "fail" / f"{name}.nvckpt").write_bytes(make().build())
        expected[name] = {"error": error, "says": says}
    (GOLDEN / "fail" / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
