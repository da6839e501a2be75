"""nvckpt: lossless compression of PyTorch checkpoints, bit for bit.

    nvckpt.compress("ckpt.pt")                    # writes ckpt.pt.nvckpt
    nvckpt.decompress("ckpt.pt.nvckpt")           # writes ckpt.pt, the identical file
    nvckpt.verify("ckpt.pt.nvckpt")
    nvckpt.inspect("ckpt.pt.nvckpt").groups
    nvckpt.save(state, "ckpt.nvckpt")             # in the place of torch.save and torch.load
    state = nvckpt.load("ckpt.nvckpt")

Names are loaded when first used: importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from nvckpt.version import __version__

if TYPE_CHECKING:
    from nvckpt.benchmark import BenchOptions as BenchOptions
    from nvckpt.benchmark import bench as bench
    from nvckpt.compression import CompressOptions as CompressOptions
    from nvckpt.compression import compress as compress
    from nvckpt.decompression import DecompressOptions as DecompressOptions
    from nvckpt.decompression import decompress as decompress
    from nvckpt.decompression import verify as verify
    from nvckpt.difference import DiffOptions as DiffOptions
    from nvckpt.difference import diff as diff
    from nvckpt.extraction import ExtractOptions as ExtractOptions
    from nvckpt.extraction import extract as extract
    from nvckpt.listing import inspect as inspect
    from nvckpt.loading import load as load
    from nvckpt.loading import load_file as load_file
    from nvckpt.loading import open_archive
    from nvckpt.recovery import rescue as rescue
    from nvckpt.saving import save as save
    from nvckpt.saving import save_file as save_file

    open = open_archive  # noqa: A001 - as safetensors' safe_open, in a namespace

_HOMES = {
    "BenchOptions": "benchmark",
    "CompressOptions": "compression",
    "DecompressOptions": "decompression",
    "DiffOptions": "difference",
    "ExtractOptions": "extraction",
    "bench": "benchmark",
    "compress": "compression",
    "decompress": "decompression",
    "diff": "difference",
    "extract": "extraction",
    "inspect": "listing",
    "load": "loading",
    "load_file": "loading",
    "open": "loading",
    "save": "saving",
    "save_file": "saving",
    "rescue": "recovery",
    "verify": "decompression",
}

_INSIDE = {"open": "open_archive"}
"""Names that mean something else inside the modules."""

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604 - the names are in the table above


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'nvckpt' has no attribute '{name}'")
    return getattr(import_module(f"nvckpt.{_HOMES[name]}"), _INSIDE.get(name, name))
