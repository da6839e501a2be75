"""Pickle opcodes that build and fill tuples, lists, dicts and sets."""

from nvckpt.formats.pickle_values import Call, Global, Handler, Machine, safe_key

_SET = Global("builtins", "set")


def _mark(m: Machine, pos: int) -> int:
    m.marks.append(len(m.stack))
    return pos


def _empty_tuple(m: Machine, pos: int) -> int:
    m.stack.append(())
    return pos


def _tuple1(m: Machine, pos: int) -> int:
    m.stack[-1] = (m.stack[-1],)
    return pos


def _tuple2(m: Machine, pos: int) -> int:
    last = m.stack.pop()
    m.stack[-1] = (m.stack[-1], last)
    return pos


def _tuple3(m: Machine, pos: int) -> int:
    last = m.stack.pop()
    middle = m.stack.pop()
    m.stack[-1] = (m.stack[-1], middle, last)
    return pos


def _tuple(m: Machine, pos: int) -> int:
    stack = m.stack
    start = m.marks.pop()
    items = tuple(stack[start:])
    del stack[start:]
    stack.append(items)
    return pos


def _empty_list(m: Machine, pos: int) -> int:
    m.stack.append([])
    return pos


def _list(m: Machine, pos: int) -> int:
    m.stack.append(m.since_mark())
    return pos


def _append(m: Machine, pos: int) -> int:
    item = m.stack.pop()
    _items(m.stack[-1]).append(item)
    return pos


def _appends(m: Machine, pos: int) -> int:
    items = m.since_mark()
    _items(m.stack[-1]).extend(items)
    return pos


def _items(target: object) -> list[object]:
    if type(target) is list:
        return target
    if type(target) is not Call:
        return []
    if target.items is None:
        target.items = []
    return target.items


def _empty_dict(m: Machine, pos: int) -> int:
    m.stack.append({})
    return pos


def _dict(m: Machine, pos: int) -> int:
    entries: dict[object, object] = {}
    _set(entries, m.since_mark())
    m.stack.append(entries)
    return pos


def _set_item(m: Machine, pos: int) -> int:
    value = m.stack.pop()
    key = m.stack.pop()
    _entries(m.stack[-1])[safe_key(key)] = value
    return pos


def _set_items(m: Machine, pos: int) -> int:
    pairs = m.since_mark()
    _set(_entries(m.stack[-1]), pairs)
    return pos


def _set(entries: dict[object, object], pairs: list[object]) -> None:
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        entries[safe_key(key)] = value


def _entries(target: object) -> dict[object, object]:
    if type(target) is dict:
        return target
    if type(target) is not Call:
        return {}
    if target.entries is None:
        target.entries = {}
    return target.entries


def _empty_set(m: Machine, pos: int) -> int:
    m.stack.append(Call(_SET, ()))
    return pos


def _frozen_set(m: Machine, pos: int) -> int:
    m.stack.append(Call(_SET, (), items=m.since_mark()))
    return pos


CONTAINERS: dict[str, Handler] = {
    "(": _mark,
    ")": _empty_tuple,
    "\x85": _tuple1,
    "\x86": _tuple2,
    "\x87": _tuple3,
    "t": _tuple,
    "]": _empty_list,
    "l": _list,
    "a": _append,
    "e": _appends,
    "}": _empty_dict,
    "d": _dict,
    "s": _set_item,
    "u": _set_items,
    "\x8f": _empty_set,
    "\x90": _appends,
    "\x91": _frozen_set,
}
