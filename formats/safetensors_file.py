"""safetensors: a length, a JSON header of that length, and the tensors it describes.

The rules are those of the safetensors library's own reader; where a file breaks one, the tensors
that can still be believed are kept and the rest is a warning.
"""

import json
import struct
from dataclasses import dataclass

from nvckpt.formats import groups, opaque
from nvckpt.formats.allowance import JSON_BYTE, JSON_ITEM, JSON_LIST, JSON_OBJECT, SEGMENT, Allowance
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.dtypes import BY_NAME, DType
from nvckpt.formats.errors import MalformedCheckpointError
from nvckpt.formats.names import encodable
from nvckpt.formats.segments import Segment, Source, View, tile

# What the library accepts; a longer header is refused by it too.
MAX_HEADER = 100_000_000
# A length of 1 TB or more is text or another format, not a header that is too long.
_MAX_PLAUSIBLE = 1 << 40
_LENGTH = struct.Struct("<Q")
_MAX_ELEMENTS = 1 << 64
_METADATA = "__metadata__"
_NAMES = (
    "BOOL U8 I8 F4 F6_E2M3 F6_E3M2 F8_E4M3 F8_E5M2 F8_E4M3FNUZ F8_E5M2FNUZ F8_E8M0 "
    "I16 U16 F16 BF16 I32 U32 F32 I64 U64 F64 C64"
)
DTYPES = {name: BY_NAME[name] for name in _NAMES.split()}

