"""The whole way of a file: read, coded, written, and read back, as `compress` and `decompress` do it."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nvckpt.benchmark_codecs import CodecSpec
from nvckpt.benchmark_rows import WHOLE_FILE, Row
from nvckpt.compression import CompressOptions, compress
from nvckpt.decompression import DecompressOptions, decompress
from nvckpt.errors import VerificationError
from nvckpt.files import show


def measure(spec: CodecSpec, names: Sequence[str], device: str, threads: int) -> Row:
    """Compress every file to a temporary one and restore it, once; the row of all files together.

    The files must be there still and regular; the archive and the restored file need their space in the temporary
    folder. Raises what `compress` and `decompress` raise.
    """
    if spec.chunk is not None:
        return Row(
            spec.text, WHOLE_FILE, device, problem="a chunk size is for the measurement alone: compress has none"
        )
    before, after = 0, 0
    times = [0.0, 0.0]
    stages: dict[str, float] = {}
    used = device
    for name in names:
        with tempfile.TemporaryDirectory(prefix="nvckpt-bench-") as folder:
            archive, back = (str(Path(folder) / file) for file in ("archive", "back"))
            options = CompressOptions(spec.name, spec.level, device, threads, force=True)
            done = compress(name, archive, options)
            restored = decompress(archive, back, DecompressOptions(device=device, threads=threads, force=True))
        if restored.damage or restored.hash != done.hash:
            raise VerificationError(f"codec '{spec.text}' did not give the file {show(name)} back")
        before, after = before + done.bytes_in, after + done.bytes_out
        times = [times[0] + done.seconds, times[1] + restored.seconds]
        used = done.device
        for stage in done.stages:
            stages[stage.name] = stages.get(stage.name, 0.0) + stage.seconds
    return Row(spec.text, WHOLE_FILE, used, before, after, 0, (times[0],), (times[1],), stages=stages)


def too_large(names: Sequence[str]) -> str | None:
    """Tell why the temporary folder cannot take an archive and a restored file of the largest; None when it can."""
    largest = max(Path(name).stat().st_size for name in names)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < 2.2 * largest:
        return f"the temporary folder {tempfile.gettempdir()} has too little space: set TMPDIR to another"
    return None
