"""A dict of tensors as the file safetensors would write, byte for byte, never built in memory; and its checks."""

import json
import struct
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from nvckpt.formats.byte_source import JoinedBytes, MemoryBytes, Part
from nvckpt.formats.dtypes import BY_TORCH_NAME, DType
from nvckpt.state import StorageBytes

# The library sorts by its own list of types, from the last to the first; tensors of one type by name.
_ORDER = (
    "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ "
    "I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64"
)
_RANK = {name: rank for rank, name in enumerate(_ORDER.split())}
_HEADER_ALIGNMENT = 8


class TensorBytes:
    """The bytes of a contiguous tensor on any device."""

    def __init__(self, tensor: Any) -> None:
        self._storage = StorageBytes(tensor.untyped_storage())
        self._offset = tensor.storage_offset() * tensor.element_size()
        self.size: int = tensor.numel() * tensor.element_size()

    @property
    def place(self) -> tuple[int, int] | None:
        """See StorageBytes."""
        found = self._storage.place
        return (found[0], found[1] + self._offset) if found else None

    def read_at(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        return self._storage.read_at(self._offset + offset, length)


def materialized(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with plain tensors for lazily loaded ones, which have no memory to be written from."""
    from nvckpt.lazy import LazyTensor

    if not any(isinstance(tensor, LazyTensor) for tensor in (tensors.values() if isinstance(tensors, dict) else ())):
        return tensors
    return {n: tensor.materialize() if isinstance(tensor, LazyTensor) else tensor for n, tensor in tensors.items()}


def safetensors_file(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None) -> JoinedBytes:
    """Lay out the file; ValueError, RuntimeError or TypeError as the library raises them for what it does not take."""
    _check(tensors)
    _check_metadata(metadata)
    dtypes = {name: _dtype(name, tensor) for name, tensor in tensors.items()}
    names = sorted(tensors, key=lambda name: (-_RANK[dtypes[name].name], name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata is not None else {}
    position = 0
    parts: list[Part] = []
    for name in names:
        part = TensorBytes(tensors[name])
        header[name] = {
            "dtype": dtypes[name].name,
            "shape": _shape(tensors[name], dtypes[name]),
            "data_offsets": [position, position + part.size],
        }
        position += part.size
        parts.append(part)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return JoinedBytes([MemoryBytes(struct.pack("<Q", len(text)) + text), *parts])


def _dtype(name: str, tensor: Any) -> DType:
    dtype = BY_TORCH_NAME.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None or dtype.name not in _RANK:
        raise ValueError(f"Key `{name}` has dtype {tensor.dtype}, which safetensors does not have")
    return dtype


def _shape(tensor: Any, dtype: DType) -> list[int]:
    """The shape in elements as safetensors counts them: torch packs two F4 into one."""
    shape = list(tensor.shape)
    if dtype.name == "F4" and shape:
        shape[-1] *= 2
    return shape


def _check(tensors: object) -> None:
    import torch

    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
        if not isinstance(name, str):
            raise TypeError(f"Key {name!r} is not a string")
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support."
            " You can make it a dense tensor before saving with `.to_dense()` but be aware this might"
            " make a much larger file than needed."
        )
    shared = _shared(tensors)
    if shared:
        raise RuntimeError(
            "Some tensors share memory, this will lead to duplicate memory on disk and potential differences when"
            f" loading them again: {shared}. nvckpt.save keeps them shared; for safetensors save one of each."
        )
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. It either means you"
                " are trying to save tensors which are reference of each other in which case it's recommended to save"
                " only the full tensors, and reslice at load time, or simply call `.contiguous()` on your tensor to"
                " pack it before saving."
            )


def _shared(tensors: Mapping[str, Any]) -> list[set[str]]:
    """Sets of names whose tensors have bytes in common."""
    ranges = sorted(
        (str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + _reach(tensor), name)
        for name, tensor in tensors.items()
        if tensor.device.type != "meta" and tensor.numel()
    )
    found: list[set[str]] = []
    for _, near in groupby(ranges, key=lambda r: r[0]):
        reach = 0
        for _, start, end, name in near:
            if start < reach:
                found[-1].add(name)
            else:
                found.append({name})
            reach = max(reach, end)
    return [names for names in found if len(names) > 1]


def _reach(tensor: Any) -> int:
    """Bytes from a tensor's first element to behind its last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((steps + 1) * tensor.element_size())


def _check_metadata(metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in metadata.items()
    ):
        raise TypeError("metadata must be a dict of strings to strings")
