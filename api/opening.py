"""`nvckpt.open`: an archive's tensors by name, each decoded when it is asked for, or only some of its rows."""

import math
from collections.abc import Iterator, Mapping
from types import EllipsisType, TracebackType
from typing import IO, Any

from nvckpt.formats import opaque, safetensors_file
from nvckpt.formats.dtypes import DType
from nvckpt.formats.errors import UnsupportedArchiveError
from nvckpt.formats.segments import Segment, View
from nvckpt.original import Original

Index = int | slice | EllipsisType | None


class OpenArchive(Mapping[str, Any]):
    """A mapping of names to tensors on `device`, like safetensors' safe_open; use it in a `with`, or close it.

    Names are those that `nvckpt list` shows. Every look-up decodes anew and gives a tensor of its own: what was one
    storage in the checkpoint is not shared here (`nvckpt.load` keeps that).
    """

    def __init__(self, original: Original, device: Any = "cpu", file: IO[bytes] | None = None) -> None:
        self._original = original
        self._device = device
        self._file = file
        self._tensors: dict[str, tuple[Segment, View]] = {}
        self._ambiguous: set[str] = set()
        for segment in original.reader.description.segments:
            for view in segment.views:
                if view.name in self._tensors:
                    self._ambiguous.add(view.name)
                else:
                    self._tensors[view.name] = (segment, view)
        if original.reader.index.source_format == opaque.SAFETENSORS:
            self._add_empty()

    def __enter__(self) -> "OpenArchive":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and end the threads; tensors that were taken out stay."""
        self._original.close()
        if self._file is not None:
            self._file.close()

    def __getitem__(self, name: str) -> Any:
        return self.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def offset_keys(self) -> list[str]:
        """The names in the order of the file."""
        return list(self._tensors)

    def metadata(self) -> dict[str, str] | None:
        """The text that a safetensors file has beside its tensors; None for other formats, and where there is none."""
        if self._original.reader.index.source_format != opaque.SAFETENSORS:
            return None
        return safetensors_file.read_metadata(self._original)

    def get_tensor(self, name: str) -> Any:
        """Decode one tensor; KeyError for a name that is not there, or that several tensors have."""
        return self.get_slice(name)[...]

    def get_slice(self, name: str) -> "TensorSlice":
        """The tensor as something to index: only the rows asked for are decoded."""
        if name not in self._tensors:
            raise KeyError(f"the archive has no tensor {name!r}")
        if name in self._ambiguous:
            raise KeyError(f"several tensors of the archive are called {name!r}; nvckpt.load gives them all")
        return TensorSlice(self._original, *self._tensors[name], self._device)

    def slots(self) -> Iterator[tuple[str, "TensorSlice"]]:
        """Every name with its tensor, in the order of the file."""
        for name in self._tensors:
            yield name, self.get_slice(name)

    def _add_empty(self) -> None:
        """Tensors without bytes have no segment; a safetensors header names them."""
        for segment, view in safetensors_file.empty_tensors(self._original):
            self._tensors.setdefault(view.name, (segment, view))
        ordered = sorted(self._tensors.items(), key=lambda item: (item[1][0].offset, item[1][0].length))
        self._tensors = dict(ordered)


class TensorSlice:
    """One tensor of an open archive, not decoded yet."""

    def __init__(self, original: Original, segment: Segment, view: View, device: Any) -> None:
        self._original = original
        self._segment = segment
        self._view = view
        self._device = device

    def get_shape(self) -> list[int]:
        """The sizes; UnsupportedArchiveError where the archive does not tell them."""
        return list(self._shape())

    def get_dtype(self) -> str:
        """The element type as safetensors spells it."""
        return self._view.dtype.name

    @property
    def offset(self) -> int:
        """Where the tensor's bytes begin in the original."""
        return self._segment.offset + self._view.offset * self._view.dtype.bits // 8

    def empty(self, device: Any) -> Any:
        """A tensor of this shape and type, in row-major order, whose content is undefined."""
        import torch

        shape, bits = self._shape(), self._view.dtype.bits
        data = torch.empty(math.prod(shape) * bits // 8, dtype=torch.uint8, device=device)
        if bits < 8:
            shape = (*shape[:-1], shape[-1] * bits // 8)
        return data.view(torch_dtype(self._view.dtype)).reshape(shape)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Any:
        """Index as a tensor is indexed; of a tensor in row-major order only the first axis' rows are decoded."""
        first, *rest = (index or (...,)) if isinstance(index, tuple) else (index,)
        shape = self._shape()
        if not shape or self._view.strides is not None or isinstance(first, bool) or not isinstance(first, int | slice):
            return self._decode(0, None)[index]
        if isinstance(first, int):
            row = first + shape[0] if first < 0 else first
            if not 0 <= row < shape[0]:
                raise IndexError(f"index {first} is out of bounds for dimension 0 with size {shape[0]}")
            return self._decode(row, row + 1)[(0, *rest)]
        start, stop, step = first.indices(shape[0])
        if step <= 0:
            raise ValueError("step must be greater than zero")
        return self._decode(start, max(start, stop))[(slice(None, None, step), *rest)]

    def _shape(self) -> tuple[int, ...]:
        if self._view.shape is None:
            raise UnsupportedArchiveError(
                f"the archive does not tell the shape of {self._view.name!r}; nvckpt.load gives it"
            )
        return self._view.shape

    def _decode(self, start: int, stop: int | None) -> Any:
        """Rows of the tensor as a new tensor, or all of it with its strides."""
        import torch

        if self._segment.big_endian:
            raise UnsupportedArchiveError("the checkpoint is big-endian; nvckpt.load swaps its bytes")
        shape, dtype = self._shape(), torch_dtype(self._view.dtype)
        strides = self._view.strides
        bits = self._view.dtype.bits
        if stop is not None:
            row = math.prod(shape[1:])
            first, count, shape = self._view.offset + start * row, (stop - start) * row, (stop - start, *shape[1:])
        elif strides is not None:
            reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
            first, count = self._view.offset, 0 if 0 in shape else reach
        else:
            first, count = self._view.offset, math.prod(shape)
        if first * bits % 8 or count * bits % 8:
            raise UnsupportedArchiveError(f"the rows of {self._view.name!r} do not begin at whole bytes")
        if first * bits // 8 + count * bits // 8 > self._segment.length:
            raise UnsupportedArchiveError(f"the tensor {self._view.name!r} is larger than its storage")
        data = torch.empty(count * bits // 8, dtype=torch.uint8, device="cpu")
        out: Any = data.numpy()
        self._original.read_into(self._segment.offset + first * bits // 8, memoryview(out))
        if bits < 8:
            shape = (*shape[:-1], shape[-1] * bits // 8)
        values = data.view(dtype)
        if strides is not None:
            values = values.as_strided(shape, strides) if count else values.reshape(shape)
        return values.reshape(shape).to(self._device) if strides is None else values.to(self._device)


def torch_dtype(dtype: DType) -> Any:
    """Torch's type; UnsupportedArchiveError where this torch has none, or needs more than bytes for it."""
    import torch

    found = getattr(torch, dtype.torch_name, None) if dtype.torch_name else None
    if found is None or dtype.name.startswith("Q"):
        raise UnsupportedArchiveError(f"a tensor of type {dtype.name} cannot be made from bytes alone; use nvckpt.load")
    return found
