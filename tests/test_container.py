"""Writing and reading whole archives: the two sides of formats.container, and a reader facing forged ones."""

import io
import random
import struct
import tracemalloc
from pathlib import Path

import archives
import pytest
import xxhash
import zstandard
from archives import Archive, Frame, Section, stored, varint
from hypothesis import given, settings
from hypothesis import strategies as st

from nvckpt.decompression import decode_all
from nvckpt.engines import CpuEngine
from nvckpt.formats import dtypes
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.checksum import checksum
from nvckpt.formats.container import ArchiveReader, ArchiveWriter, payload_checksum
from nvckpt.formats.errors import CorruptArchiveError, FormatError
from nvckpt.formats.groups import GROUPS
from nvckpt.formats.index import Description
from nvckpt.formats.layout import FrameHeader, StreamRecord, parse_footer
from nvckpt.formats.segments import Segment, View
from nvckpt.frames import decode_frame

MiB = 1 << 20
GOLDEN = Path(__file__).parent / "golden"
TEXT = b"forty-eight bytes of text, as many as a footer..\n"


def header_for(parts: list[bytes], extents, original: bytes) -> FrameHeader:
    records = tuple(StreamRecord(0, 0, 0, len(part), len(part)) for part in parts)
    return FrameHeader(0, 0, records, tuple(extents), payload_checksum(parts), checksum(original))


def write(original: bytes, cuts: list[int], segments=(), source_format="opaque", writer="test") -> bytes:
    """An archive of stored frames, made with ArchiveWriter."""
    out = io.BytesIO()
    archive = ArchiveWriter(out)
    for start, end in zip([0, *cuts], [*cuts, len(original)], strict=True):
        if end > start:
            part = original[start:end]
            archive.add_frames([(header_for([part], [(start, end - start)], part), [part])])
    archive.finish(len(original), xxhash.xxh3_128_digest(original), source_format, Description(tuple(segments), writer))
    assert archive.size == len(out.getvalue())
    return out.getvalue()


def verify(archive: bytes) -> None:
    decode_all(ArchiveReader(MemoryBytes(archive)), CpuEngine(1))


@given(
    original=st.binary(max_size=3000),
    cuts=st.lists(st.integers(0, 3000), max_size=5),
    source_format=st.text(max_size=20),
    writer=st.text(max_size=20),
)
@settings(max_examples=80, deadline=None)
def test_written_archive_reads_back(original, cuts, source_format, writer):
    """What is written is read: bytes, hash, and the texts for information."""
    cuts = sorted(min(cut, len(original)) for cut in cuts)
    segments = [Segment(0, len(original))] if original else []
    reader = ArchiveReader(MemoryBytes(write(original, cuts, segments, source_format, writer)))
    assert decode_all(reader, CpuEngine(1)) == xxhash.xxh3_128_digest(original)
    assert (reader.index.original_size, reader.index.source_format, reader.description.writer) == (
        len(original),
        source_format,
        writer,
    )


NAMES = st.text(st.characters(codec=None), max_size=12)
NUMBERS = st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1))


@st.composite
def views(draw):
    shape = draw(st.none() | st.lists(NUMBERS, max_size=5).map(tuple))
    strides = None
    if shape is not None and draw(st.booleans()):
        strides = tuple(draw(NUMBERS) for _ in shape)
    dtype = draw(st.sampled_from(list(dtypes.BY_ID.values())))
    return View(draw(NAMES), dtype, shape, strides, draw(NUMBERS))


@st.composite
def segment_lists(draw):
    segments, position = [], 0
    for _ in range(draw(st.integers(0, 8))):
        length = draw(st.integers(1, 60))
        after_opaque = bool(segments) and segments[-1].dtype is None
        if not after_opaque and draw(st.booleans()):
            segments.append(Segment(position, length))
        else:
            dtype = draw(st.sampled_from(list(dtypes.BY_ID.values())))
            named = tuple(draw(st.lists(views(), max_size=3)))
            segments.append(Segment(position, length, dtype, draw(st.sampled_from(GROUPS)), named, draw(st.booleans())))
        position += length
    return segments


@given(segments=segment_lists())
@settings(max_examples=120, deadline=None)
def test_segments_survive_the_index(segments):
    """Names with lone surrogates, shapes, strides, offsets: what a reader of checkpoints found is what `list` shows."""
    original = bytes(sum(segment.length for segment in segments))
    reader = ArchiveReader(MemoryBytes(write(original, [], segments)))
    assert list(reader.description.segments) == segments


@pytest.mark.parametrize("rank", [64, 65, 300])
def test_tensor_of_high_rank_keeps_its_name_and_loses_its_shape(rank):
    """The format allows 64 dimensions; a checkpoint with more must still be compressed."""
    view = View("w", dtypes.BY_NAME["F32"], (1,) * rank, (1,) * rank)
    reader = ArchiveReader(MemoryBytes(write(bytes(4), [], [Segment(0, 4, view.dtype, "weights", (view,))])))
    (read,) = reader.description.segments[0].views
    assert read == (view if rank == 64 else View("w", view.dtype, None))


