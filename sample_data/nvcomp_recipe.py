"""The obvious way to compress a checkpoint with nvCOMP, timed: load it to the GPU, ANS on each tensor, save it.

    python sample_data/nvcomp_recipe.py FILE.pt FOLDER

Prints one JSON document: seconds of each step of both ways, by the clock of this process; bytes before and after. What
comes back is compared with what was loaded, bit for bit, outside the times.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cupy
import torch
from nvidia import nvcomp
from torch import Tensor

# nvCOMP's ANS codes 16-bit floats as two planes, FP32 as four, and all else as bytes.
TYPES = {torch.bfloat16: "<f2", torch.float16: "<f2", torch.float32: "<f4"}
PACKED = "packed"
SMALLEST = 4096  # bytes below which a tensor stays: nvCOMP's own head would be larger than the gain


def walk(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested dictionaries and lists with their leaves changed."""
    if isinstance(value, dict) and PACKED not in value:
        return {key: walk(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [walk(item, change) for item in value]
    return change(value)


@cache
def codec(dtype: torch.dtype) -> Any:
    return nvcomp.Codec(algorithm="ANS", data_type=TYPES.get(dtype, "|u1"))


def flat_bytes(tensor: Tensor) -> Any:
    return cupy.asarray(tensor.contiguous().reshape(-1).view(torch.uint8))


def pack(value: Any) -> Any:
    """Compress a tensor; anything else stays."""
    if not isinstance(value, Tensor) or value.nbytes < SMALLEST:
        return value
    coded = codec(value.dtype).encode(nvcomp.as_array(flat_bytes(value.cuda())))
    return {PACKED: torch.as_tensor(cupy.asarray(coded)).cpu(), "dtype": value.dtype, "shape": list(value.shape)}


def unpack(value: Any) -> Any:
    """Undo `pack`, onto the GPU."""
    if not isinstance(value, dict):
        return value
    coded = nvcomp.as_array(cupy.asarray(value[PACKED].cuda().view(torch.uint8)))
    data = cupy.asarray(codec(value["dtype"]).decode(coded)).view(cupy.uint8)
    return torch.as_tensor(data).view(value["dtype"]).reshape(value["shape"]).clone()


def same(one: Any, other: Any) -> bool:
    """Compare two nested values; tensors by their bits."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    if not isinstance(one, Tensor):
        return bool(one == other)
    return one.dtype == other.dtype and one.shape == other.shape and bool(
        torch.equal(one.cuda().reshape(-1).view(torch.uint8), other.cuda().reshape(-1).view(torch.uint8))
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    packed_file, restored_file = args.folder / "recipe.packed.pt", args.folder / "recipe.restored.pt"
    try:
        print(json.dumps(both_ways(args.file, packed_file, restored_file)))
    finally:
        packed_file.unlink(missing_ok=True)
        restored_file.unlink(missing_ok=True)


def both_ways(file: Path, packed_file: Path, restored_file: Path) -> dict[str, Any]:
    """Compress and restore; the times of both, and sizes in bytes."""
    seconds: dict[str, float] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        torch.cuda.synchronize()
        seconds[name] = time.perf_counter() - started
        return result

    loaded = step("compress: load", lambda: torch.load(file, map_location="cuda"))
    packed = step("compress: encode", lambda: walk(loaded, pack))
    step("compress: save", lambda: torch.save(packed, packed_file))
    read = step("restore: load", lambda: torch.load(packed_file, map_location="cuda"))
    restored = step("restore: decode", lambda: walk(read, unpack))
    if not same(loaded, restored):
        raise SystemExit("the recipe did not give back what went in")
    step("restore: save", lambda: torch.save(restored, restored_file))
    ways = {way: sum(t for name, t in seconds.items() if name.startswith(way)) for way in ("compress", "restore")}
    return {**ways, "steps": seconds, "bytes_in": file.stat().st_size, "bytes_out": packed_file.stat().st_size}


if __name__ == "__main__":
    main()
