"""Pickle opcodes whose value stands in the stream: numbers, text and bytes of protocols 0 to 5."""

import struct

from nvckpt.formats.pickle_values import Handler, Machine, Placeholder, TruncatedPickleError, small_int

_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_F64 = struct.Struct(">d")
# Numbers written as text: longer ones are never sizes or keys, and converting them is slow.
_MAX_NUMBER_TEXT = 64


def _constant(value: object) -> Handler:
    def push(m: Machine, pos: int) -> int:
        m.stack.append(value)
        return pos

    return push


def _bin_int(m: Machine, pos: int) -> int:
    m.stack.append(_I32.unpack_from(m.data, pos)[0])
    return pos + 4


def _bin_int1(m: Machine, pos: int) -> int:
    m.stack.append(m.data[pos])
    return pos + 1


def _bin_int2(m: Machine, pos: int) -> int:
    m.stack.append(_U16.unpack_from(m.data, pos)[0])
    return pos + 2


def _bin_float(m: Machine, pos: int) -> int:
    m.stack.append(_F64.unpack_from(m.data, pos)[0])
    return pos + 8


def _long1(m: Machine, pos: int) -> int:
    length = m.data[pos]
    m.stack.append(small_int(m.take(pos + 1, length)))
    return pos + 1 + length


def _long4(m: Machine, pos: int) -> int:
    length: int = _U32.unpack_from(m.data, pos)[0]
    m.stack.append(small_int(m.take(pos + 4, length)))
    return pos + 4 + length


def _text_int(m: Machine, pos: int) -> int:
    line, pos = m.line(pos)
    if line in {b"00", b"01"}:
        m.stack.append(line == b"01")
    else:
        m.stack.append(_number(line.rstrip(b"L")))
    return pos


def _number(text: bytes) -> object:
    if len(text) > _MAX_NUMBER_TEXT:
        return Placeholder("int")
    value = int(text)
    return value if -(1 << 127) <= value < 1 << 127 else Placeholder("int")


def _text_float(m: Machine, pos: int) -> int:
    line, pos = m.line(pos)
    m.stack.append(float(line))
    return pos


def _short_text(m: Machine, pos: int) -> int:
    return _push_text(m, pos + 1, m.data[pos])


def _text4(m: Machine, pos: int) -> int:
    return _push_text(m, pos + 4, _U32.unpack_from(m.data, pos)[0])


def _text8(m: Machine, pos: int) -> int:
    return _push_text(m, pos + 8, _U64.unpack_from(m.data, pos)[0])


def _push_text(m: Machine, start: int, length: int) -> int:
    end = start + length
    if end > len(m.data):
        raise TruncatedPickleError("the pickle ends in the middle of a string")
    # Lone surrogates and damaged text are shown, never used, so a replacement character will do.
    m.stack.append(str(m.data[start:end], "utf-8", "replace"))
    return end


def _text_line(m: Machine, pos: int) -> int:
    line, pos = m.line(pos)
    m.stack.append(line.decode("raw-unicode-escape", "replace"))
    return pos


def _short_bytes(m: Machine, pos: int) -> int:
    return _push_bytes(m, pos + 1, m.data[pos])


def _bytes4(m: Machine, pos: int) -> int:
    return _push_bytes(m, pos + 4, _U32.unpack_from(m.data, pos)[0])


def _bytes8(m: Machine, pos: int) -> int:
    return _push_bytes(m, pos + 8, _U64.unpack_from(m.data, pos)[0])


def _push_bytes(m: Machine, start: int, length: int) -> int:
    m.stack.append(m.take(start, length))
    return start + length


def _string_line(m: Machine, pos: int) -> int:
    line, pos = m.line(pos)
    m.stack.append(line[1:-1])
    return pos


LITERALS: dict[str, Handler] = {
    "N": _constant(None),
    "\x88": _constant(True),
    "\x89": _constant(False),
    "J": _bin_int,
    "K": _bin_int1,
    "M": _bin_int2,
    "G": _bin_float,
    "\x8a": _long1,
    "\x8b": _long4,
    "I": _text_int,
    "L": _text_int,
    "F": _text_float,
    "X": _text4,
    "\x8c": _short_text,
    "\x8d": _text8,
    "V": _text_line,
    "B": _bytes4,
    "C": _short_bytes,
    "\x8e": _bytes8,
    "\x96": _bytes8,
    "U": _short_bytes,
    "T": _bytes4,
    "S": _string_line,
}
