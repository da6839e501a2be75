"""`lowrank` on a device, its kernels run on the CPU: the oracle's streams decoded and its bytes coded."""

import numpy as np
import pytest
from cuda_emulation.device import POISON, EmulatedDevice, compiler
from lowrank_streams import FLOAT, KINDS, by_cpu, contradictions, fitted, flipped, odd_matrix, stream_of
from test_lowrank import as_words, low_rank
from test_lowrank_native import some_model

from nvckpt.codecs import lowrank_record, lowrank_stream
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.lowrank_cuda_decode import decode
from nvckpt.codecs.lowrank_cuda_encode import encode
from nvckpt.codecs.lowrank_fit import fit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++) to build the emulated kernels"),
]

WORDS = (2, 4)
SHAPES = [(64, 64), (65, 130), (300, 513), (9, 16), (70, 1)]
"""Whole tiles and others; two strips of several segments; a last segment of few numbers; a single column."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    made = tmp_path_factory.getbasetemp().parent / "emulated_kernels"
    made.mkdir(exist_ok=True)
    return made


@pytest.fixture
def device(folder):
    return EmulatedDevice(folder)


def place(device, data):
    memory = device.empty(len(data))
    memory[...] = np.frombuffer(data, np.uint8)
    return device.address(memory), len(data), memory


def decoded(device, streams, sizes):
    places = [place(device, stream) for stream in streams]
    outs = [device.empty(size) for size in sizes]
    targets = [(device.address(out), size) for out, size in zip(outs, sizes, strict=True)]
    try:
        decode(device, [p[:2] for p in places], targets, [memoryview(stream) for stream in streams])
    finally:
        device.check_guards()
    return [out.tobytes() for out in outs]


def encoded(device, streams):
    """Streams of groups of (words, model)."""
    kept = []

    def put(data):
        address, _, memory = place(device, data)
        kept.append(memory)
        return address

    groups = [[fitted(put, words, model) for words, model in matrices] for matrices in streams]
    coded = encode(device, groups)
    device.check_guards()
    return [stream.tobytes() for stream in coded]


def compare_with_the_cpu(device, stream, size):
    """The same words, or refused by both; why the device refused."""
    expected = by_cpu(stream, size)
    if isinstance(expected, bytes):
        assert decoded(device, [stream], [size]) == [expected]
        return None
    with pytest.raises(CorruptChunkError) as refusal:
        decoded(device, [stream], [size])
    return str(refusal.value)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_oracles_streams_are_decoded(device, shape, word):
    words = odd_matrix(*shape, word)
    stream = stream_of([words], KINDS[word])
    assert decoded(device, [stream], [words.nbytes]) == [words.tobytes()]


def test_many_streams_in_one_call_whatever_memory_holds(folder, monkeypatch):
    """Several records a stream, both words, matrices of zeros; groups of factors and a matrix that are not aligned."""
    monkeypatch.setattr(lowrank_record, "_GROUP_ENTRIES", 200)
    some = {
        word: [odd_matrix(66, 71, word, 2), np.zeros_like(odd_matrix(20, 30, word)), odd_matrix(80, 65, word, 3)]
        for word in WORDS
    }
    groups = [(some[4], 4), (some[2], 2), (some[4][1:2], 4), (some[2][:1] * 2, 2)]
    streams = [stream_of(matrices, KINDS[word]) for matrices, word in groups]
    originals = [b"".join(m.tobytes() for m in matrices) for matrices, _ in groups]
    odd = as_words(low_rank(9, 15), 2), as_words(low_rank(20, 30), 4)
    streams.append(b"".join(stream_of([words], KINDS[words.itemsize]) for words in odd))
    originals.append(odd[0].tobytes() + odd[1].tobytes())
    for poison in POISON:
        assert decoded(EmulatedDevice(folder, poison), streams, [len(data) for data in originals]) == originals
    assert decoded(EmulatedDevice(folder), [], []) == []


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_oracles_bytes_are_coded(device, shape, word):
    words = odd_matrix(*shape, word)
    model = fit(words[words.any(1)], KINDS[word])
    assert encoded(device, [[(words, model)]]) == [lowrank_stream.encode_matrix(words, KINDS[word], FLOAT, model)]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(("shape", "rank"), [((3, 17), 1), ((37, 50), 7), ((2, 131_100), 2), ((9, 40), 1024)])
def test_any_model_gives_the_oracles_bytes(device, shape, rank, word):
    """Coarse steps and all widths, strips of one row, sums beyond 32 bits."""
    rng = np.random.default_rng(rank)
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-9, 9, shape)) * 1e-3
    words = as_words(values, word)
    some = words.reshape(-1)[::7]
    some[:] = rng.integers(0, 1 << 8 * word, len(some), np.uint64)
    model = some_model(shape, rank, rng, None if rank == 7 else values)
    assert encoded(device, [[(words, model)]]) == [lowrank_stream.encode_matrix(words, KINDS[word], FLOAT, model)]


def test_many_matrices_in_one_call_whatever_memory_holds(folder, monkeypatch):
    monkeypatch.setattr(lowrank_record, "_GROUP_ENTRIES", 200)
    some = {
        word: [odd_matrix(66, 71, word, 2), np.zeros_like(odd_matrix(20, 30, word)), odd_matrix(80, 65, word, 3)]
        for word in WORDS
    }
    groups = [some[4], some[2], some[4][1:2], some[2][:1] * 2]
    models = [[fit(m[m.any(1)], KINDS[m.itemsize]) if m.any() else None for m in group] for group in groups]
    given = [list(zip(*each, strict=True)) for each in zip(groups, models, strict=True)]
    expected = [
        b"".join(lowrank_stream.encode_matrix(words, KINDS[words.itemsize], FLOAT, model) for words, model in group)
        for group in given
    ]
    for poison in POISON:
        assert encoded(EmulatedDevice(folder, poison), given) == expected
    assert encoded(EmulatedDevice(folder), given[2:3]) == expected[2:3]
    assert encoded(EmulatedDevice(folder), []) == []


@pytest.mark.parametrize("word", WORDS)
def test_damage_is_refused_where_the_cpu_refuses_it(device, word):
    """A bit flipped in any section: the same words as the CPU, or refused as there; nothing is written elsewhere."""
    words = odd_matrix(40, 50, word)
    stream = stream_of([words], KINDS[word])
    found = {
        compare_with_the_cpu(device, damaged, words.nbytes)
        for damaged in flipped(stream, 60, np.random.default_rng(word))
    }
    assert len(found) > 5
    for other in (stream[:-16], stream + bytes(16), stream + stream):
        compare_with_the_cpu(device, other, words.nbytes)


@pytest.mark.parametrize("word", WORDS)
def test_parts_that_contradict_each_other_are_refused(device, word):
    """In the CPU's words."""
    words = odd_matrix(70, 90, word)
    stream = stream_of([words], KINDS[word])
    for what, damaged in contradictions(stream, words.nbytes):
        assert compare_with_the_cpu(device, damaged, words.nbytes) == str(by_cpu(damaged, words.nbytes)), what


def test_sizes_of_strips_must_be_those_of_their_numbers(device):
    """Two strips, of which one claims a byte of the other."""
    words = as_words(low_rank(300, 513, rank=2), 2)
    stream = bytearray(stream_of([words], KINDS[2]))
    (record,) = lowrank_record.records(memoryview(stream), words.nbytes)
    table = np.frombuffer(stream, "<u4", 2, record.starts[-1])
    table += np.array([1, -1]).astype("<u4")
    assert "raw bits" in compare_with_the_cpu(device, bytes(stream), words.nbytes)
