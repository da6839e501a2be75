"""Codecs by name and by id, what this machine lacks for the others, and their levels."""

from typing import get_args

from nvckpt.codecs import device, nvcomp_formats
from nvckpt.codecs.base import Codec
from nvckpt.codecs.chunked import MAX_CHUNK_SIZE, ChunkedCodec
from nvckpt.codecs.errors import (
    CodecUnavailableError,
    CorruptChunkError,
    InvalidLevelError,
    UnknownCodecError,
    UnknownNameError,
)
from nvckpt.codecs.float_codec import Float
from nvckpt.codecs.float_spec import LevelName
from nvckpt.codecs.lowrank import LowRank
from nvckpt.codecs.narrowed import Narrowed
from nvckpt.codecs.standard import Deflate, Gzip, Lz4, Snappy, Zstd
from nvckpt.codecs.store import Store

AUTO = "auto"
"""A choice for each segment, never an id on disk."""

STORE = Store()
FLOAT = Float()
CPU_CODECS: tuple[Codec, ...] = (STORE, Zstd(), Lz4(), Snappy(), Deflate(), Gzip(), FLOAT)
NARROWED = Narrowed(FLOAT)
"""Chosen by `auto` where the words hold narrower ones, never by name."""
CPU_NAMES = tuple(codec.name for codec in CPU_CODECS)
LOW_RANK = LowRank(FLOAT)
"""Chosen by `auto` at level max where a matrix is close to low rank, never by name."""
COPY, ROUNDED, REMAINDER = 48, 49, 50
DERIVED = {COPY: "copy", ROUNDED: "rounded", REMAINDER: "remainder"}
"""Streams that need other bytes of the original, see `derived`; chosen by the tool, never by name."""
SOURCE_SIZES = {COPY: (1, 1), ROUNDED: (2, 1), REMAINDER: (1, 2)}
"""Referenced bytes to a stream's original bytes, as a fraction."""
GPU_ONLY = {16: "ans", 17: "gdeflate", 18: "bitcomp", 19: "cascaded"}

_BY_NAME = {codec.name: codec for codec in CPU_CODECS}
_BY_ID: dict[int, Codec] = {codec.id: codec for codec in (*CPU_CODECS, NARROWED, LOW_RANK)}

_LEVELS = {
    "zstd": (range(1, 23), {"fast": 1, "default": 3, "max": 19}),
    "lz4": (range(1, 13), {"fast": 1, "default": 1, "max": 12}),
    "deflate": (range(1, 10), {"fast": 1, "default": 6, "max": 9}),
    "gzip": (range(1, 10), {"fast": 1, "default": 6, "max": 9}),
}
LEVEL_NAMES: tuple[LevelName, ...] = get_args(LevelName)

Level = LevelName | int
"""One of LEVEL_NAMES, or a codec's own number."""


def names() -> list[str]:
    """Every name a user can ask for, on any machine."""
    return [AUTO, *_BY_NAME, *GPU_ONLY.values()]


def unavailable(name: str) -> str | None:
    """Why a known codec cannot run here, with the remedy; None when it can."""
    if name not in GPU_ONLY.values():
        return None
    problem = device.cuda_problem()
    if problem is None and nvcomp_formats.installed() is None:
        problem = "nvCOMP is not installed (install nvckpt's extra cu12 or cu13: pip install '.[cu12]' in its checkout)"
    return f"needs an NVIDIA GPU and nvCOMP, and {problem}; use auto or zstd" if problem else None


def check_name(name: str) -> None:
    """UnknownNameError for a name that is no codec, CodecUnavailableError for one that cannot run here."""
    if name == AUTO or name in _BY_NAME:
        return
    if name not in GPU_ONLY.values():
        raise UnknownNameError(f"unknown codec '{name}': choose one of {', '.join(names())}")
    reason = unavailable(name)
    if reason:
        raise CodecUnavailableError(f"codec '{name}' {reason}")


def by_name(name: str) -> Codec:
    """The codec of the CPU; the errors of `check_name`, and CodecUnavailableError for one that only a GPU runs."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    check_name(name)
    raise CodecUnavailableError(f"codec '{name}' runs on an NVIDIA GPU alone: use --device cuda or auto")


def by_id(codec_id: int) -> Codec:
    """The codec that decodes a stream; the errors say what is missing."""
    if codec_id in _BY_ID:
        return _BY_ID[codec_id]
    if codec_id in GPU_ONLY:
        raise CodecUnavailableError(
            f"this part was written with '{GPU_ONLY[codec_id]}', which only an NVIDIA GPU with nvCOMP decodes"
        )
    if codec_id in DERIVED:
        raise CorruptChunkError(f"a {DERIVED[codec_id]} stream stands where nothing is referred to")
    raise UnknownCodecError(f"codec id {codec_id} is unknown to this version; a later one can read it")


def name_of(codec_id: int) -> str:
    """The name to show for an id, also of codecs that cannot run here."""
    known = _BY_ID.get(codec_id)
    if known:
        return known.name
    return DERIVED.get(codec_id) or GPU_ONLY.get(codec_id, f"codec-{codec_id}")


def parse_level(text: str) -> Level:
    """A level as typed: a name or a number."""
    for name in LEVEL_NAMES:
        if text == name:
            return name
    if text.isascii() and text.isdigit():
        return int(text)
    raise InvalidLevelError(f"unknown level '{text}': choose fast, default, max or a number")


def check_level(name: str, level: Level) -> None:
    """InvalidLevelError when the codec has no such level; `auto` takes zstd's numbers."""
    if isinstance(level, str):
        if level not in LEVEL_NAMES:
            raise InvalidLevelError(f"unknown level '{level}': choose fast, default, max or a number")
        return
    allowed = _LEVELS.get("zstd" if name == AUTO else name)
    if allowed is None:
        raise InvalidLevelError(f"codec '{name}' has no numbered levels")
    if level not in allowed[0]:
        raise InvalidLevelError(f"codec '{name}' has levels {allowed[0][0]} to {allowed[0][-1]}, not {level}")


def check_chunk(name: str, size: int | None) -> None:
    """InvalidLevelError when the codec has no chunks to size, or none of this size."""
    if size is None:
        return
    if name in GPU_ONLY.values():
        if not 1 <= size <= MAX_CHUNK_SIZE:
            raise InvalidLevelError(f"a chunk has 1 byte to {MAX_CHUNK_SIZE >> 20} MiB, not {size} bytes")
        return
    codec = _BY_NAME.get(name)
    if not isinstance(codec, ChunkedCodec):
        raise InvalidLevelError(f"codec '{name}' has no chunks whose size could be chosen")
    codec.with_chunk_size(size)


def level_number(name: str, level: Level) -> int | None:
    """The codec's own number for a level; None where it has none."""
    if isinstance(level, int):
        return level
    presets = _LEVELS.get(name)
    return presets[1][level] if presets else None
