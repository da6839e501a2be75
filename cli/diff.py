"""`nvckpt diff`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nvckpt.cli import options, report
from nvckpt.cli.console import Talk
from nvckpt.cli.exits import Exit
from nvckpt.cli.progress import progress as progress_bar
from nvckpt.files import show

if TYPE_CHECKING:
    from nvckpt.results import Difference, DiffResult

_LINES = 50
"""Tensors listed without -v."""
_KINDS = {"values": "values", "type": "type", "only_first": "only first", "only_second": "only second"}

First = Annotated[str, typer.Argument(metavar="A", help="A checkpoint or an archive.", show_default=False)]
Second = Annotated[str, typer.Argument(metavar="B", help="Another; one of both may be -.", show_default=False)]
TensorsOnly = Annotated[
    bool, typer.Option("--tensors-only", help="Leave out what is no tensor, so that formats may differ.")
]


def diff(
    first: First,
    second: Second,
    tensors_only: TensorsOnly = False,
    threads: options.Threads = 0,
    quiet: options.Quiet = 0,
    verbose: options.Verbose = 0,
    json: options.Json = False,
    progress: options.Progress = None,
) -> Exit:
    """Show which tensors differ between two checkpoints, compressed or not.

    Exit code 0: they are identical; 1: they differ; 2: they could not be compared.
    """
    from nvckpt.difference import DiffOptions
    from nvckpt.difference import diff as run
    from nvckpt.errors import KNOWN_ERRORS, code_of, sentence_of

    talk = Talk.checked(quiet, verbose, json, False)
    try:
        with progress_bar(talk, progress, f"{show(first)} and {show(second)}") as bar:
            result = run(first, second, DiffOptions(threads, tensors_only), bar)
    except BrokenPipeError:
        raise
    except KNOWN_ERRORS as error:
        named = f"{show(error.filename)}: " if isinstance(error, OSError) and error.filename else ""
        talk.error(f"{show(first)} and {show(second)} were not compared: {named}{sentence_of(error)}")
        entry = {**_names(first, second), "ok": False, "error": {"code": code_of(error), "message": sentence_of(error)}}
        if json:
            talk.document(report.document("diff", [entry]))
        return Exit.USAGE
    if json:
        talk.document(report.document("diff", [_to_json(result)]))
    elif not quiet:
        for line in _lines(result, None if verbose else _LINES):
            talk.line(line)
    return Exit.OK if result.is_same else Exit.FAILED


def _lines(result: "DiffResult", most: int | None) -> Iterator[str]:
    """Yield a line a difference, names last and never cut, and what it comes to."""
    if result.differences:
        yield f"{'what':<11} {'first':<18} {'second':<18} {'elements differ':>19}  tensor"
    for difference in result.differences[:most]:
        yield _line(difference)
    if most is not None and len(result.differences) > most:
        yield f"and {len(result.differences) - most:,} more; -v lists all"
    yield f"{show(result.first)} and {show(result.second)}: {_verdict(result)}"


def _line(difference: "Difference") -> str:
    first, second = (
        f"{side[0]} {report.shape(side[1])}" if side else "-" for side in (difference.first, difference.second)
    )
    elements = ""
    if difference.changed is not None and difference.first:
        total = 1
        for size in difference.first[1]:
            total *= size
        elements = f"{difference.changed:,} of {total:,}"
    return f"{_KINDS[difference.kind]:<11} {first:<18} {second:<18} {elements:>19}  {show(difference.name)}"


def _verdict(result: "DiffResult") -> str:
    same = f"{_count(result.same_tensors)} the same ({report.size(result.same_bytes)})"
    if result.is_identical:
        told = "by the hash of the whole" if result.how == "hash" else "compared by tensors and the bytes between them"
        return f"identical, {told}; {same}"
    kinds = [difference.kind for difference in result.differences]
    words = {
        "values": "with other values",
        "type": "of another dtype or shape",
        "only_first": "only in the first",
        "only_second": "only in the second",
    }
    parts = [f"{_count(kinds.count(kind))} {text}" for kind, text in words.items() if kind in kinds]
    rest = {None: "other bytes not compared", False: "other bytes the same", True: "other bytes differ"}
    sizes = f" ({report.size(result.rest_first)} and {report.size(result.rest_second)})" if result.rest_differs else ""
    return "; ".join([*parts, same, rest[result.rest_differs] + sizes])


def _count(number: int) -> str:
    return f"{number:,} tensor{'s' * (number != 1)}"


def _names(first: str, second: str) -> dict[str, Any]:
    return {**report.path_json("input", first), **report.path_json("other", second)}


def _side(side: tuple[str, tuple[int, ...]] | None) -> dict[str, Any] | None:
    return {"dtype": side[0], "shape": list(side[1])} if side else None


def _to_json(result: "DiffResult") -> dict[str, Any]:
    """Return the one entry of `results`; `ok` says that they were compared, `identical` what came out."""
    return {
        **_names(result.first, result.second),
        "ok": True,
        "identical": result.is_identical,
        "how": result.how,
        "bytes_in": result.bytes_first,
        "bytes_other": result.bytes_second,
        "same": {"tensors": result.same_tensors, "bytes": result.same_bytes},
        "differences": [
            {
                "name": report.json_names((difference.name,))[0],
                "kind": difference.kind,
                "first": _side(difference.first),
                "second": _side(difference.second),
                "bytes": difference.bytes,
                "changed": difference.changed,
            }
            for difference in result.differences
        ],
        "rest": {"bytes_in": result.rest_first, "bytes_other": result.rest_second, "differs": result.rest_differs},
        "seconds": round(result.seconds, 6),
        "error": None,
    }
