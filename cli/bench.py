"""`nvckpt bench`."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nvckpt.cli import options, report
from nvckpt.cli.console import SCHEMA, Talk
from nvckpt.cli.exits import Exit, UsageError
from nvckpt.version import __version__

if TYPE_CHECKING:
    from nvckpt.benchmark_rows import BenchResult

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
        help="A codec, with settings as in zstd:level=3 or ans:chunk=1MiB, or all; may be repeated.",
        show_default=False,
    ),
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="Only this group; may repeat.", show_default=False)
]
Runs = Annotated[int, typer.Option("--runs", min=1, metavar="N", help="Take the median of N runs.")]
Sample = Annotated[
    int | None,
    typer.Option(
        "--sample",
        min=0,
        metavar="MIB",
        help="MiB a group at most, evenly spread; 0 takes all. By default 64, on a GPU 1024.",
        show_default=False,
    ),
]
Tile = Annotated[
    int, typer.Option("--tile", min=0, metavar="MIB", help="Repeat small groups to this many MiB, for the speed.")
]
WholeFile = Annotated[
    bool | None,
    typer.Option(
        "--whole-file/--no-whole-file",
        help="Also compress and restore the files themselves; by default up to 256 MiB.",
        show_default=False,
    ),
]
Peers = Annotated[bool, typer.Option("--peers", help="Also measure zstd -T0, lmz and zipnn, where installed.")]
Csv = Annotated[bool, typer.Option("--csv", help="Comma-separated values instead of words.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="A Markdown table instead of words.")]
Plot = Annotated[
    str | None,
    typer.Option("--plot", metavar="PATH", help="Draw ratio against speed into a .png or .svg.", show_default=False),
]


def bench(
    files: Paths = None,
    codec: Codecs = None,
    group: Groups = None,
    level: options.Level = "default",
    device: options.Device = "auto",
    threads: options.Threads = 0,
    runs: Runs = 3,
    sample: Sample = None,
    tile: Tile = 0,
    whole_file: WholeFile = None,
    peers: Peers = False,
    plot: Plot = None,
    json: options.Json = False,
    csv: Csv = False,
    markdown: Markdown = False,
) -> Exit:
    """Measure codecs on a file's own tensors: ratio, encode and decode speed by group, each round trip compared."""
    from nvckpt.benchmark import BenchOptions, measure
    from nvckpt.benchmark_rows import as_csv, as_markdown
    from nvckpt.codecs import registry

    if json + csv + markdown > 1:
        raise UsageError("choose one of --json, --csv and --markdown")
    chosen = BenchOptions(
        tuple(codec or ()),
        tuple(group or ()),
        registry.parse_level(level),
        device,
        threads,
        runs,
        None if sample is None else sample << 20,
        tile << 20,
        whole_file,
        peers,
    )
    if plot is not None:
        from nvckpt import benchmark_plot

        benchmark_plot.check(plot)
    result = measure(files or (), chosen)
    records = result.records()
    talk = Talk(as_json=json)
    if json:
        head = {"schema": SCHEMA, "version": __version__, "command": "bench"}
        talk.document({**head, "conditions": dict(result.conditions), "results": records})
    elif csv:
        talk.line(as_csv(records).rstrip("\n"))
    elif markdown:
        talk.line(as_markdown(records))
        talk.line("\n".join(f"- {line}" for line in _conditions(result.conditions)))
    else:
        _print(talk, result, records)
    if all(row.problem for row in result.rows):
        return Exit.FAILED
    if plot is not None:  # after the words, which a full disk must not take along
        benchmark_plot.draw(records, plot, result.conditions)
    return Exit.OK


def _print(talk: Talk, result: "BenchResult", records: Iterable[Mapping[str, Any]]) -> None:
    if any(row.problem is None for row in result.rows):
        talk.table(_table(records))
    talk.line("\n".join(_conditions(result.conditions)))
    talk.line(
        "Encode and decode in GB/s (10^9 bytes of the original), in memory; bits a value; ± is the wider spread of the"
        " runs.\n`file`: the whole compress and decompress, once, with reading, writing and verifying;"
        " auto also finds\ntensors there that follow from others.\n"
        "Tensors below 1 KiB count as structure, with which they are coded."
    )
    for row in result.rows:
        if row.stages:
            stages = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in row.stages.items())
            talk.line(f"{row.codec}: stages of the file: {stages}")
    for row in result.rows:
        if row.problem:
            where = "" if row.group == "all" else f", {row.group}"
            talk.line(f"{row.codec}{where}: {row.problem}")


def _table(records: Iterable[Mapping[str, Any]]) -> Any:
    made = report.table(("codec", "group", "before", "ratio", "bits", "encode", "decode", "±"), left=2)
    made.columns[1].no_wrap = True
    made.collapse_padding = True
    shown = [entry for entry in records if entry["ok"]]
    for before, entry, after in zip([None, *shown[:-1]], shown, [*shown[1:], None], strict=False):
        made.add_row(
            "" if before is not None and before["codec"] == entry["codec"] else entry["codec"],
            entry["group"],
            report.size(entry["bytes_in"]),
            report.ratio(entry["bytes_in"], entry["bytes_out"]),
            "" if entry["bits_per_value"] is None else f"{entry['bits_per_value']:.2f}",
            _rate(entry["encode_gb_s"]),
            _rate(entry["decode_gb_s"]),
            _share(entry["encode_spread"], entry["decode_spread"]),
            end_section=after is not None and after["codec"] != entry["codec"],
        )
    return made


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.3f}"


def _share(*spreads: float | None) -> str:
    """Return the wider spread."""
    known = [spread for spread in spreads if spread is not None]
    return f"{100 * max(known):.0f} %" if known else ""


def _conditions(found: Mapping[str, Any]) -> list[str]:
    """Return what the figures depend on, in a few lines; the JSON document has it all."""
    where = f"{found['gpu']}, driver {found['driver']}" if "gpu" in found else found["processor"]
    commit = f" ({found['commit']})" if found["commit"] else ""
    sampled = f"at most {report.size(found['sample_bytes'])} of each group" if found["sampled"] else "all bytes"
    tiled = f", repeated to {report.size(found['tile_bytes'])}" if found["tile_bytes"] else ""
    libraries = ", ".join(f"{name} {version}" for name, version in found["libraries"].items())
    return [
        f"On {found['device']}: {where}; {found['cores']} cores, {found['threads']} threads; float {found['float']}.",
        f"nvckpt {found['nvckpt']}{commit}, Python {found['python']}, {libraries}.",
        f"{', '.join(found['files'])}: {sampled}{tiled}; the median of {found['runs']} runs.",
    ]
