"""Archives made by hand from FORMAT.md alone: sound ones, and forged ones whose checksums are right.

Nothing here uses the writer under test. Every field can be overridden; what is left None is computed as a
careful writer would, so a forged archive breaks the one rule that is meant and no other.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import xxhash

MAGIC = b"\x89NVCKPT\n"
END_MAGIC = b"\x89NVCEND\n"
STORE, ZSTD, LZ4, SNAPPY, DEFLATE, GZIP = range(6)
FLOAT = 32
BYTE_PLANES, FLOAT_PLANES = 1, 2
FILE, FRAMES, SEGMENTS, BASES, WRITER = range(1, 6)


def align(offset: int, to: int = 16) -> int:
    return -(-offset // to) * to


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def string(text: str | bytes) -> bytes:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return varint(len(raw)) + raw


def xxh(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data)


def chunked(
    chunks: Sequence[bytes],
    chunk_size: int = 1 << 20,
    *,
    count: int | None = None,
    sizes: Sequence[int] | None = None,
    fill: bytes = b"\0",
    table_fill: bytes = b"\0",
) -> bytes:
    """A stream of FORMAT.md 5.3; `fill` and `table_fill` are the padding's bytes."""
    sizes = [len(chunk) for chunk in chunks] if sizes is None else sizes
    out = struct.pack("<II", chunk_size, len(sizes) if count is None else count)
    out += struct.pack(f"<{len(sizes)}I", *sizes)
    out += table_fill * (align(len(out)) - len(out))
    for number, chunk in enumerate(chunks):
        if number:
            out += fill * (align(len(out)) - len(out))
        out += chunk
    return out


@dataclass
class Stream:
    data: bytes
    size: int
    codec: int = STORE
    param: int = 0
    reserved: int = 0
    library: int = 0


