"""`nvckpt.save` and `nvckpt.save_file`: a state goes into an archive without ever being a file of its own.

The archive's original is the file that torch.save (or safetensors) would have written, so everything else that works
on archives works on these.
"""

import errno
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nvckpt import files
from nvckpt.background import Saving, run
from nvckpt.codecs import registry
from nvckpt.codecs.blocks import Choice
from nvckpt.codecs.errors import DeviceMemoryError
from nvckpt.compression import CompressOptions, Work, result_of, verify_written, write_archive
from nvckpt.engines import Engine, engine_for_encoding
from nvckpt.errors import NotARegularFileError
from nvckpt.formats.atomic import AtomicFile, OutputFile
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.checksum import Buffer
from nvckpt.formats.sniff import read_source
from nvckpt.limits import reading_allowance
from nvckpt.pipeline import thread_count
from nvckpt.results import CompressResult
from nvckpt.safetensors_state import materialized, safetensors_file
from nvckpt.state import PROTOCOL, StateFile, pickled, state_file

if TYPE_CHECKING:
    from nvckpt.state_cuda import StateGpu


class Writable(Protocol):
    """A binary file object that is open for writing."""

    def write(self, data: Buffer, /) -> object:
        """Take all of `data`."""
        ...


Target = str | os.PathLike[str] | Writable


def save(
    obj: object,
    f: Target,
    *,
    codec: str = registry.AUTO,
    level: registry.Level = "default",
    device: str = "auto",
    threads: int = 0,
    verify: bool = False,
    blocking: bool = True,
    pickle_protocol: int = PROTOCOL,
) -> Saving:
    """Save any object that torch.save takes, compressed; a file of that name is replaced once the new one is whole.

    `codec`, `level`, `device` and `threads` are those of CompressOptions; `verify` decodes what was written before
    it gets its name. With `blocking=False` the state is copied before the call returns, and the rest goes on in the
    background: `wait()` of what is returned gives the result or raises; an error that nobody waited for is raised by
    the next save, or printed when the interpreter ends. Raises what torch.save raises for objects that cannot be
    pickled, and RuntimeErrors or OSErrors for files; then nothing new exists under the name.
    """
    options = CompressOptions(codec, level, device, threads, force=True, verify=verify)
    target = _checked(f)
    pickle_bytes, storages = pickled(obj, pickle_protocol)
    gpu = _gpu_of(storages, options)
    try:
        if gpu is not None:
            return _save_from(
                gpu, state_file(pickle_bytes, storages, threads, gpu.checksums), target, options, blocking
            )
    except DeviceMemoryError:
        pass  # through the host it needs none
    if not blocking:
        storages = [_copied(storage) for storage in storages]
    return run(lambda: write_state(state_file(pickle_bytes, storages, threads), target, options), blocking=blocking)


def _gpu_of(storages: Sequence[Any], options: CompressOptions) -> "StateGpu | None":
    """The GPU that codes the state in its memory; nothing of CUDA is imported for a state in host memory."""
    if not any(storage.device.type == "cuda" for storage in storages):
        return None
    from nvckpt.state_cuda import gpu_of

    return gpu_of(storages, options)


def _save_from(
    gpu: "StateGpu", file: StateFile, target: Path | Writable, options: CompressOptions, blocking: bool
) -> Saving:
    """Code on the GPU; all of it at once before a save in the background."""
    from nvckpt.state_cuda import CodedAhead

    engine = gpu.engine(file) if blocking else CodedAhead(gpu.engine(file), file, options)
    return run(lambda: write_state(file, target, options, engine=engine), blocking=blocking)


def save_file(
    tensors: Mapping[str, Any],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    codec: str = registry.AUTO,
    level: registry.Level = "default",
    device: str = "auto",
    threads: int = 0,
    verify: bool = False,
) -> None:
    """Save tensors as safetensors.torch.save_file does, compressed: same arguments, same errors for bad ones.

    `nvckpt decompress` of the archive gives the `.safetensors` file, byte for byte. See `save` for the options.
    """
    options = CompressOptions(codec, level, device, threads, force=True, verify=verify)
    target = _checked(filename)
    tensors = materialized(tensors)
    file = safetensors_file(tensors, metadata)
    gpu = _gpu_of([tensor.untyped_storage() for tensor in tensors.values()], options)
    try:
        engine = gpu.engine(file) if gpu is not None else None
        run(lambda: write_state(file, target, options, engine=engine), blocking=True)
    except DeviceMemoryError:
        run(lambda: write_state(file, target, options), blocking=True)


def _checked(f: Target) -> Path | Writable:
    """What to write to; refused now rather than after all the work when it is a directory."""
    if not isinstance(f, str | os.PathLike):
        if hasattr(f, "write"):
            return f
        raise AttributeError(f"expected a path or a file object with a write method, not {type(f).__name__}")
    path = Path(f)
    if path.is_dir() or os.fspath(f).endswith(os.sep):
        raise NotARegularFileError(f"cannot save to {files.show(path)}: it is a directory; name a file in it")
    if not path.parent.is_dir():
        raise NotARegularFileError(f"Parent directory {files.show(path.parent)} does not exist.")
    return files.final_path(path)


def _copied(storage: Any) -> Any:
    """A storage of its own in host memory; location tags were taken before."""
    return storage.clone() if storage.device.type == "cpu" else storage.cpu()


def write_state(
    original: ByteSource,
    target: Path | Writable,
    options: CompressOptions,
    names: Mapping[int, str] | None = None,
    engine: Engine | None = None,
) -> CompressResult:
    """Write the archive of a file that is put together while it is read.

    `names` gives a name for the offset of each zip in a file of several; `engine` codes tensors where they are.
    """
    work = Work(None)
    allowance = reading_allowance(options.max_memory)
    if isinstance(original, StateFile):
        source = original.source
    else:
        source = read_source(original, memory=allowance, names=names)
    in_place = engine is not None
    if engine is None:
        choice = Choice(options.codec, options.level)
        engine = engine_for_encoding(options.device, source.size, choice, options.threads, options.max_memory)
    if not isinstance(target, Path):
        index, size = write_archive(original, source, _Stream(target), engine, options, work, derive=not in_place)
    else:
        with files.open_output(target) as file:
            if engine.device != "cpu":
                file.use_threads(thread_count(options.threads))
            index, size = write_archive(original, source, file, engine, options, work, derive=not in_place)
            if isinstance(file, AtomicFile):
                if options.verify and (in_place or engine.device == "cpu"):
                    verify_written(file, index, options, work.stages)
                file.commit(None, overwrite=True)
    output = os.fspath(target) if isinstance(target, Path) else files.PIPE
    return result_of("", output, source, index, size, engine, options, work)


class _Stream(OutputFile):
    """A file object as the place where an archive goes."""

    def __init__(self, file: Writable) -> None:
        super().__init__(-1)
        self._file = file

    def write(self, data: Buffer) -> None:
        """Hand all of `data` on; an unbuffered file may take less at a time, or refuse: then nobody else would tell."""
        view = memoryview(data).cast("B")
        while len(view):
            taken = self._file.write(view)
            if taken is None and isinstance(self._file, io.RawIOBase):
                raise BlockingIOError(errno.EAGAIN, "the file object does not block and took nothing: make it block")
            if taken == 0:
                raise OSError(errno.EIO, "the file object took none of what was written to it")
            view = view[taken if isinstance(taken, int) else len(view) :]
