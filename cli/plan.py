"""`nvckpt plan`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nvckpt.cli import options, report
from nvckpt.cli.console import SCHEMA, Talk
from nvckpt.cli.exits import Exit, UsageError
from nvckpt.version import __version__

if TYPE_CHECKING:
    from nvckpt.cost_inputs import Inputs
    from nvckpt.costs import Outcome, Plan

_MOST_COLUMNS = 5
"""Groups whose ratios are shown; the document has them all."""

Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", help="A checkpoint, or all files of one; else --params.", show_default=False),
]
Params = Annotated[
    str | None,
    typer.Option("--params", metavar="N", help="A model of N parameters instead: 70e9 or 70B.", show_default=False),
]
Layout = Annotated[str, typer.Option("--layout", metavar="NAME", help="With --params: adamw-bf16, megatron or fp32.")]
Kind = Annotated[str, typer.Option("--kind", metavar="NAME", help="With --params: dense or moe.")]
Codecs = Annotated[
    list[str] | None,
    typer.Option("--codec", metavar="NAME", help="With FILE: this codec, as in bench; may repeat.", show_default=False),
]
Storage = Annotated[
    float, typer.Option("--storage-gbps", metavar="SPEED", help="GB/s that all GPUs together write at.")
]
Decimal = Annotated[bool, typer.Option("--decimal", help="A GB is 10^9 bytes, not 2^30 as in NVIDIA's article.")]
Gpus = Annotated[int, typer.Option("--gpus", metavar="N", help="GPUs that wait.")]
GpuHour = Annotated[float, typer.Option("--gpu-hour", metavar="PRICE", help="Dollars that a GPU costs an hour.")]
Every = Annotated[str, typer.Option("--every", metavar="TIME", help="Time between checkpoints: 30m, 1h.")]
Days = Annotated[float, typer.Option("--days", metavar="N", help="Days that are counted.")]
Sync = Annotated[
    bool,
    typer.Option("--sync/--async", help="GPUs wait until a checkpoint is written, or only until it has left them."),
]
Encoders = Annotated[
    int, typer.Option("--encoders", metavar="N", help="Devices that encode at the same time, each its share.")
]
Copy = Annotated[
    float, typer.Option("--copy-gbps", metavar="SPEED", help="With --async: GB/s from each GPU to its host.")
]


def plan(
    files: Paths = None,
    params: Params = None,
    layout: Layout = "adamw-bf16",
    kind: Kind = "dense",
    codec: Codecs = None,
    storage_gbps: Storage = 5.0,
    decimal: Decimal = False,
    gpus: Gpus = 8,
    gpu_hour: GpuHour = 4.40,
    every: Every = "30m",
    days: Days = 30.0,
    sync: Sync = True,
    encoders: Encoders = 1,
    copy_gbps: Copy = 50.0,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    json: options.Json = False,
) -> Exit:
    """Tell what compressing checkpoints would save: time, idle GPUs, money, writes; and whether it is worth it."""
    from nvckpt.cost_inputs import from_files, from_recorded, parse_count, parse_duration
    from nvckpt.costs import Plan, Scenario, evaluate, recommend

    if bool(files) == bool(params):
        raise UsageError("name a checkpoint, or a model's size with --params (not both)")
    if params and codec:
        raise UsageError("--codec is for a FILE: with --params the codecs are those of the recorded runs")
    unit = 10**9 if decimal else 1 << 30
    scenario = Scenario(
        storage_gbps * unit, gpus, gpu_hour, parse_duration(every), days, sync, copy_gbps * unit, encoders
    )
    inputs: Inputs = (
        from_recorded(parse_count(params), layout, kind)
        if params
        else from_files(files or (), codec or (), device, threads)
    )
    without, outcomes = evaluate(inputs.sizes, inputs.figures, scenario)
    answer = Plan(
        scenario,
        inputs.sizes,
        without,
        tuple(outcomes),
        inputs.figures,
        recommend(without, outcomes, scenario),
        inputs.source,
        inputs.notes,
    )
    talk = Talk(as_json=json)
    if json:
        talk.document(_document(answer))
    else:
        _print(talk, answer, unit)
    return Exit.OK


def _print(talk: Talk, answer: "Plan", unit: int) -> None:
    scenario, without = answer.scenario, answer.without
    talk.table(_size_table(answer))
    talk.table(_ratio_table(answer))
    talk.line(
        f"Without a codec a checkpoint takes {_time(without.write)} s at {scenario.storage / unit:g} GB/s;"
        f" {scenario.checkpoints:,} of them in {scenario.days:g} days idle {scenario.gpus:,} GPUs for"
        f" {without.idle_hours:,.0f} GPU hours: ${without.money:,.0f}."
    )
    talk.table(_time_table(answer, unit))
    talk.table(_month_table(answer))
    for line in (*_explained(answer, unit), answer.source, *answer.notes, "", answer.recommendation):
        talk.line(line)


def _size_table(answer: "Plan") -> Any:
    made = report.table(("group", "size", "share"))
    size = sum(answer.sizes.values())
    for group, count in _largest(answer.sizes):
        made.add_row(group, report.size(count), f"{100 * count / size:.1f} %")
    made.add_section()
    made.add_row("checkpoint", report.size(size), "100.0 %")
    return made


def _ratio_table(answer: "Plan") -> Any:
    groups = [group for group, _ in _largest(answer.sizes)[:_MOST_COLUMNS]]
    made = report.table(("ratio", *groups, "checkpoint"))
    for figures, outcome in zip(answer.figures, answer.outcomes, strict=True):
        ratios = (f"{figures.ratios[group]:.3f}" for group in groups)
        made.add_row(figures.codec, *ratios, f"{outcome.ratio:.3f}")
    return made


def _largest(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(sizes.items(), key=lambda item: -item[1])


def _time_table(answer: "Plan", unit: int) -> Any:
    title = "Seconds a checkpoint, and up to which storage speed in GB/s it pays"
    made = report.table(("codec", "encode", "write", "pipelined", "serial", "pays to", "serial"), title=title)
    for o in (answer.without, *answer.outcomes):
        made.add_row(
            o.codec,
            *map(_time, (o.encode, o.write, o.pipelined, o.serial)),
            "" if o is answer.without else _speed(o.break_even_pipelined, unit),
            "" if o is answer.without else _speed(o.break_even_serial, unit),
        )
    return made


def _month_table(answer: "Plan") -> Any:
    scenario = answer.scenario
    count = f"{scenario.checkpoints:,} checkpoints, {scenario.gpus:,} GPUs"
    title = f"{scenario.days:g} days, {count}: GPU hours idle, their cost, bytes written"
    columns = ("codec", "idle h", "cost", "serial", "saves", "writes", "worth it?")
    made = report.table(columns, title=title)
    made.collapse_padding = True
    made.columns[0].no_wrap = True
    made.columns[-1].justify, made.columns[-1].no_wrap = "left", False
    for o in (answer.without, *answer.outcomes):
        saved = round(answer.without.money - o.money)
        made.add_row(
            o.codec,
            f"{o.idle_hours:,.0f}",
            f"${o.money:,.0f}",
            f"${o.money_serial:,.0f}",
            f"{'-' if saved < 0 else ''}${abs(saved):,}" if o is not answer.without else "",
            report.size(round(o.stored)),
            _short(o.verdict),
        )
    return made


def _short(verdict: str) -> str:
    answer, _, reason = verdict.partition(": ")
    return f"no, {reason}" if reason else "yes" if answer else ""


def _time(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 or not value else f"{value:.2g}"


def _speed(value: float | None, unit: int) -> str:
    return "never" if value is None else f"{value / unit:,.0f}" if value >= 100 * unit else f"{value / unit:.3g}"


def _explained(answer: "Plan", unit: int) -> list[str]:
    scenario = answer.scenario
    gb = "10^9 bytes" if unit == 10**9 else "2^30 bytes (a GiB), as in NVIDIA's article; --decimal takes 10^9"
    how = (
        "The GPUs wait until a checkpoint is written"
        if scenario.sync
        else f"The GPUs wait until a checkpoint has left them, at {scenario.copy / unit:g} GB/s each"
    )
    coding = "one device encodes" if scenario.encoders == 1 else f"{scenario.encoders} devices encode"
    return [
        f"{how}; cost is with coding and writing overlapped (pipelined), or one after the other (serial); {coding}.",
        f"A GB is {gb}.",
    ]


def _document(answer: "Plan") -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": "plan",
        "scenario": {**asdict(answer.scenario), "checkpoints": answer.scenario.checkpoints},
        "bytes_in": sum(answer.sizes.values()),
        "groups": [
            {
                "name": group,
                "bytes_in": count,
                "codecs": [
                    {
                        "codec": f.codec,
                        "ratio": round(f.ratios[group], 6),
                        "encode_gb_s": float(f"{f.rates[group] / 1e9:.5g}"),
                    }
                    for f in answer.figures
                ],
            }
            for group, count in answer.sizes.items()
        ],
        "without": _outcome_json(answer.without, answer),
        "codecs": [_outcome_json(o, answer) for o in answer.outcomes],
        "recommendation": answer.recommendation,
        "source": answer.source,
        "notes": list(answer.notes),
    }


def _outcome_json(o: "Outcome", answer: "Plan") -> dict[str, Any]:
    return {
        "codec": o.codec,
        "bytes_out": round(o.bytes_out),
        "ratio": round(o.ratio, 6),
        "encode_seconds": round(o.encode, 6),
        "write_seconds": round(o.write, 6),
        "pipelined_seconds": round(o.pipelined, 6),
        "serial_seconds": round(o.serial, 6),
        "waiting_seconds": round(o.waiting, 6),
        "idle_gpu_hours": round(o.idle_hours, 3),
        "money": round(o.money, 2),
        "money_serial": round(o.money_serial, 2),
        "saved_money": round(answer.without.money - o.money, 2) + 0.0,  # no minus zero
        "bytes_written": round(o.stored),
        "break_even_bytes_per_second": _whole(o.break_even_pipelined),
        "break_even_bytes_per_second_serial": _whole(o.break_even_serial),
        "worth_it": o.worth,
        "verdict": o.verdict,
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
