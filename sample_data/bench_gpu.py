"""Measure the float codec on a GPU, device to device, against nvCOMP's ANS: speed, ratio, exact round trips.

    python sample_data/bench_gpu.py [--gib 1] [--repeats 10] [--tensors FILE.safetensors] [--out run.json]

Rates are input bytes over time. `kernels` is the sum of all kernels of a call, each between CUDA events (for short
kernels these hold launch gaps, too); `call` is the whole Python call with its synchronisations and allocations, by the
host's clock. Both are medians. Every output is poisoned before it is written and compared with the original. nvCOMP is
measured through its Python API, as a call into memory that is there already. Tensors of the file are tiled to the
size; without a file, only random ones of like distribution are measured.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from nvckpt.codecs import float_cuda_device
from nvckpt.codecs.float_cuda_decode import Decoding
from nvckpt.codecs.float_cuda_encode import encode_on
from nvckpt.codecs.float_spec import FloatSpec

SETS = ("bf16 model", "fp32 master", "fp32 exp_avg", "fp32 exp_avg_sq", "bf16 grads")
SAFETENSORS = {"BF16": ("bf16", 2), "F32": ("fp32", 4)}


class TimedDevice(float_cuda_device.CupyDevice):
    """Notes the time of every kernel between two events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def launch(
        self, name: str, kind: tuple[int, int], grid: int, threads: int, shared: int, arguments: list[Any]
    ) -> None:
        """Launch between two events."""
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        super().launch(name, kind, grid, threads, shared, arguments)
        end.record()
        self.events.append((name.split(".")[1], begin, end))

    def take(self) -> dict[str, float]:
        """Wait; seconds by kernel since the last time."""
        cupy.cuda.runtime.deviceSynchronize()
        times: dict[str, float] = {}
        for name, begin, end in self.events:
            times[name] = times.get(name, 0.0) + cupy.cuda.get_elapsed_time(begin, end) / 1e3
        self.events = []
        return times


def read_groups(path: str) -> dict[str, list[Any]]:
    """{group: [(bytes, kind, rows, cols)]} of a safetensors file whose names begin with a group."""
    raw = Path(path).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, body = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    groups: dict[str, list[Any]] = {}
    for name, entry in header.items():
        if name == "__metadata__" or len(entry["shape"]) != 2:
            continue
        kind, _ = SAFETENSORS[entry["dtype"]]
        begin, end = entry["data_offsets"]
        groups.setdefault(name.split("/")[0], []).append((body[begin:end], kind, *entry["shape"]))
    return groups


