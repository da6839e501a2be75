"""What a measurement depends on: machine, versions, and the commit where the code is a checkout."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import nvckpt
from nvckpt.codecs import float_native
from nvckpt.version import __version__

_LIBRARIES = (
    "numpy",
    "zstandard",
    "lz4",
    "cramjam",
    "zipnn",
    "lmzip",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-nvcomp-cu12",
    "nvidia-nvcomp-cu13",
)


def describe() -> dict[str, Any]:
    """Look at this machine; no GPU library is imported."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "nvckpt": __version__,
        "commit": commit(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "float": "NumPy" if float_native.available() else "C with AVX2" if float_native.has_avx2() else "C",
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name))},
    }


def checkout() -> Path | None:
    """Return the folder of the source checkout that the package runs from; None for an installed package."""
    root = Path(nvckpt.__file__).resolve().parent.parent
    return root if (root / "sample_data").is_dir() and (root / "pyproject.toml").is_file() else None


def commit() -> str | None:
    """Return the commit of the checkout, with a plus sign when files were changed; None without one."""
    root = checkout()
    if root is None:
        return None
    head = output_of("git", "-C", str(root), "rev-parse", "--short=12", "HEAD")
    changed = output_of("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return f"{head}+" if head and changed else head


def output_of(*command: str) -> str | None:
    """Return the first line that a program prints; None when it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
