"""The engine that streams windows through a device, with a device played by the CPU: order, memory, trouble."""

import threading
import time

import numpy as np
import pytest

from nvckpt import engines, gpu_engine
from nvckpt.codecs import blocks
from nvckpt.codecs.content import Content
from nvckpt.codecs.cuda_coder import host_bytes
from nvckpt.codecs.errors import CorruptChunkError, DeviceMemoryError, DeviceMismatchError
from nvckpt.compression import CompressOptions, compress
from nvckpt.decompression import decompress, verify
from nvckpt.errors import SourceChangedError, VerificationError
from nvckpt.gpu_engine import GpuEngine
from nvckpt.streaming import DEPTH

BATCH = 64 << 10


class PlayedCoder:
    """A device of the CPU: codes a batch as a CPU would, and counts what it is given."""

    def __init__(self, memory=1 << 40):
        self.memory = memory
        self.pinned_sizes, self.encoded, self.decoded, self.released = [], [], 0, 0
        self.fail = None

    def pinned(self, size):
        self.pinned_sizes.append(size)
        return np.full(size, 0xDD, np.uint8)

    def room_for(self, size):
        return size + 4096

    def encode(self, data, parts, choice, out, verify, clock):
        if self.fail:
            raise self.fail
        if sum(part.size for part in parts) > self.memory:
            raise DeviceMemoryError("the GPU has too little free memory")
        self.encoded.append(sum(part.size for part in parts))
        clock("encode", len(data), 0.001)
        position, coded = 0, []
        for part in parts:
            block = blocks.encode(host_bytes(data, part), part.content, choice)
            streams = []
            for stream in block.streams:
                size = len(stream.data)
                out[position : position + size] = np.frombuffer(stream.data, np.uint8)
                streams.append(
                    blocks.Stream(stream.codec_id, stream.original_size, out[position : position + size].data)
                )
                position += -(-size // 16) * 16
            coded.append(blocks.Block(block.transform_id, block.transform_param, tuple(streams)))
        return coded

    def decode(self, data, coded, parts, out, clock):
        if self.fail:
            raise self.fail
        self.decoded += 1
        out[:] = 0xCC
        for block, part in zip(coded, parts, strict=True):
            decoded, position = np.frombuffer(blocks.decode(block, part.size), np.uint8), 0
            for offset, length in part.ranges:
                out[offset : offset + length] = decoded[position : position + length]
                position += length

    def release(self):
        self.released += 1


@pytest.fixture
def coder(monkeypatch):
    """Every file goes through a played device, in small windows and batches."""
    from concurrent.futures import ThreadPoolExecutor

    made = PlayedCoder()
    monkeypatch.setattr("nvckpt.plan.WINDOW", 20 << 10)
    monkeypatch.setattr("nvckpt.plan._OWN_BLOCK", 4 << 10)
    with ThreadPoolExecutor(3) as pool:
        engine = GpuEngine("cuda:0", made, pool, BATCH)
        monkeypatch.setattr(engines.device, "resolve", lambda *_, **__: "cuda:0")
        monkeypatch.setattr(engines, "_gpu_engine", lambda *_: engine)
        yield made


@pytest.fixture
def checkpoint(tmp_path):
    from safetensors.numpy import save_file

    rng = np.random.default_rng(4)
    tensors = {f"layer.{i}.weight": rng.standard_normal((40, 50 + i)).astype(np.float32) for i in range(60)}
    tensors |= {f"small.{i}": rng.integers(0, 9, 300) for i in range(40)}
    path = tmp_path / "m.safetensors"
    save_file(tensors, path)
    return path


def test_the_same_archive_as_on_the_cpu(coder, checkpoint, tmp_path):
    by_gpu = compress(checkpoint, tmp_path / "gpu.nvckpt")
    assert by_gpu.device == "cuda:0"
    assert by_gpu.verified
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines.device, "resolve", lambda *_, **__: "cpu")
        assert compress(checkpoint, tmp_path / "cpu.nvckpt").device == "cpu"
    assert (tmp_path / "gpu.nvckpt").read_bytes() == (tmp_path / "cpu.nvckpt").read_bytes()
    assert len(coder.encoded) > DEPTH


