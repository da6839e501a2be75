"""Pickle opcodes that build objects or work the stack and memo, and the table of all opcodes.

A handler takes the machine and the offset behind its opcode, and returns the offset of the next.
Short reads and an empty stack show as IndexError or struct.error, which `walk` turns into a sentence.
"""

import struct

from nvckpt.formats.errors import MalformedCheckpointError
from nvckpt.formats.pickle_containers import CONTAINERS
from nvckpt.formats.pickle_literals import LITERALS
from nvckpt.formats.pickle_values import MAX_MEMO, Call, Global, Handler, Machine, PersistentId, Placeholder

_U32 = struct.Struct("<I")


# Objects.


def _global(m: Machine, pos: int) -> int:
    module, pos = m.line(pos)
    name, pos = m.line(pos)
    m.stack.append(Global(module.decode("utf-8", "replace"), name.decode("utf-8", "replace")))
    return pos


def _stack_global(m: Machine, pos: int) -> int:
    name = m.stack.pop()
    module = m.stack[-1]
    if type(name) is not str or type(module) is not str:
        raise MalformedCheckpointError(f"the pickle names a class that is no text, at byte {pos}")
    m.stack[-1] = Global(module, name)
    return pos


def _reduce(m: Machine, pos: int) -> int:
    args = m.stack.pop()
    m.stack[-1] = Call(m.stack[-1], args)
    return pos


def _new_object_ex(m: Machine, pos: int) -> int:
    keywords = m.stack.pop()
    args = m.stack.pop()
    m.stack[-1] = Call(m.stack[-1], args, state=keywords)
    return pos


def _instance(m: Machine, pos: int) -> int:
    module, pos = m.line(pos)
    name, pos = m.line(pos)
    function = Global(module.decode("utf-8", "replace"), name.decode("utf-8", "replace"))
    m.stack.append(Call(function, tuple(m.since_mark())))
    return pos


def _object(m: Machine, pos: int) -> int:
    function, *args = m.since_mark()
    m.stack.append(Call(function, tuple(args)))
    return pos


def _build(m: Machine, pos: int) -> int:
    state = m.stack.pop()
    target = m.stack[-1]
    if type(target) is Call:
        target.state = state
    return pos


def _persistent_id(m: Machine, pos: int) -> int:
    m.stack[-1] = PersistentId(m.stack[-1])
    return pos


def _persistent_id_line(m: Machine, pos: int) -> int:
    line, pos = m.line(pos)
    m.stack.append(PersistentId(line.decode("utf-8", "replace")))
    return pos


# Memo and stack.


def _bin_put(m: Machine, pos: int) -> int:
    m.memo[m.data[pos]] = m.stack[-1]
    return pos + 1


def _long_bin_put(m: Machine, pos: int) -> int:
    _remember(m, _U32.unpack_from(m.data, pos)[0])
    return pos + 4


def _put(m: Machine, pos: int) -> int:
    line, pos = m.line(pos)
    _remember(m, int(line))
    return pos


def _memoize(m: Machine, pos: int) -> int:
    _remember(m, len(m.memo))
    return pos


def _remember(m: Machine, index: int) -> None:
    if not 0 <= index < MAX_MEMO:
        raise MalformedCheckpointError(f"the pickle remembers more than {MAX_MEMO} values")
    m.memo[index] = m.stack[-1]


def _bin_get(m: Machine, pos: int) -> int:
    m.stack.append(m.memo[m.data[pos]])
    return pos + 1


def _long_bin_get(m: Machine, pos: int) -> int:
    m.stack.append(m.memo[_U32.unpack_from(m.data, pos)[0]])
    return pos + 4


def _get(m: Machine, pos: int) -> int:
    line, pos = m.line(pos)
    m.stack.append(m.memo[int(line)])
    return pos


def _pop(m: Machine, pos: int) -> int:
    if m.marks and m.marks[-1] == len(m.stack):
        m.marks.pop()
    else:
        m.stack.pop()
    return pos


def _pop_mark(m: Machine, pos: int) -> int:
    m.since_mark()
    return pos


def _duplicate(m: Machine, pos: int) -> int:
    m.stack.append(m.stack[-1])
    return pos


def _skip(length: int, value: object = None) -> Handler:
    """An opcode whose argument is of no use; it pushes `value` when there is one."""

    def skip(m: Machine, pos: int) -> int:
        m.take(pos, length)
        if value is not None:
            m.stack.append(value)
        return pos + length

    return skip


def _unknown(_m: Machine, pos: int) -> int:
    raise MalformedCheckpointError(f"the pickle has an unknown opcode at byte {pos - 1}")


_EXTENSION = Placeholder("extension")
_OTHERS: dict[str, Handler] = {
    "c": _global,
    "\x93": _stack_global,
    "R": _reduce,
    "\x81": _reduce,
    "\x92": _new_object_ex,
    "i": _instance,
    "o": _object,
    "b": _build,
    "Q": _persistent_id,
    "P": _persistent_id_line,
    "q": _bin_put,
    "r": _long_bin_put,
    "p": _put,
    "\x94": _memoize,
    "h": _bin_get,
    "j": _long_bin_get,
    "g": _get,
    "0": _pop,
    "1": _pop_mark,
    "2": _duplicate,
    "\x80": _skip(1),
    "\x95": _skip(8),
    "\x82": _skip(1, _EXTENSION),
    "\x83": _skip(2, _EXTENSION),
    "\x84": _skip(4, _EXTENSION),
    "\x97": _skip(0, Placeholder("buffer")),
    "\x98": _skip(0),
}
_BY_OPCODE = {**LITERALS, **CONTAINERS, **_OTHERS}
TABLE: tuple[Handler, ...] = tuple(_BY_OPCODE.get(chr(code), _unknown) for code in range(256))
