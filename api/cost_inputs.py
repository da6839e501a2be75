"""Where a plan's sizes, ratios and speeds come from: a file's own sample, or recorded runs and a model's layout."""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from nvckpt.benchmark_codecs import CodecSpec, parse_all
from nvckpt.codecs import blocks, derived_blocks, device, registry
from nvckpt.costs import Figures
from nvckpt.errors import InvalidRequestError
from nvckpt.files import show
from nvckpt.pipeline import ordered_map, thread_count
from nvckpt.samples import Part, Sample, take

SAMPLE = 32 << 20
"""Bytes of each group that are coded to know the rest of a file."""
_FRAME = 80
"""What a block costs in an archive besides its streams, about."""
FILE_CODECS = ("auto", "auto:level=fast", "zstd", "ans")
KINDS = ("dense", "moe")
_RECORDED = "recorded_runs.json"
_ROUNDED = (
    "Not counted: codec auto stores BF16 weights that are their rounded FP32 masters as such, for next to nothing."
)
_DURATIONS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_COUNTS = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class LayoutPart:
    """A group of a checkpoint: its bytes a parameter, and the group of the recorded runs that it is like."""

    group: str
    width: int
    like: str


LAYOUTS: Mapping[str, tuple[LayoutPart, ...]] = {
    # BF16 weights and gradients, FP32 moments: NVIDIA's article.
    "adamw-bf16": (
        LayoutPart("weights", 2, "weights"),
        LayoutPart("exp_avg", 4, "exp_avg"),
        LayoutPart("exp_avg_sq", 4, "exp_avg_sq"),
        LayoutPart("grads", 2, "grads"),
    ),
    # BF16 weights, FP32 master weights and moments; gradients are not saved.
    "megatron": (
        LayoutPart("weights", 2, "weights"),
        LayoutPart("master", 4, "master"),
        LayoutPart("exp_avg", 4, "exp_avg"),
        LayoutPart("exp_avg_sq", 4, "exp_avg_sq"),
    ),
    "fp32": (
        LayoutPart("weights", 4, "master"),
        LayoutPart("exp_avg", 4, "exp_avg"),
        LayoutPart("exp_avg_sq", 4, "exp_avg_sq"),
    ),
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """Bytes by group, the codecs' figures by group, and in a sentence where they come from."""

    sizes: dict[str, int]
    figures: tuple[Figures, ...]
    source: str
    notes: tuple[str, ...] = ()


def from_recorded(parameters: float, layout: str, kind: str) -> Inputs:
    """Return the inputs of a model that is not at hand; InvalidRequestError for what is unknown or not positive."""
    if layout not in LAYOUTS:
        raise InvalidRequestError(f"unknown layout '{layout}': choose from {', '.join(LAYOUTS)}")
    if kind not in KINDS:
        raise InvalidRequestError(f"unknown kind '{kind}': choose from {', '.join(KINDS)}")
    if not 1 <= parameters < 1e18:
        raise InvalidRequestError(f"a model has at least one parameter, and fewer than 1e18, not {parameters:g}")
    parts = LAYOUTS[layout]
    run = recorded()[kind]
    figures = []
    for codec, groups in run["codecs"].items():
        if all(part.like in groups for part in parts):
            ratios = {part.group: groups[part.like]["ratio"] for part in parts}
            rates = {part.group: groups[part.like]["encode_gb_s"] * 1e9 for part in parts}
            figures.append(Figures(codec, ratios, rates))
    sizes = {part.group: round(parameters * part.width) for part in parts}
    notes = (_ROUNDED,) if {"weights", "master"} <= set(sizes) else ()
    return Inputs(sizes, tuple(figures), f"Ratios and speeds are recorded ones, not yours: {run['source']}", notes)


def recorded() -> dict[str, Any]:
    """Return the recorded runs of the package, by kind of model."""
    text = resources.files("nvckpt").joinpath(_RECORDED).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["kinds"]
    return found


def from_files(
    names: Sequence[str | os.PathLike[str]], codecs: Sequence[str] = (), where: str = "auto", threads: int = 0
) -> Inputs:
    """Measure a sample of the files, which are one checkpoint; nothing else of them is read but their structure.

    InvalidRequestError when they hold no tensors. A codec that cannot run here is left out, and named in the notes.
    """
    used = device.resolve(where, gpu_only=True)
    sample = take([os.fspath(name) for name in names], SAMPLE, derived=True)
    if not sample.tensors:
        what = show(names[0]) if len(names) == 1 else f"{len(names)} files"
        raise InvalidRequestError(f"{sample.without_tensors(what)} plan needs a checkpoint, or --params")
    figures, notes = [], []
    for spec in parse_all(codecs or FILE_CODECS):
        problem = None if spec.name == registry.AUTO else registry.unavailable(spec.name)
        if problem:
            notes.append(f"{spec.text} is left out: it {problem}")
        else:
            figures.append(_measure(spec, sample, used, threads))
    if not figures:
        raise InvalidRequestError("none of the codecs can run here: " + "; ".join(notes))
    read = sum(len(part.data) for parts in sample.parts.values() for part in parts)
    source = (
        f"Ratios and speeds were measured on {used} with {thread_count(threads)} threads, on a sample of"
        f" {_mebibytes(read)} of {_mebibytes(sum(sample.sizes.values()))}."
    )
    return Inputs(dict(sample.sizes), tuple(figures), source, tuple(notes))


def _mebibytes(count: int) -> str:
    value = count / (1 << 20)
    return f"{value:,.0f} MiB" if value >= 1 else f"{value:.2g} MiB"


def _measure(spec: CodecSpec, sample: Sample, used: str, threads: int) -> Figures:
    if used.startswith("cuda"):
        from nvckpt import benchmark_cuda

        coder = benchmark_cuda.connect(used, 1)
        rows = {group: coder.measure(spec, group, parts)[0] for group, parts in sample.parts.items()}
        return Figures(
            spec.text,
            {group: row.bytes_in / row.bytes_out for group, row in rows.items()},
            {group: row.encode_rate or 1.0 for group, row in rows.items()},
        )
    ratios, rates = {}, {}
    for group, parts in sample.parts.items():
        started = time.perf_counter()
        coded = _coded_sizes(spec, parts, thread_count(threads))
        spent = time.perf_counter() - started
        # Each piece tells of its part of the group; a mean of shares is right where a mean of ratios is not.
        share = sum(p.represents * size / len(p.data) for p, size in zip(parts, coded, strict=True))
        ratios[group] = sum(p.represents for p in parts) / share
        rates[group] = sum(len(p.data) for p in parts) / max(spent, 1e-9)
    return Figures(spec.text, ratios, rates)


def _coded_sizes(spec: CodecSpec, parts: Sequence[Part], threads: int) -> list[int]:
    choice = spec.choice()
    done = ordered_map(parts, lambda part: [part], lambda part: _coded_size(part, choice), threads)
    return [sizes[0] for _, sizes in done]


def _coded_size(part: Part, choice: blocks.Choice) -> int:
    """Return what compressing makes of a part; only `auto` looks for bytes that follow from others."""
    block = None
    if part.origin and choice.codec == registry.AUTO:
        block = derived_blocks.encode(part.data, part.origin, part.references, part.content, choice)
    return (block or blocks.encode(part.data, part.content, choice)).encoded_size + _FRAME


def parse_duration(text: str) -> float:
    """Return seconds: `30m`, `1h`, `90s`, `1800`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    unit = _DURATIONS.get(found[2] or "s") if found else None
    if not found or unit is None:
        raise InvalidRequestError(f"'{text}' is no time: write 30m, 1h or 90s")
    return float(found[1]) * unit


def parse_count(text: str) -> float:
    """Return a number of parameters: `70e9`, `70B`, `300M`."""
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?(?:e\+?\d{1,3})?)\s*([a-z]?)", text.strip().lower())
    unit = _COUNTS.get(found[2]) if found else None
    if not found or unit is None:
        raise InvalidRequestError(f"'{text}' is no number of parameters: write 70e9 or 70B")
    return float(found[1]) * unit