def test_restores_the_file_and_tells_the_stages(coder, checkpoint, tmp_path):
    compress(checkpoint, tmp_path / "a.nvckpt")
    result = decompress(tmp_path / "a.nvckpt", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == checkpoint.read_bytes()
    assert coder.decoded > DEPTH
    assert {"read", "hash", "write"} <= {stage.name for stage in result.stages}


def test_memory_does_not_grow_with_the_file_and_is_used_again(coder, checkpoint, tmp_path):
    for number in range(3):
        compress(checkpoint, tmp_path / f"{number}.nvckpt")
        decompress(tmp_path / f"{number}.nvckpt", tmp_path / f"{number}")
    assert len(coder.pinned_sizes) == 2 * DEPTH
    assert max(coder.encoded) <= BATCH


def test_a_full_device_gets_halves_and_at_last_the_cpu_works(coder, checkpoint, tmp_path):
    coder.memory = 9000
    compress(checkpoint, tmp_path / "a.nvckpt")
    assert coder.released > 3
    assert 0 < max(coder.encoded) <= coder.memory
    coder.memory = 0
    compress(checkpoint, tmp_path / "b.nvckpt")
    assert (tmp_path / "a.nvckpt").read_bytes() == (tmp_path / "b.nvckpt").read_bytes()
    decompress(tmp_path / "a.nvckpt", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == checkpoint.read_bytes()


@pytest.mark.parametrize("error", [DeviceMemoryError("full"), CorruptChunkError("the device is mad")])
def test_what_the_device_cannot_decode_the_cpu_does(coder, checkpoint, tmp_path, error):
    compress(checkpoint, tmp_path / "a.nvckpt")
    coder.fail = error
    decompress(tmp_path / "a.nvckpt", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == checkpoint.read_bytes()


def test_a_device_that_decodes_wrongly_is_found_by_the_checksum(coder, checkpoint, tmp_path, monkeypatch):
    compress(checkpoint, tmp_path / "a.nvckpt")
    real = coder.decode

    def decode(data, coded, parts, out, clock):
        real(data, coded, parts, out, clock)
        out[len(out) // 2] ^= 1

    monkeypatch.setattr(coder, "decode", decode)
    decompress(tmp_path / "a.nvckpt", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == checkpoint.read_bytes()


def test_a_device_that_codes_wrongly_keeps_no_archive(coder, checkpoint, tmp_path):
    coder.fail = DeviceMismatchError("the GPU did not give the same bytes back")
    with pytest.raises(VerificationError, match="did not give the same bytes"):
        compress(checkpoint, tmp_path / "a.nvckpt")
    assert not (tmp_path / "a.nvckpt").exists()
    coder.fail = None
    compress(checkpoint, tmp_path / "a.nvckpt")


def test_damage_is_named_and_the_next_archive_is_decoded(coder, checkpoint, tmp_path):
    path = tmp_path / "a.nvckpt"
    compress(checkpoint, path)
    good = path.read_bytes()
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 4
    path.write_bytes(bad)
    result = verify(path)
    assert len(result.damage) == 1
    assert result.damage[0].names
    path.write_bytes(good)
    assert not verify(path).damage


def test_removal_reads_the_archive_back(coder, checkpoint, tmp_path):
    compress(checkpoint, tmp_path / "a.nvckpt", CompressOptions(remove=True))
    assert coder.decoded
    assert not checkpoint.exists()


def test_a_file_that_shrinks_is_an_error_and_every_thread_ends(coder, checkpoint, tmp_path, monkeypatch):
    real = gpu_engine.read_into

    def shrinking(source, offset, target, threads):
        return real(source, offset, target, threads) - (offset > 2 * BATCH)

    monkeypatch.setattr(gpu_engine, "read_into", shrinking)
    with pytest.raises(SourceChangedError, match="shorter"):
        compress(checkpoint, tmp_path / "a.nvckpt")
    assert not [t for t in threading.enumerate() if t.name in ("nvckpt-read", "nvckpt-device")]


def test_an_interrupt_while_writing_ends_every_thread(coder, checkpoint, tmp_path):
    def interrupt(done, _):
        if done > BATCH:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress(checkpoint, tmp_path / "a.nvckpt", progress=interrupt)
    assert not [t for t in threading.enumerate() if t.name in ("nvckpt-read", "nvckpt-device")]
    assert not list(tmp_path.glob("*.nvckpt"))
    compress(checkpoint, tmp_path / "a.nvckpt")


def test_files_take_turns_on_the_device(coder, checkpoint, tmp_path):
    running, most = 0, 0
    real = coder.encode

    def encode(*arguments):
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.002)
        running -= 1
        return real(*arguments)

    coder.encode = encode
    threads = [threading.Thread(target=compress, args=(checkpoint, tmp_path / f"{i}.nvckpt")) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len({(tmp_path / f"{i}.nvckpt").read_bytes() for i in range(3)}) == 1


def test_a_gpu_only_codec_without_a_gpu_names_the_remedy():
    with pytest.raises(Exception, match="NVIDIA GPU") as raised:
        engines.engine_for_encoding("auto", 1, blocks.Choice("ans"), 1, 0)
    assert "use auto or zstd" in str(raised.value)


def test_content_is_kept_when_batches_are_cut():
    assert host_bytes(np.arange(8, dtype=np.uint8), gpu_engine.Part(((6, 2), (0, 1)), Content())) == bytes([6, 7, 0])