@dataclass
class Frame:
    """`ranges` are (gap, length) as they stand in the header; `original` is what the frame decodes to."""

    original: bytes
    streams: list[Stream] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    transform: int = 0
    param: int = 0
    references: bytes = b""
    magic: bytes = b"NVFR"
    header_size: int | None = None
    stream_count: int | None = None
    reference_count: int | None = None
    extent_count: int | None = None
    original_size: int | None = None
    payload_size: int | None = None
    payload_checksum: int | None = None
    original_checksum: int | None = None
    header_checksum: int | None = None
    header_fill: bytes = b"\0"
    header_extra: int = 0
    gap_fill: bytes = b"\0"
    before: bytes | None = None

    def __post_init__(self) -> None:
        self.streams = self.streams or [Stream(self.original, len(self.original))]
        self.ranges = self.ranges or [(0, len(self.original))]

    def payload(self) -> bytes:
        out = b""
        for number, stream in enumerate(self.streams):
            if number:
                out += self.gap_fill * (align(len(out)) - len(out))
            out += stream.data
        return out

    def header(self) -> bytes:
        payload = self.payload()
        body = b"".join(
            struct.pack("<BBHIQQ", s.codec, s.param, s.reserved, s.library, s.size, len(s.data)) for s in self.streams
        )
        body += self.references + b"".join(varint(gap) + varint(length) for gap, length in self.ranges)
        size = align(48 + len(body) + 8) + self.header_extra
        packed = struct.pack(
            "<4sIBBBBIQQQQ",
            self.magic,
            _or(self.header_size, size),
            self.transform,
            self.param,
            _or(self.stream_count, len(self.streams)),
            _or(self.reference_count, len(self.references) // 24),
            _or(self.extent_count, len(self.ranges)),
            _or(self.original_size, sum(length for _, length in self.ranges)),
            _or(self.payload_size, len(payload)),
            _or(self.payload_checksum, xxh(payload)),
            _or(self.original_checksum, xxh(self.original)),
        )
        packed += body
        packed += self.header_fill * (size - 8 - len(packed))
        return packed + struct.pack("<Q", _or(self.header_checksum, xxh(packed)))


@dataclass
class Section:
    tag: int
    flags: int
    content: bytes
    reserved: int = 0
    size: int | None = None

    def pack(self) -> bytes:
        size = _or(self.size, len(self.content))
        return struct.pack("<HHIQ", self.tag, self.flags, self.reserved, size) + self.content


@dataclass
class Archive:
    """`sections` replaces sections by tag, None leaves one out; `extra` adds some; `footer` replaces fields."""

    original: bytes
    frames: list[Frame] = field(default_factory=list)
    magic: bytes = MAGIC
    version: int = 1
    reserved_1: int = 0
    mandatory: int = 0
    optional: int = 0
    reserved_2: int = 0
    header_checksum: int | None = None
    original_size: int | None = None
    original_hash: bytes | None = None
    hash_id: int = 1
    file_reserved: bytes = bytes(7)
    source_format: str | bytes = "opaque"
    segments: bytes | None = None
    sections: dict[int, Section | None] = field(default_factory=dict)
    extra: list[Section] = field(default_factory=list)
    frame_count: int | None = None
    frames_extra: bytes = b""
    index_frames: list[Frame] | None = None
    before_index: bytes | None = None
    store_index: Callable[[bytes], bytes] = bytes
    index_codec: int = 0
    footer: dict[str, int] = field(default_factory=dict)
    end_magic: bytes = END_MAGIC
    after: bytes = b""

    def build(self) -> bytes:
        fixed = struct.pack(
            "<8sHHIII", self.magic, self.version, self.reserved_1, self.mandatory, self.optional, self.reserved_2
        )
        out = fixed + struct.pack("<Q", _or(self.header_checksum, xxh(fixed)))
        table = varint(_or(self.frame_count, len(self.frames)))
        for frame, listed in zip(self.frames, self.index_frames or self.frames, strict=True):
            before = bytes(align(len(out)) - len(out)) if frame.before is None else frame.before
            table += varint(len(before)) + listed.header()
            out += before + frame.header() + frame.payload()
        out += bytes(align(len(out)) - len(out)) if self.before_index is None else self.before_index
        raw = self._index(table + self.frames_extra)
        stored = self.store_index(raw)
        footer = {
            "offset": len(out),
            "size": len(stored),
            "raw_size": len(raw),
            "checksum": xxh(stored),
            "codec": self.index_codec,
            **{key: value for key, value in self.footer.items() if key != "footer_checksum"},
        }
        tail = struct.pack("<QQQQI", *footer.values())
        tail += struct.pack("<I", self.footer.get("footer_checksum", xxh(tail) & 0xFFFFFFFF))
        return out + stored + tail + self.end_magic + self.after

    def _index(self, frames: bytes) -> bytes:
        size = _or(self.original_size, len(self.original))
        digest = self.original_hash or xxhash.xxh3_128_digest(self.original)
        file = struct.pack("<QB7s16s", size, self.hash_id, self.file_reserved, digest) + string(self.source_format)
        opaque = varint(1) + varint(size) + b"\0" if size else varint(0)
        sections: dict[int, Section | None] = {
            FILE: Section(FILE, 1, file),
            FRAMES: Section(FRAMES, 1, frames),
            SEGMENTS: Section(SEGMENTS, 0, opaque if self.segments is None else self.segments),
            WRITER: Section(WRITER, 0, string("golden")),
        } | self.sections
        return b"".join(section.pack() for section in [*sections.values(), *self.extra] if section)


def stored(original: bytes, **changes: object) -> Archive:
    """An archive of one stored frame, with fields of Archive changed."""
    return Archive(original, [Frame(original)] if original else [], **changes)


def framed(frame: Frame, **changes: object) -> Archive:
    """An archive of the one frame given."""
    return Archive(frame.original, [frame], **changes)


def coded(original: bytes, codec: int, data: bytes, **changes: object) -> Archive:
    """An archive of one frame with one stream."""
    return framed(Frame(original, [Stream(data, len(original), codec)], **changes))


def _or(given: int | None, computed: int) -> int:
    return computed if given is None else given
