"""The tensors in what a torch pickle describes: which storages they use, and what they are called.

Works on the placeholders of pickle_walk, with loops and a set of what was seen, never recursion.
"""

from collections.abc import Iterator

from nvckpt.formats import groups
from nvckpt.formats.allowance import STORAGE, VIEW, Allowance
from nvckpt.formats.dtypes import UNKNOWN, DType
from nvckpt.formats.errors import MalformedCheckpointError
from nvckpt.formats.names import encodable
from nvckpt.formats.pickle_values import Call, Global, Key, PersistentId, Placeholder
from nvckpt.formats.segments import View
from nvckpt.formats.structure import Place
from nvckpt.formats.torch_rebuild import (
    TENSOR_CALLS,
    Storage,
    call_name,
    dtype_of,
    is_tensor,
    parts_of,
    storage_key,
    storage_of,
    unwrap,
    view_of,
)

# Names are shown to people; the limit only stops a small pickle from asking for gigabytes of them.
_MAX_NAMES_LENGTH = 256 << 20
_MAX_VIEWS = 4096
"""Names kept of one storage: millions of references to it must not make the archive larger than the file."""
# Every level costs a generator; a hostile pickle has millions of them, a checkpoint some ten.
_MAX_NESTING = 150_000
_LEAVES = frozenset({str, bytes, int, float, bool, type(None), Global, Key, Placeholder})

_Children = Iterator[tuple[object, Place]]


def find_storages(
    root: object, role: str = groups.UNKNOWN_ROLE, prefix: str = "", memory: Allowance | None = None
) -> dict[str, Storage]:
    """Every storage that the object refers to, by key, with the tensors that view it.

    `role` is what is known of the whole file, and `prefix` starts every name. Raises
    MalformedCheckpointError when the names would not fit in memory. What is nested deeper than any checkpoint is
    passed over.
    """
    return _Search(memory or Allowance()).run(root, role, prefix)


class _Search:
    """One walk over an object tree, depth first, in the order of the pickle."""

    def __init__(self, memory: Allowance) -> None:
        self._memory = memory
        self._storages: dict[str, Storage] = {}
        self._seen: set[int] = set()
        self._names_length = 0

    def run(self, root: object, role: str, prefix: str) -> dict[str, Storage]:
        if role == groups.UNKNOWN_ROLE and is_tensor(root):
            role = groups.WEIGHTS
        pending: list[_Children] = [iter(((root, Place(None, prefix, role)),))]
        while pending:
            for value, place in pending[-1]:
                children = self._visit(value, place)
                if children is not None and len(pending) < _MAX_NESTING:
                    pending.append(children)
                    break
            else:
                pending.pop()
        return self._storages

    def _visit(self, value: object, place: Place) -> _Children | None:
        """Note a tensor; for anything with an inside that was not seen yet, what is in it."""
        if isinstance(value, Call):
            return self._visit_call(value, place)
        if isinstance(value, PersistentId):
            self._add_bare_storage(value, place)
        elif isinstance(value, dict | list | tuple) and value and self._is_new(value):
            return self._entries(value, place) if isinstance(value, dict) else self._items(value, place)
        return None

    def _visit_call(self, call: Call, place: Place) -> _Children | None:
        """A tensor is noted at each place that names it, everything else is entered once."""
        maker, states = unwrap(call)
        name = call_name(maker)
        if name in TENSOR_CALLS:
            self._add_tensor(name, maker.args, place)
            if not states and name != "_rebuild_qtensor":
                return None
        is_empty = not (maker.args or maker.entries or maker.items or maker.state or states)
        return self._inside(maker, name, states, place) if not is_empty and self._is_new(call) else None

    def _is_new(self, value: object) -> bool:
        if id(value) in self._seen:
            return False
        # All that is passed in here hangs on the root, so no id is used twice.
        self._seen.add(id(value))
        return True

    def _inside(self, call: Call, name: str, states: list[object], place: Place) -> _Children:
        args = call.args if isinstance(call.args, tuple) else ()
        parts = parts_of(name, args)
        if parts is not None:
            for component, part in parts:
                yield part, place.child(component) if component else place
        elif name not in TENSOR_CALLS:
            yield from self._arguments(call, args, place)
        if call.entries:
            yield from self._entries(call.entries, place)
        if call.items:
            yield from self._items(call.items, place)
        for state in (*states, call.state):
            if state is not None:
                yield state, place

    def _arguments(self, call: Call, args: tuple[object, ...], place: Place) -> _Children:
        is_mapping = type(call.function) is Global and call.function.name.endswith(("Dict", "dict"))
        # Many calls can share one tuple of arguments.
        for value in args if args and self._is_new(args) else ():
            if is_mapping and isinstance(value, list):
                if self._is_new(value):
                    yield from self._pairs(value, place)
            elif type(value) not in _LEAVES:
                yield value, place

    def _pairs(self, pairs: list[object], place: Place) -> _Children:
        """An OrderedDict of Python 2 hands its items to the constructor as a list of pairs."""
        for pair in pairs:
            if isinstance(pair, list | tuple) and len(pair) == 2:
                yield pair[1], place.child(_component(pair[0]))

    def _entries(self, entries: dict[object, object], place: Place) -> _Children:
        place = place.around(entries, is_tensor)
        for key, value in entries.items():
            if type(value) not in _LEAVES:
                yield value, place.child(_component(key))

    def _items(self, items: list[object] | tuple[object, ...], place: Place) -> _Children:
        place = place.around(items, is_tensor)
        for index, value in enumerate(items):
            if type(value) not in _LEAVES:
                yield value, place.child(str(index))

    def _add_tensor(self, function: str, args: object, place: Place) -> None:
        if not isinstance(args, tuple) or len(args) < 4 or not isinstance(args[0], PersistentId):
            return
        dtype = dtype_of(function, args)
        storage = self._storage(args[0], dtype)
        if storage is not None:
            self._add_view(storage, view_of(self._name(place), dtype or storage.dtype, args), place)

    def _add_bare_storage(self, reference: PersistentId, place: Place) -> None:
        """A storage that is an object of its own: one dimension, as long as the pickle says."""
        storage = self._storage(reference, None)
        if storage is None:
            return
        shape = None if storage.claimed is None or not storage.unit else (storage.claimed // storage.unit,)
        self._add_view(storage, View(self._name(place), storage.dtype, shape), place)

    def _add_view(self, storage: Storage, view: View, place: Place) -> None:
        if not storage.views:
            storage.role = place.role
        if len(storage.views) < _MAX_VIEWS:
            self._memory.spend(VIEW + len(view.name))
            storage.views.append(view)

    def _name(self, place: Place) -> str:
        name = encodable(place.name())
        self._names_length += len(name)
        if self._names_length > _MAX_NAMES_LENGTH:
            raise MalformedCheckpointError("the names of the tensors are too long to keep")
        return name

    def _storage(self, reference: PersistentId, dtype: DType | None) -> Storage | None:
        key = storage_key(reference)
        if key is None:
            return None
        found = self._storages.get(key)
        if found is None:
            self._memory.spend(STORAGE)
            found = self._storages[key] = storage_of(key, reference)
        if dtype is not None and found.dtype is UNKNOWN:
            found.dtype = dtype
        return found


def _component(key: object) -> str:
    """A dict key as a part of a name."""
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.decode("utf-8", "replace")
    if isinstance(key, int | float):
        return str(key)
    if isinstance(key, Global):
        return key.name
    if isinstance(key, Key) and isinstance(key.value, tuple):
        return ",".join(_component(part) for part in key.value[:4] if not isinstance(part, Key))
    return "?"
