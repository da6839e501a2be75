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
    ("kvikio-cu12", "optional: tells of direct storage"),
    ("kvikio-cu13", "optional: tells of direct storage"),
)


@dataclass(frozen=True, slots=True)
class CodecStatus:
    """One codec: `id` is None for `auto`, `problem` None when it runs here."""

    name: str
    id: int | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """A GPU that works. `runtime` and `driver` are CUDA versions times 1000, `memory` is in bytes.

    `direct_storage` says whether files could go to the GPU past the host's memory.
    """

    name: str
    capability: str
    memory: int
    driver: int
    runtime: int
    direct_storage: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The machine; `cuda_problem` says why no GPU is used, None where `gpus` has some."""

    version: str
    python: str
    system: str
    cores: int
    device: str
    cuda_problem: str | None
    gpus: tuple[GpuStatus, ...]
    libraries: tuple[tuple[str, str | None, str], ...]
    float_implementation: str
    codecs: tuple[CodecStatus, ...]


def diagnose() -> Diagnosis:
    """Look; nothing is changed. GPU libraries are imported where they are installed."""
    problem = device.cuda_problem()
    ids = {codec.name: codec.id for codec in registry.CPU_CODECS} | {v: k for k, v in registry.GPU_ONLY.items()}
    return Diagnosis(
        __version__,
        f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        f"{platform.system()} {platform.release()} {platform.machine()}",
        len(os.sched_getaffinity(0)),
        device.resolve("auto", device.WORTH_A_GPU),
        problem,
        () if problem else _gpus(),
        tuple((name, _version(name), use) for name, use in _LIBRARIES),
        f"NumPy, slow: {lacking}" if (lacking := float_native.available()) else "C",
        tuple(CodecStatus(name, ids.get(name), registry.unavailable(name)) for name in registry.names()),
    )


def _gpus() -> tuple[GpuStatus, ...]:
    import cupy

    runtime = cupy.cuda.runtime
    storage = _direct_storage()
    found = []
    for number in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(number)
        found.append(
            GpuStatus(
                properties["name"].decode(),
                f"{properties['major']}.{properties['minor']}",
                int(properties["totalGlobalMem"]),
                runtime.driverGetVersion(),
                runtime.runtimeGetVersion(),
                storage,
            )
        )
    return tuple(found)


def _direct_storage() -> str:
    """Say whether GPUDirect Storage is real here; nvckpt reads through pinned memory either way (README)."""
    try:
        import kvikio
        import kvikio.cufile_driver
        import kvikio.defaults
    except ImportError:
        return "unknown: KvikIO is not installed"
    try:
        if not kvikio.cufile_driver.get("is_gds_available"):
            return "not available: KvikIO runs in compatibility mode"
        return f"available (KvikIO compatibility mode: {kvikio.defaults.get('compat_mode').name})"
    except Exception as problem:  # noqa: BLE001 - a broken driver or an older KvikIO must not hide the rest
        return f"unknown: KvikIO says {problem}"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