def tiled(groups: dict[str, list[Any]], which: str, total: int) -> tuple[list[Any], list[FloatSpec]]:
    """Tensors of up to 128 MiB that add up to about `total` bytes: each real slice tiled downwards."""
    kind, group = which.split()
    arrays, specs = [], []
    count = max(8, total >> 27)
    part = total // count
    members = groups[group]
    for i in range(count):
        data, _, rows, cols = members[i % len(members)]
        times = max(1, part // len(data))
        arrays.append(cupy.tile(cupy.asarray(np.frombuffer(data, np.uint8)), times))
        specs.append(FloatSpec(SAFETENSORS["BF16" if kind == "bf16" else "F32"][1], kind, ((rows * times, cols),)))
    return arrays, specs


def random_weights(kind: Any, values: int, count: int) -> tuple[list[Any], list[FloatSpec]]:
    rng = cupy.random.default_rng(1)
    word = 2 if kind == "bf16" else 4
    arrays = []
    for _ in range(count):
        x = rng.standard_normal(values, dtype=cupy.float32) * cupy.float32(0.02)
        bits = x.view(cupy.uint32)
        arrays.append(((bits >> 16).astype(cupy.uint16) if kind == "bf16" else bits).view(cupy.uint8))
    cols = 4096 if values % 4096 == 0 else 1000
    return arrays, [FloatSpec(word, kind, ((values // cols, cols),))] * count


def measure(name: str, arrays: list[Any], specs: list[FloatSpec], level: Any, repeats: int) -> dict[str, Any]:
    total = sum(a.size for a in arrays)
    device = TimedDevice()
    places = [(int(a.data.ptr), int(a.size)) for a in arrays]
    outs = [cupy.empty(a.size, cupy.uint8) for a in arrays]
    targets = [(int(o.data.ptr), int(o.size)) for o in outs]
    kernels, calls, back_kernels, back_calls = [], [], [], []
    parts, back_parts = {}, {}
    for k in range(repeats + 2):
        buffer = offsets = sizes = None
        cupy.cuda.runtime.deviceSynchronize()
        begin = time.perf_counter()
        buffer, offsets, sizes = encode_on(device, places, specs, level)
        call = time.perf_counter() - begin
        parts = device.take()
        if k >= 2:
            kernels.append(sum(parts.values()))
            calls.append(call)
    coded = [(int(buffer.data.ptr) + int(o), int(s)) for o, s in zip(offsets, sizes, strict=True)]
    for k in range(repeats + 2):
        for out in outs if k < 1 else []:
            out.fill(0xDD)
        cupy.cuda.runtime.deviceSynchronize()
        begin = time.perf_counter()
        Decoding(device, coded, targets).run()
        call = time.perf_counter() - begin
        back_parts = device.take()
        if k >= 2:
            back_kernels.append(sum(back_parts.values()))
            back_calls.append(call)
        elif k == 0:
            for array, out in zip(arrays, outs, strict=True):
                if not bool((array == out).all()):
                    raise SystemExit(f"{name}: the round trip is not exact")
    rate = lambda times: total / statistics.median(times) / 1e9  # noqa: E731
    return {
        "set": name, "codec": f"float {level}", "bytes": total, "tensors": len(arrays),
        "ratio": total / int(sizes.sum()),
        "encode_kernels": rate(kernels), "encode_call": rate(calls),
        "decode_kernels": rate(back_kernels), "decode_call": rate(back_calls),
        "encode_us": {k: round(v * 1e6, 1) for k, v in parts.items()},
        "decode_us": {k: round(v * 1e6, 1) for k, v in back_parts.items()},
    }  # fmt: skip


def measure_nvcomp(name: str, arrays: list[Any], word: int, repeats: int) -> dict[str, Any]:
    from nvidia import nvcomp

    codec = nvcomp.Codec(algorithm="ANS", uncomp_chunk_size=256 << 10, data_type="<f2" if word == 2 else "<f4")
    whole = cupy.concatenate(arrays)
    source = nvcomp.as_array(whole)
    room = cupy.empty(int(codec.get_max_comp_buffer_size(source)), cupy.uint8)
    decoded = cupy.full(whole.size, 0xDD, cupy.uint8)
    times, back = [], []
    for k in range(repeats + 2):
        cupy.cuda.runtime.deviceSynchronize()
        begin = time.perf_counter()
        coded = codec.encode(source, out=nvcomp.as_array(room))
        size = coded.buffer_size
        cupy.cuda.runtime.deviceSynchronize()
        middle = time.perf_counter()
        codec.decode(coded, out=nvcomp.as_array(decoded))
        cupy.cuda.runtime.deviceSynchronize()
        end = time.perf_counter()
        if k >= 2:
            times.append(middle - begin)
            back.append(end - middle)
    exact = bool((decoded == whole).all())
    return {
        "set": name, "codec": "nvCOMP ANS 256K", "bytes": whole.size, "exact": exact, "ratio": whole.size / size,
        "encode_call": whole.size / statistics.median(times) / 1e9,
        "decode_call": whole.size / statistics.median(back) / 1e9,
    }  # fmt: skip


def conditions() -> dict[str, Any]:
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False)
    return {
        "gpu": properties["name"].decode(), "driver": driver.stdout.strip(),
        "runtime": cupy.cuda.runtime.runtimeGetVersion(), "cupy": cupy.__version__, "python": platform.python_version(),
        "commit": commit.stdout.strip(), "command": " ".join(sys.argv), "tuning": str(float_cuda_device.TUNING),
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    fields = [f"{row.get(key, 0):8.0f}" for key in ("encode_kernels", "encode_call", "decode_kernels", "decode_call")]
    print(f"{row['set']:28} {row['codec']:16} {row['ratio']:7.4f}", *fields, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--tensors")
    parser.add_argument("--levels", default="fast,default")
    parser.add_argument("--only", default="")
    parser.add_argument("--nvcomp", action="store_true")
    parser.add_argument("--tune", help="WORD,LAYOUT=BLOCKS,STAGED,BLOCKS: other tuning than the codec's")
    parser.add_argument("--parts", action="store_true", help="print each kernel's time")
    parser.add_argument("--out")
    options = parser.parse_args()
    total = int(options.gib * 2**30)
    if options.tune:
        kind, _, numbers = options.tune.partition("=")
        word, layout = (int(v) for v in kind.split(","))
        encode, staged, decode = (int(v) for v in numbers.split(","))
        float_cuda_device.TUNING[word, layout] = (encode, staged, decode)
    rows = []
    groups = read_groups(options.tensors) if options.tensors else None
    inputs = {
        "bf16 weights, random": lambda: random_weights("bf16", 64 << 20, max(1, total >> 27)),
        "fp32 weights, random": lambda: random_weights("fp32", 32 << 20, max(1, total >> 27)),
        "bf16 200 x 1M": lambda: random_weights("bf16", 1000000, 200),
        "fp32 200 x 1M": lambda: random_weights("fp32", 1000000, 200),
    }
    if groups:
        inputs |= {f"{which}, real": lambda which=which: tiled(groups, which, total) for which in SETS}
    print(json.dumps(conditions(), indent=1))
    print(f"{'set':28} {'codec':16} {'ratio':>7}  enc.krn enc.call  dec.krn dec.call   (GB/s)")
    for name, make in inputs.items():
        if options.only and options.only not in name:
            continue
        arrays, specs = make()
        for level in options.levels.split(","):
            row = measure(name, arrays, specs, level, options.repeats)
            rows.append(row)
            show(row)
            if options.parts:
                print("    ", row["encode_us"], "|", row["decode_us"])
        if options.nvcomp:
            try:
                rows.append(measure_nvcomp(name, arrays, specs[0].word, options.repeats))
                show(rows[-1])
            except Exception as problem:  # noqa: BLE001 - another library's failure must not lose our figures
                print("nvCOMP:", problem)
        del arrays
        cupy.get_default_memory_pool().free_all_blocks()
    if options.out:
        Path(options.out).write_text(json.dumps({"conditions": conditions(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
