"""Put the figures of NVIDIA's article on checkpoint compression beside ours, from runs of `nvckpt bench --json`.

    python sample_data/article_report.py --dense dense.json --moe moe.json --out report.md --package

The article: https://developer.nvidia.com/blog/cut-checkpoint-costs-with-about-30-lines-of-python-and-nvidia-nvcomp/
(9 April 2026, and a later revision of its ratios and savings). With `--package` the ratios and speeds also become those
that `nvckpt plan --params` works with, in `api/recorded_runs.json`.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvckpt.cost_inputs import LAYOUTS
from nvckpt.costs import Figures, Outcome, Scenario, evaluate

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "api" / "recorded_runs.json"
GROUPS = ("weights", "master", "exp_avg", "exp_avg_sq", "grads")
GIB = 1 << 30
CODECS = ("float", "ans", "zstd", "nvCOMP")
ALONE = ", nvCOMP alone"

# The article's clusters: GPUs, parameters, and what it says that they idle a month without compression.
CLUSTERS = (
    (8, 70e9, "$2,200"),
    (64, 70e9, "over $17,500"),
    (128, 405e9, "over $200,000"),
    (256, 671e9, "not at hand"),
)
# Its ratios by what a group holds, revised version; ANS is called gANS there.
ARTICLE_RATIOS = {
    "weights": ("1.46 to 1.48", "1.27 to 1.28"),
    "grads": ("1.46 to 1.48", "1.27 to 1.28"),
    "exp_avg": ("1.06 to 1.11", "1.06 to 1.11"),
    "exp_avg_sq": ("1.06 to 1.11", "1.06 to 1.11"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dense", required=True, type=Path, help="bench --json of a dense model")
    parser.add_argument("--moe", required=True, type=Path, help="bench --json of a mixture of experts")
    parser.add_argument("--out", required=True, type=Path, help="the report, Markdown")
    parser.add_argument("--package", action="store_true", help="also write api/recorded_runs.json")
    options = parser.parse_args()
    kinds = {"dense": read(options.dense), "moe": read(options.moe)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(report(kinds))
    if options.package:
        PACKAGE.write_text(packaged(kinds))


def read(path: Path) -> dict[str, Any]:
    """Ratios and speeds by codec and group, and in a sentence where they come from."""
    document = json.loads(path.read_text())
    conditions = document["conditions"]
    codecs: dict[str, dict[str, dict[str, float]]] = {}
    for row in document["results"]:
        if row["ok"] and row["group"] in GROUPS and row["codec"].startswith(CODECS):
            figures = {key: row[key] for key in ("ratio", "encode_gb_s", "decode_gb_s")}
            codecs.setdefault(row["codec"], {})[row["group"]] = figures
    source = conditions.get("source") or (
        f"{', '.join(conditions['files'])} on {conditions.get('gpu') or conditions['processor']},"
        f" {conditions['date']}, nvckpt {conditions['nvckpt']} ({conditions['commit'] or 'no commit recorded'})"
    )
    needed = {part.like for part in LAYOUTS["adamw-bf16"]}
    return {"source": source, "codecs": {name: found for name, found in codecs.items() if needed <= set(found)}}


def packaged(kinds: dict[str, Any]) -> str:
    """What the package carries."""
    about = "Ratios and speeds (10^9 bytes a second) that nvckpt plan --params works with; made by article_report.py."
    ours = {
        kind: {**run, "codecs": {name: found for name, found in run["codecs"].items() if not name.endswith(ALONE)}}
        for kind, run in kinds.items()
    }
    return json.dumps({"about": about, "kinds": ours}, indent=1) + "\n"


def report(kinds: dict[str, Any]) -> str:
    """The whole report."""
    lines = [
        "# NVIDIA's article on checkpoint compression, re-done",
        "",
        "The article's figures (9 April 2026 and a later revision, as quoted in copies and summaries of it) beside",
        "those of `nvckpt`. Made by `sample_data/article_report.py`; what is ours is computed from:",
        "",
        *(f"- {kind}: {run['source']}" for kind, run in kinds.items()),
        "",
        *sizes_and_times(),
        *ratios(kinds),
        *whole_checkpoints(kinds),
        *money(kinds),
        *not_reproduced(kinds),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def sizes_and_times() -> Iterator[str]:
    without = outcome(70e9, None, 8)
    parts = {part.group: 70e9 * part.width / GIB for part in LAYOUTS["adamw-bf16"]}
    moments = parts["exp_avg"] + parts["exp_avg_sq"]
    rows = (
        ("70 B weights, BF16", "130 GB", f"{parts['weights']:.1f} GiB"),
        ("FP32 moments", "521 GB", f"{moments:.1f} GiB"),
        ("BF16 gradients", "130 GB", f"{parts['grads']:.1f} GiB"),
        ("checkpoint", "782 GB", f"{without.bytes_out / GIB:.1f} GiB"),
        ("write at 5 GB/s", "156.4 s", f"{without.write:.1f} s (168.0 s if a GB is 10^9 bytes)"),
        ("checkpoints in 30 days, one each 30 minutes", "1,440", f"{Scenario(5.0 * GIB).checkpoints:,}"),
        (
            "written in 30 days",
            "1.13 PB",
            f"{without.stored / GIB / 1e6:.2f} million GiB, {without.stored / 1e15:.2f} PB",
        ),
    )
    yield "## Sizes and times"
    yield ""
    yield (
        "All reproduced. The article calls GiB GB, and its storage speed is in the same unit: `nvckpt plan` does so,"
        " too, unless `--decimal` is given."
    )
    yield ""
    yield from table(("", "article", "nvckpt"), rows)


def ratios(kinds: dict[str, Any]) -> Iterator[str]:
    yield "## Ratios by group"
    yield ""
    for kind, run in kinds.items():
        codecs = list(run["codecs"])
        rows = []
        for group in GROUPS:
            ans, zstd = ARTICLE_RATIOS.get(group, ("", ""))
            ours = [run["codecs"][codec].get(group) for codec in codecs]
            rows.append((group, ans, zstd, *(f"{o['ratio']:.3f}" if o else "" for o in ours)))
        yield from table((f"{kind}", "article gANS", "article ZSTD", *codecs), rows)
        rows = []
        for group in GROUPS:
            ours = [run["codecs"][codec].get(group) for codec in codecs]
            rows.append((group, *(f"{o['encode_gb_s']:,.4g} / {o['decode_gb_s']:,.4g}" if o else "" for o in ours)))
        yield from table((f"{kind}, encode / decode GB/s", *codecs), rows)
    yield (
        "The article's speeds, on Blackwell: ZSTD 16 to 19 encoding and about 40 decoding, ANS 181 to 190 and 247 to"
        " 264 (first version), gANS about 530 encoding on BF16 (revision)."
    )
    yield ""


def whole_checkpoints(kinds: dict[str, Any]) -> Iterator[str]:
    rows = []
    for kind, run in kinds.items():
        for codec in run["codecs"]:
            done = outcome(70e9, figures(run, codec), 8)
            rows.append((kind, codec, f"{done.ratio:.3f}", f"{done.pipelined:.1f} s", f"{done.serial:.1f} s"))
    yield "## The whole checkpoint of 70 B parameters at 5 GB/s"
    yield ""
    yield (
        "The article: about 1.27 for dense models and 1.40 for mixtures of experts, 123 s instead of 156 s (first"
        " version); about 1.18 for dense ones (revision). Ours, with one GPU encoding:"
    )
    yield ""
    yield from table(("model", "codec", "ratio", "pipelined", "serial"), rows)


def money(kinds: dict[str, Any]) -> Iterator[str]:
    yield "## Idle GPUs, a month at $4.40 an hour, a checkpoint each 30 minutes, 5 GB/s"
    yield ""
    rows = []
    for gpus, parameters, claim in CLUSTERS:
        kind = "moe" if parameters == 671e9 else "dense"
        run = kinds[kind]
        without = outcome(parameters, None, gpus)
        saved = (amount(without.money - outcome(parameters, figures(run, codec), gpus).money) for codec in best(run))
        rows.append((f"{gpus} GPUs, {parameters / 1e9:.0f} B, {kind}", claim, f"${without.money:,.0f}", *saved))
    names = [f"{name} saves" for name in best(kinds["dense"], short=True)]
    yield from table(("cluster", "article idles", "nvckpt idles", *names), rows)
    yield (
        "As in the article, every cluster shares 5 GB/s, which fits its figures; a large one has faster storage, and"
        " `nvckpt plan` takes the speed."
    )
    yield ""


def not_reproduced(kinds: dict[str, Any]) -> Iterator[str]:
    idle = outcome(405e9, None, 128).money
    large = outcome(671e9, None, 256).money
    mixed = 12 / (4 / 1.47 + 8 / 1.085)
    dense, moe = kinds["dense"], kinds["moe"]
    saves = (f"{codec} {amount(idle - outcome(405e9, figures(dense, codec), 128).money)}" for codec in dense["codecs"])
    whole = (
        f"{codec} {outcome(70e9, figures(dense, codec), 8).ratio:.3f} dense and"
        f" {outcome(70e9, figures(moe, codec), 8).ratio:.3f} with experts"
        for codec in dense["codecs"]
        if codec in moe["codecs"]
    )
    yield "## What cannot be reproduced, and why"
    yield ""
    yield (
        f"- **$56,000 saved of ${idle:,.0f}** (405 B parameters, 128 GPUs; first version) needs a ratio of"
        f" {idle / (idle - 56e3):.3f}; the article's own 1.27 gives ${idle * (1 - 1 / 1.27):,.0f}."
    )
    yield (
        f"- **$40,000** (the same, revision, gANS) needs {idle / (idle - 40e3):.3f}; the revision's ratios by group"
        f" make {mixed:.3f} and ${idle * (1 - 1 / mixed):,.0f}. Ours save: {', '.join(saves)}."
    )
    yield (
        f"- **Up to $222,000** (mixture of experts) needs a ratio of {large / (large - 222e3):.3f} if 256 GPUs idle for"
        f" ${large:,.0f} with 671 B parameters; 1.40 gives ${large * (1 - 1 / 1.40):,.0f}. The article's inputs are not"
        " known to us: its tables were not at hand in full."
    )
    yield (
        "- **1.27 (dense) and 1.40 (experts) for whole checkpoints** (first version) are not what its codecs give on"
        f" our models: {'; '.join(whole)}. Two thirds of such a checkpoint are FP32 moments, whose mantissas are noise"
        " to an entropy coder; more takes a model of rows, columns and zeros, which `float` has. Experts shrink about"
        " as much as dense layers here; more where some were not trained, since their moments and gradients are zero."
    )
    yield (
        "- **Speeds** differ with the machine (H200 here, Blackwell there), the library's version, and whether the"
        " allocations of a call count."
    )


def amount(money: float) -> str:
    return f"{'-' if money < 0 else ''}${abs(money):,.0f}"


def best(run: dict[str, Any], short: bool = False) -> list[str]:
    """The codecs that the money is told of: ZSTD, ANS, and float at both levels."""
    found = []
    for word in ("zstd", "ans", "float:level=fast", "float"):
        # ZSTD is the article's: nvCOMP's on bytes as they are, not on the planes that nvckpt makes first.
        wanted = (f"zstd{ALONE}", "nvCOMP zstd") if word == "zstd" else (word,)
        names = [c for c in wanted if c in run["codecs"]] or [c for c in run["codecs"] if c.startswith(word)]
        found += [word if short else names[0]] if names else []
    return found


def figures(run: dict[str, Any], codec: str) -> Figures:
    groups = run["codecs"][codec]
    parts = LAYOUTS["adamw-bf16"]
    return Figures(
        codec,
        {part.group: groups[part.like]["ratio"] for part in parts},
        {part.group: groups[part.like]["encode_gb_s"] * 1e9 for part in parts},
    )


def outcome(parameters: float, codec: Figures | None, gpus: int) -> Outcome:
    """A month at the article's 5 GB/s, with a codec or without one."""
    sizes = {part.group: round(parameters * part.width) for part in LAYOUTS["adamw-bf16"]}
    without, outcomes = evaluate(sizes, [codec] if codec else [], Scenario(5.0 * GIB, gpus))
    return outcomes[0] if codec else without


def table(head: tuple[str, ...], rows: Any) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---|" + "---:|" * (len(head) - 1)
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""


if __name__ == "__main__":
    main()
