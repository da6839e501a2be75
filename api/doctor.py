"""What this machine has for nvckpt, and why a codec cannot run here."""

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata

from nvckpt.codecs import device, float_native, registry
from nvckpt.version import __version__

_LIBRARIES = (
    ("zstandard", "codec zstd, index"),
    ("lz4", "codec lz4"),
    ("cramjam", "codec snappy"),
    ("numpy", "transforms"),
    ("xxhash", "checksums"),
    ("torch", "optional: handing tensors over"),
    ("safetensors", "optional: handing tensors over"),
    ("cupy-cuda12x", "optional: GPU"),
    ("cupy-cuda13x", "optional: GPU"),
    ("nvidia-nvcomp-cu12", "optional: GPU codecs"),
    ("nvidia-nvcomp-cu13", "optional: GPU codecs"),
    ("kvikio-cu12", "optional: direct storage"),
    ("kvikio-cu13", "optional: direct storage"),
)


@dataclass(frozen=True, slots=True)
class CodecStatus:
    """One codec: `id` is None for `auto`, `problem` None when it runs here."""

    name: str
    id: int | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The machine; `cuda_problem` says why no GPU is used."""

    version: str
    python: str
    system: str
    cores: int
    device: str
    cuda_problem: str
    libraries: tuple[tuple[str, str | None, str], ...]
    float_implementation: str
    codecs: tuple[CodecStatus, ...]


def diagnose() -> Diagnosis:
    """Look; nothing is changed, and no GPU library is imported."""
    ids = {codec.name: codec.id for codec in registry.CPU_CODECS} | {v: k for k, v in registry.GPU_ONLY.items()}
    return Diagnosis(
        __version__,
        f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        f"{platform.system()} {platform.release()} {platform.machine()}",
        len(os.sched_getaffinity(0)),
        device.resolve("auto"),
        device.cuda_problem(),
        tuple((name, _version(name), use) for name, use in _LIBRARIES),
        f"NumPy, slow: {problem}" if (problem := float_native.available()) else "C",
        tuple(CodecStatus(name, ids.get(name), registry.unavailable(name)) for name in registry.names()),
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
