"""The inert values a pickle walk builds, the machine they are built on, and the limits of both."""

from collections.abc import Callable
from dataclasses import dataclass

from nvckpt.formats.errors import MalformedCheckpointError

# Picklers number their memo from 0 upwards, so a bound on the number is a bound on the size.
MAX_MEMO = 3_000_000
# Longer keys are legal; comparing them again and again is what a hostile file would ask for.
_MAX_KEY_LENGTH = 4096
_MAX_INT_BYTES = 16
# Globals and numbers written as text are far shorter.
_MAX_LINE = 1 << 16


@dataclass(slots=True, eq=False)
class Global:
    """A name that the pickle would import."""

    module: str
    name: str


@dataclass(slots=True, eq=False)
class Call:
    """A call the pickle would make, with whatever it then puts into the result.

    `args` is normally a tuple, `state` what BUILD hands over, `entries` the items set by key and
    `items` those appended (or added, for a set).
    """

    function: object
    args: object
    state: object = None
    entries: dict[object, object] | None = None
    items: list[object] | None = None


@dataclass(slots=True, eq=False)
class PersistentId:
    """A reference to something outside the pickle, such as a storage."""

    value: object


@dataclass(slots=True, eq=False)
class Placeholder:
    """A value that is of no use here and was not built; `kind` says what it was."""

    kind: str


@dataclass(slots=True, eq=False)
class Key:
    """A dict key that is not a short plain value; equal keys stay apart, as hashing goes by identity."""

    value: object


class TruncatedPickleError(MalformedCheckpointError):
    """The bytes end before the pickle does; more of the file may help."""


def safe_key(key: object) -> object:
    """The key itself when hashing and comparing it is cheap and cannot be attacked, else a Key around it."""
    kind = type(key)
    if kind is str or kind is bytes:
        return key if len(key) <= _MAX_KEY_LENGTH else Key(key)  # type: ignore[arg-type]
    if kind is int:
        # Hashes of ints repeat every 2**61 - 1, so wide ones can all be made to collide.
        return key if -(1 << 63) <= key < 1 << 63 else Key(key)  # type: ignore[operator]
    if key is None or kind is bool or kind is float:
        return key
    if kind in {Global, Call, PersistentId, Placeholder}:
        return key
    return Key(key)


def small_int(raw: bytes) -> object:
    """A little-endian two's complement int, or a placeholder when it is wider than 16 bytes."""
    if len(raw) > _MAX_INT_BYTES:
        return Placeholder("int")
    return int.from_bytes(raw, "little", signed=True)


def entries_of(value: object) -> dict[object, object] | None:
    """The items of a dict or of a call that was given items by key, None for everything else."""
    if type(value) is dict:
        return value
    return value.entries if type(value) is Call else None


class Machine:
    """Stack, marks and memo of one walk."""

    __slots__ = ("data", "marks", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def take(self, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`."""
        if length > len(self.data) - start:
            raise TruncatedPickleError("the pickle ends in the middle of a value")
        return self.data[start : start + length]

    def line(self, start: int) -> tuple[bytes, int]:
        """The bytes up to a newline, and the offset behind it."""
        end = self.data.find(b"\n", start, start + _MAX_LINE)
        if end < 0:
            raise TruncatedPickleError("the pickle has a line without an end")
        return self.data[start:end], end + 1

    def since_mark(self) -> list[object]:
        """Take everything pushed since the last mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items


Handler = Callable[[Machine, int], int]
