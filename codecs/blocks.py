"""A frame's bytes to streams and back: which transform, and which codec for each stream.

`encode` is where `auto` chooses. Every decision depends on the block's own bytes, never on threads
or neighbours, so the same input always gives the same archive.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nvckpt.codecs import memory, planes, registry
from nvckpt.codecs.base import Buffer, Codec
from nvckpt.codecs.chunked import ChunkedCodec
from nvckpt.codecs.content import Content
from nvckpt.codecs.errors import CorruptChunkError, UnknownCodecError
from nvckpt.codecs.samples import glance, sample
from nvckpt.codecs.standard import ZSTD_ENTROPY

NO_TRANSFORM, BYTE_PLANES, FLOAT_PLANES = 0, 1, 2

# A plane that saves less than this is stored: decoding it would cost more than the bytes are worth.
_WORTH = 0.995
# Opaque bytes up to this size get a slow search; pickles and zip headers seldom exceed it.
_SMALL = 1 << 20
_SMALL_FLOATS = 64 << 10
# A sample's zstd must beat `float` by this much before the whole block is tried: a sample misses rows and columns.
_CLEARLY = 0.97
# And it must save so much of the sample more than `float` does, whose tables and states weigh on a sample: 1 % of it.
_NOTICED = 0.02
# Planes must beat the plain bytes clearly on a sample, which a stronger search may still improve.
_WORTH_PLANES = 0.97
# Below this, opaque bytes are text and tables, not arrays of numbers.
_GUESS_FROM = 64 << 10


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user asked for: a codec name or `auto`, a level, and the bytes of a chunk (None: the codec's own).

    Without `planes` a standard codec gets floats as they are, as other tools give them.
    """

    codec: str = registry.AUTO
    level: registry.Level = "default"
    chunk: int | None = None
    planes: bool = True

    def __post_init__(self) -> None:
        """Fail early, with the registry's sentences, on a codec or level that cannot be."""
        registry.check_name(self.codec)
        registry.check_level(self.codec, self.level)
        registry.check_chunk(self.codec, self.chunk)


@dataclass(frozen=True, slots=True)
class Stream:
    """One coded part of a block; `data` is what goes into the payload."""

    codec_id: int
    original_size: int
    data: Buffer
    codec_param: int = 0
    library_version: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """A coded block: its transform and streams, as FORMAT.md 5 describes them."""

    transform_id: int
    transform_param: int
    streams: tuple[Stream, ...]

    @property
    def encoded_size(self) -> int:
        """Bytes of all streams, without padding."""
        return sum(len(s.data) for s in self.streams)


@dataclass(frozen=True, slots=True)
class Made:
    """A block as another implementation has coded it: by `float`, and by `lowrank` where that promised something."""

    by_float: Block
    by_low_rank: Block | None = None

    @property
    def last(self) -> Block:
        """The attempt that zstd's are held against."""
        return self.by_low_rank or self.by_float


def encode(data: Buffer, content: Content, choice: Choice, made: Made | None = None) -> Block:
    """Code one block of at least one byte; the result is never larger than storing it."""
    attempts = [_stored(data)]
    if coded_by_float(content, choice):
        narrowed = _narrowed_block(data, content, choice) if choice.codec == registry.AUTO else None
        attempts.append(narrowed or (made.by_float if made else _float_block(data, content, choice.level)))
        if made is None:
            attempts += _low_rank_blocks(data, content, choice)
        elif made.by_low_rank is not None:
            attempts.append(made.by_low_rank)
        sampled = sample(memoryview(data).cast("B"))
        if standard_may_win(sampled, len(data), content, attempts[-1].encoded_size, choice):
            attempts.append(_standard_block(data, content, choice))
    elif choice.codec != "store":
        attempts.append(_standard_block(data, content, choice))
    return min(attempts, key=lambda block: block.encoded_size)


def coded_by_float(content: Content, choice: Choice) -> bool:
    """Tell whether `float` codes such a block."""
    return choice.codec == "float" or (choice.codec == registry.AUTO and content.is_float)


def standard_may_win(sampled: memoryview, size: int, content: Content, by_float: int, choice: Choice) -> bool:
    """Tell from the `sample` of a block of `size` bytes whether zstd's planes are worth a try after `float`.

    They are for little data, which does not repay a float stream's tables and states, and where a sample
    shows what `float` does not look for: repeats, and low bits that are zero, as in FP32 that holds FP16.
    `by_float` is what `float` made of the whole block, in bytes.
    """
    if choice.codec != registry.AUTO:
        return False
    if size <= _SMALL_FLOATS:
        return True
    if not _standard_hinted(glance(sampled, size), size, content, by_float):
        return False
    # Level max takes what little there is.
    clearly, noticed = (1.0, 0.0) if choice.level == "max" else (_CLEARLY, _NOTICED)
    share = _standard_block(sampled, content, Choice(registry.AUTO, "fast")).encoded_size / len(sampled)
    if share >= clearly * by_float / size:
        return False
    # The sample may lie in rows of zeros, which both code well, and the block mostly beside them.
    of_sample = _float_block(sampled, Content(content.word, content.kind), choice.level).encoded_size / len(sampled)
    return share < clearly * of_sample - noticed


