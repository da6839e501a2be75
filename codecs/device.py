"""Which device works: asked for and missing is an error, `auto` falls back and says so."""

from functools import cache
from importlib import util

from nvckpt.codecs.errors import CodecUnavailableError, UnknownNameError

DEVICES = ("auto", "cpu", "cuda")

WORTH_A_GPU = 256 << 20
"""Bytes from which `auto` starts a GPU. Estimated: a start takes one to two seconds, in which cores do as much."""


def resolve(name: str, size: int | None = None, *, gpu_only: bool = False) -> str:
    """The device that will work on `size` bytes: `cpu`, or `cuda:` and its number.

    `auto` takes a GPU that is there for much data, or, with `gpu_only`, for any. UnknownNameError for a name that is no
    device; CodecUnavailableError for a GPU that cannot be used, with the remedy.
    """
    base, _, index = name.partition(":") if isinstance(name, str) else ("", "", "")
    if base not in DEVICES or (":" in name and not (base == "cuda" and index.isdigit())):
        raise UnknownNameError(f"unknown device '{name}': choose auto, cpu, cuda or cuda:NUMBER")
    if base == "auto":
        worth = gpu_only or (size is not None and (size >= WORTH_A_GPU or started()))
        return "cuda:0" if worth and cuda_problem() is None else "cpu"
    if base == "cpu":
        return "cpu"
    problem = cuda_problem(int(index or 0))
    if problem:
        raise CodecUnavailableError(f"device '{name}' cannot be used: {problem}; use --device cpu or auto")
    return f"cuda:{int(index or 0)}"


@cache
def cuda_problem(number: int = 0) -> str | None:
    """Why this GPU cannot be used, in a clause; None when it can. The first call imports CuPy where it is installed."""
    if util.find_spec("cupy") is None:
        return "CuPy is not installed (install nvckpt's extra cu12 or cu13: pip install '.[cu12]' in its checkout)"
    from nvckpt.codecs import float_cuda

    return float_cuda.available(number)


def started() -> bool:
    """Tell whether this process has found a GPU: then it costs nothing more, and forks of the process cannot use it."""
    return cuda_problem.cache_info().currsize > 0 and cuda_problem() is None
