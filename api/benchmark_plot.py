"""A benchmark as a picture: ratio against speed, and what a codec must reach to pay at a storage's speed."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvckpt.benchmark_rows import ALL_GROUPS
from nvckpt.errors import InvalidRequestError
from nvckpt.files import final_path, open_output, show
from nvckpt.formats.atomic import AtomicFile

STORAGE_SPEEDS = (1, 5, 10, 25, 55)
"""GB/s: a disk, a shared file system, a fast one, direct storage, and a PCIe link."""
_SUFFIXES = (".png", ".svg")
# Told apart without colour: a letter beside the marker names the codec, and the legend lists the letters.
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# The square is drawn first and is wider, so that both show where they meet.
_MARKERS = {"encode_gb_s": ("o", "black", "encode"), "decode_gb_s": ("s", "white", "decode")}
_SIZES = {"encode_gb_s": 4.5, "decode_gb_s": 7.5}
_OFFSETS = (10, -10, 20, -20, 30, -30, 40, -40)
"""Points above and below its marker that a letter may move to."""
_STYLES = ((0, (1, 2)), (0, (3, 2)), (0, (6, 2)), (0, (6, 2, 1, 2)), "solid")


def check(path: str) -> None:
    """InvalidRequestError unless a plot can be drawn into this path, said before anything is measured."""
    if Path(path).suffix.lower() not in _SUFFIXES:
        raise InvalidRequestError(f"a plot is a .png or .svg file, not {show(path)}")
    if Path(path).is_dir():
        raise InvalidRequestError(f"{show(path)} is a directory: name a file for the plot")
    if not Path(path).parent.is_dir():
        raise InvalidRequestError(f"there is no folder {show(str(Path(path).parent))} to draw the plot into")
    try:
        import matplotlib  # noqa: F401 - only to see whether it is there
    except ImportError:
        raise InvalidRequestError(
            "plots need matplotlib: install nvckpt's extra: pip install '.[plot]' in its checkout"
        ) from None


def draw(records: Iterable[Mapping[str, Any]], path: str, conditions: Mapping[str, Any]) -> None:
    """Draw a point a codec for encoding and one for decoding, over all groups, into a .png or .svg file, or none of it.

    A line is what pays at one storage speed w without overlap, ratio = t / (t - w) at a codec speed t; to its right
    and above, writing less saves more than coding costs. It nears the speed w itself, from where coding that
    overlaps with writing pays.
    """
    check(path)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = [entry for entry in records if entry["ok"] and entry["group"] == ALL_GROUPS]
    if not points:
        raise InvalidRequestError("there is nothing to plot: no codec was measured")
    # Text stays text, which can be searched, read aloud and compared.
    with rc_context({"svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _prepare(axes, points)
        axes.set_title(_title(conditions), fontsize=10, loc="left", pad=24)
        _draw_lines(axes)
        _draw_points(axes, points)
        axes.legend(
            handles=_legend(points),
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            fontsize=8,
            frameon=False,
            title="codec: ratio, encode / decode GB/s",
            title_fontsize=8,
            alignment="left",
        )
        figure.draw_without_rendering()
        _draw_letters(axes, points)
        picture = io.BytesIO()
        figure.savefig(picture, format=Path(path).suffix.lower().removeprefix("."), dpi=150)
    with open_output(final_path(Path(path))) as file:
        file.write(picture.getvalue())
        if isinstance(file, AtomicFile):
            file.commit(None, overwrite=True)


def _title(conditions: Mapping[str, Any]) -> str:
    where = conditions.get("gpu") or f"{conditions['processor']}, {conditions['threads']} threads"
    files = conditions["files"]
    what = files[0] if len(files) == 1 else f"{len(files)} files"
    return f"nvckpt {conditions['nvckpt']} on {where}: all groups of {what}"


def _prepare(axes: Any, points: Sequence[Mapping[str, Any]]) -> None:
    """Set axes that hold all points and the upper ends of all lines."""
    speeds = [p[key] for p in points for key in _MARKERS]
    ratios = [p["ratio"] for p in points]
    top = max(ratios) + 0.35 * max(max(ratios) - 1, 0.2)
    bottom = min(1.0, *ratios) - 0.05 * (top - 1)
    right = 1.5 * max(*speeds, STORAGE_SPEEDS[-1] * top / (top - 1))
    axes.set(xscale="log", xlim=(min(*speeds, 1.0) / 1.8, right), ylim=(bottom, top))
    axes.set_xlabel("speed of the codec, GB/s of original bytes (log scale)")
    axes.set_ylabel("ratio, original over coded bytes")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(visible=True, which="major", color="0.9", linewidth=0.6)


def _draw_lines(axes: Any) -> None:
    """Draw a line a storage speed, its number above its upper end."""
    import numpy as np

    (low, high), (_, top) = axes.get_xlim(), axes.get_ylim()
    for speed, style in zip(STORAGE_SPEEDS, _STYLES, strict=True):
        speeds = np.geomspace(max(low, speed * 1.001), high, 600)
        ratios = speeds / (speeds - speed)
        axes.plot(speeds, np.where(ratios < 2 * top, ratios, np.nan), color="0.35", linestyle=style, linewidth=1)
        place = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "annotation_clip": False}
        axes.annotate(f"{speed}", (speed * top / (top - 1), top), fontsize=8, **place)
    last = STORAGE_SPEEDS[-1] * top / (top - 1)
    place = {"xytext": (10, 3), "textcoords": "offset points", "annotation_clip": False}
    axes.annotate("GB/s of storage", (last, top), fontsize=8, **place)


def _draw_points(axes: Any, points: Sequence[Mapping[str, Any]]) -> None:
    for point in points:
        axes.plot([point[key] for key in _MARKERS], [point["ratio"]] * 2, color="0.5", linewidth=0.8, zorder=2)
        for key, (marker, face, _) in reversed(_MARKERS.items()):
            axes.plot(
                point[key],
                point["ratio"],
                marker,
                color="black",
                markerfacecolor=face,
                markersize=_SIZES[key],
                zorder=3,
            )


def _draw_letters(axes: Any, points: Sequence[Mapping[str, Any]]) -> None:
    """Name each codec once, at the nearest place to its points where nothing else is."""
    pixel = axes.figure.dpi / 72
    position = {
        (number, key): axes.transData.transform((point[key], point["ratio"]))
        for number, point in enumerate(points)
        for key in _MARKERS
    }
    taken = [(x, y, 4 * pixel) for x, y in position.values()]
    for number, letter in enumerate(_LETTERS[: len(points)]):
        anchors = [position[number, key] for key in _MARKERS]
        places = [(x + dx * pixel, y + dy * pixel) for dy in _OFFSETS for dx in (0, -9, 9) for x, y in anchors]
        x, y = next((p for p in places if _is_free(p, taken, 5 * pixel)), places[0])
        taken.append((x, y, 5 * pixel))
        data = axes.transData.inverted().transform((x, y))
        axes.text(*data, letter, fontsize=9, fontweight="bold", ha="center", va="center")


def _is_free(place: Sequence[float], taken: Sequence[tuple[float, float, float]], half: float) -> bool:
    return all(abs(place[0] - x) >= half + size or abs(place[1] - y) >= half + size for x, y, size in taken)


def _legend(points: Sequence[Mapping[str, Any]]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker="none",
            label=f"{letter}  {p['codec']}: {p['ratio']:.3f}, {p['encode_gb_s']:g} / {p['decode_gb_s']:g}",
        )
        for letter, p in zip(_LETTERS, points, strict=False)
    ]
    for marker, face, name in _MARKERS.values():
        handles.append(
            Line2D(
                [], [], color="black", marker=marker, markerfacecolor=face, linestyle="none", markersize=6, label=name
            )
        )
    explained = "right of a line: coding, then writing\nbeats writing at that storage speed"
    return [*handles, Line2D([], [], color="0.35", linewidth=1, label=explained)]
