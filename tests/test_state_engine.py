"""Saving from and loading to a GPU, the device emulated: the same frames, checksums and hash as on the CPU."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import odd_states
import pytest
import torch
from cuda_emulation.device import EmulatedDevice, compiler

from nvckpt.codecs import blocks
from nvckpt.compression import CompressOptions, Work, write_archive
from nvckpt.device_filling import Target, filling
from nvckpt.device_loading import DeferredFile, Placement, may_be_deferred
from nvckpt.engines import CpuEngine
from nvckpt.formats.atomic import OutputFile
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.errors import CorruptArchiveError
from nvckpt.formats.sniff import read_source
from nvckpt.original import Original
from nvckpt.state import StorageBytes, pickled, state_file
from nvckpt.state_engine import DevicePart, StateEngine

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++) to build the emulated kernels")


class EmulatedCoder:
    """A device whose kernels run on the CPU, and whose codecs are the CPU's."""

    def __init__(self, folder):
        self.device = EmulatedDevice(folder)

    @contextmanager
    def here(self):
        yield
        self.device.check_guards()

    def beside(self):
        return nullcontext()

    def pinned(self, size):
        return np.zeros(size, np.uint8)

    def encode(self, arrays, contents, choice):
        return [blocks.encode(a.tobytes(), c, choice) for a, c in zip(arrays, contents, strict=True)]

    def send(self, data):
        return data.copy()

    def decode(self, data, sent, coded, outs):
        assert np.array_equal(sent, data)
        for block, out in zip(coded, outs, strict=True):
            out[...] = np.frombuffer(blocks.decode(block, len(out)), np.uint8)

    def adopt(self, address, size):
        import ctypes

        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


@pytest.fixture
def coder(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp().parent / "emulated_kernels"
    folder.mkdir(exist_ok=True)
    return EmulatedCoder(folder)


class Memory(OutputFile):
    def __init__(self):
        super().__init__(-1)
        self.data = bytearray()

    def write(self, data):
        self.data += data


def archive(file, engine):
    sink = Memory()
    write_archive(file, read_source(file), sink, engine, CompressOptions("float", "fast", verify=False), Work(None))
    return bytes(sink.data)


def device_parts(file):
    """Every second storage counts as being on the device."""
    found = [
        (start, part) for start, part in zip(file.starts, file.parts, strict=False) if isinstance(part, StorageBytes)
    ]
    return [DevicePart(start, part.size, part.storage.data_ptr()) for start, part in found[::2]]


def mixed():
    torch.manual_seed(1)
    weights = {f"layer.{i}": torch.randn(300 + i, 200 + 7 * i) for i in range(5)}
    small = {f"bias.{i}": torch.randn(i * 90 + 1) for i in range(12)}
    return {
        "w": weights,
        "half": {k: v.bfloat16() for k, v in weights.items()},
        "s": small,
        "rng": torch.get_rng_state(),
    }


STATES = {
    "mixed": mixed,
    "adamw": odd_states.adamw_state,
    "shared": odd_states.same_storage_twice,
    "dtypes": odd_states.every_dtype,
    "nothing": odd_states.number,
    "empty": odd_states.empty_shapes,
    "special": odd_states.special_values,
}


@pytest.mark.parametrize("batch", [1, 300_000, 1 << 27])
@pytest.mark.parametrize("name", STATES)
def test_archive_is_the_cpus(coder, name, batch):
    """Whatever the batches are: the same archive, byte for byte, so hash and checksums are right, too."""
    file = state_file(*pickled(STATES[name]()))
    engine = StateEngine("cuda:0", coder, device_parts(file), batch=batch)
    assert archive(file, engine) == archive(file, CpuEngine(1))


def loaded(data, coder, name):
    """Load with every storage of at least a hundred bytes filled through the device."""
    original = Original(MemoryBytes(data), 1)
    file = DeferredFile(original)
    deferred = []
    fences = []

    with ThreadPoolExecutor(2) as pool, filling(original, lambda _: coder, pool, fences.append) as filler:

        def place(storage, location):
            offset = file.take(storage.nbytes())
            if offset is not None:
                deferred.append(storage)
                filler.add(0, Target(offset, storage.nbytes(), storage.data_ptr()))
            return storage

        obj = torch.load(file, map_location=place)
    assert fences or not any(storage.nbytes() for storage in deferred)
    return obj, len(deferred)


@pytest.mark.parametrize(
    "options", [("float", "fast"), ("auto", "default"), ("zstd", 1), ("store", "default")], ids=str
)
@pytest.mark.parametrize("name", STATES)
def test_storages_are_filled_on_the_device(coder, name, options):
    """Whatever the codec, pooled frames, references and torch's reads of the directory."""
    obj = STATES[name]()
    file = state_file(*pickled(obj))
    sink = Memory()
    made = CompressOptions(*options, verify=False)
    write_archive(file, read_source(file), sink, CpuEngine(1), made, Work(None))
    got, count = loaded(bytes(sink.data), coder, name)
    assert odd_states.fingerprint(got) == odd_states.fingerprint(obj)
    assert count == sum(isinstance(part, StorageBytes) for part in file.parts)


def test_damage_is_named(coder):
    file = state_file(*pickled(mixed()))
    raw = bytearray(archive(file, CpuEngine(1)))
    raw[len(raw) // 2] ^= 1
    with pytest.raises(CorruptArchiveError, match=r"^(w|half|s)\.layer"):
        loaded(bytes(raw), coder, "mixed")


def test_placement_without_a_gpu_is_torchs(coder):
    """Storages that stay on the host are filled at once; torch's error for a device that is not there."""
    obj = mixed()
    data = archive(state_file(*pickled(obj)), CpuEngine(1))
    for location in (None, "cpu", torch.device("cpu"), {"cuda:0": "cpu"}):
        original = Original(MemoryBytes(data), 1)
        file = DeferredFile(original)
        asked = []
        placement = Placement(file, original, location, lambda *target, asked=asked: asked.append(target))
        assert odd_states.fingerprint(torch.load(file, map_location=placement)) == odd_states.fingerprint(obj)
        assert asked == []
    if not torch.cuda.is_available():
        original = Original(MemoryBytes(data), 1)
        file = DeferredFile(original)
        with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
            torch.load(file, map_location=Placement(file, original, "cuda:0", lambda *_: None))


@pytest.mark.parametrize("name", ["sparse", "quantized", "nested_tensor", "tensor_subclass"])
def test_careful_objects_are_not_deferred(name):
    for made, expected in ((odd_states.STATES[name](), False), (odd_states.adamw_state(), True)):
        data = archive(state_file(*pickled(made)), CpuEngine(1))
        assert may_be_deferred(Original(MemoryBytes(data), 1)) == expected


@pytest.mark.parametrize("name", odd_states.STATES)
def test_segments_are_known_without_reading(name):
    """What the state file says of itself is what the reader of files finds in it."""
    file = state_file(*pickled(odd_states.STATES[name]()))
    assert file.source == read_source(file)
