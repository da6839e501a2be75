"""`nvckpt decompress --rescue`: the words."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nvckpt.cli import report
from nvckpt.cli.batch import Outcome
from nvckpt.cli.exits import UsageError
from nvckpt.cli.progress import Report
from nvckpt.files import show

if TYPE_CHECKING:
    from nvckpt.cli.request import Request
    from nvckpt.decompression import DecompressOptions
    from nvckpt.outputs import Job
    from nvckpt.results import RescueResult

_LINES = 20
"""Lost ranges listed without -v."""


def check(request: "Request") -> None:
    """UsageError for what does not go with a rescue."""
    if request.remove:
        raise UsageError("an archive that is rescued from is not removed: drop --rm or --rescue")
    if request.uses_stdout:
        raise UsageError("--rescue needs an output file, not standard output")
    if request.skip_existing:
        raise UsageError("what is there from a rescue may not be whole: drop --skip-existing or --rescue")


def default_output(archive: str) -> str:
    """Return the name of a rescued file."""
    from nvckpt.recovery import default_output as name_of

    return name_of(archive)


def one(request: "Request", job: "Job", chosen: "DecompressOptions", bar: Report | None, verbose: int) -> Outcome:
    """Rescue one archive, and list what was lost."""
    from nvckpt.recovery import rescue

    request.places.make(job)
    result = rescue(job.source, job.output, chosen, bar)
    name = show(job.source)
    shown = result.damage if verbose else result.damage[:_LINES]
    errors = [f"{name}: lost: {damage.sentence(None if verbose else 3)}" for damage in shown]
    if len(shown) < len(result.damage):
        errors.append(f"{name}: {len(result.damage) - len(shown)} more lost ranges; -v or --json lists all")
    warnings = []
    if not result.is_whole:
        errors.append(f"{name}: {result.sentence()}")
    elif result.problems:
        warnings.append(f"{name}: {'; '.join(result.problems)}; nothing is lost")
    return Outcome(to_json(result), tail=line(result), errors=errors, warnings=warnings)


def line(result: "RescueResult") -> str:
    """Return the line that ends a rescue."""
    told = f"{report.size(result.rescued_bytes)} rescued at {report.rate(result.rescued_bytes, result.seconds)}"
    whole = "identical to the original" if result.is_whole else "not the whole file"
    return f"{show(result.source)} -> {show(result.output)}: {told} on {result.device}, {whole}"


def to_json(result: "RescueResult") -> dict[str, Any]:
    """Return one entry of `results`; it is `ok` when the output has the hash of the original."""
    return {
        **report.path_json("input", result.source),
        **report.path_json("output", result.output),
        "ok": result.is_whole,
        "format": result.format,
        "bytes_in": result.bytes_in,
        "bytes_out": result.bytes_out,
        "ratio": report.number(result.bytes_out, result.bytes_in),
        "seconds": round(result.seconds, 6),
        "device": result.device,
        "xxh3_128": result.hash,
        "damage": [{**asdict(damage), "names": report.json_names(damage.names)} for damage in result.damage],
        "problems": list(result.problems),
        "rescued_bytes": result.rescued_bytes,
        "rescued_frames": result.rescued_frames,
        "size_is_known": result.size_is_known,
        "error": None if result.is_whole else {"code": "corrupt", "message": result.sentence()},
    }
