"""Every file comes back bit for bit, with its mode and time, whatever it holds and however it is compressed."""

import io
import os
import warnings
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nvckpt
from nvckpt import compression, plan
from nvckpt.codecs import blocks, registry
from nvckpt.codecs.content import Content
from nvckpt.compression import CompressOptions
from nvckpt.decompression import DecompressOptions, decode_all
from nvckpt.engines import CpuEngine
from nvckpt.errors import (
    InvalidRequestError,
    NotARegularFileError,
    RemovalError,
    SourceChangedError,
    VerificationError,
    WriteError,
)
from nvckpt.files import check_space
from nvckpt.formats import dtypes
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.container import ArchiveReader
from nvckpt.formats.groups import GROUPS
from nvckpt.formats.layout import MAX_WINDOW
from nvckpt.formats.segments import Segment, Source, tile
from nvckpt.results import ARCHIVE, STRUCTURE

SAMPLES = sorted((Path(__file__).parent.parent / "sample_data" / "checkpoints").iterdir())
FORCED = [name for name in registry.names() if registry.unavailable(name) is None]
MTIME = 1_234_567_890_123_456_789
MiB = 1 << 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Checkpoints by name, each made once, with a mode and a time of its own."""
    paths: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in paths:
            folder = tmp_path_factory.mktemp(name)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                paths[name] = checkpoints.FIXTURES[name](folder)
            paths[name].chmod(0o640)
            os.utime(paths[name], ns=(MTIME, MTIME))
        return paths[name]

    return make


def round_trip(source: Path, folder: Path, options: CompressOptions) -> bytes:
    """Compress and restore, compare everything, and return the archive."""
    archive, restored = folder / "archive.nvckpt", folder / "restored"
    before = source.stat()
    result = nvckpt.compress(source, archive, options)
    back = nvckpt.decompress(archive, restored, DecompressOptions(force=True))
    data = source.read_bytes()
    assert restored.read_bytes() == data
    assert result.hash == back.hash == xxhash.xxh3_128_hexdigest(data)
    for path in (archive, restored):
        assert path.stat().st_mode == before.st_mode
        assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert sorted(path.name for path in folder.iterdir()) == ["archive.nvckpt", "restored"]
    return archive.read_bytes()


@pytest.mark.parametrize("name", checkpoints.FIXTURES)
def test_checkpoint_comes_back_identical(name, made, tmp_path):
    """Sound, damaged, or no checkpoint at all: the same bytes, mode and time, and a listing that tiles the file."""
    path = made(name)
    round_trip(path, tmp_path, CompressOptions(force=True))
    listing = nvckpt.inspect(tmp_path / "archive.nvckpt")
    position = 0
    for tensor in listing.tensors:
        assert tensor.offset == position
        position += tensor.bytes_in
    assert position == path.stat().st_size
    assert sum(group.bytes_in for group in listing.groups) == listing.bytes_in
    assert (
        sum(group.bytes_out for group in listing.groups)
        == listing.bytes_out
        == len((tmp_path / "archive.nvckpt").read_bytes())
    )


@pytest.mark.parametrize("name", checkpoints.FIXTURES)
def test_archive_depends_on_content_and_options_alone(name, made, tmp_path):
    """One thread or three, once or again: the same bytes."""
    path = made(name)
    archives = []
    for number, threads in enumerate((1, 3, 3)):
        output = tmp_path / f"{number}.nvckpt"
        nvckpt.compress(path, output, CompressOptions(threads=threads))
        archives.append(output.read_bytes())
    assert archives[0] == archives[1] == archives[2]


@pytest.mark.parametrize("codec", FORCED)
def test_every_codec_restores_every_checkpoint(codec, made, tmp_path):
    """Forced codecs, too, and the archive names no other than the one asked for and store."""
    for name in checkpoints.FIXTURES:
        round_trip(made(name), tmp_path, CompressOptions(codec, force=True))
        used = {codec for t in nvckpt.inspect(tmp_path / "archive.nvckpt").tensors for codec in t.codecs}
        if codec != registry.AUTO:
            assert used <= {codec, "store"}


@pytest.mark.parametrize("level", ["fast", "max", 5])
def test_every_level_restores_the_samples(level, tmp_path):
    """Levels change the size, not what comes back."""
    for path in SAMPLES[1:3]:
        round_trip(path, tmp_path, CompressOptions(level=level, force=True))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_sample_is_smaller_than_zstd_19_makes_it(path, tmp_path):
    """The reason to use this and not `zstd -19`."""
    archive = round_trip(path, tmp_path, CompressOptions())
    assert len(archive) < len(zstandard.ZstdCompressor(level=19).compress(path.read_bytes()))


def test_truth_of_groups(tmp_path):
    """The last rows are the file's structure and the archive's own bytes, and nothing is counted twice."""
    source = next(path for path in SAMPLES if path.suffix == ".safetensors")
    result = nvckpt.compress(source, tmp_path / "a.nvckpt")
    assert [group.name for group in result.groups][-2:] == [STRUCTURE, ARCHIVE]
    assert sum(group.bytes_out for group in result.groups) == result.bytes_out == (tmp_path / "a.nvckpt").stat().st_size


# Files larger than a window.


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """100 MiB: noise, floats, zeros as a hole, whole numbers, and an odd tail."""
    path = tmp_path_factory.mktemp("large") / "large.bin"
    numbers = np.random.default_rng(1)
    with path.open("wb") as file:
        file.write(numbers.bytes(20 * MiB))
        file.write(numbers.standard_normal(5 * MiB, np.float32).tobytes())
        file.seek(80 * MiB)
        file.write(np.arange(20 * MiB // 8 - 1).tobytes() + b"odd")
    return path


def test_file_of_several_windows_comes_back(large, tmp_path):
    """Windows are written and read in order; memory does not hold the file."""
    archive, restored = tmp_path / "a.nvckpt", tmp_path / "restored"
    seen = []
    nvckpt.compress(large, archive, CompressOptions(threads=2), lambda done, total: seen.append((done, total)))
    nvckpt.decompress(archive, restored)
    assert restored.read_bytes() == large.read_bytes()
    assert archive.stat().st_size < 45 * MiB
    size = large.stat().st_size
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)
    assert len(seen) == -(-size // plan.WINDOW)


def test_several_windows_give_the_same_bytes_with_any_number_of_threads(large, tmp_path):
    """Also where threads work ahead."""
    digests = set()
    for threads in (1, 3):
        nvckpt.compress(large, tmp_path / "a", CompressOptions("lz4", threads=threads, force=True, verify=False))
        digests.add(xxhash.xxh3_128_digest((tmp_path / "a").read_bytes()))
    assert len(digests) == 1


# Plans.

SIZES = st.one_of(
    st.integers(1, 3000), st.sampled_from([1, 1023, 1024, 1025, 256 << 10, (256 << 10) - 1, 1 << 20]),
    st.sampled_from([plan.WINDOW - 1, plan.WINDOW, plan.WINDOW + 1, 3 * plan.WINDOW + 7, 1 << 40]),
)  # fmt: skip
KINDS = st.one_of(st.none(), st.sampled_from([dtypes.BY_NAME[n] for n in ("F32", "BF16", "I64", "BOOL", "F4", "C128")]))


@st.composite
def segment_lists(draw, sizes=SIZES):
    segments, position = [], 0
    for _ in range(draw(st.integers(0, 25))):
        length = min(draw(sizes), (1 << 30) if position else 1 << 40)
        group = draw(st.sampled_from(GROUPS[:4]))
        segments.append(Segment(position, length, draw(KINDS), group, (), draw(st.booleans())))
        position += length
    return segments


def cut(lists):
    """Very long segments only where few windows come of them."""
    return lists.filter(lambda segments: sum(s.length for s in segments) < 1 << 33)


@given(segments=cut(segment_lists()))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_windows_tile_the_file_and_blocks_tile_windows(segments):
    """Whatever the segments: every byte once, in windows and extents within the format's limits."""
    size = sum(segment.length for segment in segments)
    position = 0
    for window in plan.windows(segments):
        assert window.start == position
        assert 0 < window.end - window.start <= plan.WINDOW <= MAX_WINDOW
        extents = sorted(extent for block in window.blocks for extent in block.extents)
        for offset, length in extents:
            assert (offset, length > 0) == (position, True)
            position += length
        assert position == window.end
        for block in window.blocks:
            gaps = zip(block.extents, block.extents[1:], strict=False)
            assert all(before[0] + before[1] < after[0] for before, after in gaps)
            assert block.size > 0
    assert position == size