def others_may_win(sampled: memoryview, size: int, content: Content, by_float: int, choice: Choice) -> bool:
    """Tell from the `sample` of a block whether `encode` may choose anything but `float` for it."""
    if choice.codec == registry.AUTO and _narrowed_block(sampled, Content(content.word, content.kind), choice):
        return True
    return standard_may_win(sampled, size, content, by_float, choice)


def others_hinted(seen: memoryview, size: int, content: Content, by_float: int, choice: Choice) -> bool:
    """Tell from a `glance` at a block whether its sample is worth a look: `others_may_win` is false where this is."""
    if choice.codec != registry.AUTO:
        return False
    if size <= _SMALL_FLOATS or _narrowed_block(seen, Content(content.word, content.kind), choice):
        return True
    return _standard_hinted(seen, size, content, by_float)


def _standard_hinted(seen: memoryview, size: int, content: Content, by_float: int) -> bool:
    """Whether planes by zstd of an eighth of the sample are smaller than `float`'s: most blocks end here."""
    planes_size = _standard_block(seen, content, Choice(registry.AUTO, "fast")).encoded_size
    return planes_size * size < by_float * len(seen)


def low_rank_may_win(content: Content, size: int, choice: Choice) -> bool:
    """Tell whether a block of `size` bytes is one that `lowrank` codes, and is asked to: it takes long."""
    return choice.codec == registry.AUTO and choice.level == "max" and registry.LOW_RANK.takes(content, size)


def _low_rank_blocks(data: Buffer, content: Content, choice: Choice) -> list[Block]:
    if not low_rank_may_win(content, len(data), choice):
        return []
    stream = registry.LOW_RANK.encode_values(data, content)
    return [] if stream is None else [Block(NO_TRANSFORM, 0, (Stream(registry.LOW_RANK.id, len(data), stream),))]


def _narrowed_block(data: Buffer, content: Content, choice: Choice) -> Block | None:
    named = "default" if isinstance(choice.level, int) else choice.level
    stream = registry.NARROWED.encode_values(data, content, named)
    if stream is None:
        return None
    return Block(NO_TRANSFORM, 0, (Stream(registry.NARROWED.id, len(data), stream),))


def _float_block(data: Buffer, content: Content, level: registry.Level) -> Block:
    named = "default" if isinstance(level, int) else level
    stream = registry.FLOAT.encode_values(data, content, named)
    return Block(NO_TRANSFORM, 0, (Stream(registry.FLOAT.id, len(data), stream),))


def _standard_block(data: Buffer, content: Content, choice: Choice) -> Block:
    transform, word = _transform(data, content, choice)
    if transform == NO_TRANSFORM:
        streams: tuple[Stream, ...] = (_best_stream(data, _plain_attempts(len(data), choice)),)
    else:
        attempts = _plane_attempts(choice)
        parts = planes.split(data, word, transform == FLOAT_PLANES)
        streams = tuple(_plane_stream(part, attempts) for part in parts)
    return Block(transform, word, streams)


def decode(block: Block, original_size: int) -> memoryview:
    """The original bytes of a block without references, whose payload checksum was found right.

    CorruptChunkError for streams that contradict the transform or themselves; UnknownCodecError and
    CodecUnavailableError for ids that cannot be decoded here.
    """
    if [s.original_size for s in block.streams] != stream_sizes(block, original_size):
        raise CorruptChunkError("the streams do not fit the transform")
    for stream in block.streams:
        codec = registry.by_id(stream.codec_id)
        if stream.codec_param or stream.library_version:
            raise CorruptChunkError(f"a {codec.name} stream has a parameter, and takes none")
        codec.check(memoryview(stream.data), stream.original_size)
    out = memory.unfilled(original_size)
    if block.transform_id == NO_TRANSFORM:
        _decode_stream(block.streams[0], out)
        return out
    parts = [np.empty(s.original_size, np.uint8) for s in block.streams]
    for stream, part in zip(block.streams, parts, strict=True):
        _decode_stream(stream, part.data)
    planes.join(parts, block.transform_param, block.transform_id == FLOAT_PLANES, out)
    return out


