"""Files that hold no tensors nvckpt knows: they are kept as plain bytes, and named for the user."""

from nvckpt.formats.segments import Source, tile

SAFETENSORS = "safetensors"
TORCH_ZIP = "torch-zip"
TORCH_LEGACY = "torch-legacy"
DISTCP = "distcp"
TORCHSCRIPT = "torchscript"
ZIP = "zip"
PICKLE = "pickle"
TAR = "tar"
GGUF = "gguf"
LFS_POINTER = "git-lfs-pointer"
COMPRESSED = "compressed"
HDF5 = "hdf5"
NUMPY = "numpy"
EMPTY = "empty"
UNKNOWN = "unknown"

# Every value that Source.format can have; tensors are found in the first five.
FORMATS = (
    SAFETENSORS,
    TORCH_ZIP,
    TORCH_LEGACY,
    DISTCP,
    TORCHSCRIPT,
    ZIP,
    PICKLE,
    TAR,
    GGUF,
    LFS_POINTER,
    COMPRESSED,
    HDF5,
    NUMPY,
    EMPTY,
    UNKNOWN,
)

LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
_TAR_MAGIC_OFFSET = 257
_TAR_MAGIC = b"ustar"
_PICKLE_PROTOCOLS = range(2, 6)
_MAGICS = (
    (b"PYTORCH1", UNKNOWN, "a PyTorch 1.0 preview archive"),
    (b"GGUF", GGUF, "a GGUF file"),
    (b"\x89HDF", HDF5, "an HDF5 file"),
    (b"\x93NUMPY", NUMPY, "a NumPy file"),
    (b"\x1f\x8b", COMPRESSED, "gzip data"),
    (b"\x28\xb5\x2f\xfd", COMPRESSED, "zstd data"),
    (b"\xfd7zXZ\x00", COMPRESSED, "xz data"),
    (b"\x04\x22\x4d\x18", COMPRESSED, "lz4 data"),
    (b"BZh", COMPRESSED, "bzip2 data"),
    (b"7z\xbc\xaf\x27\x1c", COMPRESSED, "a 7z archive"),
)


def opaque_source(format_name: str, size: int, *warnings: str) -> Source:
    """A file of plain bytes."""
    segments, _ = tile(size, ())
    return Source(format_name, size, segments, warnings)


def foreign_zip(size: int) -> Source:
    """A zip that torch.save did not write."""
    return _foreign(ZIP, "a zip archive", size)


def foreign_source(head: bytes, size: int) -> Source:
    """A file that no reader claims, known by its first bytes at most."""
    if head.startswith(LFS_MAGIC):
        return opaque_source(LFS_POINTER, size, "this is a Git LFS pointer, not the weights")
    return _foreign(*_kind_of(head), size)


def _foreign(format_name: str, kind: str, size: int) -> Source:
    warning = f"{kind}: not a checkpoint format nvckpt knows; kept as plain bytes"
    return opaque_source(format_name, size, warning)


def _kind_of(head: bytes) -> tuple[str, str]:
    if head[_TAR_MAGIC_OFFSET : _TAR_MAGIC_OFFSET + len(_TAR_MAGIC)] == _TAR_MAGIC:
        return TAR, "a tar archive"
    if len(head) > 2 and head[0] == 0x80 and head[1] in _PICKLE_PROTOCOLS:
        return PICKLE, "a plain pickle"
    for magic, format_name, kind in _MAGICS:
        if head.startswith(magic):
            return format_name, kind
    return UNKNOWN, "an unknown kind of file"