@pytest.mark.parametrize("size", [1, 15, 16, 4 * MiB - 200, 4 * MiB, 5 * MiB + 3])
def test_frames_are_aligned_for_direct_reads(size):
    """Every frame at a multiple of 16, one of 4 MiB or more at a multiple of 4096, the index at a multiple of 16."""
    original = bytes(7 + size + 9)
    archive = write(original, [7, 7 + size], [Segment(0, len(original))])
    reader = ArchiveReader(MemoryBytes(archive))
    for frame in reader.frames:
        large = len(frame.packed) + frame.header.payload_size >= 4 * MiB
        assert frame.offset % (4096 if large else 16) == 0
    assert parse_footer(archive[-48:], len(archive)).index_offset % 16 == 0
    verify(archive)


def test_index_is_readable_in_a_hex_dump_until_it_is_large():
    """A small index is stored, a large one is one Zstandard frame, and both read back."""
    for count, codec in ((1, 0), (100, 1)):
        view = View("a tensor with a long name", dtypes.BY_NAME["F32"], (1,))
        segments = [Segment(4 * i, 4, view.dtype, "weights", (view,)) for i in range(count)]
        archive = write(bytes(4 * count), [], segments)
        assert parse_footer(archive[-48:], len(archive)).index_codec == codec
        assert len(ArchiveReader(MemoryBytes(archive)).description.segments) == count


def test_index_that_packs_too_well_is_stored():
    """A reader refuses more than 64 times the stored size, so a writer must not write it."""
    view = View("x" * 6_000_000, dtypes.BY_NAME["F32"], (1,))
    archive = write(bytes(4), [], [Segment(0, 4, view.dtype, "weights", (view,))])
    assert ArchiveReader(MemoryBytes(archive)).description.segments[0].views == (view,)


def test_opening_reads_nothing_of_the_frames():
    """`list` of a terabyte costs header, footer and index."""

    class Watched(MemoryBytes):
        reads = 0

        def read_at(self, offset, length):
            Watched.reads += length
            return super().read_at(offset, length)

    archive = write(bytes(MiB), [], [Segment(0, MiB)])
    ArchiveReader(Watched(archive))
    assert Watched.reads < 1024


# Forged archives: every checksum right, everything else open.


def refused_or_sound(archive: bytes) -> None:
    """Reading ends in a FormatError or in the right bytes; anything else is the test's failure."""
    try:
        verify(archive)
    except FormatError:
        return


SEED = Archive(
    TEXT * 2,
    [
        Frame(TEXT[:16] + TEXT[32:], ranges=[(0, 16), (16, len(TEXT) - 32)]),
        Frame(TEXT[16:32], ranges=[(16, 16)]),
        Frame(TEXT, ranges=[(len(TEXT), len(TEXT))]),
    ],
    segments=varint(2)
    + varint(len(TEXT))
    + bytes((1, 2, 0, 0, 1, 1))
    + b"w"
    + bytes((2, 3, 1, 12, 1, 0))
    + varint(len(TEXT))
    + b"\0",
)
SEED_INDEX = SEED.build()[parse_footer(SEED.build()[-48:], len(SEED.build())).index_offset : -48]


def test_seed_of_the_forgeries_is_sound():
    """Otherwise the tests below would meet the first check and no other."""
    verify(SEED.build())


def mutate(data: bytes, changes) -> bytes:
    out = bytearray(data)
    for place, action, piece in changes:
        at = place % (len(out) + 1)
        out[at : at + (0 if action == "insert" else len(piece))] = b"" if action == "delete" else piece
    return bytes(out)


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 2000),
        st.sampled_from(["change", "change", "insert", "delete"]),
        st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\x80", b"\x7f"])),
    ),
    min_size=1,
    max_size=4,
)


@given(changes=CHANGES, packed=st.booleans())
@settings(max_examples=600, deadline=None)
def test_forged_index_never_surprises(changes, packed):
    """A mutated index with a right checksum is a FormatError, or was harmless."""
    SEED.store_index = lambda raw: (zstandard.compress if packed else bytes)(mutate(raw, changes))
    SEED.index_codec = int(packed)
    SEED.footer = {"raw_size": len(mutate(bytes(len(SEED_INDEX)), changes))}
    try:
        archive = SEED.build()
    finally:
        SEED.store_index, SEED.index_codec, SEED.footer = bytes, 0, {}
    refused_or_sound(archive)


@given(frame=st.integers(0, 2), changes=CHANGES)
@settings(max_examples=600, deadline=None)
def test_forged_frame_header_never_surprises(frame, changes):
    """A mutated frame header whose checksum was made right, the same in the file and in the index."""

    class Forged(Frame):
        def header(self):
            body = mutate(super().header()[:-8], changes)
            body = body[: len(body) // 8 * 8]
            return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))

    frames = list(SEED.frames)
    frames[frame] = Forged(**{name: getattr(frames[frame], name) for name in Frame.__dataclass_fields__})
    refused_or_sound(Archive(SEED.original, frames, segments=SEED.segments).build())


