"""Measure nvckpt.save and nvckpt.load of a state in GPU memory against torch and safetensors, on tmpfs.

    python sample_data/bench_save.py [--state FILE.pt] [--repeats 5] [--folder /dev/shm] [--out save.json]

The state is a checkpoint of train_models.py, or else that of a model of some 300 M parameters: BF16 weights and
gradients, FP32 Adam moments, values of the spread that trained ones have. Times are medians by the host's clock, with
the device waited for before and after; the first call of each is left out. Every load is compared with the state, bit
by bit. `written` is writing the compressed bytes alone, `coded` is compressing and copying them to pinned memory,
`stopped` is how long `blocking=False` keeps the caller. `extra` is device memory taken at most during a save, by all
libraries, as the driver sees it.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import nvckpt
from nvckpt.compression import CompressOptions
from nvckpt.state import pickled, state_file
from nvckpt.state_cuda import CodedAhead, gpu_of

WIDTH, HIDDEN, VOCABULARY = 1024, 4096, 32_000


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """A decoder's tensors by name."""
    found: dict[str, tuple[int, ...]] = {"embed": (VOCABULARY, WIDTH), "head": (VOCABULARY, WIDTH)}
    for number in range(layers):
        for name in ("q", "k", "v", "o"):
            found[f"layers.{number}.{name}"] = (WIDTH, WIDTH)
        for name, shape in (("gate", (HIDDEN, WIDTH)), ("up", (HIDDEN, WIDTH)), ("down", (WIDTH, HIDDEN))):
            found[f"layers.{number}.{name}"] = shape
        for name in ("norm1", "norm2"):
            found[f"layers.{number}.{name}"] = (WIDTH,)
    return found


def values(shape: tuple[int, ...], scale: float) -> torch.Tensor:
    """Normal numbers whose rows and columns have spreads of their own, as gradients' have."""
    made = torch.randn(shape, device="cuda") * scale
    for axis in range(len(shape)):
        sizes = [1] * len(shape)
        sizes[axis] = shape[axis]
        made *= torch.randn(sizes, device="cuda").mul(0.7).exp()
    return made


def make_state(layers: int) -> dict[str, Any]:
    torch.manual_seed(1)
    all_shapes = shapes(layers)
    state: dict[str, Any] = {"model": {}, "grads": {}, "optimizer": {"state": {}, "param_groups": [{"lr": 1e-3}]}}
    for number, (name, shape) in enumerate(all_shapes.items()):
        state["model"][name] = (torch.randn(shape, device="cuda") * 0.02).bfloat16()
        state["grads"][name] = values(shape, 1e-5).bfloat16()
        moments = {"exp_avg": values(shape, 1e-6), "exp_avg_sq": values(shape, 1e-6).square()}
        state["optimizer"]["state"][number] = {"step": torch.tensor(100.0), **moments}
    state["optimizer"]["param_groups"][0]["params"] = list(range(len(all_shapes)))
    return state