def test_many_tiny_tensors_do_not_become_many_blocks():
    """A hundred thousand tensors of a few bytes share blocks: a frame for each would cost more than they hold."""
    f32 = dtypes.BY_NAME["F32"]
    segments, position = [], 0
    for number in range(100_000):
        length = 4 + number % 40
        segments.append(Segment(position, length, f32 if number % 2 else None, "weights" if number % 4 else "rng"))
        position += length
    assert sum(len(window.blocks) for window in plan.windows(segments)) < 10


@given(
    data=st.binary(min_size=1, max_size=6000),
    tensors=st.lists(st.tuples(st.integers(0, 6000), st.integers(1, 4000), KINDS, st.sampled_from(GROUPS)), max_size=8),
    window=st.sampled_from([16, 1000, 4096, plan.WINDOW]),
    codec=st.sampled_from(FORCED),
)
@settings(max_examples=150, deadline=None)
def test_any_bytes_with_any_segments_come_back(data, tensors, window, codec):
    """Segments are annotations: right or wrong, the bytes are the same. Small windows make many of them."""
    segments, _ = tile(len(data), [Segment(o, n, dtype, group) for o, n, dtype, group in tensors if dtype])
    source = Source("test", len(data), segments)
    sink = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "WINDOW", window)
        patch.setattr(plan, "_INLINE", 64)
        patch.setattr(plan, "_OWN_BLOCK", 512)
        index, size = compression.write_archive(
            MemoryBytes(data), source, sink, CpuEngine(1), CompressOptions(codec, threads=1), compression.Work(None)
        )
    archive = sink.getvalue()
    assert len(archive) == size
    restored = bytearray()

    class Out:
        write = restored.extend

    assert decode_all(ArchiveReader(MemoryBytes(archive)), CpuEngine(1), Out()) == index.original_hash
    assert restored == data


