"""Checkpoints written by torch.save since 1.6, and TorchScript: zips of pickles and storages."""

from dataclasses import dataclass, field

from nvckpt.formats import groups, opaque
from nvckpt.formats.allowance import PICKLE_BYTE, SEGMENT, Allowance
from nvckpt.formats.byte_source import ByteSource
from nvckpt.formats.dtypes import UNKNOWN
from nvckpt.formats.errors import MalformedCheckpointError
from nvckpt.formats.pickle_walk import MAX_PICKLE_BYTES, walk
from nvckpt.formats.segments import Segment
from nvckpt.formats.torch_rebuild import Storage
from nvckpt.formats.torch_tensors import find_storages
from nvckpt.formats.zip_directory import Directory, Payloads, Record

_PICKLE = b"data.pkl"
_SCRIPT_PICKLE = b"constants.pkl"
_MAX_BYTEORDER = 16


# A file of many zips has as many pickles; together they may be a few times as large as one.
_MAX_PICKLES_BYTES = 4 * MAX_PICKLE_BYTES


@dataclass(slots=True)
class Doubts:
    """What did not fit, counted, so that a thousand damaged records make one sentence.

    `unread` is how many more bytes of pickles may be looked into, `memory` what that may take.
    """

    counts: dict[str, int] = field(default_factory=dict)
    sentences: dict[str, None] = field(default_factory=dict)
    unread: int = _MAX_PICKLES_BYTES
    memory: Allowance = field(default_factory=Allowance)

    def count(self, what: str) -> None:
        """Note one more of a kind."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def say(self, sentence: str) -> None:
        """Note a sentence once."""
        self.sentences[sentence] = None

    def warnings(self) -> list[str]:
        """All of it, in words."""
        return [*self.sentences, *(f"{what}: {count}" for what, count in self.counts.items())]


def format_of(directory: Directory) -> str:
    """TORCH_ZIP, TORCHSCRIPT, or ZIP where torch did not write the archive."""
    names = {record.name.rpartition(b"/")[2] for record in directory.records if record.name.count(b"/") == 1}
    if _PICKLE not in names:
        return opaque.ZIP
    return opaque.TORCHSCRIPT if _SCRIPT_PICKLE in names else opaque.TORCH_ZIP


def find_tensors(
    data: ByteSource, directory: Directory, doubts: Doubts, role: str = groups.UNKNOWN_ROLE, prefix: str = ""
) -> list[Segment]:
    """The storages of one archive; `role` and `prefix` are those of find_storages.

    What cannot be understood is left out and noted in `doubts`.
    """
    return _Archive(data, directory, doubts).find(role, prefix)


class _Archive:
    """The records of one archive by name."""

    def __init__(self, data: ByteSource, directory: Directory, doubts: Doubts) -> None:
        self._payloads = Payloads(data, directory)
        self._doubts = doubts
        first = directory.records[0].name if directory.records else b""
        self._top = first.partition(b"/")[0]
        ambiguous = directory.ambiguous_names()
        self._is_ambiguous = bool(ambiguous)
        if ambiguous:
            doubts.say("the zip has several records of one name")
        self._records = {r.name: r for r in directory.records if r.name not in ambiguous}

    def find(self, role: str, prefix: str) -> list[Segment]:
        pickles = [(_PICKLE, b"data")]
        if self._record(_SCRIPT_PICKLE) is not None:
            pickles.append((_SCRIPT_PICKLE, b"constants"))
            role = role or groups.WEIGHTS
        found: list[tuple[Record, Storage]] = []
        for pickle_name, folder in pickles:
            for storage in self._storages(pickle_name, role, prefix).values():
                record = self._record(folder + b"/" + storage.key.encode("utf-8", "replace"))
                if record is not None:
                    found.append((record, storage))
                elif storage.claimed and not self._is_ambiguous:
                    self._doubts.count("storages missing from the zip")
        found.sort(key=_position)
        self._doubts.memory.spend(SEGMENT * len(found))
        big_endian = self._is_big_endian()
        segments = [self._segment(record, storage, big_endian) for record, storage in found]
        return [segment for segment in segments if segment is not None]

    def _record(self, name: bytes) -> Record | None:
        return self._records.get(self._top + b"/" + name)

    def _storages(self, name: bytes, role: str, prefix: str) -> dict[str, Storage]:
        record = self._record(name)
        if record is None or not record.is_plain:
            return {}
        self._doubts.unread -= record.size
        if record.size > MAX_PICKLE_BYTES or self._doubts.unread < 0:
            self._doubts.say("the pickle in the zip is too large to look into; kept as plain bytes")
            return {}
        raw = self._payloads.read(record, MAX_PICKLE_BYTES)
        if raw is None:
            self._doubts.say("the pickle in the zip is not where the directory says")
            return {}
        try:
            self._doubts.memory.spend(PICKLE_BYTE * len(raw))
            value, _ = walk(raw, memory=self._doubts.memory)
            return find_storages(value, role, prefix, self._doubts.memory)
        except MalformedCheckpointError as error:
            self._doubts.say(str(error))
            return {}

    def _is_big_endian(self) -> bool:
        record = self._record(b"byteorder")
        return record is not None and self._payloads.read(record, _MAX_BYTEORDER) == b"big"

    def _segment(self, record: Record, storage: Storage, big_endian: bool) -> Segment | None:
        if not record.is_plain:
            return None
        if storage.claimed is not None and storage.claimed != record.size:
            self._doubts.count("storages of another size than the pickle says")
        offset = self._payloads.offset_of(record)
        if offset is None:
            self._doubts.count("storages that are not where the zip directory says")
            return None
        dtype = storage.dtype
        if dtype is UNKNOWN or record.size * 8 % dtype.bits:
            return None
        return Segment(offset, record.size, dtype, storage.group(record.size), tuple(storage.views), big_endian)


def _position(found: tuple[Record, Storage]) -> int:
    return found[0].header
