"""`nvckpt extract`."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nvckpt.cli import batch, options, report
from nvckpt.cli.batch import Outcome
from nvckpt.cli.console import Talk
from nvckpt.cli.exits import Exit, UsageError
from nvckpt.cli.progress import Report
from nvckpt.files import PIPE, show

if TYPE_CHECKING:
    from nvckpt.outputs import Job
    from nvckpt.results import ExtractResult

Source = Annotated[
    str, typer.Argument(metavar="FILE", help="An archive or a checkpoint; - is standard input.", show_default=False)
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Tensors, as `list -v` shows them; also 'optimizer.*'.", show_default=False),
]
Out = Annotated[
    str | None,
    typer.Option(
        "-o", "--output", metavar="PATH", help="Write here; - is standard output.", rich_help_panel=options.PLACES
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="NAME", help="Only tensors of this group, such as exp_avg; may repeat."),
]
Raw = Annotated[bool, typer.Option("--raw", help="Write the values of one tensor, and nothing else.")]
Force = Annotated[
    bool, typer.Option("-f", "--force", help="Replace the output, write to a terminal.", rich_help_panel=options.PLACES)
]


def extract(
    file: Source,
    names: Names = None,
    output: Out = None,
    group: Groups = None,
    raw: Raw = False,
    force: Force = False,
    threads: options.Threads = 0,
    quiet: options.Quiet = 0,
    verbose: options.Verbose = 0,
    json: options.Json = False,
    progress: options.Progress = None,
) -> Exit:
    """Write single tensors as a safetensors file; of an archive only what they need is decoded."""
    from nvckpt.extraction import ExtractOptions
    from nvckpt.extraction import extract as run
    from nvckpt.trees import Finds

    chosen = ExtractOptions(tuple(names or ()), tuple(group or ()), raw, threads, force)
    if output is None:
        raise UsageError("name the output with -o; - is standard output")
    if output == PIPE and not force and sys.stdout is not None and sys.stdout.isatty():
        raise UsageError("standard output is a terminal; redirect it, or use -f")
    talk = Talk.checked(quiet, verbose, json, False, output == PIPE)

    def one(_job: "Job", bar: Report | None) -> Outcome:
        result = run(file, output, chosen, bar)
        return Outcome(_to_json(result), head=_lines(result) if verbose else (), tail=_line(result))

    from nvckpt.outputs import Job

    return batch.run([Job(file)], one, talk, batch.Conduct("extract", progress=progress, found=Finds()))


def _line(result: "ExtractResult") -> str:
    count = len(result.tensors)
    output = "standard output" if result.output == PIPE else show(result.output)
    source = "standard input" if result.source == PIPE else show(result.source)
    return f"{source} -> {output}: {count:,} tensor{'s' * (count != 1)}, {report.size(result.bytes_out)}"


def _lines(result: "ExtractResult") -> list[str]:
    """Return a line a tensor, names last as in `list -v`."""
    return [
        f"{report.size(t.bytes):>11}  {t.group:<14} {t.dtype:<8} {report.shape(t.shape):<16} {show(t.name)}"
        for t in result.tensors
    ]


def _to_json(result: "ExtractResult") -> dict[str, Any]:
    return {
        **report.path_json("input", result.source),
        **report.path_json("output", result.output),
        "ok": True,
        "format": result.format,
        "bytes_in": result.bytes_in,
        "bytes_out": result.bytes_out,
        "seconds": round(result.seconds, 6),
        "extracted": [
            {
                "name": report.json_names((t.name,))[0],
                "group": t.group,
                "dtype": t.dtype,
                "shape": list(t.shape),
                "bytes": t.bytes,
            }
            for t in result.tensors
        ],
        "error": None,
    }