# What can go wrong between reading and naming.


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(np.random.default_rng(2).bytes(100_000))
    return path


def only(folder: Path, *names: str) -> bool:
    return sorted(path.name for path in folder.iterdir()) == sorted(names)


@pytest.mark.parametrize("change", ["append", "rewrite", "shrink", "replace", "remove"])
def test_source_that_changes_while_it_is_read_is_an_error(change, source, tmp_path):
    """A checkpoint that a training job still writes must not become an archive of neither state."""

    def meddle(_done, _total):
        if change == "append":
            with source.open("ab") as file:
                file.write(b"more")
        elif change == "rewrite":
            with source.open("r+b") as file:
                file.write(b"other")
            os.utime(source, ns=(MTIME, MTIME))
        elif change == "shrink":
            os.truncate(source, 10)
        elif change == "replace":
            (tmp_path / "new").write_bytes(source.read_bytes())
            (tmp_path / "new").rename(source)
        else:
            source.unlink()

    with pytest.raises(SourceChangedError, match="nothing was written"):
        nvckpt.compress(source, options=CompressOptions(remove=True), progress=meddle)
    assert only(tmp_path, *([] if change == "remove" else ["x.bin"]))


def test_source_that_shrinks_before_it_is_read_is_an_error(source, tmp_path, monkeypatch):
    """The reader found tensors where the file now ends."""
    real = compression.read_source

    def read(data, path, memory):
        parsed = real(data, path, memory)
        os.truncate(source, 10)
        return parsed

    monkeypatch.setattr(compression, "read_source", read)
    with pytest.raises(SourceChangedError, match="became shorter"):
        nvckpt.compress(source)
    assert only(tmp_path, "x.bin")


