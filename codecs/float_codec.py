"""`float`: the open codec for floating-point tensors, by the fastest implementation that this machine has.

The C library where it was built, else NumPy; both write the same bytes (FORMAT.md 16).
"""

from types import ModuleType

from nvckpt.codecs.base import Buffer, Codec
from nvckpt.codecs.content import Content
from nvckpt.codecs.float_spec import MAX_SIZE, WORDS, FloatSpec, LevelName


def _implementation() -> ModuleType:
    """Import the C implementation, or NumPy's where there is none; late, since both import NumPy."""
    from nvckpt.codecs import float_native

    if float_native.available() is None:
        return float_native
    from nvckpt.codecs import float_reference

    return float_reference


def spec_of(size: int, content: Content) -> FloatSpec:
    """Return what a stream of `size` bytes of such content is told to hold."""
    kind = "bytes" if content.kind == "fp8" else content.kind
    word = content.word if content.word in WORDS else 1
    words = size // word
    return FloatSpec(word, kind, content.matrices or (((words, 0),) if words else ()))


class Float(Codec):
    """Codec id 32; one stream a block, no chunks of standard streams."""

    id = 32
    name = "float"

    def encode(self, data: Buffer, level: int | None = None) -> bytes:
        """Code bytes of no known structure; `encode_values` is what knows more."""
        return bytes(self.encode_values(data, Content(), "default"))

    def encode_values(self, data: Buffer, content: Content, level: LevelName) -> Buffer:
        """Code a block of at most 256 MiB whose words and matrices are known."""
        if len(data) > MAX_SIZE:
            raise ValueError("a float stream holds at most 256 MiB")
        stream: Buffer = _implementation().encode(data, spec_of(len(data), content), level)
        return stream

    def check(self, stream: memoryview, size: int) -> None:
        """See Codec."""
        _implementation().check(stream, size)

    def decode(self, stream: memoryview, out: memoryview) -> None:
        """See Codec."""
        _implementation().decode(stream, out)

    def max_encoded_size(self, size: int) -> int:
        """Bound for blocks of no known structure: every chunk raw, with its directory and table."""
        chunks = -(-size // 32768) or 1
        return size + 1024 + chunks * 512