@given(fields=st.fixed_dictionaries({}, optional={
    "offset": NUMBERS, "size": NUMBERS, "raw_size": NUMBERS, "checksum": NUMBERS, "codec": st.integers(0, 2**32 - 1),
}))  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_forged_footer_never_surprises(fields):
    """Any numbers in the footer, with its checksum right."""
    SEED.footer = fields
    try:
        refused_or_sound(SEED.build())
    finally:
        SEED.footer = {}


@given(data=st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_not_an_archive(data):
    """With and without the magic in front."""
    for raw in (data, archives.MAGIC + data, archives.MAGIC + data + archives.END_MAGIC):
        with pytest.raises(FormatError):
            verify(raw)


def peak_of(archive: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            verify(archive)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _many_extents(count: int) -> Archive:
    """An index with frames of thousands of extents each that the file has no room for, and noise that pays for it."""
    frame = Frame(b"", [archives.Stream(b"", count)], [(1, 1)] * count, payload_checksum=0).header()
    table = varint(60) + (b"\0" + frame) * 60
    return Archive(
        b"",
        sections={archives.FRAMES: Section(archives.FRAMES, 1, table)},
        extra=[Section(900, 0, random.Random(1).randbytes(20_000))],
        store_index=lambda raw: zstandard.compress(raw, 19),
        index_codec=1,
    )


def test_index_cannot_list_frames_that_the_file_has_no_room_for():
    """Found at the first frame too many, so that a packed index does not become gigabytes of extents."""
    with pytest.raises(FormatError, match="does not stand behind the last frame"):
        verify(_many_extents(1 << 13).build())


@pytest.mark.parametrize(
    ("archive", "limit"),
    [
        (stored(TEXT, index_codec=1, store_index=lambda raw: zstandard.compress(bytes(200 * MiB)),
                footer={"raw_size": 200 * MiB}), MiB),
        (stored(TEXT, original_size=1 << 62), MiB),
        (stored(TEXT, frame_count=1 << 62), MiB),
        (_many_extents(1 << 13), 8 * MiB),
    ],
    ids=["index bomb", "huge original", "huge frame count", "extents that the file does not hold"],
)  # fmt: skip
def test_memory_is_not_given_to_claims(archive, limit):
    """Memory grows with what the file holds, not with what it says."""
    assert peak_of(archive.build()) < limit


def test_window_of_exactly_the_limit_is_read():
    """256 MiB is allowed; the byte after is not."""
    size = 256 * MiB
    zeros = zstandard.ZstdCompressor(level=1).compress(bytes(16 * MiB))
    stream = archives.chunked([zeros] * 16, 16 * MiB)
    frame = Frame(
        b"", [archives.Stream(stream, size, archives.ZSTD)], [(0, size)], original_checksum=checksum(bytes(size))
    )
    hashed = xxhash.xxh3_128_digest(bytes(size))
    archive = Archive(b"", [frame], original_size=size, original_hash=hashed).build()
    assert len(archive) < 64 << 10
    assert decode_all(ArchiveReader(MemoryBytes(archive)), CpuEngine(1)) == hashed


def test_offsets_beyond_32_bits():
    """Five gigabytes of zeros open at once, and what stands behind them decodes alone."""
    window = 256 * MiB
    zeros = zstandard.ZstdCompressor(level=1).compress(bytes(16 * MiB))
    stream = archives.chunked([zeros] * 16, 16 * MiB)
    digest = checksum(bytes(window))
    frames = [
        Frame(b"", [archives.Stream(stream, window, archives.ZSTD)], [(i * window, window)], original_checksum=digest)
        for i in range(20)
    ]
    frames.append(Frame(b"the end!", ranges=[(20 * window, 8)]))
    size = 20 * window + 8
    archive = Archive(b"", frames, original_size=size, original_hash=bytes(15) + b"1").build()
    reader = ArchiveReader(MemoryBytes(archive))
    assert reader.index.original_size == size > 1 << 32
    assert len(reader.windows()) == 21
    assert decode_frame(reader, 20) == b"the end!"
    assert reader.frames[20].header.extents == ((20 * window, 8),)


@pytest.mark.parametrize("name", ["segments_too_short", "view_name_not_utf8", "view_of_rank_65", "writer_bytes_left"])
def test_flaw_in_the_description_costs_no_byte(name):
    """Decoding needs neither segments nor writer: only listing fails."""
    reader = ArchiveReader(MemoryBytes((GOLDEN / "fail" / f"{name}.nvckpt").read_bytes()))
    assert decode_all(reader, CpuEngine(1)) == reader.index.original_hash
    with pytest.raises(CorruptArchiveError):
        _ = reader.description
