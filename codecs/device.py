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
    """Why no GPU works, in a clause."""
    return "this version compresses files on the CPU alone, whatever GPU the machine has"
