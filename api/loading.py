"""`nvckpt.load` and `nvckpt.load_file`: an archive's tensors, without writing the original anywhere.

torch.load itself does the unpickling, from a file object that decodes what it reads: so what may be unpickled, where
tensors go and what is shared is torch's decision, not ours.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from nvckpt.background import settle
from nvckpt.formats import opaque
from nvckpt.formats.byte_source import FileBytes, StreamBytes
from nvckpt.formats.container import is_archive
from nvckpt.formats.errors import NotAnArchiveError
from nvckpt.original import Original, OriginalFile

if TYPE_CHECKING:
    from nvckpt.opening import OpenArchive

Readable = str | os.PathLike[str] | BinaryIO

_HEAD = 8
# A zip, or a pickle of protocol 2 and later.
_TORCH_MAGICS = (b"PK", b"\x80")


def load(
    f: Readable,
    map_location: Any = None,
    *,
    weights_only: bool | None = None,
    lazy: bool = False,
    threads: int = 0,
    **pickle_load_args: Any,
) -> Any:
    """Load what `nvckpt.save` saved, or what was in a checkpoint that `nvckpt compress` compressed.

    The arguments are torch.load's: `weights_only` is True unless said otherwise, and then nothing is unpickled but
    tensors, containers and what torch.serialization.add_safe_globals allows. A file that is no archive is given to
    torch.load as it is, so checkpoints from before still load.

    With `lazy` the tensors in dicts, lists and tuples are decoded when they are first used (see LazyTensor), and the
    file must stay as it is until then; ValueError where that cannot be: file objects, formats other than torch's zip,
    `weights_only=False`, and states with tensors that torch looks into while it loads.

    Raises what torch.load raises, and FormatErrors
    (RuntimeErrors, too) for damaged archives; `original`s in safetensors give a dict.
    """
    import torch

    with _opened(f) as data:
        if isinstance(data, bytes):
            if not data.startswith(_TORCH_MAGICS):
                raise NotAnArchiveError(
                    "the file is neither an nvckpt archive nor one of torch.save (nvckpt.load_file takes safetensors)"
                )
            return torch.load(f, map_location, weights_only=weights_only, **pickle_load_args)
        if lazy:
            return _lazily(f, map_location, weights_only, threads, pickle_load_args)
        with contextlib.closing(Original(data, threads)) as original:
            if original.reader.index.source_format == opaque.SAFETENSORS:
                return _all_tensors(original, map_location, threads)
            if torch.cuda.is_available():
                from nvckpt.state_cuda import NotDeferrable, load_on_gpu

                with contextlib.suppress(NotDeferrable):
                    return load_on_gpu(original, map_location, weights_only, threads, **pickle_load_args)
        with contextlib.closing(Original(data, threads, read_ahead=True)) as original:
            file: Any = OriginalFile(original)
            try:
                return torch.load(file, map_location, weights_only=weights_only, **pickle_load_args)
            except Exception:
                if file.error is not None:
                    raise file.error from None
                raise


def _lazily(f: Readable, map_location: Any, weights_only: bool | None, threads: int, rest: dict[str, Any]) -> Any:
    from nvckpt.device_loading import may_be_deferred
    from nvckpt.lazy import load_lazily

    if not isinstance(f, str | os.PathLike):
        raise ValueError("lazy loading needs the path of an archive, not a file object")
    file = Path(f).open("rb")  # noqa: SIM115 - the tensors read from it later
    original = Original(FileBytes(file.fileno()), threads)
    if weights_only is False or not may_be_deferred(original):
        original.close()
        file.close()
        raise ValueError("this archive cannot be loaded lazily: leave lazy out, or use nvckpt.open")
    return load_lazily(original, file, map_location, weights_only=weights_only, **rest)


def load_file(filename: str | os.PathLike[str], device: str | int = "cpu", *, threads: int = 0) -> dict[str, Any]:
    """Load the archive of a safetensors file as safetensors.torch.load_file does the file: names and tensors.

    A file that is no archive is given to safetensors. NotAnArchiveError where the original is another format.
    """
    with _opened(filename) as data:
        if isinstance(data, bytes):
            from safetensors.torch import load_file as load_plain

            plain: dict[str, Any] = load_plain(filename, device)
            return plain
        with contextlib.closing(Original(data, threads, read_ahead=True)) as original:
            found = original.reader.index.source_format
            if found != opaque.SAFETENSORS:
                raise NotAnArchiveError(f"the archive holds {found}, not safetensors; use nvckpt.load")
            return _all_tensors(original, device, threads)


def _all_tensors(original: Original, map_location: Any, threads: int) -> dict[str, Any]:
    import torch

    from nvckpt.opening import OpenArchive

    if map_location is not None and not isinstance(map_location, str | int | torch.device):
        raise RuntimeError("safetensors have no locations to map: use a device string or torch.device instead")
    device = torch.device("cpu" if map_location is None else map_location)
    if device.type == "cuda":
        from nvckpt.codecs.device import cuda_problem

        number = torch.cuda.current_device() if device.index is None else device.index
        if cuda_problem(number) is None:
            return _all_on_gpu(original, number, threads)
    opened = OpenArchive(original, device)
    return {name: opened.get_tensor(name) for name in opened.offset_keys()}


def _all_on_gpu(original: Original, number: int, threads: int) -> dict[str, Any]:
    from nvckpt.device_filling import Target
    from nvckpt.opening import OpenArchive
    from nvckpt.state_cuda import fill_gpu

    targets: list[Target] = []
    tensors = {}
    for name, slot in OpenArchive(original).slots():
        tensors[name] = slot.empty(f"cuda:{number}")
        if tensors[name].nbytes:
            targets.append(Target(slot.offset, tensors[name].nbytes, tensors[name].data_ptr()))
    fill_gpu(original, number, targets, threads)
    return tensors


@contextlib.contextmanager
def _opened(f: Readable) -> Iterator[FileBytes | StreamBytes | bytes]:
    """An archive's data, or the first bytes of anything else; a file object is left where it was.

    What this process still writes in the background is waited for: it may be the file.
    """
    settle()
    if isinstance(f, str | os.PathLike):
        with Path(f).open("rb") as file:
            head = file.read(_HEAD)
            yield FileBytes(file.fileno()) if is_archive(head) else head
        return
    start = f.tell()
    head = f.read(_HEAD)
    f.seek(start)
    yield StreamBytes(f) if is_archive(head) else head


def open_archive(path: str | os.PathLike[str], device: str | int = "cpu", *, threads: int = 0) -> "OpenArchive":
    """Open an archive for reading single tensors; see OpenArchive. Exported as `nvckpt.open`."""
    from nvckpt.opening import OpenArchive

    settle()
    file = Path(path).open("rb")  # noqa: SIM115 - the archive closes it
    try:
        return OpenArchive(Original(FileBytes(file.fileno()), threads), device, file)
    except BaseException:
        file.close()
        raise
