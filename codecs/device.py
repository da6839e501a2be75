"""Which device works: asked for and missing is an error, `auto` falls back and says so."""

from nvckpt.codecs.errors import CodecUnavailableError, UnknownNameError

DEVICES = ("auto", "cpu", "cuda")


def resolve(name: str) -> str:
    """The device that will work, `cpu` in this version.

    UnknownNameError for a name that is no device; CodecUnavailableError for `cuda`, with the remedy.
    """
    base, _, index = name.partition(":")
    if base not in DEVICES or (index and not (base == "cuda" and index.isdigit())):
        raise UnknownNameError(f"unknown device '{name}': choose auto, cpu or cuda")
    if base == "cuda":
        raise CodecUnavailableError(f"device '{name}' cannot be used: {cuda_problem()}; use --device cpu or auto")
    return "cpu"


def cuda_problem() -> str:
    """Why no GPU works here, in a clause. Imports CuPy where it is installed."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed (pip install 'nvckpt[cu12]' or 'nvckpt[cu13]')"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception:  # noqa: BLE001 - a broken driver fails in many ways, and all mean: no GPU
        count = 0
    if not count:
        return "no NVIDIA GPU or driver was found"
    return "this version has no GPU codecs yet"
