"""Blocks that follow from other bytes of their file: copies, rounded copies, what rounding took."""

from dataclasses import dataclass

from nvckpt.codecs import blocks, derived, memory, registry
from nvckpt.codecs.base import Buffer
from nvckpt.codecs.blocks import NO_TRANSFORM, Block, Choice, Stream
from nvckpt.codecs.content import Content
from nvckpt.codecs.errors import CorruptChunkError, UnknownCodecError
from nvckpt.codecs.samples import sample

# A derived stream up to this size is not compared with the plain codec.
_SMALL_STREAM = 256


@dataclass(frozen=True, slots=True)
class Origin:
    """What a block may follow from: a codec of `derived`, its parameter, and ranges (offset, length) of the original.

    `depth` is 1 where these are coded by themselves, 2 where they follow from others in turn.
    """

    codec_id: int
    param: int
    ranges: tuple[tuple[int, int], ...]
    depth: int = 1


def encode(data: Buffer, origin: Origin, references: Buffer, content: Content, choice: Choice) -> Block | None:
    """Code one block by the bytes it is said to follow from; None where it does not, or is smaller by itself."""
    stream = derived.encode(origin.codec_id, origin.param, data, references)
    if stream is None:
        return None
    if len(stream) > _SMALL_STREAM:
        sampled = sample(memoryview(data).cast("B"))
        alone = blocks.encode(sampled, Content(content.word, content.kind), choice).encoded_size
        if alone * len(data) < len(stream) * len(sampled):
            return None
    return Block(NO_TRANSFORM, 0, (Stream(origin.codec_id, len(data), stream, origin.param),))


def check(block: Block, original_size: int, reference_size: int) -> None:
    """Tell whether a block can follow from so many referenced bytes, before these are read and memory is reserved.

    CorruptChunkError if it cannot; UnknownCodecError for a codec that this version knows no references for.
    """
    if any(stream.codec_id not in registry.DERIVED for stream in block.streams):
        raise UnknownCodecError("needs bytes from elsewhere, which this nvckpt cannot use: install a newer one")
    if [s.original_size for s in block.streams] != blocks.stream_sizes(block, original_size) or len(block.streams) > 1:
        raise CorruptChunkError("the streams do not fit the transform")
    stream = block.streams[0]
    if stream.library_version:
        raise CorruptChunkError(f"a {registry.name_of(stream.codec_id)} stream has a library version, and takes none")
    derived.check(stream.codec_id, stream.codec_param, memoryview(stream.data), original_size, reference_size)


def decode(block: Block, original_size: int, references: Buffer) -> memoryview:
    """The original bytes of a block that `check` found right, and the bytes that it refers to."""
    out = memory.unfilled(original_size)
    stream = block.streams[0]
    derived.decode(stream.codec_id, stream.codec_param, memoryview(stream.data), references, out)
    return out
