"""Damaged archives: what can be rescued is right, what is lost is listed, and forged ones cost no time or memory."""

import os
import random
import struct
import time
import tracemalloc
from pathlib import Path

import archives
import golden_references
import numpy as np
import pytest
from archives import Archive, Frame
from command import Shell
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import nvckpt
from nvckpt.decompression import DecompressOptions
from nvckpt.errors import InvalidRequestError, OutputTooLargeError
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.container import ArchiveReader
from nvckpt.formats.errors import FormatError, NotAnArchiveError, UnsupportedArchiveError
from nvckpt.formats.frame_scan import scan
from nvckpt.formats.recovery import find_remains
from nvckpt.recovery import restore

DECODE = Path(__file__).parent / "golden" / "decode"
SOUND = sorted(path.stem for path in DECODE.glob("*.nvckpt"))
MiB = 1 << 20
NO_INDEX = {"footer": {"footer_checksum": 1}}


class Places:
    """An output in memory that takes ranges in any order."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write_at(self, data, offset):
        self.data.extend(bytes(max(0, offset + len(data) - len(self.data))))
        self.data[offset : offset + len(data)] = data


class Rescued:
    """What a damaged archive still gives: the bytes, which of them are claimed to be good, and what is said."""

    def __init__(self, archive: bytes) -> None:
        self.remains = find_remains(MemoryBytes(archive))
        out = Places()
        self.salvage = restore(self.remains, 1, out)
        self.bytes = bytes(out.data).ljust(self.remains.size, b"\0")
        self.good = np.ones(self.remains.size, bool)
        for offset, length, reason in self.salvage.lost:
            assert reason
            assert length > 0
            self.good[offset : offset + length] = False

    def check(self, original: bytes) -> "Rescued":
        """Every byte claimed is the original's, and where the end is known nothing is missing behind it."""
        assert self.remains.size <= len(original)
        if self.remains.size_is_known:
            assert self.remains.size == len(original)
        ours, theirs = (np.frombuffer(b[: self.remains.size], np.uint8) for b in (self.bytes, original))
        assert np.array_equal(ours[self.good], theirs[self.good])
        return self

    def lost(self) -> list[tuple[int, int]]:
        return sorted((offset, length) for offset, length, _ in self.salvage.lost)


def attempt(archive: bytes, original: bytes) -> Rescued | None:
    """None when the archive is refused with a sentence; nothing else may be raised."""
    try:
        return Rescued(archive).check(original)
    except FormatError as error:
        assert str(error)
        return None


# Every region of every golden archive.


@pytest.mark.parametrize("name", SOUND)
def test_cut_at_every_97th_byte(name):
    """A truncated archive never gives a wrong byte, and never claims to know the end."""
    archive, original = (DECODE / f"{name}.nvckpt").read_bytes(), (DECODE / name).read_bytes()
    for length in range(0, len(archive), 97):
        rescued = attempt(archive[:length], original)
        assert rescued is None or not rescued.remains.size_is_known


@pytest.mark.parametrize("name", SOUND)
def test_overwritten_anywhere(name):
    """32 bytes overwritten at every place, with the index whole or not: head, frame headers, payloads, index, tail."""
    archive, original = (DECODE / f"{name}.nvckpt").read_bytes(), (DECODE / name).read_bytes()
    for start in range(0, len(archive), 32):
        damaged = bytearray(archive)
        damaged[start : start + 32] = bytes(byte ^ 0xA5 for byte in archive[start : start + 32])
        rescued = attempt(bytes(damaged), original)
        if rescued and rescued.remains.index:
            assert rescued.remains.size_is_known
        damaged[-56:-40] = bytes(16)
        attempt(bytes(damaged), original)


# Each region by name, with what exactly is lost.


ORIGINAL = bytes(range(256)) * 12
# Frames at 0..999, 1000..1999 and 2000..3071, the first and last cut in two extents each.
PARTS = [[(0, 500), (600, 400)], [(500, 100), (1000, 1000)], [(2000, 1072)]]


def frames() -> list[Frame]:
    made = []
    for extents in PARTS:
        position, ranges = 0, []
        for offset, length in extents:
            ranges.append((offset - position, length))
            position = offset + length
        made.append(Frame(b"".join(ORIGINAL[o : o + n] for o, n in extents), ranges=ranges))
    return made


