"""The README.md of a recorded run, from the JSON files beside it."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

GB = 1e9
TARGETS = {"compress": 1.0, "decompress": 1.1}
CODEC_STAGES = ("encode", "decode", "verify")


def summary(folder: Path) -> str:
    """Return the text; a section that was not measured has none."""
    parts = {
        "conditions": _conditions,
        "files": _files,
        "recipe": _recipe,
        "codecs": _codecs,
        "layouts": _codecs,
        "bench_dense": _bench,
        "bench_moe": _bench,
        "direct": _direct,
    }
    lines = ["# A recorded run", ""]
    read = {name: json.loads((folder / f"{name}.json").read_text()) for name in parts if _exists(folder, name)}
    for name, found in read.items():
        lines += [f"## {name.capitalize().replace('_', ', ')}", ""]
        stopped = found.get("error") or found.get("skipped")
        lines += [f"Not measured: {stopped}"] if stopped else parts[name](found, read)
        lines.append("")
    return "\n".join(lines)


def _exists(folder: Path, name: str) -> bool:
    return (folder / f"{name}.json").is_file()


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    return [f"| {' | '.join(map(str, row))} |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]


def _conditions(found: dict[str, Any], _read: dict[str, Any]) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    return [
        f"- {found['date']}, commit {found['commit'] or 'unknown'}",
        f"- {found['gpu'] or 'no GPU'}; {found['processor']}, {found['cores']} cores,"
        f" {found['memory_bytes'] / GB:.0f} GB of memory",
        f"- Linux {found['kernel']}, Python {found['python']}, {packages}",
        f"- files on {found['scratch']}",
    ]


def _files(found: dict[str, Any], _read: dict[str, Any]) -> list[str]:
    rows = []
    for size in found["sizes"]:
        if "error" in size:
            rows.append([f"{size['gigabytes']:g}", "failed", *[""] * 6])
            continue
        volume = size["bytes"]
        rows += [[_gb(volume), name, *_figures(size[name], volume)] for name in ("cp", "compress", "decompress")]
    head = (
        "GB",
        "what",
        "s",
        "GB/s",
        "host GB",
        "of it anonymous",
        "device GB",
        "ratio",
        "busiest stage",
        "codec busy",
    )
    lines = _table(head, [[*row, *[""] * (len(head) - len(row))] for row in rows])
    lines += [f"- {size['gigabytes']:g} GB: {size['error']}" for size in found["sizes"] if "error" in size]
    if "error" not in found["tiny"]:
        times = ", ".join(f"{name} {found['tiny'][name]['seconds']:.2f} s" for name in TARGETS)
        lines += ["", f"Start to end on a file of 1.7 MB, nearly all start-up: {times}."]
    measured = [size for size in found["sizes"] if "error" not in size]
    if len(measured) > 1:
        lines += ["", *_slopes(measured[0], measured[-1])]
    return lines


def _figures(run: dict[str, Any], size: int) -> list[str]:
    peaks = (run["peak_host"], run["peak_anonymous"], run["peak_device"])
    row = [f"{run['seconds']:.2f}", f"{size / GB / run['seconds']:.2f}", *("" if p is None else _gb(p) for p in peaks)]
    said = run["runs"][-1].get("said")
    if not said:
        return [*row, "", "", ""]
    return [*row, f"{said['ratio']:.3f}" if said.get("ratio") else "", said.get("bottleneck") or "", _codec_share(said)]


def _gb(size: int) -> str:
    return f"{size / GB:.2f}"


def _codec_share(said: dict[str, Any]) -> str:
    """Return how much of the operation the busiest of the codec's stages was at work."""
    busy = [stage["seconds"] for stage in said.get("stages", ()) if stage["name"] in CODEC_STAGES]
    return f"{100 * max(busy) / said['seconds']:.0f} %" if busy else ""


