"""Coded planes in NumPy: tables, interleaved rANS, chunk and block records (16.6 and 16.7)."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.float_spec import (
    BLOCK,
    CENTRE,
    CHUNK,
    CHUNKS_A_BLOCK,
    LANES,
    MAX_EXCEPTIONS,
    PROBABILITY_BITS,
    PROBABILITY_SUM,
    STATE_LOW,
    align,
)

Frequencies = npt.NDArray[np.int64]
Values = npt.NDArray[Any]

_RAW = 1 << 31
_EXCEPTION = 0xFFFF
_TABLE_BITMAP = 32


def encode_plane(symbols: npt.NDArray[np.uint16], values: Values, lane_values: int, sampling: int) -> bytes:
    """Return a coded plane. `values` are what exceptions (symbol 0xFFFF) and raw chunks keep, as long as `symbols`."""
    if not len(symbols):
        return b""
    starts, info, records = [0], [], []
    for first in range(0, len(symbols), BLOCK):
        part = symbols[first : first + BLOCK]
        frequencies = _normalised(_counts(part, lane_values, sampling))
        record, block_info = _encode_block(part, values[first : first + BLOCK], lane_values, frequencies)
        records.append(record)
        info += block_info
        starts.append(starts[-1] + len(record) // 16)
    directory = struct.pack(f"<{len(starts) + len(info)}I", *starts, *info)
    return directory.ljust(align(len(directory)), b"\0") + b"".join(records)


def _counts(part: npt.NDArray[np.uint16], lane_values: int, sampling: int) -> Frequencies:
    row = LANES * lane_values
    if sampling > 1 and len(part) > CHUNK:
        part = part[np.arange(len(part)) // row % sampling == 0]
    counts = np.bincount(part[part != _EXCEPTION], minlength=256).astype(np.int64)
    if not counts.any():
        counts[CENTRE] = 1
    return counts


def _normalised(counts: Frequencies) -> Frequencies:
    """Frequencies that add up to 4096, at least 1 for every symbol counted (decision 11)."""
    total, scale = int(counts.sum()), PROBABILITY_SUM
    while True:
        scaled = np.where(counts > 0, np.maximum(1, (counts * scale + total // 2) // total), 0)
        excess = int(scaled.sum()) - PROBABILITY_SUM
        if excess <= 0:
            scaled[int(scaled.argmax())] -= excess
            return scaled
        scale -= excess


def _encode_block(
    symbols: npt.NDArray[np.uint16], values: Values, lane_values: int, frequencies: Frequencies
) -> tuple[bytes, list[int]]:
    common = int(frequencies.argmax())
    absent = (symbols == _EXCEPTION) | (frequencies[symbols.astype(np.int64) & 255] == 0)
    states, words = _rans_encode(np.where(absent, common, symbols), lane_values, frequencies)
    record, info = bytearray(_pack_table(frequencies)), []
    for number, start in enumerate(range(0, len(symbols), CHUNK)):
        positions = np.flatnonzero(absent[start : start + CHUNK])
        chunk_values = values[start : start + CHUNK]
        raw = _padded(chunk_values.tobytes())
        coded = b""
        if frequencies[common] < PROBABILITY_SUM:
            coded = _padded(states[number].astype("<u4").tobytes() + words[number].tobytes())
        if len(positions):
            coded += _padded(positions.astype("<u2").tobytes()) + _padded(chunk_values[positions].tobytes())
        if len(positions) > MAX_EXCEPTIONS or len(coded) >= len(raw):
            record += raw
            info.append(_RAW)
        else:
            record += coded
            info.append(len(words[number]) | len(positions) << 16)
    return bytes(record), info


def _padded(data: bytes) -> bytes:
    return data.ljust(align(len(data)), b"\0")


def _pack_table(frequencies: Frequencies) -> bytes:
    present = frequencies > 0
    bits = (frequencies[present] - 1)[:, None] >> np.arange(PROBABILITY_BITS) & 1
    packed = np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little").tobytes()
    return _padded(np.packbits(present, bitorder="little").tobytes() + packed)


def _steps(count: int, lane_values: int) -> npt.NDArray[np.int64]:
    """Index in the block of the symbol at [step, chunk, lane]; CHUNK-padded, so some are past the end."""
    step = np.arange(CHUNK // LANES)
    row, column = step // lane_values, step % lane_values
    inside = (row[:, None] * LANES + np.arange(LANES)) * lane_values + column[:, None]
    chunks = np.arange(-(-count // CHUNK)) * CHUNK
    return chunks[None, :, None] + inside[:, None, :]


def _rans_encode(
    symbols: Values, lane_values: int, frequencies: Frequencies
) -> tuple[npt.NDArray[np.uint32], list[npt.NDArray[np.uint16]]]:
    """Code all chunks of a block side by side; final states [chunk, lane] and each chunk's words."""
    index = _steps(len(symbols), lane_values)
    starts = np.cumsum(frequencies) - frequencies
    chunks = index.shape[1]
    states = np.full((chunks, LANES), STATE_LOW, np.uint64)
    words = np.zeros((chunks, CHUNK), np.uint16)
    counts = np.zeros(chunks, np.int64)
    for step in reversed(range(len(index))):
        valid = index[step] < len(symbols)
        symbol = symbols[np.minimum(index[step], len(symbols) - 1)]
        frequency = frequencies[symbol].astype(np.uint64)
        leaves = valid & (states >= frequency << np.uint64(31 - PROBABILITY_BITS))
        chunk, lane = np.nonzero(leaves)
        place = counts[:, None] + np.cumsum(leaves, axis=1) - 1
        words[chunk, place[chunk, lane]] = states[chunk, lane] & np.uint64(0xFFFF)
        counts += leaves.sum(axis=1)
        states = np.where(leaves, states >> np.uint64(16), states)
        quotient, rest = np.divmod(states, np.maximum(frequency, 1))
        coded = (quotient << np.uint64(PROBABILITY_BITS)) + rest + starts[symbol].astype(np.uint64)
        states = np.where(valid, coded, states)
    return states.astype(np.uint32), [words[i, : counts[i]].astype("<u2") for i in range(chunks)]


