"""`nvckpt.load(..., lazy=True)`: the structure at once, and each storage when a tensor of it is first used."""

import threading
from collections.abc import Callable
from typing import Any, BinaryIO

import torch
from torch.utils._pytree import tree_map_only

from nvckpt.device_loading import DeferredFile, restorer
from nvckpt.original import Original


class LazyStorage:
    """A storage that is decoded once, when it is first needed; tied tensors share one, and threads may, too."""

    def __init__(self, original: Original, file: BinaryIO, offset: int, size: int, put: Callable[[Any], Any]) -> None:
        # The file stays open as long as anything may be read from it.
        self._original, self._file = original, file
        self._offset, self._size, self._put = offset, size, put
        self._lock = threading.Lock()
        self._storage: Any = None

    def get(self) -> Any:
        """The storage where it belongs; FormatError names what is damaged."""
        with self._lock:
            if self._storage is None:
                made: Any = torch.UntypedStorage
                storage = made(self._size)
                memory: Any = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
                self._original.read_into(self._offset, memoryview(memory))
                self._storage = self._put(storage)
            return self._storage


class LazyTensor(torch.Tensor):
    """A tensor whose bytes are decoded when an operation first needs them; the results of operations are plain tensors.

    Shape, type and device are known before. `materialize` gives the plain tensor, for what does not go through
    operations of torch, such as `numpy()`.
    """

    _like: torch.Tensor
    _lazy: LazyStorage

    @staticmethod
    def __new__(cls: Any, like: torch.Tensor, storage: LazyStorage, device: torch.device) -> "LazyTensor":
        """Make one with the sizes and type of `like`."""
        made: LazyTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            like.size(),
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=device,
            requires_grad=like.requires_grad,
        )
        return made

    def __init__(self, like: torch.Tensor, storage: LazyStorage, device: torch.device) -> None:
        self._like = like
        self._lazy = storage

    def materialize(self) -> torch.Tensor:
        """The plain tensor; its storage is decoded now, unless it was before."""
        like, storage = self._like, self._lazy.get()
        with torch.no_grad():
            plain = torch.empty(0, dtype=like.dtype, device=storage.device)
            plain.set_(storage, like.storage_offset(), like.size(), like.stride())
            plain = plain.conj() if like.is_conj() else plain
            plain = torch._neg_view(plain) if like.is_neg() else plain
        return plain.requires_grad_(like.requires_grad)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Run any operation on the plain tensors."""
        plain, named = tree_map_only(LazyTensor, LazyTensor.materialize, (args, kwargs or {}))
        return func(*plain, **named)

    def share_memory_(self) -> "LazyTensor":
        """RuntimeError: a tensor without memory has none to share."""
        raise RuntimeError("a lazily loaded tensor has no memory to share yet: use tensor.materialize()")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LazyTensor(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Be pickled as the plain tensor."""
        plain: Any = self.materialize()
        return plain.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """Be copied as a plain tensor."""
        found: torch.Tensor = memo.setdefault(id(self), self.materialize().clone())
        return found


def load_lazily(original: Original, file: BinaryIO, map_location: Any, **rest: Any) -> Any:
    """Do what torch.load does, but leave the storages for later; the tensors in containers become LazyTensors."""
    return _Loading(original, file, map_location).run(**rest)


class _Loading:
    """One call: hands out storages without memory, and remembers which they stand for."""

    def __init__(self, original: Original, file: BinaryIO, map_location: Any) -> None:
        self._original, self._file = original, file
        self._source = DeferredFile(original)
        self._restore = restorer(map_location)
        self._storages: dict[int, LazyStorage] = {}
        self._found: dict[int, tuple[LazyStorage, torch.device]] = {}
        self._kept: list[Any] = []
        self._reached: set[int] = set()

    def run(self, **rest: Any) -> Any:
        source: Any = self._source
        try:
            loaded = torch.load(source, self._place, **rest)
        except Exception:
            if source.error is not None:
                raise source.error from None
            raise
        wrapped = self._wrapped(loaded, {})
        if self._reached != self._found.keys():
            raise ValueError(
                "this archive cannot be loaded lazily: it has tensors or storages elsewhere than in dicts, lists and "
                "tuples; leave lazy out, or use nvckpt.open"
            )
        return wrapped

    def _place(self, storage: Any, location: str) -> Any:
        make: Any = torch.UntypedStorage
        size = storage.nbytes()
        offset = self._source.take(size)
        if offset is None:
            return self._restore(storage, location)
        if offset not in self._storages:
            self._storages[offset] = LazyStorage(
                self._original, self._file, offset, size, lambda decoded: self._restore(decoded, location)
            )
        # Without memory, the storage is asked for again by every tensor that shares it.
        stand_in = make(size, device="meta")
        self._kept.append(stand_in)
        self._found[stand_in._cdata] = (self._storages[offset], self._restore(make(0), location).device)
        return stand_in

    def _wrapped(self, value: Any, seen: dict[int, Any]) -> Any:
        """The same with LazyTensors: dicts and lists are changed in place, tuples are made anew."""
        if isinstance(value, torch.Tensor):
            found = self._found.get(value.untyped_storage()._cdata) if value.device.type == "meta" else None
            if found is None:
                return value
            if value.__dict__:
                raise ValueError("a tensor with attributes cannot be loaded lazily: leave lazy out, or use nvckpt.open")
            self._reached.add(value.untyped_storage()._cdata)
            if id(value) not in seen:
                seen[id(value)] = LazyTensor(value, *found)
            return seen[id(value)]
        if id(value) in seen or not isinstance(value, dict | list | tuple):
            return seen.get(id(value), value)
        seen[id(value)] = value
        if isinstance(value, tuple):
            items = [self._wrapped(item, seen) for item in value]
            plain = type(value) is tuple
            seen[id(value)] = tuple(items) if plain else value if isinstance(value, torch.Size) else type(value)(*items)
            return seen[id(value)]
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            value[key] = self._wrapped(item, seen)
        return value
