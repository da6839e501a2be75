"""Streams of the float codec for its tests: data of every kind, and valid streams that our encoders would not write."""

from unittest import mock

import numpy as np

from nvckpt.codecs import float_reference
from nvckpt.codecs.float_decisions import Choices, Entry
from nvckpt.codecs.float_spec import FloatSpec, Layout

WORD_SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
CONTENTS = (
    "normal", "rows", "zeros", "few zeros", "zero rows", "all zero", "constant", "positive", "negative", "outliers",
    "many outliers", "special", "random bits", "narrow",
)  # fmt: skip


def words(kind, count, content, seed=0):
    """`count` values as bytes. `rows` has a level for every 64 values, which rowcol prediction likes."""
    rng = np.random.default_rng([seed, count, CONTENTS.index(content)])
    size = WORD_SIZES[kind]
    if content == "random bits":
        return rng.bytes(count * size)
    x = rng.standard_normal(count) * 0.02
    if content == "rows":
        x *= np.exp(4 * np.sin(np.arange(count) // 64 * 1.7) + 2 * np.cos(np.arange(count) % 64))
    elif content == "zeros":
        x[rng.random(count) < 0.3] = 0
    elif content == "few zeros":
        x[rng.random(count) < 0.004] = 0
    elif content == "zero rows":
        x[(np.arange(count) // 300) % 3 == 0] = 0
    elif content in ("all zero", "constant"):
        x[:] = 0 if content == "all zero" else 0.1
    elif content in ("positive", "negative"):
        x = np.abs(x) + 1e-4 if content == "positive" else -np.abs(x) - 1e-4
    elif content in ("outliers", "many outliers"):
        x[rng.random(count) < (0.0012 if content == "outliers" else 0.02)] *= 2.0**40
    with np.errstate(over="ignore"):
        dtype = {"bf16": np.float32, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64}[kind]
        values = x.astype(dtype)
    if content == "special":
        special = [np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, np.finfo(dtype).smallest_subnormal]
        places = rng.integers(0, max(count, 1), count // 50)
        values[places] = rng.choice(np.array(special, dtype), len(places))
    if kind == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    if content == "narrow" and kind == "fp32":
        return (values.view(np.uint32) & 0xFFFF0000).tobytes()
    return values.tobytes()


def float_spec(kind, count, shape=None):
    """A spec of `count` words: one matrix of `shape` and a flat rest, or a single flat entry."""
    rows, cols = shape or (0, 0)
    matrices = [(rows, cols)] if rows * cols else []
    if count > rows * cols:
        matrices.append((count - rows * cols, 0))
    return FloatSpec(WORD_SIZES[kind], kind, tuple(matrices))


def strange_streams(seed=0):
    """(stream, original bytes) that the specification allows and our encoders never choose."""
    rng = np.random.default_rng(seed)
    for layout, word in [(0, 1), (0, 2), (0, 8), (1, 2), (1, 4), (2, 2), (2, 4), (2, 8)]:
        for zeros in (False, True):
            for shapes in ([], [(700, 0)], [(20, 35)], [(7, 1), (1, 300), (393, 0)], [(1, 700)] * 5):
                if (layout == 0) > (not shapes) or (layout == 2) > bool(shapes):
                    continue
                n = sum(rows * (cols or 1) for rows, cols in shapes) or 700
                yield _strange(rng, Layout(layout), word, zeros, shapes, n)


def _strange(rng, layout, word, zeros, shapes, n):
    kind = {1: "fp16", 2: "bf16", 4: "fp32", 8: "fp64"}[word]
    data = words(kind, n, "zeros", int(rng.integers(1000))) if word > 1 else rng.bytes(n)
    entries = tuple(Entry(rows, cols, int(rng.choice([0, 900, 2047, 65535]))) for rows, cols in shapes)
    side = rng.integers(0, 256, sum(e.rows + e.cols for e in entries if e.cols)).astype(np.uint8)
    choices = Choices(layout, entries, side, zeros, int(rng.choice([1, 2, 7])))
    data += bytes(range(1, int(rng.integers(1, word + 1))))
    with mock.patch.object(float_reference, "choose", lambda *_: choices):
        return float_reference.encode(data, FloatSpec(word, "bytes" if word == 1 else kind)), data
