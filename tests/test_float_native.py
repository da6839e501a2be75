"""The C float codec: its library, its errors, strange but valid streams, and damaged ones under sanitizers."""

import itertools
import os
import shutil
import struct
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from float_streams import CONTENTS, WORD_SIZES, float_spec, strange_streams, words

from nvckpt.codecs import float_native, float_reference
from nvckpt.codecs.errors import CodecUnavailableError, CorruptChunkError
from nvckpt.codecs.float_spec import FloatSpec

KERNELS = Path(float_native.__file__).parent / "kernels"
COMPILER = next((found for name in ("gcc", "cc", "clang") if (found := shutil.which(name))), None)
REASON = float_native.available()
native = pytest.mark.skipif(REASON is not None, reason=str(REASON))
SIMD = ("plain", "avx2")


@native
def test_every_valid_stream_decodes_whatever_its_encoder_chose():
    """Odd bases, side bytes, strides and flags are the specification's business, not this project's encoders'."""
    for stream, data in strange_streams():
        float_native.check(stream, len(data))
        for simd in SIMD:
            out = bytearray(len(data))
            float_native.decode(stream, out, simd=simd)
            assert out == data


@native
def test_any_contiguous_buffer_is_taken_as_it_is():
    data = words("bf16", 5000, "normal")
    spec = float_spec("bf16", 5000)
    stream = float_native.encode(data, spec)
    misplaced = memoryview(b"x" + data)[1:]
    for buffer in (bytearray(data), memoryview(data), misplaced, memoryview(np.frombuffer(data, np.uint16))):
        assert float_native.encode(buffer, spec) == stream
    out = bytearray(len(data) + 1)
    float_native.decode(memoryview(b"x" + stream)[1:], memoryview(out)[1:])
    assert out[1:] == data


@native
def test_read_only_memory_and_contradicting_matrices_are_refused():
    data = words("bf16", 100, "normal")
    stream = float_native.encode(data, float_spec("bf16", 100))
    with pytest.raises(ValueError, match="read-only"):
        float_native.decode(stream, memoryview(bytes(len(data))))
    for spec in (FloatSpec(2, "bf16"), FloatSpec(2, "bf16", ((99, 0),)), FloatSpec(4, "bf16", ((100, 0),))):
        with pytest.raises(ValueError, match="do not fit"):
            float_native.encode(data, spec)


def outcome(decode, stream, size):
    """The sentence of the error, or the bytes."""
    out = bytearray(size)
    try:
        decode(memoryview(stream), memoryview(out))
    except CorruptChunkError as error:
        return str(error)
    return bytes(out)


@native
def test_damage_is_reported_in_the_oracles_words():
    """One flipped bit at a time: the same sentence, or the same wrong bytes where only a checksum could tell."""
    data = words("bf16", 700, "outliers") + b"\x01"
    stream = float_reference.encode(data, FloatSpec(2, "bf16", ((20, 35),)))
    rng = np.random.default_rng(0)
    places = [*range(0, 8 * 64, 3), *rng.integers(0, 8 * len(stream), 150)]
    for place in places:
        damaged = bytearray(stream)
        damaged[place // 8] ^= 1 << place % 8
        expected = outcome(float_reference.decode, damaged, len(data))
        for simd in SIMD:
            assert outcome(lambda s, out, simd=simd: float_native.decode(s, out, simd=simd), damaged, len(data)) == (
                expected
            ), place
    for cut in range(0, len(stream), 17):
        assert isinstance(outcome(float_native.decode, stream[:cut], len(data)), str)


@native
def test_calls_run_side_by_side():
    """ctypes lets the interpreter's lock go, so another thread counts on while a call runs."""
    data = words("fp32", 6 << 20, "normal")
    counted = []
    running = threading.Event()

    def call():
        running.set()
        float_native.encode(data, float_spec("fp32", 6 << 20), simd="plain")

    worker = threading.Thread(target=call)
    worker.start()
    running.wait()
    while worker.is_alive():
        counted.append(time.perf_counter())
        time.sleep(0.001)
    worker.join()
    assert len(counted) > 3


@native
def test_threads_do_not_disturb_each_other():
    jobs = [(words(kind, 50_000, "zeros", i), float_spec(kind, 50_000)) for i, kind in enumerate(WORD_SIZES)] * 4
    expected = [float_native.encode(data, spec) for data, spec in jobs]
    found = [b""] * len(jobs)

    def work(number):
        found[number] = float_native.encode(*jobs[number])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_without_a_library_the_reason_is_said(monkeypatch):
    """Callers ask `available` and fall back to NumPy; a call all the same is an error with a remedy."""
    monkeypatch.setattr(float_native, "EXTENSION_SUFFIXES", [".of-no-machine"])
    float_native._load.cache_clear()
    try:
        assert "not built" in (float_native.available() or "")
        with pytest.raises(CodecUnavailableError, match="compiler"):
            float_native.check(b"", 0)
    finally:
        monkeypatch.undo()
        float_native._load.cache_clear()


def compile_fuzzer(target, *flags):
    """A process's result; the sources are those that the installed library was built from."""
    sources = sorted(map(str, KERNELS.glob("float_*.c")))
    driver = str(Path(__file__).with_name("float_fuzz.c"))
    return subprocess.run(
        [COMPILER, "-std=gnu11", "-O1", "-g", *flags, "-o", str(target), driver, *sources],
        capture_output=True,
        text=True,
        check=False,
    )


def write_seeds(path):
    with path.open("wb") as file:
        for stream, data in strange_streams():
            file.write(struct.pack("<QQ", len(stream), len(data)) + stream)
        for kind in WORD_SIZES:
            for content in CONTENTS:
                for count, shape in ((0, None), (5, None), (600, (20, 30)), (9000, (90, 100))):
                    data = words(kind, count, content)
                    for level in ("fast", "default"):
                        stream = float_native.encode(data, float_spec(kind, count, shape), level)
                        file.write(struct.pack("<QQ", len(stream), len(data)) + stream)
        write_long_seeds(file)


def write_long_seeds(file):
    """Chunks that are decoded two at a time, two pairs to a block, and one that is left."""
    for kind, content in itertools.product(WORD_SIZES, ("normal", "outliers", "zeros")):
        data = words(kind, 3 * 32768 + 100, content)
        stream = float_native.encode(data, float_spec(kind, 3 * 32768 + 100, None))
        file.write(struct.pack("<QQ", len(stream), len(data)) + stream)


@native
@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_damaged_streams_never_leave_their_memory(tmp_path):
    """1,200 runs here; NVCKPT_FUZZ_RUNS asks for more."""
    target, seeds = tmp_path / "fuzz", tmp_path / "seeds"
    built = compile_fuzzer(target, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    if built.returncode:
        pytest.skip("the compiler has no sanitizers")
    write_seeds(seeds)
    runs = os.environ.get("NVCKPT_FUZZ_RUNS", "1200")
    run = subprocess.run([target, seeds, runs, "1"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_compiles_without_simd_and_without_a_warning(tmp_path):
    """As on machines other than x86-64."""
    for flags in (["-DNVCKPT_NO_SIMD"], []):
        built = compile_fuzzer(tmp_path / "fuzz", "-Wall", "-Wextra", "-Werror", *flags)
        assert built.returncode == 0, built.stderr