def three(**changes) -> bytes:
    """An archive of three frames in two windows."""
    return Archive(ORIGINAL, frames(), **changes).build()


def place(number: int) -> tuple[int, int]:
    """Where a frame's header and payload begin."""
    frame = ArchiveReader(MemoryBytes(three())).frames[number]
    return frame.offset, frame.offset + len(frame.packed)


def spoil(archive: bytes, start: int, count: int = 8) -> bytes:
    return archive[:start] + bytes(b ^ 0xFF for b in archive[start : start + count]) + archive[start + count :]


def test_sound_archive_is_whole():
    """A rescue of a sound archive is a decompression."""
    rescued = Rescued(three()).check(ORIGINAL)
    assert (rescued.lost(), rescued.remains.problems) == ([], ())
    assert rescued.bytes == ORIGINAL


@pytest.mark.parametrize("region", ["head", "first header", "last header", "padding", "appended", "put before"])
def test_damage_around_the_frames_costs_nothing(region):
    """While the index is whole, only payloads can be lost."""
    archive = three()
    damaged = {
        "head": spoil(archive, 0),
        "first header": spoil(archive, place(0)[0]),
        "last header": spoil(archive, place(2)[0] + 20),
        "padding": spoil(archive, place(1)[0] - 8, 4),
        "appended": archive + b"\n" * 100,
        "put before": b"HTTP/1.1 200 OK\r\n\r\n" + archive,
    }[region]
    rescued = Rescued(damaged).check(ORIGINAL)
    assert rescued.lost() == []
    assert rescued.bytes == ORIGINAL


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("changes", [{}, NO_INDEX], ids=["index", "no index"])
def test_damaged_payload_costs_its_frame_alone(number, changes):
    """With or without an index: the header tells what is lost."""
    rescued = Rescued(spoil(three(**changes), place(number)[1])).check(ORIGINAL)
    assert rescued.lost() == PARTS[number]
    assert (rescued.remains.index is None) == bool(changes)


@pytest.mark.parametrize("number", range(3))
def test_damaged_header_without_an_index_costs_its_frame(number):
    """The ranges that no frame restores are lost; of the last frame nothing is known, so neither is the size."""
    rescued = Rescued(spoil(three(**NO_INDEX), place(number)[0] + 9)).check(ORIGINAL)
    assert rescued.lost() == ([] if number == 2 else PARTS[number])
    assert not rescued.remains.size_is_known
    assert rescued.remains.size == (2000 if number == 2 else len(ORIGINAL))


def test_end_is_known_when_the_footer_says_where_the_index_was():
    """All frames stand one after the other between a sound head and a sound footer: nothing can be missing."""
    archive = bytearray(three())
    archive[-100] ^= 1
    rescued = Rescued(bytes(archive)).check(ORIGINAL)
    assert rescued.remains.index is None
    assert rescued.remains.size_is_known
    assert rescued.lost() == []


@pytest.mark.parametrize("count", [1, 15, 16, 700])
@pytest.mark.parametrize("kind", ["deleted", "inserted"])
def test_moved_frames_are_found(kind, count):
    """Bytes lost or added in the second frame's payload move the third frame and the index."""
    at = place(1)[1] + 100
    archive = three()
    damaged = archive[:at] + (archive[at + count :] if kind == "deleted" else b"x" * count + archive[at:])
    rescued = Rescued(damaged).check(ORIGINAL)
    assert rescued.remains.index
    assert rescued.lost() == PARTS[1]


def test_index_is_found_behind_a_frame_that_lost_bytes():
    """The last frame's header says that it reaches over the index, which has moved to the front."""
    at = place(2)[1] + 100
    rescued = Rescued(three()[:at] + three()[at + 500 :]).check(ORIGINAL)
    assert rescued.remains.index
    assert rescued.lost() == PARTS[2]


def test_archive_without_its_head():
    """The index tells where the first frame's payload is without its header, and what is lost with the payload."""
    assert Rescued(three()[place(0)[1] :]).check(ORIGINAL).lost() == []
    assert Rescued(three()[place(0)[1] + 1 :]).check(ORIGINAL).lost() == PARTS[0]


