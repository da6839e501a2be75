"""nvCOMP's codecs called by hand on a checkpoint's tensors: what `nvckpt bench` has to agree with. No nvckpt in it.

    python sample_data/nvcomp_direct.py FILE.pt [--mebibytes 0] [--runs 3]

Of each group all bytes, or 16 evenly spread pieces, are cut into chunks of the sizes that nvckpt uses, encoded in one
call of the batch interface (raw streams, into memory that is there), decoded and compared. Prints one JSON document of
rows: ratio (a chunk that does not shrink counts as itself), and GB/s between CUDA events: medians, two calls left out
before.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch
from nvidia import nvcomp

# Algorithm, bytes of a chunk, and the types it is told of 16-bit and 32-bit floats; nvckpt.codecs.nvcomp says why.
CODECS = {
    "ans": ("ANS", 256 << 10, ("<f2", "<f4")),
    "zstd": ("Zstd", 64 << 10, None),
    "lz4": ("LZ4", 64 << 10, None),
    "snappy": ("Snappy", 64 << 10, None),
    "deflate": ("Deflate", 64 << 10, None),
    "gzip": ("Gzip", 64 << 10, None),
    "gdeflate": ("GDeflate", 64 << 10, None),
    "bitcomp": ("Bitcomp", 256 << 10, ("<f2", "<f4")),
    "cascaded": ("Cascaded", 64 << 10, ("<u2", "<u4")),
}
EFFORT = {"algorithm_type": 1}
PIECES, WARM_UPS = 16, 2


def groups(state: dict[str, Any]) -> dict[str, list[torch.Tensor]]:
    """The tensors of a checkpoint of train_models.py by group, those of more than a MiB."""
    moments = state["optimizer"]["state"].values()
    found = {
        "weights": list(state["model"].values()),
        "grads": list(state.get("grads", {}).values()),
        "exp_avg": [moment["exp_avg"] for moment in moments],
        "exp_avg_sq": [moment["exp_avg_sq"] for moment in moments],
    }
    return {name: [t for t in tensors if t.nbytes >= 1 << 20] for name, tensors in found.items() if tensors}


def spread(tensors: list[torch.Tensor], size: int) -> Any:
    """Evenly spread pieces of a group, or all of it, one after the other in device memory."""
    whole = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])
    if not size:
        return cupy.asarray(whole.cuda())
    step = min(size, len(whole)) // PIECES // 4096 * 4096
    starts = np.linspace(0, len(whole) - step, PIECES).astype(np.int64) // 4096 * 4096
    return cupy.asarray(torch.cat([whole[start : start + step] for start in starts.tolist()]).cuda())


def timed(call: Callable[[], Any], runs: int) -> tuple[Any, float]:
    """The last result, and the median of the seconds."""
    seconds = []
    for number in range(WARM_UPS + runs):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        cupy.cuda.runtime.deviceSynchronize()
        begin.record()
        result = call()
        cupy.cuda.runtime.deviceSynchronize()
        end.record()
        end.synchronize()
        if number >= WARM_UPS:
            seconds.append(cupy.cuda.get_elapsed_time(begin, end) / 1e3)
    return result, statistics.median(seconds)


def measure(name: str, data: Any, word: int, runs: int) -> dict[str, Any]:
    algorithm, chunk, types = CODECS[name]
    options: dict[str, Any] = {"data_type": types[word == 4]} if types else {}
    if name in ("deflate", "gzip", "gdeflate"):
        options |= EFFORT
    stream = cupy.cuda.get_current_stream().ptr
    codec = nvcomp.Codec(
        algorithm=algorithm, cuda_stream=stream, uncomp_chunk_size=chunk,
        bitstream_kind=nvcomp.BitstreamKind.RAW, **options,
    )  # fmt: skip
    starts = list(range(0, data.size, chunk))
    sizes = [min(chunk, data.size - start) for start in starts]
    slot = -(-int(codec.get_max_comp_buffer_size(nvcomp.as_array(data[:chunk], stream))) // 16) * 16
    room, back = cupy.empty(slot * len(starts), np.uint8), cupy.full(data.size, 0xA5, np.uint8)
    slots = [slot * i for i in range(len(starts))]
    source = nvcomp.as_arrays(data, starts, sizes, stream)
    into = nvcomp.as_arrays(room, slots, [slot] * len(starts), stream)
    coded, encode = timed(lambda: codec.encode(source, out=into), runs)
    lengths = [int(length) for length in coded.buffer_sizes]
    streams = nvcomp.as_arrays(room, slots, lengths, stream)
    restored = nvcomp.as_arrays(back, starts, sizes, stream)
    _, decode = timed(lambda: codec.decode(streams, out=restored), runs)
    if not bool((back == data).all()):
        raise SystemExit(f"{name} did not give the bytes back")
    kept = sum(min(length, size) for length, size in zip(lengths, sizes, strict=True))
    return {"ratio": data.size / kept, "encode_gb_s": data.size / encode / 1e9, "decode_gb_s": data.size / decode / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--mebibytes", type=int, default=0, help="of each group; 0: all of it")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    rows = []
    for group, tensors in groups(torch.load(args.file, mmap=True)).items():
        data = spread(tensors, args.mebibytes << 20)
        for name in CODECS:
            row = measure(name, data, tensors[0].element_size(), args.runs)
            rows.append({"codec": name, "group": group, "bytes": data.size, **row})
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
