"""`lowrank` on a GPU: the oracle's bytes and back, alone, many in a call, large ones; damage is refused."""

from dataclasses import replace

import numpy as np
import pytest
from lowrank_streams import FLOAT, KINDS, by_cpu, contradictions, fitted, flipped, odd_matrix, stream_of
from test_lowrank import as_words, low_rank
from test_lowrank_native import some_model

from nvckpt.codecs import blocks, float_cuda, lowrank_stream, registry
from nvckpt.codecs.blocks import NO_TRANSFORM, Block, Choice, Stream
from nvckpt.codecs.content import Content
from nvckpt.codecs.errors import CorruptChunkError
from nvckpt.codecs.lowrank_fit import fit
from nvckpt.codecs.lowrank_record import MOST_FACTOR
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.container import ArchiveReader

REASON = float_cuda.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

WORDS = (2, 4)
SHAPES = [(64, 64), (65, 130), (300, 513), (9, 16), (70, 1), (1000, 1001)]


def on_gpu(data):
    import cupy

    return cupy.asarray(np.frombuffer(data, np.uint8))


def decoded(streams, sizes, heads=True):
    """As the archive's blocks are decoded; what lies around each output must stay as it is."""
    import cupy

    from nvckpt.codecs import cuda_blocks

    rooms = [cupy.full(size + 512, 0xDD, np.uint8) for size in sizes]
    outs = [room[256 : 256 + size] for room, size in zip(rooms, sizes, strict=True)]
    coded = [
        Block(NO_TRANSFORM, 0, (Stream(registry.LOW_RANK.id, size, on_gpu(stream)),))
        for stream, size in zip(streams, sizes, strict=True)
    ]
    try:
        cuda_blocks.decode(coded, outs, [[memoryview(stream)] for stream in streams] if heads else None)
    finally:
        for room, size in zip(rooms, sizes, strict=True):
            assert bool((room[:256] == 0xDD).all()) and bool((room[256 + size :] == 0xDD).all())
    return [out.get().tobytes() for out in outs]


def encoded(streams):
    """Streams of groups of (words, model)."""
    from nvckpt.codecs.float_cuda_device import CupyDevice
    from nvckpt.codecs.lowrank_cuda_encode import encode

    kept = []

    def put(data):
        kept.append(on_gpu(data))
        return kept[-1].data.ptr

    groups = [[fitted(put, words, model) for words, model in matrices] for matrices in streams]
    return [stream.get().tobytes() for stream in encode(CupyDevice(), groups)]


@pytest.fixture(scope="module")
def large():
    """By word: words, a model made by hand whose sums are beyond 32 bits, and the oracle's record of them."""
    made = {}
    for word in WORDS:
        rng = np.random.default_rng(word)
        values = low_rank(4096, 4096, rank=4)
        words = as_words(values, word)
        words[100:130] = words[-1] = 0
        words[7, ::5] = 1 << (8 * word - 1) | 5
        model = replace(some_model((4096 - 31, 4096), 700, rng, values[words.any(1)]), shift=32)
        model.left[5], model.right[9] = MOST_FACTOR, MOST_FACTOR
        made[word] = words, model, lowrank_stream.encode_matrix(words, KINDS[word], FLOAT, model)
    return made


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_oracles_streams_are_decoded(shape, word):
    words = odd_matrix(*shape, word)
    stream = stream_of([words], KINDS[word])
    for heads in (True, False):
        assert decoded([stream], [words.nbytes], heads) == [words.tobytes()]


@pytest.mark.parametrize("word", WORDS)
def test_large_matrix_with_many_components(large, word):
    words, model, stream = large[word]
    for _ in range(3):
        assert decoded([stream], [words.nbytes]) == [words.tobytes()]
        assert encoded([[(words, model)]]) == [stream]


def test_many_streams_in_one_call(large):
    groups = []
    for i in range(60):
        word = WORDS[i % 2]
        matrices = [odd_matrix(40 + 7 * i, 30 + 11 * (i % 9), word, i + j) for j in range(1 + i % 3)]
        groups.append((stream_of(matrices, KINDS[word]), b"".join(m.tobytes() for m in matrices)))
    odd = as_words(low_rank(9, 15), 2), as_words(low_rank(200, 301), 4)
    both = b"".join(stream_of([words], KINDS[words.itemsize]) for words in odd)
    groups.append((both, odd[0].tobytes() + odd[1].tobytes()))
    groups += [(stream, words.tobytes()) for words, _, stream in large.values()]
    streams, originals = zip(*groups, strict=True)
    for _ in range(3):
        assert decoded(streams, [len(data) for data in originals]) == list(originals)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("shape", [*SHAPES, (2, 140_000)])