def _slopes(small: dict[str, Any], large: dict[str, Any]) -> list[str]:
    """Start-up and seconds a GB, by the straight line through two sizes."""
    rows, cp = [], 0.0
    for name in ("cp", "compress", "decompress"):
        slope = (large[name]["seconds"] - small[name]["seconds"]) / ((large["bytes"] - small["bytes"]) / GB)
        cp = slope if name == "cp" else cp
        start = small[name]["seconds"] - slope * small["bytes"] / GB
        limit = f"at most {TARGETS[name]}" if name in TARGETS else ""
        compared = f"{slope / cp:.2f}" if cp > 0 else ""
        rows.append([name, f"{start:.2f}", f"{slope:.3f}", compared, limit, *_growth(small[name], large[name])])
    head = ("what", "start-up s", "s a GB", "to cp", "wanted", "host memory", "anonymous", "device memory")
    note = (
        "Start-up is where the straight line through both sizes meets zero bytes, so it includes a process's end;"
        " memory is that of the large file against the small one."
    )
    return [*_table(head, rows), "", note]


def _growth(small: dict[str, Any], large: dict[str, Any]) -> list[str]:
    names = ("peak_host", "peak_anonymous", "peak_device")
    return [f"{100 * (large[n] / small[n] - 1):+.0f} %" if small[n] and large[n] else "" for n in names]


def _recipe(found: dict[str, Any], read: dict[str, Any]) -> list[str]:
    steps = [[name, f"{seconds:.2f}"] for name, seconds in found["steps"].items()]
    lines = [*_table(("step", "s"), steps), "", f"Ratio {found['bytes_in'] / found['bytes_out']:.3f}."]
    sizes = [size for size in read.get("files", {}).get("sizes", ()) if size.get("bytes") == found["bytes_in"]]
    for size in sizes:
        for ours, theirs in (("compress", "compress"), ("decompress", "restore")):
            times = found[theirs], size[ours]["seconds"]
            lines.append(
                f"{ours}: {times[0]:.2f} s without its start-up, nvckpt {times[1]:.2f} s with its own: "
                f"{times[0] / times[1]:.1f} times as long."
            )
    return lines


def _codecs(found: dict[str, Any], _read: dict[str, Any]) -> list[str]:
    rows = []
    for name, run in found.items():
        if "error" in run:
            rows.append([name, "failed", "", ""])
        else:
            said = run["said"]
            rows.append([name, f"{said['ratio']:.4f}", f"{run['seconds']:.2f}", said.get("bottleneck") or ""])
    failed = [f"- {name}: {run['error']}" for name, run in found.items() if "error" in run]
    return [*_table(("codec", "ratio", "s", "busiest stage"), rows), *failed]


def _bench(found: dict[str, Any], _read: dict[str, Any]) -> list[str]:
    rows = [
        (row["codec"], row["group"], f"{row['bytes_in'] / row['bytes_out']:.4f}",
         f"{row['encode_gb_s']:.2f}", f"{row['decode_gb_s']:.2f}")
        for row in found["results"] if row["ok"]
    ]  # fmt: skip
    failed = [f"- {row['codec']}, {row['group']}: {row['problem']}" for row in found["results"] if not row["ok"]]
    return [*_table(("codec", "group", "ratio", "encode GB/s", "decode GB/s"), rows), "", *failed]


def _direct(found: dict[str, Any], read: dict[str, Any]) -> list[str]:
    """What `bench` says of nvCOMP alone over what a script without nvckpt measured in the same run."""
    bench = {(row["codec"], row["group"]): row for row in read.get("bench_dense", {}).get("results", ()) if row["ok"]}
    rows = []
    for row in found["rows"]:
        ours = bench.get((f"{row['codec']}, nvCOMP alone", row["group"]))
        figures = ("ratio", "encode_gb_s", "decode_gb_s")
        shares = [f"{ours[name] / row[name]:.3f}" if ours else "" for name in figures]
        rows.append((row["codec"], row["group"], f"{row['ratio']:.4f}", f"{row['encode_gb_s']:.1f}",
                     f"{row['decode_gb_s']:.1f}", *shares))  # fmt: skip
    head = ("codec", "group", "ratio", "encode GB/s", "decode GB/s", "bench: ratio", "encode", "decode")
    return _table(head, rows)
