"""What a benchmark finds: a row a codec and group, its numbers as every output writes them, and the conditions."""

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ALL_GROUPS = "all"
WHOLE_FILE = "file"


@dataclass(frozen=True, slots=True)
class Row:
    """One codec on one group, on `all` of them, or on the whole `file` with its reading and writing.

    Bytes, and the seconds of each run. `values` counts elements, for bits per value. `problem` replaces the figures.
    On a GPU the seconds are those between two of its events, and `host_*` the same calls by the host's clock. `stages`
    are those of compressing a file, with the seconds in which each was busy; they overlap.
    """

    codec: str
    group: str
    device: str = "cpu"
    bytes_in: int = 0
    bytes_out: int = 0
    values: int = 0
    encode_runs: tuple[float, ...] = ()
    decode_runs: tuple[float, ...] = ()
    host_encode_runs: tuple[float, ...] = ()
    host_decode_runs: tuple[float, ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = None

    @property
    def ratio(self) -> float | None:
        """Return before over after; None without figures."""
        return self.bytes_in / self.bytes_out if self.bytes_out else None

    @property
    def bits_per_value(self) -> float | None:
        """Return the coded bits of an element; None without figures."""
        return 8 * self.bytes_out / self.values if self.values else None

    @property
    def encode_rate(self) -> float | None:
        """Return bytes of input a second in the median run."""
        return _rate(self.bytes_in, self.encode_runs)

    @property
    def decode_rate(self) -> float | None:
        """Return bytes of output a second in the median run."""
        return _rate(self.bytes_in, self.decode_runs)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All rows, and everything their figures depend on."""

    rows: tuple[Row, ...]
    conditions: Mapping[str, Any]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as every output writes them."""
        return [record(row) for row in self.rows]


def total(codec: str, device: str, rows: Sequence[Row]) -> Row:
    """Add up the groups of one codec, run by run."""
    summed: Any = {
        runs: tuple(map(sum, zip(*(getattr(row, runs) for row in rows), strict=True)))
        for runs in ("encode_runs", "decode_runs", "host_encode_runs", "host_decode_runs")
    }
    sizes = (sum(getattr(row, count) for row in rows) for count in ("bytes_in", "bytes_out", "values"))
    return Row(codec, ALL_GROUPS, device, *sizes, **summed)


def spread(runs: Sequence[float]) -> float | None:
    """Return how far the runs lie apart, as a share of their median; None for a single run."""
    return (max(runs) - min(runs)) / statistics.median(runs) if len(runs) > 1 else None


def record(row: Row) -> dict[str, Any]:
    """Return a row's numbers, rounded once so that JSON, CSV and frame agree to the digit; rates in decimal GB/s."""
    return {
        "codec": row.codec,
        "group": row.group,
        "device": row.device,
        "ok": row.problem is None,
        "problem": row.problem,
        "bytes_in": row.bytes_in if row.problem is None else None,
        "bytes_out": row.bytes_out if row.problem is None else None,
        "ratio": _rounded(row.ratio),
        "bits_per_value": _rounded(row.bits_per_value, 4),
        "encode_gb_s": _significant(row.encode_rate),
        "decode_gb_s": _significant(row.decode_rate),
        "encode_seconds": _seconds(row.encode_runs),
        "decode_seconds": _seconds(row.decode_runs),
        "encode_spread": _rounded(spread(row.encode_runs), 4),
        "decode_spread": _rounded(spread(row.decode_runs), 4),
        "runs": len(row.encode_runs),
        "host_encode_seconds": _seconds(row.host_encode_runs),
        "host_decode_seconds": _seconds(row.host_decode_runs),
        "stages": {name: round(seconds, 6) for name, seconds in row.stages.items()},
    }


def as_csv(records: Iterable[dict[str, Any]]) -> str:
    """Return the records as comma-separated values, a header line first; what is not known stays empty."""
    # A cell holds text: the stages as `read 0.1; write 0.2`.
    lines = [entry | {"stages": "; ".join(f"{n} {s}" for n, s in entry["stages"].items())} for entry in records]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def as_markdown(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the records that have figures as a Markdown table."""
    columns = (
        ("codec", "codec"),
        ("group", "group"),
        ("ratio", "ratio"),
        ("bits_per_value", "bits a value"),
        ("encode_gb_s", "encode GB/s"),
        ("decode_gb_s", "decode GB/s"),
    )
    lines = [
        "| " + " | ".join(title for _, title in columns) + " |",
        "|---|---|" + "---:|" * (len(columns) - 2),
    ]
    for entry in records:
        cells = [entry["problem"] if key == "ratio" and not entry["ok"] else entry[key] for key, _ in columns]
        lines.append("| " + " | ".join("" if cell is None else f"{cell}".replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _rate(size: int, runs: Sequence[float]) -> float | None:
    return size / max(statistics.median(runs), 1e-9) if runs else None


def _seconds(runs: Sequence[float]) -> float | None:
    return round(statistics.median(runs), 9) if runs else None


def _rounded(value: float | None, digits: int = 6) -> float | None:
    return None if value is None else round(value, digits)


def _significant(rate: float | None) -> float | None:
    """Return GB/s with five digits that count, whatever the size."""
    return None if rate is None else float(f"{rate / 1e9:.5g}")
