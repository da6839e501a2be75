"""Matrices and records for the tests of `lowrank` on a device, emulated or not."""

import numpy as np
from test_derived_streams import words as fp32_words
from test_lowrank import as_words, low_rank

from nvckpt.codecs import lowrank_record, lowrank_stream, registry
from nvckpt.codecs.content import Content
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.lowrank_cuda_encode import Fitted
from nvckpt.codecs.lowrank_grid import CONTEXTS, KINDS

FLOAT = registry.FLOAT


def odd_matrix(rows, cols, word, seed=1):
    """A part of low rank; NaN payloads, infinities, denormals, both zeros, an outlier, rows of zeros, random bits."""
    words = as_words(low_rank(rows, cols, rank=3, seed=seed), word)
    flat = words.reshape(-1)
    odd = as_words(fp32_words(200).view(np.float32), word)
    places = np.arange(0, flat.size, max(1, flat.size // 150))[: len(odd)]
    flat[places] = odd[: len(places)]
    words[2] = words[-1] = words[rows // 3 : rows // 2] = 0
    words[rows // 2] = 1 << (8 * word - 1)
    words[rows - 3, cols - 1] = as_words(np.array([3e38]), word)[0]
    return words


def stream_of(matrices, kind):
    return b"".join(lowrank_stream.encode_matrix(words, kind, FLOAT) for words in matrices)


def fitted(put, words, model):
    """A matrix in device memory, where `put` places bytes and tells their address, as the encoder is given it."""
    kept = words.any(1)
    bitmap = np.packbits(kept, bitorder="little").tobytes()
    rows, cols, word = int(kept.sum()), words.shape[1], words.itemsize
    if not rows:
        return Fitted(len(words), 0, cols, word, bitmap)
    folded = lowrank_stream._folded(model)
    places = [put(np.ascontiguousarray(words[kept]).tobytes())]
    places.append(put(np.concatenate([model.rows, model.cols]).astype("<i2").tobytes()))
    places.append(put(folded.tobytes()))
    numbers = model.multipliers.tolist()
    return Fitted(len(words), rows, cols, word, bitmap, *places, len(folded), model.shift, numbers)


def by_cpu(stream, size):
    """What the CPU makes of a stream: the original, or the refusal."""
    out = bytearray(size)
    try:
        lowrank_stream.check(memoryview(stream), size, FLOAT)
        lowrank_stream.decode(memoryview(stream), memoryview(out), FLOAT)
    except CorruptChunkError as error:
        return error
    return bytes(out)


def taken_apart(stream, size):
    """The only record of a stream, and its sections as what they hold: bytes, decoded where they are coded."""
    (record,) = lowrank_record.records(memoryview(stream), size)
    parts = [bytes(section) for section in record.sections]
    for i, expected in enumerate(lowrank_record.float_sizes(record)):
        held = bytearray(expected)
        if expected:
            FLOAT.decode(record.sections[1 + i], memoryview(held))
        parts[1 + i] = bytes(held)
    return record, parts


def put_together(record, parts):
    """A record of other content, whose counts fit it."""
    pairs = 1 + record.groups
    sections = [parts[0]]
    for i, part in enumerate(parts[1:-2]):
        content = Content(2 if i < pairs else 1)
        sections.append(bytes(FLOAT.encode_values(part, content, "default")) if part else b"")
    sections += parts[-2:]
    counts = [*map(len, parts[-3 - CONTEXTS : -2]), len(parts[-2]) // record.kind.word]
    head = (record.rows, record.cols), record.kind, record.rank, record.groups, record.shift
    return lowrank_record.packed(*head, record.multipliers.tolist(), counts, sections)


def contradictions(stream, size):
    """(what, stream) for records that look sound and are not: parts too few, too many, out of range."""
    record, parts = taken_apart(stream, size)
    word = record.kind.word
    first = 2 + record.groups

    def changed(places):
        return put_together(record, [places.get(i, part) for i, part in enumerate(parts)])

    filled = [i for i in range(first, first + CONTEXTS) if parts[i]]
    a, b = filled[0], filled[-1]
    yield "a symbol in another context", changed({a: parts[a][:-1], b: parts[b] + b"\x80"})
    below, escapes = first + CONTEXTS, first + CONTEXTS + 1
    for name, i, unit in (("below", below, 1), ("escape", escapes, word)):
        yield f"one {name} missing", changed({i: parts[i][:-unit]})
        yield f"one {name} left over", changed({i: parts[i] + bytes(unit)})
    factors = bytearray(parts[2])
    factors[-2:] = (0x0FFF).to_bytes(2, "little")
    yield "a factor too large", changed({2: bytes(factors)})
    factors = bytearray(parts[2])
    factors[:2] = b"\xff\xff"
    yield "the first factor too large", changed({2: bytes(factors)})
    raw = bytearray(parts[-1]) + bytes(1)
    raw[:4] = (int.from_bytes(raw[:4], "little") + 1).to_bytes(4, "little")
    yield "a raw byte left over", changed({len(parts) - 1: bytes(raw)})
    raw = bytearray(parts[-1])[:-1]
    raw[:4] = (int.from_bytes(raw[:4], "little") - 1).to_bytes(4, "little")
    yield "a raw byte missing", changed({len(parts) - 1: bytes(raw)})


def flipped(stream, count, rng):
    """Streams with a bit changed: in each section in turn, and anywhere."""
    (record,) = lowrank_record.records(memoryview(stream), _size(stream))
    ends = [start + len(section) for start, section in zip(record.starts, record.sections, strict=True)]
    ranges = [(0, record.starts[0]), *((s, e) for s, e in zip(record.starts, ends, strict=True) if e > s)]
    for i in range(count):
        start, end = ranges[i % len(ranges)]
        damaged = bytearray(stream)
        damaged[int(rng.integers(start, end))] ^= 1 << int(rng.integers(0, 8))
        yield bytes(damaged)


def _size(stream):
    _, rows, cols, _, word, *_ = lowrank_record.HEAD.unpack_from(stream)
    return rows * cols * word


__all__ = ["FLOAT", "KINDS", "by_cpu", "contradictions", "fitted", "flipped", "odd_matrix", "stream_of"]
