"""Reading and writing the variable-length parts of headers, where no declared length is believed."""

from nvckpt.formats.errors import CorruptArchiveError


def varint(value: int) -> bytes:
    """LEB128 of a number from 0 to 2^64 - 1."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str) -> bytes:
    """Length and UTF-8; JSON's lone surrogates survive as if they were characters."""
    data = text.encode("utf-8", "surrogatepass")
    return varint(len(data)) + data


_CUT = "a header or the index ends in the middle of a field"


class Cursor:
    """A position in a byte string; every read is checked against what is left."""

    def __init__(self, data: bytes | memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self.data) - self.position

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if count > self.left:
            raise CorruptArchiveError(_CUT)
        self.position += count
        return bytes(self.data[self.position - count : self.position])

    def byte(self) -> int:
        """Return the next byte."""
        try:
            value = self.data[self.position]
        except IndexError:
            raise CorruptArchiveError(_CUT) from None
        self.position += 1
        return value

    def varint(self) -> int:
        """Return a LEB128 number below 2^64."""
        try:
            value = self.data[self.position]
        except IndexError:
            raise CorruptArchiveError(_CUT) from None
        self.position += 1
        if value < 0x80:
            return value
        value &= 0x7F
        shift = 7
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise CorruptArchiveError("a number in the archive is longer than ten bytes")
        if value >> 64:
            raise CorruptArchiveError("a number in the archive does not fit in 64 bits")
        return value

    def string(self) -> str:
        """Return a string, see `string`."""
        try:
            return self.take(self.varint()).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise CorruptArchiveError("a name in the archive is not UTF-8") from error