def stream_sizes(block: Block, original_size: int) -> list[int]:
    """What the transform says the streams' original sizes must be; CorruptChunkError if it is not defined so."""
    word = block.transform_param
    if block.transform_id == NO_TRANSFORM and word == 0:
        return [original_size]
    if block.transform_id in (BYTE_PLANES, FLOAT_PLANES) and word in planes.WORD_SIZES and original_size >= word:
        return planes.stream_sizes(original_size, word)
    if block.transform_id in (NO_TRANSFORM, BYTE_PLANES, FLOAT_PLANES):
        raise CorruptChunkError(f"transform {block.transform_id} is not defined for words of {word} bytes")
    raise UnknownCodecError(f"transform id {block.transform_id} is unknown to this version; a later one can read it")


def _decode_stream(stream: Stream, out: memoryview) -> None:
    registry.by_id(stream.codec_id).decode(memoryview(stream.data), out)


def _stored(data: Buffer) -> Block:
    return Block(NO_TRANSFORM, 0, (Stream(0, len(data), data),))


Attempts = Sequence[tuple[Codec, int | None]]
"""Codecs with their levels; the smallest result wins, the first of equals."""


def _best_stream(data: Buffer, attempts: Attempts) -> Stream:
    best = Stream(0, len(data), data)
    for codec, level in attempts:
        encoded = codec.encode(data, level)
        if len(encoded) < len(best.data):
            best = Stream(codec.id, len(data), encoded)
    return best


def _plane_stream(plane: memoryview, attempts: Attempts) -> Stream:
    sampled = sample(plane)
    if sampled is plane and list(attempts) == [(registry.by_name("zstd"), ZSTD_ENTROPY)]:
        # The only attempt tells by itself whether the plane is worth coding.
        best = _best_stream(plane, attempts)
        return best if len(best.data) <= _WORTH * len(plane) else Stream(0, len(plane), plane)
    if not worth_coding(sampled):
        return Stream(0, len(plane), plane)
    return _best_stream(plane, attempts)


def worth_coding(sampled: memoryview) -> bool:
    """Tell from the `sample` of a plane whether coding it saves enough to be decoded for."""
    return _sample_size([sampled]) <= _WORTH * len(sampled)


def _plane_attempts(choice: Choice) -> Attempts:
    """Planes of floats are skewed noise, where an entropy coder beats a search (ZSTD_ENTROPY says by how much)."""
    zstd = _codec("zstd", choice)
    name = "zstd" if choice.codec == registry.AUTO else choice.codec
    if name == "zstd" and choice.level == "max":
        return [(zstd, ZSTD_ENTROPY), (zstd, 1), (zstd, 19)]
    if name == "zstd" and isinstance(choice.level, str):
        return [(zstd, ZSTD_ENTROPY)]
    return [(_codec(name, choice), registry.level_number(name, choice.level))]


def _plain_attempts(size: int, choice: Choice) -> Attempts:
    name = "zstd" if choice.codec == registry.AUTO else choice.codec
    level = registry.level_number(name, choice.level)
    if choice.codec == registry.AUTO and choice.level == "default" and size <= _SMALL:
        level = 19
    return [(_codec(name, choice), level)]


def _codec(name: str, choice: Choice) -> Codec:
    codec = registry.by_name(name)
    return codec.with_chunk_size(choice.chunk) if choice.chunk and isinstance(codec, ChunkedCodec) else codec


def _transform(data: Buffer, content: Content, choice: Choice) -> tuple[int, int]:
    """The transform and its word size.

    Floats always go in planes. Whole numbers, and large opaque ranges (arrays in formats that no
    reader knows), do when a sample says so and the codec is ours to choose.
    """
    if choice.planes and content.is_float and content.word in planes.WORD_SIZES and len(data) >= content.word:
        return FLOAT_PLANES, content.word
    candidates = _candidates(len(data), content) if choice.codec == registry.AUTO else []
    if not candidates:
        return NO_TRANSFORM, 0
    sampled = sample(memoryview(data).cast("B"))
    best, best_size = (NO_TRANSFORM, 0), _WORTH_PLANES * _sample_size([sampled])
    for transform, word in candidates:
        size = _sample_size(planes.split(sampled, word, transform == FLOAT_PLANES))
        if size < best_size:
            best, best_size = (transform, word), size
    return best


def _candidates(size: int, content: Content) -> list[tuple[int, int]]:
    if content.word in planes.WORD_SIZES:
        return [(BYTE_PLANES, content.word)] if size >= content.word else []
    if size < _GUESS_FROM:
        return []
    return [(FLOAT_PLANES, 2), (FLOAT_PLANES, 4), (BYTE_PLANES, 2), (BYTE_PLANES, 4), (BYTE_PLANES, 8)]


def _sample_size(parts: Iterable[Buffer]) -> int:
    """Bytes of all parts, each encoded at a fast level."""
    zstd = registry.by_name("zstd")
    return sum(len(zstd.encode(part, ZSTD_ENTROPY)) for part in parts)