def test_frame_that_another_copy_restores():
    """A transfer that failed and was begun anew behind the first part: the second copy gives everything."""
    archive = three()
    rescued = Rescued(archive[: place(1)[1] + 10] + archive).check(ORIGINAL)
    assert rescued.lost() == []


EDIT = st.tuples(
    st.sampled_from(["delete", "insert", "zeros", "copy"]),
    st.integers(0, 4500),
    st.integers(1, 1500),
    st.binary(min_size=1, max_size=40),
)


@given(
    edits=st.lists(EDIT, min_size=1, max_size=3),
    keeps_tail=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_splices(edits, keeps_tail):
    """Bytes deleted, inserted, zeroed, or copied from elsewhere in the archive: no wrong byte is ever claimed."""
    sound = three()
    archive = sound
    for kind, position, count, data in edits:
        at = position % (len(archive) + 1)
        if kind == "delete":
            archive = archive[:at] + archive[at + count :]
        elif kind == "insert":
            archive = archive[:at] + data + archive[at:]
        elif kind == "zeros":
            archive = archive[:at] + bytes(min(count, len(archive) - at)) + archive[at + count :]
        else:
            archive = archive[:at] + sound[count : 2 * count] + archive[at + count :]
    attempt(archive if keeps_tail else archive[:-60], ORIGINAL)


def derived(**changes) -> bytes:
    """Three frames: the first, a copy of it, and one of its own."""
    size = len(ORIGINAL)
    copy = golden_references.follow(ORIGINAL, size, golden_references.COPY, 0, b"", golden_references.refer((0, size)))
    return Archive(ORIGINAL * 3, [Frame(ORIGINAL), copy, Frame(ORIGINAL, ranges=[(2 * size, size)])], **changes).build()


@pytest.mark.parametrize("changes", [{}, NO_INDEX], ids=["index", "no index"])
@pytest.mark.parametrize("region", ["payload", "header"])
def test_frame_that_follows_from_a_lost_one_is_lost_too(region, changes):
    """Both are listed, and why; the third is not touched. With an index a header is no loss."""
    size = len(ORIGINAL)
    frame = ArchiveReader(MemoryBytes(derived())).frames[0]
    at = frame.offset + (len(frame.packed) if region == "payload" else 8)
    rescued = Rescued(spoil(derived(**changes), at)).check(ORIGINAL * 3)
    if region == "header" and not changes:
        assert rescued.lost() == []
        return
    assert rescued.lost() == [(0, size), (size, size)]
    assert any("follows from bytes 0" in reason or "lost" in reason for _, _, reason in rescued.salvage.lost)
    assert rescued.good[2 * size :].all()


def test_last_frame_that_became_zeros_is_missed():
    """Between the frame before and the index there would be room for it: the end is not known."""
    archive = bytearray(three())
    archive[-100] ^= 1
    start, end = place(2)[0], place(2)[1] + PARTS[2][0][1]
    archive[start:end] = bytes(end - start)
    rescued = Rescued(bytes(archive)).check(ORIGINAL)
    assert (rescued.remains.size, rescued.remains.size_is_known) == (2000, False)


def damaged_at_random(archive: bytes, rng: random.Random) -> bytes:
    """Up to four times bytes deleted, added, flipped, zeroed, copied from elsewhere, or cut off."""
    data = bytearray(archive)
    for _ in range(rng.randint(1, 4)):
        kind, at, count = rng.choice("daizcx"), rng.randrange(len(data) + 1), rng.choice([1, 4, 16, 32, 100, 500, 1000])
        if kind == "d":
            del data[at : at + count]
        elif kind == "a":
            data[at:at] = rng.randbytes(count)
        elif kind == "i" and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "z":
            data[at : at + count] = bytes(min(count, len(data) - at))
        elif kind == "c":
            start = rng.randrange(len(archive))
            data[at : at + count] = archive[start : start + count]
        elif kind == "x":
            del data[at:]
    return bytes(data)


def test_random_damage_never_gives_a_wrong_byte():
    """Of every golden archive, of archives with references, without an index, and around another archive.

    One that holds another, whole, and has lost its own head and index, cannot be told from that one with something
    before it (FORMAT.md 13).
    """
    rng = random.Random(5)
    cases = [((DECODE / f"{name}.nvckpt").read_bytes(), (DECODE / name).read_bytes()) for name in SOUND]
    cases += [(three(), ORIGINAL), (three(**NO_INDEX), ORIGINAL), (derived(), 3 * ORIGINAL)]
    cases += [nesting()[:2]] * 3
    for _ in range(1500):
        archive, original = rng.choice(cases)
        damaged = damaged_at_random(archive, rng)
        if damaged.startswith(archives.MAGIC) or archives.MAGIC not in original:
            attempt(damaged, original)


# Archives inside archives.


def nesting(changes_inside: dict | None = None, **changes) -> tuple[bytes, bytes, int]:
    """An archive that stores another one, with its original and where the inner one's bytes begin."""
    inner = Archive(ORIGINAL[::-1], [Frame(ORIGINAL[::-1])], **(changes_inside or {})).build()
    original = ORIGINAL + inner + ORIGINAL
    parts = [ORIGINAL, inner, ORIGINAL]
    made, position = [], 0
    for part in parts:
        made.append(Frame(part, ranges=[(position, len(part))]))
        position += len(part)
    archive = Archive(original, made, **changes).build()
    return archive, original, archive.index(inner)


@pytest.mark.parametrize("index", [{}, NO_INDEX], ids=["index", "no index"])
@pytest.mark.parametrize("target", ["payload", "header", "payload and header"])
def test_archive_inside_is_not_taken_for_the_outer_one(index, target):
    """A tar of archives, stored: when the frame around an inner archive is damaged, its frames are none of ours."""
    archive, original, at = nesting(**index)
    if "payload" in target:
        archive = spoil(archive, at + 3000)
    if "header" in target:
        archive = spoil(archive, at - 90)
    rescued = Rescued(archive).check(original)
    inner = len(original) - 2 * len(ORIGINAL)
    kept_by_index = index == {} and target == "header"
    assert rescued.lost() == ([] if kept_by_index else [(len(ORIGINAL), inner)])


@pytest.mark.parametrize("back", [10, 60, 400])
def test_outer_archive_cut_within_the_inner_one(back):
    """The inner archive is whole or nearly so at the end of the file; its index is not that of the file."""
    archive, original, at = nesting()
    inner = len(original) - 2 * len(ORIGINAL)
    for length, good in ((at + inner, len(ORIGINAL) + inner), (at + inner - back, len(ORIGINAL))):
        rescued = Rescued(archive[:length]).check(original)
        assert rescued.salvage.good_bytes == good


def test_two_archives_in_one_file():
    """Only the first is the file's; the second would need a file of its own."""
    other = Archive(ORIGINAL[::-1], [Frame(ORIGINAL[::-1])]).build()
    assert Rescued(three() + other).check(ORIGINAL).bytes == ORIGINAL
    assert Rescued(three(**NO_INDEX) + other).check(ORIGINAL).salvage.good_frames == 3


# Forged archives: nothing here may take long, or much memory.


def lone(frame: Frame) -> bytes:
    return frame.header() + frame.payload()


def bounded(archive: bytes, seconds: float = 5.0, memory: int = 100 * MiB) -> Rescued:
    """A rescue that does not take more than this."""
    started = time.process_time()
    tracemalloc.start()
    try:
        return Rescued(archive)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < memory
        assert time.process_time() - started < seconds


def header_only(size: int, payload: int = 1, extents: int = 1) -> bytes:
    """The fixed part of a frame header that claims a size; its checksum is never right."""
    return struct.pack("<4sIBBBBIQQQQ", b"NVFR", size, 0, 0, 1, 0, extents, 1, payload, 0, 0)


def head() -> bytes:
    return three()[:32]


@pytest.mark.parametrize("size", [96, 4096, 1 << 20, 32 << 20])
def test_thousands_of_false_headers(size):
    """Data full of frame magics, each claiming a header of this size: hashing all of them would be quadratic."""
    data = head() + header_only(size) * (MiB // 48)
    assert bounded(data, seconds=8).salvage.good_frames == 0


def test_magics_without_an_end():
    """Only the four letters, over and over."""
    assert bounded(head() + b"NVFR" * (MiB // 2)).salvage.good_frames == 0


def test_many_false_archive_headers_and_footers():
    """Forged footers that all claim a long index."""
    sound = three()
    tail = struct.pack("<QQQQI", 32, MiB, MiB, 7, 0)
    tail += struct.pack("<I", archives.xxh(tail) & 0xFFFFFFFF) + archives.END_MAGIC
    rescued = bounded(head() * 5000 + tail * 20_000 + b"!" + sound[place(0)[0] : place(1)[0]])
    assert rescued.salvage.good_frames == 1


def test_forged_frames_that_overlap():
    """Two frames of the same run claim the same bytes: neither is believed, the others are."""
    extra = Frame(b"forged", ranges=[(2500, 6)])
    archive = Archive(ORIGINAL, [*frames(), extra], **NO_INDEX).build()
    rescued = bounded(archive)
    assert rescued.salvage.good_frames == 2
    assert "contradict" in " ".join(rescued.remains.problems)
    assert rescued.bytes[:2000] == ORIGINAL[:2000]


def test_forged_frame_behind_the_damage_loses_against_the_archive_it_is_in():
    """A frame found in the middle of nowhere contradicts those at head and tail."""
    forged = lone(Frame(b"forged", ranges=[(2500, 6)]))
    archive = Archive(ORIGINAL, frames()).build()
    archive = archive[: place(2)[0]] + b"\1" * 16 + forged + b"\1" * 16 + archive[place(2)[0] :]
    damaged = bytearray(archive)
    damaged[-100] ^= 1
    rescued = bounded(bytes(damaged))
    assert rescued.good.sum() in (2000, len(ORIGINAL))
    assert rescued.bytes[:2000] == ORIGINAL[:2000]


def test_forged_frame_far_away():
    """A range at the end of the address space makes no file of that size."""
    far = Frame(b"far", ranges=[(1 << 62, 3)])
    archive = Archive(ORIGINAL, [*frames(), far], **NO_INDEX).build()
    rescued = bounded(archive)
    assert rescued.remains.size == len(ORIGINAL)


def test_forged_frame_with_a_payload_of_any_size():
    """Sizes near 2^63 are not read, summed up wrongly, or reserved."""
    for encoded in (1 << 40, (1 << 63) - 100, (1 << 64) - 1):
        frame = Frame(ORIGINAL)
        packed = bytearray(frame.header())
        struct.pack_into("<Q", packed, 24, encoded)
        struct.pack_into("<Q", packed, 48 + 16, encoded)
        packed[-8:] = struct.pack("<Q", archives.xxh(bytes(packed[:-8])))
        assert bounded(head() + bytes(packed) + b"x" * 5000).salvage.good_frames == 0


def test_frame_of_very_many_extents():
    """Headers are read one at a time, and their ranges kept in arrays."""
    count = 1 << 13
    frame = Frame(bytes(count), ranges=[(0, 1)] + [(1, 1)] * (count - 1))
    rescued = bounded(head() + lone(frame) * 20, memory=20 * MiB)
    assert rescued.salvage.good_bytes == count
    assert len(rescued.remains.gaps) == count - 1


def test_search_stops_at_too_many_ranges(monkeypatch):
    """What was found by then is rescued, and the problem is told."""
    monkeypatch.setattr("nvckpt.formats.frame_scan.MAX_EXTENTS", 3)
    rescued = Rescued(three(**NO_INDEX)).check(ORIGINAL)
    assert "given up" in " ".join(rescued.remains.problems)
    assert rescued.salvage.good_frames == 2


def test_search_is_linear_in_the_payloads_of_false_frames(monkeypatch):
    """Sound headers in the middle of nowhere, each with a long payload that is not right, are not all hashed."""
    monkeypatch.setattr("nvckpt.formats.frame_scan._ALLOWANCE", 0)
    frame = Frame(bytes(MiB), payload_checksum=1)
    archive = head() + b"!" + (frame.header() + b"!") * 2000 + bytes(MiB)
    found = scan(MemoryBytes(archive))
    assert not found.is_complete
    assert len(found.offsets) == 0


def test_later_version_is_refused_not_searched():
    """A rescue by the wrong rules would be worse than none."""
    with pytest.raises(UnsupportedArchiveError, match="newer nvckpt"):
        find_remains(MemoryBytes(three(version=2)))
    with pytest.raises(UnsupportedArchiveError, match="hash id 9"):
        find_remains(MemoryBytes(three(hash_id=9)))


@pytest.mark.parametrize("data", [b"", b"x", b"some words " * 1000, bytes(100_000)], ids=len)
def test_what_is_no_archive_at_all(data):
    """Nothing found, and no head: the sentence says so."""
    with pytest.raises(NotAnArchiveError):
        find_remains(MemoryBytes(data))


# The command.


@pytest.fixture
def sh(tmp_path):
    """A shell in a folder with a model of four tensors, each a frame of its own, and damaged copies of its archive."""
    numbers = np.random.default_rng(1)
    tensors = {f"layer.{n}": numbers.standard_normal((256, 300)).astype(np.float32) for n in range(4)}
    save_file(tensors, tmp_path / "m.safetensors")
    shell = Shell(tmp_path)
    shell("compress", "-q", "m.safetensors", check=0)
    sound = (tmp_path / "m.safetensors.nvckpt").read_bytes()
    frame = ArchiveReader(MemoryBytes(sound)).frames[2]
    (tmp_path / "bad.nvckpt").write_bytes(spoil(sound, frame.offset + len(frame.packed) + 5000))
    (tmp_path / "cut.nvckpt").write_bytes(sound[: frame.offset + 5000])
    (tmp_path / "blind.nvckpt").write_bytes(spoil(sound, len(sound) - 60))
    (tmp_path / "bad.nvckpt").chmod(0o640)
    return shell


def test_sound_archive_exits_0_under_a_marked_name(sh):
    """The result is that of decompress, and the name still tells where it came from."""
    done = sh("decompress", "--rescue", "m.safetensors.nvckpt", check=0)
    assert "identical to the original" in done.text
    assert done.err == ""
    assert (sh.folder / "m.safetensors.rescued").read_bytes() == (sh.folder / "m.safetensors").read_bytes()


def test_lost_tensor_is_named_and_the_rest_written(sh):
    """Exit 1, the mode of the archive, zeros where the tensor was, and those as a hole."""
    done = sh("decompress", "--rescue", "bad.nvckpt", check=1)
    assert "not the whole file" in done.text
    assert "lost: layer.1 (bytes" in done.err
    assert "compressed bytes are damaged" in done.err
    path = sh.folder / "bad.rescued"
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.stat().st_size == (sh.folder / "m.safetensors").stat().st_size
    assert path.stat().st_blocks * 512 < path.stat().st_size - 200_000
    rescued, original = load_file(path), load_file(sh.folder / "m.safetensors")
    assert not rescued["layer.1"].any()
    for name in ("layer.0", "layer.2", "layer.3"):
        assert np.array_equal(rescued[name], original[name])


def test_cut_archive_of_safetensors_loads_and_names_what_is_missing(sh):
    """The file's own header survived: it tells the names and the size."""
    done = sh("decompress", "--rescue", "-o", "out", "cut.nvckpt", check=1)
    for name in ("layer.1", "layer.2", "layer.3"):
        assert name in done.err
    assert "more may be missing" in done.err
    assert np.array_equal(load_file(sh.folder / "out")["layer.0"], load_file(sh.folder / "m.safetensors")["layer.0"])


def test_lost_index_is_no_success_even_when_nothing_else_is_lost(sh):
    """All bytes are there, but nothing vouches for the whole."""
    done = sh("decompress", "--rescue", "blind.nvckpt", check=1)
    assert "nothing is known to be lost" in done.err
    assert (sh.folder / "blind.rescued").read_bytes() == (sh.folder / "m.safetensors").read_bytes()


def test_json_has_the_list(sh):
    """The list of the lost ranges can be kept beside the file."""
    result = sh("decompress", "--rescue", "--json", "bad.nvckpt", check=1).json["results"][0]
    assert (result["ok"], result["error"]["code"], result["output"]) == (False, "corrupt", "bad.rescued")
    assert [lost["names"] for lost in result["damage"]] == [["layer.1"]]
    lost = sum(lost["length"] for lost in result["damage"])
    assert lost == 256 * 300 * 4
    assert result["rescued_bytes"] + lost == result["bytes_out"]
    assert result["size_is_known"]
    result = sh("decompress", "--rescue", "--json", "-f", "blind.nvckpt", check=1).json["results"][0]
    assert (result["xxh3_128"], result["damage"], result["problems"]) == (None, [], ["the index is lost"])


@pytest.mark.parametrize(
    "options", [["--rm"], ["-c"], ["-o", "-"], ["--rm", "-o", "x"], ["--skip-existing"]], ids=" ".join
)
def test_combinations_that_make_no_sense(options, sh):
    """A damaged archive is never removed, and holes need a file."""
    before = sh.names()
    done = sh("decompress", "--rescue", *options, "bad.nvckpt", check=2)
    assert "rescue" in done.err
    assert sh.names() == before


def test_verifying_is_no_rescue(sh):
    """-t writes nothing."""
    sh("decompress", "-t", "--rescue", "bad.nvckpt", check=2)


def test_whole_directory(sh):
    """With -r, into a directory: each under its marked name; one that gives nothing does not stop the rest."""
    (sh.folder / "nothing.nvckpt").write_bytes(b"no archive at all")
    done = sh("decompress", "--rescue", "-r", ".", "--output-dir-flat", "out", check=1)
    assert sorted(path.name for path in (sh.folder / "out").iterdir()) == [
        "bad.rescued",
        "blind.rescued",
        "cut.rescued",
        "m.safetensors.rescued",
    ]
    assert "nothing.nvckpt: not an nvckpt archive" in done.err


def test_existing_output_is_kept_without_f(sh):
    """As everywhere."""
    (sh.folder / "bad.rescued").write_text("mine")
    assert "exists already" in sh("decompress", "--rescue", "bad.nvckpt", check=1).err
    assert (sh.folder / "bad.rescued").read_text() == "mine"
    sh("decompress", "--rescue", "-f", "bad.nvckpt", check=1)
    assert (sh.folder / "bad.rescued").read_text(errors="replace") != "mine"


def test_nothing_left_writes_nothing(sh):
    """A file of holes would look like a result."""
    (sh.folder / "head.nvckpt").write_bytes((sh.folder / "bad.nvckpt").read_bytes()[:100])
    assert "nothing could be rescued" in sh("decompress", "--rescue", "head.nvckpt", check=1).err
    assert "head.rescued" not in sh.names()


def test_from_standard_input_with_a_name(sh):
    """Spooled like every input; without -o there is no name to mark."""
    data = (sh.folder / "bad.nvckpt").read_bytes()
    sh("decompress", "--rescue", "-", "-o", "out", stdin=data, check=1)
    assert (sh.folder / "out").stat().st_size == (sh.folder / "m.safetensors").stat().st_size
    sh("decompress", "--rescue", "-", stdin=data, check=2)


def test_verify_tells_what_could_be_rescued(sh):
    """Also when the archive does not open: its frames are counted."""
    done = sh("verify", "cut.nvckpt", "blind.nvckpt", check=1)
    assert "2 frames of" in done.err
    assert "5 frames of" in done.err
    assert done.err.count("can still be rescued with decompress --rescue") == 2


def test_verify_names_tensors_under_a_damaged_head(sh):
    """The index is whole, so a lost first page of the file hides nothing."""
    (sh.folder / "bad.nvckpt").write_bytes(bytes(8) + (sh.folder / "bad.nvckpt").read_bytes()[8:])
    result = sh("verify", "--json", "bad.nvckpt", check=1).json["results"][0]
    assert ["layer.1"] in [damage["names"] for damage in result["damage"]]
    assert "first bytes" in result["error"]["message"]


def test_python_api(sh):
    """`nvckpt.rescue` is the same operation."""
    result = nvckpt.rescue(sh.folder / "bad.nvckpt", options=DecompressOptions(threads=1))
    assert (result.output, result.is_whole) == (str(sh.folder / "bad.rescued"), False)
    assert [damage.names for damage in result.damage] == [("layer.1",)]
    with pytest.raises(InvalidRequestError):
        nvckpt.rescue(sh.folder / "bad.nvckpt", options=DecompressOptions(remove=True))
    with pytest.raises(InvalidRequestError):
        nvckpt.rescue(sh.folder / "bad.nvckpt", os.devnull, DecompressOptions(force=True))
    with pytest.raises(OutputTooLargeError):
        nvckpt.rescue(sh.folder / "bad.nvckpt", sh.folder / "x", DecompressOptions(max_output=1000))
