"""Codecs as they are asked for in a benchmark: `zstd`, `zstd:level=3`, `ans:chunk=1MiB`, `float:level=max`, `all`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nvckpt.codecs import blocks, registry
from nvckpt.codecs.errors import InvalidLevelError
from nvckpt.errors import InvalidRequestError

ALL = "all"
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20}


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """One codec with its settings; `text` is what the rows are called."""

    text: str
    name: str
    level: registry.Level = "default"
    chunk: int | None = None
    planes: bool = True

    def choice(self) -> blocks.Choice:
        """Return what the coder takes; CodecUnavailableError where it cannot run here."""
        return blocks.Choice(self.name, self.level, self.chunk, self.planes)


def parse_all(texts: Iterable[str], level: registry.Level = "default") -> tuple[CodecSpec, ...]:
    """Parse each text, `all` being every codec; `level` is for those that name none. Repeats count once."""
    specs: list[CodecSpec] = []
    for text in texts:
        if text == ALL:
            # A number that one codec of all knows need not be one of the next.
            specs += [_named(name, _fitting(name, level)) for name in registry.names()]
        else:
            specs.append(parse(text, level))
    return tuple(dict.fromkeys(specs))


def parse_usual(texts: Iterable[str], level: registry.Level) -> tuple[CodecSpec, ...]:
    """Parse texts that nobody asked for: a level that one of them lacks is its default there."""
    return tuple(parse(text, _fitting(text.partition(":")[0], level)) for text in texts)


def parse(text: str, level: registry.Level = "default") -> CodecSpec:
    """Parse `name` or `name:key=value,key=value`; InvalidRequestError or a codec's own error for what is unknown."""
    name, colon, settings = text.partition(":")
    if name not in registry.names():
        registry.by_name(name)
    chunk: int | None = None
    planes = True
    for setting in settings.split(",") if colon else ():
        key, _, value = setting.partition("=")
        if key == "level":
            level = registry.parse_level(value)
        elif key == "chunk":
            chunk = parse_size(value)
        elif key == "planes" and value in ("on", "off"):
            planes = value == "on"
        else:
            raise InvalidRequestError(
                f"'{text}' has an unknown setting '{key}': choose level=..., chunk=... or planes=off"
            )
    registry.check_level(name, level)
    registry.check_chunk(name, chunk)
    return CodecSpec(text, name, level, chunk, planes) if colon else _named(name, level)


def _named(name: str, level: registry.Level) -> CodecSpec:
    return CodecSpec(name if level == "default" else f"{name}:level={level}", name, level)


def _fitting(name: str, level: registry.Level) -> registry.Level:
    try:
        registry.check_level(name, level)
    except InvalidLevelError:
        return "default"
    return level


def parse_size(text: str) -> int:
    """Parse bytes: `65536`, `64KiB`, `1MiB`."""
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text)
    unit = _UNITS.get(found[2].lower()) if found else None
    if not found or unit is None:
        raise InvalidRequestError(f"'{text}' is no size: write 65536, 64KiB or 1MiB")
    return int(found[1]) * unit
