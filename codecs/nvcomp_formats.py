"""The formats of NVIDIA's nvCOMP: names, ids, element types, and which version of the library reads what.

Without the library and without NumPy: every command asks for names.
"""

from dataclasses import dataclass
from importlib import metadata

from nvckpt.codecs.content import Content
from nvckpt.codecs.errors import CodecUnavailableError

PACKAGES = ("nvidia-nvcomp-cu12", "nvidia-nvcomp-cu13")
SMALLEST = 4096
"""Bytes below which a buffer is another codec's: a stream of its own costs nvCOMP hundreds of bytes."""

ELEMENTS = {0: "|u1", 1: "<u2", 2: "<f2", 3: "<u4", 4: "<f4", 5: "<u8", 6: "<f8"}
"""What `codec_param` says of a GPU-only stream: nvCOMP's data type."""

_ELEMENT_IDS = {name: number for number, name in ELEMENTS.items()}
_FLOATS = {"bf16": "<f2", "fp16": "<f2", "fp32": "<f4", "fp64": "<f8"}
_WHOLE = {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8"}
TYPED_BY = {
    "ans": {"bf16": "<f2", "fp16": "<f2", "fp32": "<f4"},
    "bitcomp": _FLOATS,
    "cascaded": {},
}
"""The formats that are told an element type, and the one of each kind of float."""


@dataclass(frozen=True, slots=True)
class NvcompFormat:
    """One algorithm. `chunk` is the bytes coded apart by default.

    ANS gains 3 % of ratio from 64 to 256 KiB on an H200 and hardly more beyond; the others take nvCOMP's own advice.
    """

    name: str
    id: int
    algorithm: str
    chunk: int
    own: bool = False

    def element(self, content: Content, size: int) -> int:
        """Return the id of the element type for a block, whole in `size` bytes; 0 is bytes."""
        typed = TYPED_BY.get(self.name)
        if typed is None:
            return 0
        name = typed.get(content.kind) or (_WHOLE.get(content.word, "|u1") if self.name != "ans" else "|u1")
        width = int(name[2:])
        return _ELEMENT_IDS[name] if size % width == 0 else 0


FORMATS = {
    f.name: f
    for f in (
        NvcompFormat("zstd", 1, "Zstd", 64 << 10),
        NvcompFormat("lz4", 2, "LZ4", 64 << 10),
        NvcompFormat("snappy", 3, "Snappy", 64 << 10),
        NvcompFormat("deflate", 4, "Deflate", 64 << 10),
        NvcompFormat("gzip", 5, "Gzip", 64 << 10),
        NvcompFormat("ans", 16, "ANS", 256 << 10, own=True),
        NvcompFormat("gdeflate", 17, "GDeflate", 64 << 10, own=True),
        NvcompFormat("bitcomp", 18, "Bitcomp", 256 << 10, own=True),
        NvcompFormat("cascaded", 19, "Cascaded", 64 << 10, own=True),
    )
}
BY_ID = {f.id: f for f in FORMATS.values()}


def installed() -> tuple[str, str] | None:
    """Return the installed nvCOMP's distribution and version without importing it; None where there is none."""
    for package in PACKAGES:
        try:
            return package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def library_version() -> int:
    """Return the installed version as a frame records it: major, minor, patch and build, a byte each."""
    found = installed()
    parts = [int(part) for part in found[1].split(".")[:4] if part.isdigit()] if found else []
    parts += [0] * (4 - len(parts))
    return sum(min(part, 255) << shift for part, shift in zip(parts, (24, 16, 8, 0), strict=True))


def shown(version: int) -> str:
    """Return a recorded version in words."""
    return ".".join(str(version >> shift & 255) for shift in (24, 16, 8, 0))


def check_version(name: str, recorded: int) -> None:
    """CodecUnavailableError, naming what to install, unless the installed nvCOMP reads streams of this version."""
    mine = library_version()
    if not mine:
        raise CodecUnavailableError(
            f"this part was written with '{name}' of nvCOMP {shown(recorded)}, which is not installed here: "
            f"pip install 'nvidia-nvcomp-cu12=={recorded >> 24}.{recorded >> 16 & 255}.*' (or -cu13)"
        )
    # ANS of 6.0 is not that of 5.x, and nothing promises that a later minor version's streams are read by an earlier.
    if recorded >> 24 != mine >> 24 or recorded >> 16 > mine >> 16:
        package = installed()
        raise CodecUnavailableError(
            f"this part was written with '{name}' of nvCOMP {shown(recorded)}, and {shown(mine)} is installed: "
            f"pip install '{package[0] if package else PACKAGES[0]}=={recorded >> 24}.{recorded >> 16 & 255}.*'"
        )
