"""Blocks on a GPU: every codec exact on every kind of content, the CPU's bytes, and archives between both."""

import json

import numpy as np
import pytest

from nvckpt.cli.main import app
from nvckpt.codecs import blocks, float_cuda, nvcomp_formats, registry
from nvckpt.codecs.content import BYTES, Content

REASON = float_cuda.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=str(REASON))]
needs_nvcomp = pytest.mark.skipif(nvcomp_formats.installed() is None, reason="nvCOMP is not installed")

WORDS = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "fp8": 1, "bytes": 4}


def run_main(*arguments):
    """Run a command in this process, whose GPU is then the one that damage must not poison; its exit code."""
    return int(app(args=list(arguments), standalone_mode=False) or 0)


def kinds(size):
    """(name, bytes, content): floats of every width with odd values among them, whole numbers, text, zeros, noise."""
    rng = np.random.default_rng(size)
    normal = rng.standard_normal(-(-size // 2)).astype(np.float32) * np.float32(0.02)
    bits = normal.view("<u4")
    odd = np.array([0x7FC00001, 0x7F800001, 0xFF800000, 0x80000000, 1, 0x807FFFFF, 0xFFFFFFFF, 0], "<u4")
    bits[: min(len(odd), len(bits))] = odd[: len(bits)]
    raw = {
        "fp32": bits.tobytes(),
        "bf16": (bits >> 16).astype("<u2").tobytes(),
        "fp16": normal.astype("<f2").tobytes(),
        "fp64": normal.astype("<f8").tobytes(),
        "fp8": rng.integers(0, 256, size, np.uint8).tobytes(),
    }
    made = [(kind, data[:size], Content(WORDS[kind], kind)) for kind, data in raw.items()]
    made.append(("integers", rng.integers(0, 999, size // 4 + 1, np.int32).tobytes()[:size], Content(4)))
    made.append(("zeros", bytes(size), Content(4, "fp32")))
    made.append(("text", (b"the same words again and again; " * (size // 32 + 1))[:size], BYTES))
    return made


CASES = [case for size in (1, 3, 36, 4095, 4099, 70_001, 1 << 20, (1 << 21) + 7) for case in kinds(size)]


def round_trip(cases, choice):
    import cupy

    from nvckpt.codecs import cuda_blocks, cuda_transfer

    arrays = [cupy.asarray(np.frombuffer(data, np.uint8)) for _, data, _ in cases]
    coded = cuda_blocks.encode(arrays, [content for _, _, content in cases], choice)
    outs = [cupy.full(array.size, 0xDD, np.uint8) for array in arrays]
    cuda_blocks.decode(coded, outs)
    wrong = [name for (name, data, _), out in zip(cases, outs, strict=True) if out.get().tobytes() != data]
    assert not wrong
    return [cuda_transfer.fetched(block) for block in coded]


@pytest.mark.parametrize("level", ["fast", "default"])
def test_auto_gives_the_bytes_of_the_cpu(level):
    """The same choice and the same streams, whichever device coded them."""
    choice = blocks.Choice("auto", level)
    coded = round_trip(CASES, choice)
    for (name, data, content), block in zip(CASES, coded, strict=True):
        alone = blocks.encode(data, content, choice)
        assert [(s.codec_id, bytes(s.data)) for s in block.streams] == [
            (s.codec_id, bytes(s.data)) for s in alone.streams
        ], name


@needs_nvcomp
@pytest.mark.parametrize("codec", list(nvcomp_formats.FORMATS))
def test_every_codec_of_nvcomp_is_exact(codec):
    """Odd lengths, one byte, zeros, NaN payloads: in one call, and each alone."""
    round_trip(CASES, blocks.Choice(codec))
    for case in CASES:
        if len(case[1]) in (1, 4099, (1 << 21) + 7):
            round_trip([case], blocks.Choice(codec))


@needs_nvcomp
@pytest.mark.parametrize("codec", ["zstd", "lz4", "snappy", "deflate", "gzip"])
@pytest.mark.parametrize("planes", [True, False])
def test_standard_streams_are_read_by_the_cpu_and_the_other_way_round(codec, planes):
    import cupy

    from nvckpt.codecs import cuda_blocks

    choice = blocks.Choice(codec, planes=planes)
    for (name, data, content), block in zip(CASES, round_trip(CASES, choice), strict=True):
        assert blocks.decode(block, len(data)) == data, name
        by_cpu = blocks.encode(data, content, choice)
        streams = [
            blocks.Stream(s.codec_id, s.original_size, cupy.asarray(np.frombuffer(s.data, np.uint8)))
            for s in by_cpu.streams
        ]
        out = cupy.full(len(data), 0xDD, np.uint8)
        cuda_blocks.decode([blocks.Block(by_cpu.transform_id, by_cpu.transform_param, tuple(streams))], [out])
        assert out.get().tobytes() == data, name


@needs_nvcomp
@pytest.mark.slow
@pytest.mark.parametrize("codec", [*nvcomp_formats.FORMATS, "float", "store"])
def test_more_than_4_gib_in_one_call(codec):
    import cupy

    from nvckpt.codecs import cuda_blocks

    rng = cupy.random.default_rng(1)
    whole = (rng.standard_normal(1 << 23, dtype=cupy.float32) * cupy.float32(0.02)).view(cupy.uint8)
    arrays = [whole ^ cupy.uint8(i & 1) for i in range(2)] * 66
    assert sum(array.size for array in arrays) > 4 << 30
    coded = cuda_blocks.encode(arrays, [Content(4, "fp32")] * len(arrays), blocks.Choice(codec))
    outs = [cupy.full(array.size, 0xDD, np.uint8) for array in arrays]
    cuda_blocks.decode(coded, outs)
    assert cuda_blocks.first_difference(arrays, outs) is None
    del coded, outs
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.fixture
def checkpoint(tmp_path):
    from safetensors.numpy import save_file

    rng = np.random.default_rng(4)
    tensors = {f"layer.{i}.weight": rng.standard_normal((512, 700 + i)).astype(np.float32) for i in range(40)}
    tensors |= {f"half.{i}": rng.standard_normal((64, 100 + i)).astype(np.float16) for i in range(40)}
    tensors |= {f"small.{i}": rng.integers(0, 9, 300) for i in range(40)} | {"zeros": np.zeros((1000, 100), np.float32)}
    path = tmp_path / "m.safetensors"
    save_file(tensors, path)
    return path


def test_archives_of_gpu_and_cpu_are_the_same(checkpoint, tmp_path):
    for device in ("cuda", "cpu"):
        assert run_main("compress", "--device", device, "-q", "-o", str(tmp_path / device), str(checkpoint)) == 0
    assert (tmp_path / "cuda").read_bytes() == (tmp_path / "cpu").read_bytes()
    for device in ("cuda", "cpu"):
        back = tmp_path / f"back-{device}"
        assert run_main("decompress", "--device", device, "-q", "-o", str(back), str(tmp_path / "cuda")) == 0
        assert back.read_bytes() == checkpoint.read_bytes()


@needs_nvcomp
@pytest.mark.parametrize("codec", list(nvcomp_formats.FORMATS))
def test_every_codec_archives_a_file_and_damage_does_not_poison_the_process(codec, checkpoint, tmp_path, capsys):
    """Flipped and cut archives are exit 1, and the same process then decodes the good one."""
    archive, back = tmp_path / "a.nvckpt", tmp_path / "back"
    assert run_main("compress", "--device", "cuda", "-q", "--codec", codec, "-o", str(archive), str(checkpoint)) == 0
    good = archive.read_bytes()
    rng = np.random.default_rng(1)
    for at in rng.integers(32, len(good) - 60, 6):
        bad = bytearray(good)
        bad[at] ^= 1 << rng.integers(0, 8)
        archive.write_bytes(bad)
        assert run_main("decompress", "--device", "cuda", "-qq", "-f", "-o", str(back), str(archive)) == 1
        assert not back.exists()
    archive.write_bytes(good[: len(good) // 2])
    assert run_main("decompress", "--device", "cuda", "-qq", "-f", "-o", str(back), str(archive)) == 1
    archive.write_bytes(good)
    capsys.readouterr()
    assert run_main("decompress", "--device", "cuda", "--json", "-o", str(back), str(archive)) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["device"] == "cuda:0"
    assert back.read_bytes() == checkpoint.read_bytes()


@needs_nvcomp
def test_streams_of_another_nvcomp_name_the_version_to_install(monkeypatch):
    monkeypatch.setattr(nvcomp_formats, "library_version", lambda: 0x05030010)
    with pytest.raises(registry.CodecUnavailableError, match=r"==6\.0\.\*"):
        nvcomp_formats.check_version("ans", 0x0600000C)
