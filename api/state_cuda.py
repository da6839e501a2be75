"""Which GPU codes a state that is in its memory, and which one a state is loaded to; everything else is the CPU's."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from nvckpt.codecs import registry
from nvckpt.codecs.blocks import Choice
from nvckpt.codecs.cuda_checksum import crc32_of
from nvckpt.codecs.cuda_state import CudaStateCoder
from nvckpt.codecs.cuda_transfer import ALIGNMENT
from nvckpt.codecs.device import cuda_problem
from nvckpt.compression import CompressOptions
from nvckpt.device_filling import Filling, Target, filling
from nvckpt.device_loading import DeferredFile, Placement, may_be_deferred
from nvckpt.engines import Coded, EncodeJob, Restored
from nvckpt.formats.byte_source import JoinedBytes
from nvckpt.formats.container import ArchiveReader
from nvckpt.original import Original
from nvckpt.pipeline import thread_count
from nvckpt.plan import windows
from nvckpt.references import References
from nvckpt.stages import Stages
from nvckpt.state import StateFile, StorageBytes
from nvckpt.state_engine import DevicePart, StateEngine

# Below this, copying to the host takes less than the launches.
_WORTH = 4 << 20
_THREADS = 4
_CODECS = frozenset({registry.AUTO, "float", "store"})


class StateGpu:
    """The GPU that holds most of a state, if it is worth while there: CRCs and frames are made in its memory."""

    def __init__(self, number: int, threads: int) -> None:
        import torch

        self.name = f"cuda:{number}"
        self._number, self._threads = number, threads
        self._coder = coder_of(number, threads)
        # The tensors may still be in the making, on streams of torch's.
        torch.cuda.synchronize(number)

    def checksums(self, parts: Sequence[StorageBytes]) -> dict[int, int]:
        """The CRC-32 of each part in this GPU's memory, by its number."""
        found = {
            i: (address, part.size) for i, part in enumerate(parts) if (address := self._address(part)) is not None
        }
        aligned = {i: place for i, place in found.items() if place[0] % ALIGNMENT == 0}
        with self._coder.here():
            return dict(zip(aligned, crc32_of(self._coder.device, list(aligned.values())), strict=True))

    def engine(self, file: JoinedBytes) -> StateEngine:
        """What codes the file."""
        held = [
            DevicePart(start, part.size, address)
            for start, part in zip(file.starts, file.parts, strict=False)
            if (address := self._address(part)) is not None
        ]
        return StateEngine(self.name, self._coder, held, pool_of(self._threads).map)

    def _address(self, part: Any) -> int | None:
        """Where a part lies in this GPU's memory; None when it does not."""
        place = getattr(part, "place", None)
        return place[1] if place is not None and place[0] == self._number and part.size else None


def gpu_of(storages: Sequence[Any], options: CompressOptions) -> StateGpu | None:
    """The GPU to save a state with; None for one that is in host memory, or that the CPU is asked to code."""
    sizes: Counter[int] = Counter()
    for storage in storages:
        if storage.device.type == "cuda":
            sizes[storage.device.index] += storage.nbytes()
    if options.device == "cpu" or options.codec not in _CODECS or not sizes:
        return None
    number, size = sizes.most_common(1)[0]
    if size < _WORTH or cuda_problem(number) is not None:
        return None
    return StateGpu(number, options.threads)


@cache
def coder_of(number: int, threads: int) -> CudaStateCoder:
    """The coder of a GPU, once in a process."""
    return CudaStateCoder(number, pool_of(threads).map)


@cache
def pool_of(threads: int) -> ThreadPoolExecutor:
    """The threads beside the GPUs, a few: they have little to do, in short steps between which Python is one's turn."""
    return ThreadPoolExecutor(min(_THREADS, thread_count(threads)), "nvckpt")


class CodedAhead:
    """An engine whose work is done when it is made, for a save that is written in the background."""

    def __init__(self, engine: StateEngine, file: StateFile, options: CompressOptions) -> None:
        self.device = engine.device
        job = EncodeJob(file, windows(file.source.segments, {}), Choice(options.codec, options.level), verify=False)
        self._coded = list(engine.encode(job))
        self._digest = job.file_hash.digest()

    def encode(self, job: EncodeJob) -> Iterator[Coded]:
        """See Engine."""
        yield from self._coded
        job.file_hash.settle(self._digest)

    def decode(self, reader: ArchiveReader, references: References, stages: Stages) -> Iterator[Restored]:
        """Not what this engine is for."""
        raise NotImplementedError


def load_on_gpu(original: Original, map_location: Any, weights_only: bool | None, threads: int, **rest: Any) -> Any:
    """Do what torch.load does, with tensors for GPUs decoded there; NotDeferrable where that cannot be."""
    import torch

    if not _is_for_gpu(original, map_location, weights_only):
        raise NotDeferrable
    file: Any = DeferredFile(original)
    with _filling(original, threads) as filling:
        placement = Placement(file, original, map_location, filling.add)
        try:
            return torch.load(file, placement, weights_only=weights_only, **rest)
        except Exception as error:
            # Whatever it was: reading everything in order says it in the right words, or does not meet it.
            raise NotDeferrable from error


def fill_gpu(original: Original, number: int, targets: Iterable[Target], threads: int) -> None:
    """Decode into memory of a GPU."""
    with _filling(original, threads) as filling:
        for target in targets:
            filling.add(number, target)


def _filling(original: Original, threads: int) -> AbstractContextManager[Filling]:
    return filling(original, lambda number: coder_of(number, threads), pool_of(threads), _wait)


def _wait(number: int) -> None:
    import torch

    torch.cuda.synchronize(number)


class NotDeferrable(Exception):  # noqa: N818 - not an error: the other way works
    """The original must be read in order, on the CPU."""


def _is_for_gpu(original: Original, map_location: Any, weights_only: bool | None) -> bool:
    import torch

    if weights_only is False or callable(map_location) or not torch.cuda.is_available() or cuda_problem() is not None:
        return False
    is_open = map_location is None or isinstance(map_location, dict)
    if not is_open and "cuda" not in str(map_location):
        return False
    segments = original.reader.description.segments
    if is_open and segments and b"cuda" not in original.read_at(0, segments[0].length if not segments[0].dtype else 0):
        return False
    return may_be_deferred(original)
