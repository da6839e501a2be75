"""`store`: the bytes themselves, for what does not shrink."""

from nvckpt.codecs.base import Buffer, Codec
from nvckpt.codecs.errors import CorruptChunkError


class Store(Codec):
    """Codec id 0."""

    id = 0
    name = "store"

    def encode(self, data: Buffer, level: int | None = None) -> bytes:
        """Copy the bytes; there are no levels."""
        return bytes(data)

    def check(self, stream: memoryview, size: int) -> None:
        """Both lengths are the same."""
        if len(stream) != size:
            raise CorruptChunkError(f"a stored stream holds {len(stream)} bytes instead of {size}")

    def decode(self, stream: memoryview, out: memoryview) -> None:
        """Copy the bytes back."""
        self.check(stream, len(out))
        out[:] = stream

    def max_encoded_size(self, size: int) -> int:
        """`size` itself."""
        return size
