"""`nvckpt bench`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nvckpt.cli import options, report
from nvckpt.cli.console import SCHEMA, Talk
from nvckpt.cli.exits import Exit
from nvckpt.version import __version__

if TYPE_CHECKING:
    from nvckpt.benchmark import BenchRow

Paths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE",
        help="Measured together; else the sample data.",
        show_default=False,
    ),
]
Codecs = Annotated[
    list[str] | None,
    typer.Option(
        "--codec",
        metavar="NAME",
        help="A codec, or all; may be repeated.",
        show_default=False,
    ),
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="Only this group; may repeat.", show_default=False)
]
Runs = Annotated[int, typer.Option("--runs", min=1, metavar="N", help="Take the median of N runs.")]
Sample = Annotated[int, typer.Option("--sample", min=0, metavar="MIB", help="MiB a group at most; 0 takes all.")]


def bench(
    files: Paths = None,
    codec: Codecs = None,
    group: Groups = None,
    level: options.Level = "default",
    device: options.Device = "auto",
    threads: options.Threads = 0,
    runs: Runs = 3,
    sample: Sample = 64,
    json: options.Json = False,
) -> Exit:
    """Measure codecs on a file's own tensors: ratio, encode and decode speed by group, each round trip compared."""
    from nvckpt.benchmark import BenchOptions
    from nvckpt.benchmark import bench as run
    from nvckpt.codecs import registry

    names = tuple(registry.names()) if codec and "all" in codec else tuple(codec or BenchOptions().codecs)
    chosen = BenchOptions(names, tuple(group or ()), registry.parse_level(level), device, threads, runs, sample << 20)
    rows = run(files or (), chosen)
    talk = Talk(as_json=json)
    if json:
        content = {"schema": SCHEMA, "version": __version__, "command": "bench"}
        talk.document({**content, "results": [_row_json(row) for row in rows]})
    else:
        talk.table(_table(rows))
        talk.line("In memory. Tensors below 1 KiB count as structure, with which they are coded.")
        for row in rows:
            if row.problem:
                talk.line(f"{row.codec}: {row.problem}")
    return Exit.OK if any(row.problem is None for row in rows) else Exit.FAILED


def _table(rows: list["BenchRow"]) -> Any:
    made = report.table(("codec", "group", "before", "after", "ratio", "encode", "decode"), left=2)
    for row in rows:
        if row.problem:
            continue
        made.add_row(
            row.codec,
            row.group,
            report.size(row.bytes_in),
            report.size(row.bytes_out),
            report.ratio(row.bytes_in, row.bytes_out),
            report.rate(row.bytes_in, row.encode_seconds),
            report.rate(row.bytes_in, row.decode_seconds),
            end_section=row.group == "all",
        )
    return made


def _row_json(row: "BenchRow") -> dict[str, Any]:
    if row.problem:
        return {"codec": row.codec, "group": row.group, "ok": False, "problem": row.problem}
    return {
        "codec": row.codec,
        "group": row.group,
        "ok": True,
        "bytes_in": row.bytes_in,
        "bytes_out": row.bytes_out,
        "ratio": round(row.bytes_in / row.bytes_out, 6) if row.bytes_out else None,
        "encode_seconds": round(row.encode_seconds, 6),
        "decode_seconds": round(row.decode_seconds, 6),
    }