_Pairs = list[tuple[str, object]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor; the range is relative to the end of the header.

    `dtype` is None when it is not known, or the shape contradicts the range: the bytes stay opaque.
    """

    name: str
    dtype: DType | None
    shape: tuple[int, ...]
    begin: int
    end: int
    makes_sense: bool = True


def looks_like(head: bytes) -> bool:
    """Whether a file that starts with `head` means to be safetensors: a sane length, then a brace."""
    if len(head) <= _LENGTH.size:
        return False
    length = _LENGTH.unpack_from(head)[0]
    return 2 <= length < _MAX_PLAUSIBLE and head[_LENGTH.size :].lstrip(b" \t\r\n").startswith(b"{")


def read(data: ByteSource, role: str = groups.UNKNOWN_ROLE, memory: Allowance | None = None) -> Source:
    """The tensors of a file that looks like safetensors."""
    try:
        memory = memory or Allowance()
        header = _read_header(data)
        described = header.count(b'"data_offsets"')
        # What comes of it is paid before the parsing, which a file that asks for too much would spend in vain.
        memory.spend(_memory_of(header) + SEGMENT * described)
        entries, warnings = _parse(header)
        memory.spend(SEGMENT * max(0, len(entries) - described))
    except MalformedCheckpointError as error:
        return opaque.opaque_source(opaque.SAFETENSORS, data.size, f"{error}; kept as plain bytes")
    start = _LENGTH.size + len(header)
    warnings += _layout_warnings(entries, data.size - start)
    tensors = [_segment(entry, start, role or groups.WEIGHTS) for entry in entries if entry.dtype is not None]
    # What tile drops was said by the layout already.
    segments, _ = tile(data.size, tensors)
    return Source(opaque.SAFETENSORS, data.size, segments, tuple(dict.fromkeys(warnings)))


def read_metadata(data: ByteSource) -> dict[str, str] | None:
    """The text beside the tensors, None where there is none; MalformedCheckpointError for a broken header."""
    value = dict(_load(_read_header(data))).get(_METADATA)
    if not isinstance(value, _Object):
        return None
    return {key: text for key, text in value if isinstance(text, str)}


def empty_tensors(data: ByteSource) -> list[tuple[Segment, View]]:
    """The tensors without bytes, which no segment holds; none where the header is broken."""
    try:
        header = _read_header(data)
        entries, _ = _parse(header)
    except MalformedCheckpointError:
        return []
    start = _LENGTH.size + len(header)
    return [
        (Segment(start + entry.begin, 0, entry.dtype), View(encodable(entry.name), entry.dtype, entry.shape))
        for entry in entries
        if entry.dtype is not None and entry.begin == entry.end
    ]


def _read_header(data: ByteSource) -> bytes:
    length = _LENGTH.unpack(data.read_at(0, _LENGTH.size))[0]
    if length > data.size - _LENGTH.size:
        raise MalformedCheckpointError("the safetensors header is cut short")
    if length > MAX_HEADER:
        raise MalformedCheckpointError(f"the safetensors header is longer than {MAX_HEADER} bytes")
    return data.read_at(_LENGTH.size, length)


def _memory_of(header: bytes) -> int:
    """What parsing the header takes, at most: braces, brackets and commas in names only make it more."""
    size = JSON_BYTE * len(header) if header.isascii() else 2 * JSON_BYTE * len(header)
    size += JSON_OBJECT * header.count(b"{") + JSON_LIST * header.count(b"[")
    return size + JSON_ITEM * header.count(b",")


def _parse(header: bytes) -> tuple[list[_Entry], list[str]]:
    """Entries that make sense, and a sentence for each kind that does not."""
    pairs = _load(header)
    entries: list[_Entry] = []
    seen: dict[str, object] = {}
    odd = 0
    warnings: list[str] = []
    for name, value in pairs:
        if name in seen:
            if seen[name] == value:
                continue
            warnings.append("the safetensors header has two tensors of one name")
        seen[name] = value
        if name == _METADATA:
            warnings += _metadata_warnings(value)
            continue
        entry = _entry(name, value)
        if entry is not None:
            entries.append(entry)
        odd += entry is None or not entry.makes_sense
    if odd:
        warnings.append(f"tensors of the safetensors header that do not make sense: {odd}")
    return entries, warnings


def _load(header: bytes) -> _Pairs:
    """The top level of the header, with repeated keys; the parser bounds depth and digits itself."""
    try:
        value = json.loads(header.decode("utf-8"), object_pairs_hook=_Object)
    except (ValueError, RecursionError) as error:
        raise MalformedCheckpointError("the safetensors header is not valid JSON") from error
    if not isinstance(value, _Object):
        raise MalformedCheckpointError("the safetensors header is not a JSON object")
    return value


class _Object(_Pairs):
    """A JSON object as its pairs, told apart from a JSON list by its type."""


def _metadata_warnings(value: object) -> list[str]:
    if value is None or (isinstance(value, _Object) and all(isinstance(text, str) for _, text in value)):
        return []
    return ["the safetensors metadata is not text"]


def _entry(name: str, value: object) -> _Entry | None:
    """A tensor's description, None when a field is missing, repeated or of a wrong type."""
    if not isinstance(value, _Object):
        return None
    fields = dict(value)
    offsets = _naturals(fields.get("data_offsets"))
    shape = _naturals(fields.get("shape"))
    type_name = fields.get("dtype")
    if offsets is None or shape is None or len(offsets) != 2 or not isinstance(type_name, str):
        return None
    begin, end = offsets
    if len(fields) != len(value) or begin > end:
        return None
    dtype = DTYPES.get(type_name)
    if dtype is not None and _bits(shape, dtype) != (end - begin) * 8:
        return _Entry(name, None, shape, begin, end, makes_sense=False)
    return _Entry(name, dtype, shape, begin, end)


def _naturals(value: object) -> tuple[int, ...] | None:
    """A list of sizes; JSON's true is an int to Python, and is none here."""
    if not isinstance(value, list) or isinstance(value, _Object):
        return None
    if all(type(n) is int and 0 <= n < _MAX_ELEMENTS for n in value):
        return tuple(value)
    return None


def _bits(shape: tuple[int, ...], dtype: DType) -> int | None:
    """Bits of the tensor, None when they overflow."""
    total = dtype.bits
    for size in shape:
        total *= size
        if total > _MAX_ELEMENTS:
            return None
    return total


def _layout_warnings(entries: list[_Entry], room: int) -> list[str]:
    """Holes, overlaps and a wrong end: the tensors must follow one another up to the end of the file."""
    position = 0
    warnings: dict[str, None] = {}
    for begin, end in sorted((entry.begin, entry.end) for entry in entries):
        if begin > position:
            warnings["there are unused bytes between the tensors"] = None
        elif begin < position:
            warnings["tensors overlap"] = None
        position = max(position, end)
    if position > room:
        warnings["the file is cut short: tensors reach beyond its end"] = None
    elif position < room:
        warnings["there are bytes behind the last tensor"] = None
    return list(warnings)


def _segment(entry: _Entry, start: int, role: str) -> Segment:
    assert entry.dtype is not None
    numel = (entry.end - entry.begin) * 8 // entry.dtype.bits
    view = View(encodable(entry.name), entry.dtype, entry.shape)
    group = groups.group_of(entry.name, entry.dtype, numel, role)
    return Segment(start + entry.begin, entry.end - entry.begin, entry.dtype, group, (view,))