def flat(value: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """Every tensor by its path, for safetensors."""
    if isinstance(value, torch.Tensor):
        return {prefix: value}
    found: dict[str, torch.Tensor] = {}
    for key, inner in value.items() if isinstance(value, dict) else ():
        found |= flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return found


def check(loaded: Any, state: Any) -> None:
    """Compare bits; the tensors may be anywhere."""
    ours, theirs = flat(loaded), flat(state)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        other = ours[name].to(tensor.device)
        assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape), name
        same = torch.equal(other.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
        assert same, f"{name} came back with other bits"


def timed(call: Callable[[], Any], repeats: int, after: Callable[[Any], None] = lambda _: None) -> dict[str, float]:
    """Seconds of a call; `after` takes its result, outside the time."""
    seconds = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        after(result)
        del result
    del seconds[0]
    return {"median": statistics.median(seconds), "least": min(seconds), "most": max(seconds)}


def extra_memory(call: Callable[[], Any]) -> int:
    """Bytes of device memory that a call takes at most beyond what was taken before, seen every millisecond."""
    import cupy

    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    before = torch.cuda.mem_get_info()[0]
    least, done = before, threading.Event()

    def watch() -> None:
        nonlocal least
        while not done.wait(0.001):
            least = min(least, torch.cuda.mem_get_info()[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    done.set()
    watcher.join()
    return before - min(least, torch.cuda.mem_get_info()[0])


def write_alone(data: bytes, path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view[: 64 << 20]) :]


def read_by_kvikio(path: Path) -> Callable[[], Any] | None:
    """A call that reads a file into device memory; None without KvikIO."""
    try:
        import cupy
        import kvikio
    except ImportError:
        return None
    size = path.stat().st_size
    target = cupy.empty(size, "u1")

    def read() -> None:
        with kvikio.CuFile(path, "r") as file:
            assert file.read(target) == size

    return read


def measure(state: dict[str, Any], folder: Path, repeats: int, level: Any) -> dict[str, Any]:
    """Everything, in one run."""
    ours, plain, tensors = folder / "bench.nvckpt", folder / "bench.pt", folder / "bench.safetensors"
    flat_state = flat(state)
    row: dict[str, Any] = {"level": level}

    def note(name: str, value: Any) -> None:
        """Keep a figure, and print it: a run that is cut short leaves what it has."""
        row[name] = value
        print(f"{level} {name}: {json.dumps(value)}", file=sys.stderr, flush=True)

    def save() -> Any:
        return nvckpt.save(state, ours, level=level)

    def coded() -> CodedAhead:
        options = CompressOptions(level=level, verify=False)
        pickle_bytes, storages = pickled(state)
        gpu = gpu_of(storages, options)
        assert gpu is not None, "there is no GPU that nvckpt can use"
        file = state_file(pickle_bytes, storages, 0, gpu.checksums)
        return CodedAhead(gpu.engine(file), file, options)

    note("save", timed(save, repeats))
    stages = save().wait().stages
    note("stages", {stage.name: [stage.bytes, stage.seconds] for stage in stages})
    note("extra", extra_memory(save))
    note("torch.save", timed(lambda: torch.save(state, plain), repeats))
    note("save_file", timed(lambda: safetensors.torch.save_file(flat_state, tensors), repeats))
    data = ours.read_bytes()
    raw = folder / "bench.raw"
    note("written", timed(lambda: write_alone(data, raw), repeats, lambda _: raw.unlink()))
    # Under a new name nothing has to be freed, which torch.save does in the caller's time and nvckpt.save in a thread.
    note("save, new name", timed(save, repeats, lambda _: ours.unlink()))
    note("torch.save, new name", timed(lambda: torch.save(state, plain), repeats, lambda _: plain.unlink()))
    save()
    torch.save(state, plain)
    note("coded", timed(coded, repeats))
    note("stopped", timed(lambda: nvckpt.save(state, ours, level=level, blocking=False), repeats, lambda s: s.wait()))
    note("bytes", {"state": sum(t.nbytes for t in flat_state.values()), "archive": ours.stat().st_size})
    note("load", timed(lambda: nvckpt.load(ours, "cuda"), repeats, lambda got: check(got, state)))
    by_mapping = timed(lambda: torch.load(plain, "cuda", mmap=True), repeats, lambda got: check(got, state))
    note("torch.load mmap", by_mapping)
    note("torch.load", timed(lambda: torch.load(plain, "cuda"), repeats))
    note("load_file", timed(lambda: safetensors.torch.load_file(tensors, "cuda"), repeats))
    kvikio_read = read_by_kvikio(plain)
    note("kvikio", timed(kvikio_read, repeats) if kvikio_read else None)
    check(nvckpt.load(ours, "cpu"), state)
    nvckpt.decompress(ours, folder / "bench.again.pt", nvckpt.DecompressOptions(force=True))
    check(torch.load(folder / "bench.again.pt", "cuda"), state)
    note("cpu", "the archive was loaded without the GPU, and its file restored: equal")
    return row


def shows(row: dict[str, Any]) -> dict[str, float]:
    """The ratios that are asked for."""

    def median(name: str) -> float:
        return float(row[name]["median"])

    found = {
        "torch.save / save": median("torch.save") / median("save"),
        "torch.save / save, new names": median("torch.save, new name") / median("save, new name"),
        "save_file / save": median("save_file") / median("save"),
        "save / written": median("save") / median("written"),
        "stopped / coded": median("stopped") / median("coded"),
        "torch.load mmap / load": median("torch.load mmap") / median("load"),
        "extra GiB": row["extra"] / (1 << 30),
        "ratio": row["bytes"]["state"] / row["bytes"]["archive"],
    }
    if row["kvikio"]:
        found["kvikio / load"] = median("kvikio") / median("load")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, metavar="FILE.pt", help="a checkpoint in place of random values")
    parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--levels", nargs="+", default=["default", "fast"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    state = torch.load(options.state, "cuda") if options.state else make_state(options.layers)
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "state": options.state.name if options.state else "random values",
        "parameters": sum(t.numel() for t in state["model"].values()),
        "folder": str(options.folder),
        "rows": [],
    }
    for level in options.levels:
        row = measure(state, options.folder, options.repeats, level)
        row["shows"] = shows(row)
        result["rows"].append(row)
        rounded = {name: round(value, 3) for name, value in row["shows"].items()}
        print(json.dumps({"level": level, **rounded}), flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    for name in ("bench.nvckpt", "bench.pt", "bench.safetensors", "bench.raw", "bench.again.pt"):
        (options.folder / name).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
