"""Result objects as tables, lines and JSON."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nvckpt.cli.console import SCHEMA
from nvckpt.errors import KnownError, code_of, sentence_of
from nvckpt.files import PIPE, show
from nvckpt.version import __version__

if TYPE_CHECKING:
    from rich.table import Table

    from nvckpt.results import CompressResult, DecompressResult, GroupSize, Listing, TensorInfo
    from nvckpt.stages import Stage


def size(count: int) -> str:
    """Return bytes for people, in binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def rate(count: int, seconds: float) -> str:
    """Return throughput in decimal units, as storage is sold."""
    return f"{count / max(seconds, 1e-9) / 1e6:,.0f} MB/s"


def ratio(before: int, after: int) -> str:
    """Return how many times smaller, or a dash when nothing is left."""
    return f"{before / after:.3f}" if after and before else "-"


def table(columns: Sequence[str], left: int = 1, title: str | None = None) -> "Table":
    """Make a plain table whose first `left` columns are text and whose others are numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left", pad_edge=False)
    for number, column in enumerate(columns):
        if number < left:
            made.add_column(column, overflow="fold")
        else:
            made.add_column(column, justify="right", no_wrap=True)
    return made


def group_table(groups: "Iterable[GroupSize]", before: int, after: int, title: str | None = None) -> "Table":
    """Return the table that `compress` and `list` end with."""
    made = table(("group", "tensors", "before", "after", "ratio", "of original"), title=title)
    for group in groups:
        share = f"{100 * group.bytes_in / before:.1f} %" if before else "-"
        tensors = f"{group.tensors:,}" if group.tensors else ""
        made.add_row(
            group.name,
            tensors,
            size(group.bytes_in),
            size(group.bytes_out),
            ratio(group.bytes_in, group.bytes_out),
            share,
        )
    made.add_section()
    total = sum(group.tensors for group in groups)
    made.add_row("total", f"{total:,}", size(before), size(after), ratio(before, after), "100.0 %" if before else "-")
    return made


def _place(name: str, direction: str) -> str:
    return f"standard {direction}" if name == PIPE else show(name)


def compress_line(result: "CompressResult", with_sizes: bool = False) -> str:
    """Return the line under the table, or with the sizes instead of one: where to, how fast, on what."""
    checked = "verified" if result.verified else "not verified"
    speed = f"{rate(result.bytes_in, result.seconds)} on {result.device}, {checked}"
    places = f"{_place(result.source, 'input')} -> {_place(result.output, 'output')} ({result.format})"
    if with_sizes:
        sizes = f"{size(result.bytes_in)} -> {size(result.bytes_out)}, ratio {ratio(result.bytes_in, result.bytes_out)}"
        return f"{places}: {sizes}, {speed}"
    return f"{places}: {speed}"


def decompress_line(result: "DecompressResult") -> str:
    """Return the line that ends a decompression or verification."""
    speed = f"{size(result.bytes_out)} at {rate(result.bytes_out, result.seconds)} on {result.device}"
    if result.output:
        return (
            f"{_place(result.source, 'input')} -> {_place(result.output, 'output')}: {speed}, identical to the original"
        )
    if result.damage:
        return f"{show(result.source)}: damaged"
    return f"{show(result.source)}: sound, {speed}"


def tensor_lines(tensors: "Iterable[TensorInfo]") -> Iterator[str]:
    """Yield a line a tensor storage, names last and never cut: made for grep as much as for reading."""
    facts = f"{'group':<14} {'dtype':<8} {'shape':<16} {'codec':<10} {'model':<24}"
    yield f"{'before':>11} {'after':>11} {'ratio':>7} {'saved':>11}  {facts}  tensor"
    for t in tensors:
        names = ", ".join(show(name) for name in t.names) or f"(opaque bytes at {t.offset})"
        sizes = f"{size(t.bytes_in):>11} {size(t.bytes_out):>11} {ratio(t.bytes_in, t.bytes_out):>7}"
        saved = "-" if t.saved is None else size(t.saved)
        codecs, model = "+".join(t.codecs), show(t.model)
        facts = f"{t.group:<14} {t.dtype or '-':<8} {shape(t.shape):<16} {codecs:<10} {model:<24}"
        yield f"{sizes} {saved:>11}  {facts}  {names}"


def shape(sizes: Sequence[int] | None) -> str:
    """Return a shape for people."""
    return "x".join(map(str, sizes)) if sizes else "-"


def path_json(key: str, path: str) -> dict[str, Any]:
    """Return a path as JSON text; one that is not UTF-8 also in base64."""
    raw = path.encode("utf-8", "surrogateescape")
    text = raw.decode("utf-8", "replace")
    if text == path:
        return {key: text}
    import base64

    return {key: text, f"{key}_b64": base64.b64encode(raw).decode()}


def number(before: int, after: int) -> float | None:
    """Return a ratio for JSON, which has no infinity."""
    return round(before / after, 6) if before and after else None


def _groups_json(groups: "Iterable[GroupSize]") -> list[dict[str, Any]]:
    return [
        {
            "name": g.name,
            "tensors": g.tensors,
            "bytes_in": g.bytes_in,
            "bytes_out": g.bytes_out,
            "ratio": number(g.bytes_in, g.bytes_out),
        }
        for g in groups
    ]


def compress_json(result: "CompressResult") -> dict[str, Any]:
    """Return one entry of `results`."""
    return {
        **path_json("input", result.source),
        **path_json("output", result.output),
        "ok": True,
        "format": result.format,
        "bytes_in": result.bytes_in,
        "bytes_out": result.bytes_out,
        "ratio": number(result.bytes_in, result.bytes_out),
        "seconds": round(result.seconds, 6),
        "device": result.device,
        "codec": result.codec,
        "xxh3_128": result.hash,
        "verified": result.verified,
        "groups": _groups_json(result.groups),
        "warnings": list(result.warnings),
        **stages_json(result.stages),
        "error": None,
    }


def stages_json(stages: "Iterable[Stage]") -> dict[str, Any]:
    """Return what an operation spent its time on, and which stage held up the others."""
    from nvckpt.stages import bottleneck

    found = tuple(stages)
    slowest = bottleneck(found)
    return {
        "stages": [{"name": s.name, "bytes": s.bytes, "seconds": round(s.seconds, 6)} for s in found],
        "bottleneck": slowest.name if slowest else None,
    }


def stage_table(stages: "Sequence[Stage]", seconds: float) -> "Table":
    """Return the table of `-v`: how long each stage was busy while all of it took `seconds`."""
    from nvckpt.stages import bottleneck

    slowest = bottleneck(stages)
    title = f"stages overlap; {slowest.name} is the bottleneck" if slowest else "nothing was done"
    made = table(("stage", "bytes", "busy s", "of the time", "MB/s"), title=title)
    for stage in stages:
        share = f"{100 * stage.seconds / seconds:.0f} %" if seconds else "-"
        speed = rate(stage.bytes, stage.seconds).removesuffix(" MB/s")
        made.add_row(stage.name, size(stage.bytes), f"{stage.seconds:.3f}", share, speed)
    return made


def decompress_json(result: "DecompressResult") -> dict[str, Any]:
    """Return one entry of `results`; a damaged archive is not ok."""
    error = (
        {"code": "corrupt", "message": "; ".join(damage.sentence() for damage in result.damage)}
        if result.damage
        else None
    )
    return {
        **path_json("input", result.source),
        **(path_json("output", result.output) if result.output else {"output": None}),
        "ok": not result.damage,
        "format": result.format,
        "bytes_in": result.bytes_in,
        "bytes_out": result.bytes_out,
        "ratio": number(result.bytes_out, result.bytes_in),
        "seconds": round(result.seconds, 6),
        "device": result.device,
        "xxh3_128": result.hash,
        **stages_json(result.stages),
        "damage": [{**asdict(damage), "names": json_names(damage.names)} for damage in result.damage],
        "error": error,
    }


def listing_summary(listing: "Listing") -> dict[str, Any]:
    """Return of an entry only what the totals of a batch need."""
    return {
        **path_json("input", listing.source),
        "ok": True,
        "bytes_in": listing.bytes_in,
        "bytes_out": listing.bytes_out,
    }


def listing_json(listing: "Listing") -> dict[str, Any]:
    """Return one entry of `results`, with every tensor."""
    return {
        **path_json("input", listing.source),
        "ok": True,
        "format": listing.format,
        "bytes_in": listing.bytes_in,
        "bytes_out": listing.bytes_out,
        "ratio": number(listing.bytes_in, listing.bytes_out),
        "xxh3_128": listing.hash,
        "writer": listing.writer,
        "frames": listing.frames,
        "groups": _groups_json(listing.groups),
        "tensors": [_tensor_json(tensor) for tensor in listing.tensors],
        "error": None,
    }


def json_names(names: Iterable[str]) -> list[str]:
    """Return names that any JSON reader takes: lone surrogates become question marks."""
    return [name.encode("utf-8", "replace").decode() for name in names]


def _tensor_json(tensor: "TensorInfo") -> dict[str, Any]:
    return {
        "names": json_names(tensor.names),
        "group": tensor.group,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape) if tensor.shape is not None else None,
        "offset": tensor.offset,
        "bytes_in": tensor.bytes_in,
        "bytes_out": tensor.bytes_out,
        "codecs": list(tensor.codecs),
        "model": json_names([tensor.model])[0],
        "saved": tensor.saved,
    }


def error_json(source: str, error: KnownError) -> dict[str, Any]:
    """Return the entry of an input that failed."""
    return {
        **path_json("input", source),
        "ok": False,
        "error": {"code": code_of(error), "message": sentence_of(error)},
    }


def document(command: str, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the document that `--json` prints; fields are only ever added."""
    done = [r for r in results if r["ok"]]
    totals = {
        "files": len(results),
        "failed": len(results) - len(done),
        "bytes_in": sum(r.get("bytes_in", 0) for r in done),
        "bytes_out": sum(r.get("bytes_out", 0) for r in done),
    }
    return {"schema": SCHEMA, "version": __version__, "command": command, "results": list(results), "totals": totals}