@pytest.mark.parametrize("damage", ["payload", "index", "wrong bytes"])
def test_archive_that_does_not_verify_is_not_kept(damage, source, tmp_path, monkeypatch):
    """A bad disk or a defect of a codec is found before the archive gets its name, and --rm never runs."""
    real = compression.AtomicFile.write_all

    def write_all(file, parts):
        raw = bytearray(b"".join(parts))
        if damage == "payload" and len(raw) > 90_000:
            raw[5000] ^= 1
        if damage == "index" and b"nvckpt " in raw:
            raw[3] ^= 1
        real(file, [raw])

    if damage == "wrong bytes":
        monkeypatch.setattr("nvckpt.engines._gather", lambda task: memoryview(task.window[:-1] + b"?"))
    else:
        monkeypatch.setattr(compression.AtomicFile, "write_all", write_all)
    with pytest.raises(VerificationError, match="not kept"):
        nvckpt.compress(source, options=CompressOptions(remove=True))
    assert only(tmp_path, "x.bin")


def test_decode_failure_in_a_pipe_is_found_block_by_block(source, monkeypatch):
    """A pipe cannot be read back, so each block is decoded as soon as it is coded."""
    monkeypatch.setattr(compression.blocks, "decode", lambda block, size: memoryview(bytes(size)))
    with pytest.raises(VerificationError, match="did not give the same bytes back"):
        nvckpt.compress(source, os.devnull)


@pytest.mark.parametrize("output", ["-", os.devnull])
def test_removal_needs_an_output_that_stays(output, source, tmp_path):
    """Compressing to /dev/null or a pipe must not remove the only copy, on the way there or back."""
    with pytest.raises(InvalidRequestError, match="only removed when its output is a file"):
        nvckpt.compress(source, output, CompressOptions(remove=True))
    nvckpt.compress(source)
    with pytest.raises(InvalidRequestError, match="only removed when its output is a file"):
        nvckpt.decompress(f"{source}.nvckpt", output, DecompressOptions(remove=True))
    assert only(tmp_path, "x.bin", "x.bin.nvckpt")


def test_removal_happens_after_success(source, tmp_path):
    """And the other way round."""
    data = source.read_bytes()
    nvckpt.compress(source, options=CompressOptions(remove=True))
    assert only(tmp_path, "x.bin.nvckpt")
    nvckpt.decompress(f"{source}.nvckpt", options=DecompressOptions(remove=True))
    assert only(tmp_path, "x.bin")
    assert source.read_bytes() == data


@pytest.mark.parametrize(
    "name", ["漢" * 82, "é" * 120, "x" * 248, "\udcff" * 240], ids=["cjk", "accents", "ascii", "bytes"]
)
def test_longest_names_fit(name, source, tmp_path):
    """A name of up to 255 bytes with its suffix must not fail for the sake of a temporary one."""
    path = source.rename(tmp_path / name)
    nvckpt.compress(path)
    path.unlink()
    nvckpt.decompress(f"{path}.nvckpt")
    assert path.stat().st_size == 100_000


def test_special_bits_are_not_copied(source):
    """A set-user-id bit must not appear on a file by way of an archive."""
    source.chmod(0o4755)
    nvckpt.compress(source)
    assert Path(f"{source}.nvckpt").stat().st_mode & 0o7777 == 0o755


def test_interrupted_work_leaves_no_file(source, tmp_path):
    """Any exception on the way, also one that is no Exception."""

    class Stop(BaseException):
        pass

    def stop(_done, _total):
        raise Stop

    with pytest.raises(Stop):
        nvckpt.compress(source, progress=stop)
    assert only(tmp_path, "x.bin")
    nvckpt.compress(source)
    source.unlink()
    with pytest.raises(Stop):
        nvckpt.decompress(f"{source}.nvckpt", progress=stop)
    assert only(tmp_path, "x.bin.nvckpt")


