"""What is fuzzed: one function a reader or a part of the container, each taking any bytes.

A target returns, or raises one of the documented errors of its layer, which `run` takes for an answer; whatever
else comes out is a defect. Checksums would hide everything behind them from random changes, so the targets of the
container run inside `without_checksums`, where every checksum is zero.
"""

import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from unittest import mock

from nvckpt import engines, frames
from nvckpt.codecs import blocks, derived_blocks
from nvckpt.codecs.errors import CodecError
from nvckpt.formats import container, distcp, index, layout, safetensors_file, torch_legacy
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.errors import FormatError
from nvckpt.formats.pickle_walk import walk
from nvckpt.formats.segments import Source
from nvckpt.formats.sniff import read_source
from nvckpt.formats.torch_tensors import find_storages
from nvckpt.results import describe, group_sizes

DOCUMENTED = (FormatError, CodecError)
SLOW = 1.0
"""Seconds of processor time from which an execution counts as a hang."""
# Frames that restore more are checked but not decoded: filling memory is slow, and finds nothing.
_DECODED = 1 << 20


@contextlib.contextmanager
def without_checksums() -> Iterator[None]:
    """Every checksum is zero, in what is written and in what is expected."""
    with contextlib.ExitStack() as stack:
        for module in (layout, container, engines, frames):
            stack.enter_context(mock.patch.object(module, "checksum", lambda *_parts: 0))
        yield


def _tiles(source: Source, size: int) -> None:
    """What holds for every file, whatever it is."""
    position = 0
    for segment in source.segments:
        assert (segment.offset, segment.length > 0) == (position, True)
        position = segment.end
    assert position == source.size == size
    assert not any("could not be understood" in warning for warning in source.warnings)


def sniff(data: bytes) -> None:
    """Any file: zips, legacy streams, safetensors, and everything else."""
    _tiles(read_source(MemoryBytes(data)), len(data))


def zip_file(data: bytes) -> None:
    """A file that starts as a zip does; the mutations need not find that."""
    sniff(b"PK\x03\x04" + data)


def legacy(data: bytes) -> None:
    """What stands behind the first two pickles of a legacy stream."""
    head = b"\x80\x02" + torch_legacy.MAGIC + b".\x80\x02M\xe9\x03.\x80\x02}q\x00."
    sniff(head + data)


def safetensors(data: bytes) -> None:
    """A header of any text, with its length before it and some data behind it."""
    whole = struct.pack("<Q", len(data)) + data + bytes(64)
    _tiles(safetensors_file.read(MemoryBytes(whole)), len(whole))


def pickle(data: bytes) -> None:
    """A pickle, and the storages in what it describes."""
    value, _ = walk(data)
    find_storages(value)


def metadata(data: bytes) -> None:
    """The pickle in a `.metadata` file."""
    value, _ = walk(data)
    distcp._names_in(value, "__0_0.distcp")


def archive(data: bytes) -> None:
    """A whole archive: opened, listed and decoded."""
    reader = container.ArchiveReader(MemoryBytes(data))
    for number, frame in enumerate(reader.frames):
        if frame.header.original_size <= _DECODED:
            with contextlib.suppress(*DOCUMENTED):
                frames.decode_frame(reader, number)
    reader.windows()
    reader.check_tail()
    tensors = describe(reader.index, reader.description.segments)
    group_sizes(tensors, reader.size)


def index_sections(data: bytes) -> None:
    """An index as it stands in the archive before it is compressed."""
    with contextlib.suppress(*DOCUMENTED):
        index.parse(data, 1 << 40)
    index.parse_description(data, 1000)


def frame_header(data: bytes) -> None:
    """The header of one frame; one that is accepted means the same when it is written again."""
    header = layout.parse_frame_header(data)
    if not header.references:
        assert layout.parse_frame_header(header.pack()) == header


_STREAMS = struct.Struct("<BBHB")
_DERIVED = struct.Struct("<BBHH")


def codec(data: bytes) -> None:
    """One block: transform, word, size and codec in five bytes, the stream, cut in equal parts for planes, behind."""
    if len(data) < _STREAMS.size:
        return
    transform, word, size, codec_id = _STREAMS.unpack_from(data)
    stream = memoryview(data)[_STREAMS.size :]
    shape = blocks.Block(transform, word, ())
    try:
        sizes = blocks.stream_sizes(shape, size)
    except CodecError:
        sizes = [size]
    step = len(stream) // len(sizes)
    streams = tuple(
        blocks.Stream(codec_id, original, stream[i * step : (i + 1) * step]) for i, original in enumerate(sizes)
    )
    assert len(blocks.decode(blocks.Block(transform, word, streams), size)) == size


def derived(data: bytes) -> None:
    """A block that follows from bytes elsewhere: which codec, its parameter, both sizes, the stream."""
    if len(data) < _DERIVED.size:
        return
    codec_id, param, size, references = _DERIVED.unpack_from(data)
    block = blocks.Block(0, 0, (blocks.Stream(codec_id, size, data[_DERIVED.size :], param),))
    derived_blocks.check(block, size, references)
    assert len(derived_blocks.decode(block, size, (bytes(range(256)) * 256)[:references])) == size


TARGETS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (
        sniff,
        zip_file,
        legacy,
        safetensors,
        pickle,
        metadata,
        archive,
        index_sections,
        frame_header,
        codec,
        derived,
    )
}


def run(name: str, data: bytes) -> float:
    """Call a target; returns its seconds of processor time, and lets everything undocumented through."""
    started = time.thread_time()
    with contextlib.suppress(*DOCUMENTED):
        TARGETS[name](data)
    return time.thread_time() - started
