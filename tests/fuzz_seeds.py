"""Where fuzzing starts: the small fixtures of the tests, and archives made of them, without their checksums."""

import functools
import struct
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import checkpoints
import fuzz_targets
import numpy as np

import nvckpt
from nvckpt.codecs import blocks, derived, registry
from nvckpt.codecs.content import Content
from nvckpt.codecs.rounding import ROUNDINGS
from nvckpt.compression import CompressOptions
from nvckpt.formats import torch_legacy
from nvckpt.formats.byte_source import MemoryBytes
from nvckpt.formats.container import ArchiveReader
from nvckpt.formats.errors import MalformedCheckpointError
from nvckpt.formats.pickle_walk import walk

_LARGEST = 1 << 16


@functools.cache
def _files() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = []
        for name, function in checkpoints.FIXTURES.items():
            inner = Path(folder) / name
            inner.mkdir()
            function(inner)
            made += [path.read_bytes() for path in inner.rglob("*") if path.is_file()]
    made.append(checkpoints.torch_zip_bytes({"a": bytes(8), "b": bytes(4)}))
    return tuple(raw for raw in made if 0 < len(raw) < _LARGEST)


@functools.cache
def _archives() -> tuple[bytes, ...]:
    """Archives of all files, by every codec, with zeros for checksums."""
    made = []
    with tempfile.TemporaryDirectory() as folder, fuzz_targets.without_checksums():
        source, target = Path(folder) / "f", Path(folder) / "a"
        for number, raw in enumerate([f for f in _files() if len(f) < 6000]):
            source.write_bytes(raw)
            names = [n for n in registry.names() if registry.unavailable(n) is None]
            options = CompressOptions(names[number % len(names)], threads=1, force=True, verify=False)
            nvckpt.compress(source, target, options)
            made.append(target.read_bytes())
    return tuple(made)


def _pickles() -> Iterator[bytes]:
    for raw in _files():
        start = raw.find(b"\x80\x02")
        while start >= 0:
            try:
                _, end = walk(raw, start)
                yield raw[start:end]
            except MalformedCheckpointError:
                end = start + 1
            start = raw.find(b"\x80\x02", end)


def _blocks() -> Iterator[bytes]:
    """Encoded blocks in the form that the target `codec` reads."""
    values = np.linspace(-1, 1, 128, dtype=np.float32)
    for name in registry.names():
        if registry.unavailable(name) is None:
            for content in (Content(1), Content(4), Content(4, "fp32", ((8, 16),)), Content(2, "bf16", ((16, 16),))):
                for data in (values.tobytes(), bytes(512)):
                    block = blocks.encode(data, content, blocks.Choice(name))
                    for stream in block.streams:
                        yield struct.pack("<BBHB", 0, 0, stream.original_size, stream.codec_id) + bytes(stream.data)


def _derived() -> Iterator[bytes]:
    """Streams of what follows from other bytes, with a few words that do not."""
    words = np.linspace(-1, 1, 256, dtype=np.float32).view("<u4")
    for kind, rounding in ROUNDINGS.items():
        halves = rounding.round(words.copy()).astype("<u2")
        for codec_id, param, data, references in (
            (registry.COPY, 0, words, words),
            (registry.ROUNDED, kind, halves, words),
            (registry.REMAINDER, kind, words, halves),
        ):
            changed = data.copy()
            changed[7:9] = 0
            for content in (data, changed):
                stream = derived.encode(codec_id, param, content.tobytes(), references.tobytes())
                if stream is not None:
                    yield struct.pack("<BBHH", codec_id, param, content.nbytes, references.nbytes) + stream


def seeds(name: str) -> list[bytes]:
    """The inputs to start the target `name` from."""
    with fuzz_targets.without_checksums():
        readers = [ArchiveReader(MemoryBytes(raw)) for raw in _archives()]
    made = {
        "sniff": _files,
        "zip_file": lambda: [raw[4:] for raw in _files() if raw.startswith(b"PK\x03\x04")],
        "legacy": lambda: [raw[raw.find(b".", 60) + 1 :] for raw in _files() if torch_legacy.MAGIC in raw[:32]],
        "safetensors": lambda: [raw[8 : 8 + int.from_bytes(raw[:8], "little")] for raw in _files() if raw[8:9] == b"{"],
        "pickle": _pickles,
        "metadata": _pickles,
        "archive": _archives,
        "index_sections": lambda: [reader._packed_index for reader in readers],
        "frame_header": lambda: [frame.packed for reader in readers for frame in reader.frames],
        "codec": _blocks,
        "derived": _derived,
    }
    return list(dict.fromkeys(made[name]()))
