"""Coded blocks as frames of an archive, and frames as blocks: where codecs and container meet."""

from collections.abc import Sequence

from nvckpt.codecs import blocks, derived_blocks
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.blocks import Block
from nvckpt.codecs.derived_blocks import Origin
from nvckpt.codecs.errors import CodecError, CorruptChunkError
from nvckpt.formats.checksum import checksum
from nvckpt.formats.container import FrameReader
from nvckpt.formats.errors import CorruptArchiveError, FormatError, UnsupportedArchiveError
from nvckpt.formats.layout import Extent, FrameHeader, Reference, StreamRecord
from nvckpt.references import References

Frame = tuple[FrameHeader, list[Buffer]]
"""A header, and the bytes of its streams."""


def frame_of(
    block: Block, extents: Sequence[Extent], payload_sum: int, original_sum: int, origin: Origin | None = None
) -> Frame:
    """Describe a coded block as the frame that restores these ranges of the original; the sums are XXH3-64.

    `origin` is what the block was coded by, if it was.
    """
    records = tuple(
        StreamRecord(s.codec_id, s.codec_param, s.library_version, s.original_size, len(s.data)) for s in block.streams
    )
    references = tuple(Reference(0, offset, length) for offset, length in origin.ranges) if origin else ()
    header = FrameHeader(
        block.transform_id,
        block.transform_param,
        records,
        tuple(extents),
        payload_sum,
        original_sum,
        references,
    )
    return header, [stream.data for stream in block.streams]


def block_of(header: FrameHeader, payload: memoryview) -> Block:
    """Return a frame's block; its streams are views of the payload."""
    streams = tuple(
        blocks.Stream(
            s.codec_id, s.original_size, payload[start : start + s.encoded_size], s.codec_param, s.library_version
        )
        for s, start in zip(header.streams, header.stream_starts(), strict=True)
    )
    return blocks.Block(header.transform_id, header.transform_param, streams)


def references_of(reader: FrameReader) -> References:
    """Return what resolves the references of an archive's frames; share it between calls of `decode_frame`."""
    references = References(reader, lambda number: decode_frame(reader, number, references))
    return references


def decode_frame(reader: FrameReader, number: int, references: References | None = None) -> memoryview:
    """Return the original bytes of one frame, decoded by the CPU and checked at every step.

    CorruptArchiveError for damage, UnsupportedArchiveError for what this version or machine cannot decode.
    """
    header = reader.frames[number].header
    try:
        block = block_of(header, reader.read_payload(number))
        if header.references:
            derived_blocks.check(block, header.original_size, sum(r.length for r in header.references))
            source = (references or references_of(reader)).read(number)
            data = derived_blocks.decode(block, header.original_size, source)
        else:
            data = blocks.decode(block, header.original_size)
    except CodecError as error:
        raise as_format_error(error) from error
    check_original(header, checksum(data))
    return data


def check_original(header: FrameHeader, found: int) -> None:
    """CorruptArchiveError unless the decoded bytes have the checksum of the original's."""
    if found != header.original_checksum:
        raise CorruptArchiveError("the decoded bytes have another checksum than the original's")


def as_format_error(error: CodecError) -> FormatError:
    """Return what a codec's error means for the archive that holds the stream."""
    if isinstance(error, CorruptChunkError):
        return CorruptArchiveError(str(error))
    return UnsupportedArchiveError(str(error))
