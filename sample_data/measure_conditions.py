"""What a recorded run depends on: the machine and the versions, without its name and its paths."""

import json
import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch", "numpy", "cupy-cuda12x", "cupy-cuda13x", "nvidia-nvcomp-cu12", "nvidia-nvcomp-cu13", "kvikio-cu12",
    "kvikio-cu13", "zstandard", "lz4", "cramjam", "xxhash",
)  # fmt: skip


def found(scratch: Path) -> dict[str, Any]:
    """Return the conditions; `scratch` is where the files lie."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "gpu": _gpu(),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _first_value("/proc/cpuinfo", "model name"),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "scratch": _filesystem(scratch),
    }


def doctor(document: str) -> dict[str, Any]:
    """Return what `nvckpt doctor --json` says of devices and codecs."""
    said = json.loads(document)
    return {
        name: said[name] for name in ("version", "device", "cuda_problem", "gpus", "float_implementation", "codecs")
    }


def _gpu() -> str | None:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_value(path: str, key: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _filesystem(folder: Path) -> str | None:
    """Return the type of the file system that holds `folder`: that of the longest mount point above it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above)[1] if above else None
