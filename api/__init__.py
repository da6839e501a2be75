"""nvckpt: lossless compression of PyTorch checkpoints, bit for bit."""

from nvckpt.version import __version__

__all__ = ["__version__"]