def plane_size(stream: memoryview, count: int, value_size: int) -> int:
    """Return the bytes of the coded plane that `stream` starts with; CorruptChunkError unless it can be whole."""
    if not count:
        return 0
    starts, info, records = _directory(stream, count)
    size = records + 16 * starts[-1]
    if size > len(stream):
        raise CorruptChunkError("a coded plane is cut short")
    for block, start in enumerate(starts[:-1]):
        chunks = info[block * CHUNKS_A_BLOCK : (block + 1) * CHUNKS_A_BLOCK]
        record = stream[records + 16 * start : records + 16 * starts[block + 1]]
        frequencies, position = _parse_table(record)
        for number, word in enumerate(chunks):
            length = min(CHUNK, count - block * BLOCK - number * CHUNK)
            position += _chunk_size(word, length, value_size, bool((frequencies == PROBABILITY_SUM).any()))
        if position != len(record):
            raise CorruptChunkError("a block record is longer or shorter than its chunks")
    return size


def _directory(stream: memoryview, count: int) -> tuple[list[int], list[int], int]:
    """Return block starts, chunk infos, and where the records begin."""
    blocks, chunks = -(-count // BLOCK), -(-count // CHUNK)
    size = 4 * (blocks + 1 + chunks)
    if size > len(stream):
        raise CorruptChunkError("a coded plane is cut short")
    numbers = struct.unpack_from(f"<{blocks + 1 + chunks}I", stream)
    starts = list(numbers[: blocks + 1])
    if starts[0] or starts != sorted(starts):
        raise CorruptChunkError("the blocks of a coded plane are not in order")
    return starts, list(numbers[blocks + 1 :]), align(size)


def _chunk_size(info: int, length: int, value_size: int, one_symbol: bool) -> int:
    words, exceptions = info & 0xFFFF, info >> 16 & 0x7F
    if info & _RAW:
        if info != _RAW:
            raise CorruptChunkError("a raw chunk has words or exceptions")
        return align(length * value_size)
    if info >> 23 or exceptions > min(MAX_EXCEPTIONS, length) or (one_symbol and words):
        raise CorruptChunkError("a chunk's description is impossible")
    size = 0 if one_symbol else align(4 * LANES + 2 * words)
    return size + (align(2 * exceptions) + align(exceptions * value_size) if exceptions else 0)


def _parse_table(record: memoryview) -> tuple[Frequencies, int]:
    """Return a block's frequencies and the size of its table."""
    if len(record) < _TABLE_BITMAP:
        raise CorruptChunkError("a frequency table is cut short")
    present = np.unpackbits(np.frombuffer(record[:_TABLE_BITMAP], np.uint8), bitorder="little").astype(bool)
    used = int(present.sum())
    size = _TABLE_BITMAP + -(-used * PROBABILITY_BITS // 8)
    if align(size) > len(record):
        raise CorruptChunkError("a frequency table is cut short")
    bits = np.unpackbits(np.frombuffer(record[_TABLE_BITMAP:size], np.uint8), bitorder="little")
    packed = bits[: used * PROBABILITY_BITS].reshape(used, PROBABILITY_BITS).astype(np.int64)
    frequencies = np.zeros(256, np.int64)
    frequencies[present] = (packed << np.arange(PROBABILITY_BITS)).sum(axis=1) + 1
    if frequencies.sum() != PROBABILITY_SUM:
        raise CorruptChunkError("the frequencies of a table do not add up")
    return frequencies, align(size)


def decode_plane(
    stream: memoryview, count: int, value_size: int, lane_values: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], Values]:
    """Return symbols, and the positions and values of what was not coded. `stream` passed `plane_size`."""
    symbols = np.zeros(count, np.uint8)
    positions: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    values: list[Values] = [np.zeros(0, f"<u{value_size}")]
    if not count:
        return symbols, positions[0], values[0]
    starts, info, records = _directory(stream, count)
    for block, start in enumerate(starts[:-1]):
        record = stream[records + 16 * start : records + 16 * starts[block + 1]]
        first = block * BLOCK
        part = symbols[first : first + BLOCK]
        chunks = info[block * CHUNKS_A_BLOCK : (block + 1) * CHUNKS_A_BLOCK]
        for where, what in _decode_block(record, chunks, part, value_size, lane_values):
            positions.append(where + first)
            values.append(what)
    return symbols, np.concatenate(positions), np.concatenate(values)


def _decode_block(
    record: memoryview, chunks: Sequence[int], out: npt.NDArray[np.uint8], value_size: int, lane_values: int
) -> list[tuple[npt.NDArray[np.int64], Values]]:
    frequencies, position = _parse_table(record)
    one_symbol = bool((frequencies == PROBABILITY_SUM).any())
    dtype = np.dtype(f"<u{value_size}")
    apart = []
    states = np.full((len(chunks), LANES), STATE_LOW, np.uint64)
    words: list[npt.NDArray[np.uint16]] = []
    for number, info in enumerate(chunks):
        length = min(CHUNK, len(out) - number * CHUNK)
        end = position + _chunk_size(info, length, value_size, one_symbol)
        body = record[position:end]
        position = end
        count, exceptions = info & 0xFFFF, info >> 16 & 0x7F
        words.append(np.zeros(0, np.uint16))
        if info & _RAW:
            apart.append((np.arange(length) + number * CHUNK, np.frombuffer(body, dtype, length)))
            continue
        if not one_symbol:
            states[number] = np.frombuffer(body, "<u4", LANES)
            words[-1] = np.frombuffer(body, "<u2", count, 4 * LANES)
            body = body[align(4 * LANES + 2 * count) :]
        if exceptions:
            where = np.frombuffer(body, "<u2", exceptions).astype(np.int64)
            if where[-1] >= length or (np.diff(where) <= 0).any():
                raise CorruptChunkError("the exceptions of a chunk are not in order")
            apart.append((where + number * CHUNK, np.frombuffer(body, dtype, exceptions, align(2 * exceptions))))
    raw = np.array([bool(info & _RAW) for info in chunks])
    if one_symbol:
        out[:] = frequencies.argmax()
    else:
        _rans_decode(states, words, raw, frequencies, lane_values, out)
    return apart


def _rans_decode(
    states: npt.NDArray[np.uint64],
    words: Sequence[npt.NDArray[np.uint16]],
    raw: npt.NDArray[np.bool_],
    frequencies: Frequencies,
    lane_values: int,
    out: npt.NDArray[np.uint8],
) -> None:
    """Decode all chunks of a block side by side into `out`; raw ones are left alone."""
    if ((states < STATE_LOW) | (states >> np.uint64(31) > 0)).any():
        raise CorruptChunkError("a state of a chunk is outside its range")
    index = _steps(len(out), lane_values)
    starts = np.cumsum(frequencies) - frequencies
    symbol_of = np.repeat(np.arange(256), frequencies)
    position = np.array([len(w) for w in words], np.int64)
    buffer = np.zeros((len(words), int(position.max(initial=0)) + 1), np.uint64)
    for number, chunk_words in enumerate(words):
        buffer[number, : len(chunk_words)] = chunk_words
    for step in index:
        valid = (step < len(out)) & ~raw[:, None]
        slot = (states & np.uint64(PROBABILITY_SUM - 1)).astype(np.int64)
        symbol = symbol_of[slot]
        moved = frequencies[symbol].astype(np.uint64) * (states >> np.uint64(PROBABILITY_BITS))
        states = np.where(valid, moved + (slot - starts[symbol]).astype(np.uint64), states)
        takes = valid & (states < STATE_LOW)
        position -= takes.sum(axis=1)
        if (position < 0).any():
            raise CorruptChunkError("a chunk has too few words")
        chunk, lane = np.nonzero(takes)
        rank = position[:, None] + np.cumsum(takes, axis=1) - 1
        states[chunk, lane] = states[chunk, lane] << np.uint64(16) | buffer[chunk, rank[chunk, lane]]
        out[step[valid]] = symbol[valid]
    if (position != 0).any() or (states[~raw] != STATE_LOW).any():
        raise CorruptChunkError("a chunk does not end as it should")