def test_the_oracles_bytes_are_coded(shape, word):
    words = odd_matrix(*shape, word) if shape[0] > 8 else as_words(low_rank(*shape), word)
    model = fit(words[words.any(1)], KINDS[word])
    assert encoded([[(words, model)]]) == [lowrank_stream.encode_matrix(words, KINDS[word], FLOAT, model)]


def test_many_matrices_in_one_call(large):
    groups, expected = [], []
    for i in range(40):
        matrices = [odd_matrix(40 + 7 * i, 30 + 11 * (i % 9), WORDS[i % 2], i + j) for j in range(1 + i % 3)]
        matrices[-1][...] = 0 if i % 5 == 0 else matrices[-1]
        models = [fit(words[words.any(1)], KINDS[words.itemsize]) if words.any() else None for words in matrices]
        groups.append(list(zip(matrices, models, strict=True)))
        coded = [lowrank_stream.encode_matrix(w, KINDS[w.itemsize], FLOAT, model) for w, model in groups[-1]]
        expected.append(b"".join(coded))
    for words, model, stream in large.values():
        groups.append([(words, model)])
        expected.append(stream)
    for _ in range(3):
        assert encoded(groups) == expected


def test_archives_of_level_max_are_restored(tmp_path):
    """By the GPU, what the CPU coded; verified there, too."""
    from safetensors.numpy import save_file
    from test_cuda_blocks import run_main

    path, archive, back = tmp_path / "m.safetensors", tmp_path / "archive", tmp_path / "back"
    save_file({f"m.{i}": low_rank(300 + i, 400, seed=i) for i in range(8)}, path)
    assert run_main("compress", "--device", "cpu", "--level", "max", "-q", "-o", str(archive), str(path)) == 0
    frames = ArchiveReader(MemoryBytes(archive.read_bytes())).frames
    assert any(s.codec_id == registry.LOW_RANK.id for frame in frames for s in frame.header.streams)
    assert run_main("decompress", "--device", "cuda", "-q", "-o", str(back), str(archive)) == 0
    assert back.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("word", WORDS)
def test_damage_is_refused_where_the_cpu_refuses_it(word):
    words = odd_matrix(70, 90, word)
    stream = stream_of([words], KINDS[word])
    damaged = list(flipped(stream, 200, np.random.default_rng(word)))
    damaged += [changed for _, changed in contradictions(stream, words.nbytes)]
    for each in damaged:
        expected = by_cpu(each, words.nbytes)
        if isinstance(expected, bytes):
            assert decoded([each], [words.nbytes]) == [expected]
        else:
            with pytest.raises(CorruptChunkError):
                decoded([each], [words.nbytes])
    assert decoded([stream], [words.nbytes]) == [words.tobytes()]


def test_level_max_gives_the_blocks_of_the_cpu():
    """Chosen by the same samples, fitted to the same factors, of the same bytes; and back."""
    import cupy

    from nvckpt.codecs import cuda_blocks

    shapes = [(4, 512, 768), (2, 512, 768), (4, 64, 4096), (2, 2048, 80)]
    data = [as_words(low_rank(rows, cols, seed=i), word).tobytes() for i, (word, rows, cols) in enumerate(shapes)]
    contents = [Content(word, "bf16" if word == 2 else "fp32", ((rows, cols),)) for word, rows, cols in shapes]
    noise = np.random.default_rng(1).standard_normal((256, 256)).astype("<f4").tobytes()
    data, contents = [*data, noise], [*contents, Content(4, "fp32", ((256, 256),))]
    arrays = [on_gpu(each) for each in data]
    choice = Choice(level="max")
    found = cuda_blocks.encode(arrays, contents, choice)
    expected = [blocks.encode(each, content, choice) for each, content in zip(data, contents, strict=True)]
    assert [registry.name_of(block.streams[0].codec_id) for block in expected] == ["lowrank"] * 4 + ["float"]
    for block, other in zip(found, expected, strict=True):
        assert [s.codec_id for s in block.streams] == [s.codec_id for s in other.streams]
        assert [bytes(cupy.asnumpy(s.data)) for s in block.streams] == [bytes(s.data) for s in other.streams]
    outs = [cupy.empty(len(each), np.uint8) for each in data]
    cuda_blocks.decode(found, outs)
    assert [out.get().tobytes() for out in outs] == data