def test_output_that_appears_meanwhile_is_not_replaced(source, tmp_path):
    """Two jobs at once: the second one to finish fails, and keeps the first one's file."""
    output = tmp_path / "x.bin.nvckpt"
    with pytest.raises(WriteError, match="the file exists already") as caught:
        nvckpt.compress(source, progress=lambda _done, _total: output.write_bytes(b"other"))
    assert caught.value.code == "exists"
    assert output.read_bytes() == b"other"
    assert only(tmp_path, "x.bin", "x.bin.nvckpt")


def test_space_is_looked_for_before_anything_is_written(tmp_path):
    """An hour of restoring must not end with a full disk that was foreseeable."""
    with (tmp_path / "x").open("wb") as file:
        check_space(file.fileno(), 1)
        with pytest.raises(OSError, match="No space left"):
            check_space(file.fileno(), 1 << 60)


def test_rm_keeps_a_source_that_changed_without_a_sign(tmp_path, monkeypatch):
    """A page written through a mapping moves no time; before removal the source is read and hashed once more."""
    source = tmp_path / "x.bin"
    source.write_bytes(bytes(range(256)) * 4000)
    monkeypatch.setattr("nvckpt.files.Input.check_unchanged", lambda self: None)

    def change(done, total):
        with source.open("r+b") as file:
            file.write(b"newer")

    with pytest.raises(SourceChangedError, match="not removed"):
        nvckpt.compress(source, options=nvckpt.CompressOptions(remove=True), progress=change)
    assert source.read_bytes().startswith(b"newer")


def test_source_whose_time_was_set_back_is_seen(tmp_path):
    """The time of the change of its entry tells what its own time hides."""
    source = tmp_path / "x.bin"
    source.write_bytes(bytes(100_000))

    def change(done, total):
        before = source.stat()
        with source.open("r+b") as file:
            file.write(b"newer")
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(SourceChangedError):
        nvckpt.compress(source, progress=change)
    assert [path.name for path in tmp_path.iterdir()] == ["x.bin"]


@pytest.mark.parametrize("kind", ["fp16_in_fp32", "fp32_in_fp64", "nan", "alternating"])
def test_auto_is_not_far_behind_zstd_on_structured_floats(kind):
    """Where a sample shows repeats or empty low bits, auto tries what finds them."""
    values = np.random.RandomState(3).normal(0, 0.02, 100_000)
    data, content = {
        "fp16_in_fp32": (values.astype("<f2").astype("<f4"), Content(4, "fp32")),
        "fp32_in_fp64": (values.astype("<f4").astype("<f8"), Content(8, "fp64")),
        "nan": (np.full(100_000, np.nan, "<f4"), Content(4, "fp32")),
        "alternating": (np.tile(np.array([1.25, -3.5, 7.0], "<f4"), 33_000), Content(4, "fp32")),
    }[kind]
    auto = blocks.encode(data.tobytes(), content, blocks.Choice())
    zstd = blocks.encode(data.tobytes(), content, blocks.Choice("zstd"))
    assert auto.encoded_size <= 1.03 * zstd.encoded_size + 64


def test_removal_that_fails_is_told_apart(tmp_path, monkeypatch):
    """The archive is there and whole; the sentence says that only the input could not be removed."""
    source = tmp_path / "x.bin"
    source.write_bytes(bytes(1000))
    real = Path.unlink

    def unlink(path, *args, **kwargs):
        if path == source:
            raise PermissionError(1, "Operation not permitted")
        real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(RemovalError, match="is written, but the input could not be removed: operation not permitted"):
        nvckpt.compress(source, options=nvckpt.CompressOptions(remove=True))
    monkeypatch.undo()
    assert nvckpt.verify(tmp_path / "x.bin.nvckpt").damage == ()
    assert source.exists()


def test_output_that_ends_like_a_directory_is_refused(tmp_path):
    """As cp and tar do: a missing folder is not made into a file."""
    source = tmp_path / "x.bin"
    source.write_bytes(bytes(1000))
    with pytest.raises(NotARegularFileError):
        nvckpt.compress(source, f"{tmp_path}/missing/")
    assert [path.name for path in tmp_path.iterdir()] == ["x.bin"]
