"""The standard codecs on the CPU, each through a well-kept library.

Their chunks are ordinary streams: a Zstandard frame, an LZ4 block, raw Snappy, raw DEFLATE, a gzip
member. Libraries are imported when first used, so that commands which decode nothing start fast.
"""

import threading
import zlib
from typing import Any

from nvckpt.codecs.chunked import ChunkedCodec
from nvckpt.codecs.errors import CorruptChunkError

ZSTD_ENTROPY = -1000
"""A level below all of the library's own: Huffman coding with hardly any search.

The exponents of a float are noise with a skewed distribution, so matches are chance and cost more than they save. With
a six-bit hash table and matches of seven bytes or more, the ratio on trained BF16 weights is 1.508 at
1,150 MB/s, where level 1 gives 1.471 at 330 and level 19 gives 1.494 at 3 (one core); runs of zeros are still found.
"""


class Zstd(ChunkedCodec):
    """Codec id 1: levels 1 to 22, default 3, and ZSTD_ENTROPY."""

    id = 1
    name = "zstd"
    max_expansion = 32768

    def __init__(self) -> None:
        # Compressors and decompressors carry state, so each thread has its own.
        self._local = threading.local()

    def encode_chunk(self, chunk: memoryview, level: int | None) -> bytes:
        """A frame with its content size, so that any decoder can bound its output."""
        compressor = self._compressor(3 if level is None else level)
        encoded: bytes = compressor.compress(chunk)
        return encoded

    def _compressor(self, level: int) -> Any:
        cache: dict[int, Any] = self._local.__dict__.setdefault("compressors", {})
        if level not in cache:
            import zstandard

            if level == ZSTD_ENTROPY:
                parameters = zstandard.ZstdCompressionParameters(
                    window_log=17,
                    chain_log=6,
                    hash_log=6,
                    search_log=1,
                    min_match=7,
                    target_length=0,
                    strategy=zstandard.STRATEGY_FAST,
                )
                cache[level] = zstandard.ZstdCompressor(compression_params=parameters)
            else:
                cache[level] = zstandard.ZstdCompressor(level=level)
        return cache[level]

    def decode_chunk(self, stream: memoryview, size: int) -> bytes:
        """The declared content size is compared first: the library would allocate it unseen."""
        import zstandard

        if zstandard.frame_content_size(stream) != size:
            raise CorruptChunkError("a zstd frame declares another size than the archive")
        if not hasattr(self._local, "decompressor"):
            self._local.decompressor = zstandard.ZstdDecompressor()
        decoded: bytes = self._local.decompressor.decompress(stream, allow_extra_data=False)
        return decoded


class Lz4(ChunkedCodec):
    """Codec id 2: LZ4 blocks; levels 1 to 12, from 3 on with the high-compression search."""

    id = 2
    name = "lz4"
    max_expansion = 255

    def encode_chunk(self, chunk: memoryview, level: int | None) -> bytes:
        """A block without the size in front: the archive knows it."""
        from lz4 import block

        if level is None or level < 3:
            encoded: bytes = block.compress(chunk, store_size=False)
        else:
            encoded = block.compress(chunk, store_size=False, mode="high_compression", compression=level)
        return encoded

    def decode_chunk(self, stream: memoryview, size: int) -> bytes:
        """Bounded by `size`."""
        from lz4 import block

        decoded: bytes = block.decompress(stream, uncompressed_size=size)
        return decoded


class Snappy(ChunkedCodec):
    """Codec id 3: raw Snappy; no levels."""

    id = 3
    name = "snappy"
    max_expansion = 64

    def encode_chunk(self, chunk: memoryview, level: int | None) -> bytes:
        """Raw format, which starts with the size as a varint."""
        import cramjam

        return bytes(cramjam.snappy.compress_raw(chunk))

    def decode_chunk(self, stream: memoryview, size: int) -> bytes:
        """Into a buffer of `size`, after comparing the size that the stream declares."""
        import cramjam

        if _leading_varint(stream) != size:
            raise CorruptChunkError("a snappy stream declares another size than the archive")
        out = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(stream, out)
        return bytes(out[:written])


class Deflate(ChunkedCodec):
    """Codec id 4: raw DEFLATE; levels 1 to 9, default 6."""

    id = 4
    name = "deflate"
    max_expansion = 1032
    window_bits = -15

    def encode_chunk(self, chunk: memoryview, level: int | None) -> bytes:
        """One complete stream."""
        compressor = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, self.window_bits)
        return compressor.compress(chunk) + compressor.flush()

    def decode_chunk(self, stream: memoryview, size: int) -> bytes:
        """At most one byte more than `size`, so that a longer stream shows."""
        decompressor = zlib.decompressobj(self.window_bits)
        decoded = decompressor.decompress(stream, size + 1)
        if not decompressor.eof or decompressor.unused_data:
            raise CorruptChunkError(f"a {self.name} stream does not end with its chunk")
        return decoded


class Gzip(Deflate):
    """Codec id 5: one gzip member a chunk, without name or time, so that bytes repeat."""

    id = 5
    name = "gzip"
    window_bits = 31


def _leading_varint(stream: memoryview) -> int:
    """The size at the start of a raw Snappy stream; -1 if there is none."""
    value = 0
    for position, byte in enumerate(bytes(stream[:5])):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value
    return -1
