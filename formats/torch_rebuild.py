"""The calls and classes by which torch spells storages and tensors in a pickle.

Everything here reads placeholders: a wrong type, count or range gives None, never an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from nvckpt.formats import groups
from nvckpt.formats.dtypes import BY_NAME, BY_TORCH_NAME, UNKNOWN, DType
from nvckpt.formats.pickle_values import Call, Global, PersistentId
from nvckpt.formats.segments import View

_MAX_DIMENSIONS = 64
_MAX_SIZE = 1 << 62
# A parameter of a subclass of a tensor; files nest no deeper, and a cycle must end.
_MAX_WRAPPERS = 8

_STORAGE_CLASSES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "ComplexDoubleStorage": "C128",
    "ComplexFloatStorage": "C64",
    "QInt8Storage": "QINT8",
    "QInt32Storage": "QINT32",
    "QUInt8Storage": "QUINT8",
    "QUInt4x2Storage": "QUINT4X2",
    "QUInt2x4Storage": "QUINT2X4",
}
TENSOR_CALLS = frozenset({"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"})
_PARAMETER_CALLS = frozenset({"_rebuild_parameter", "_rebuild_parameter_with_state"})
_SUBCLASS_CALLS = frozenset({"_rebuild_from_type", "_rebuild_from_type_v2"})
_OTHER_TENSOR_CALLS = frozenset(
    {
        "_rebuild_sparse_tensor",
        "_rebuild_sparse_csr_tensor",
        "_rebuild_nested_tensor",
        "_rebuild_wrapper_subclass",
        "_rebuild_meta_tensor_no_storage",
        "_rebuild_device_tensor_from_numpy",
        "_rebuild_device_tensor_from_cpu_tensor",
    }
)
_TENSOR_LIKE = TENSOR_CALLS | _PARAMETER_CALLS | _SUBCLASS_CALLS | _OTHER_TENSOR_CALLS
_COORDINATE_PARTS = ("indices", "values")
_COMPRESSED_PARTS = ("crow_indices", "col_indices", "values")
_QUANTIZER_PARTS = ("scales", "zero_points")
_NESTED_PARTS = ("", "sizes", "strides", "storage_offsets")


@dataclass(slots=True)
class Storage:
    """One storage, as the pickle claims it: `claimed` is in bytes, None when the class is unknown.

    `unit` is the bytes of an element as the file counts them, which for an untyped storage is 1.
    `dtype` is UNKNOWN until a class or a tensor tells it.
    """

    key: str
    dtype: DType
    unit: int | None
    claimed: int | None
    role: str = groups.UNKNOWN_ROLE
    views: list[View] = field(default_factory=list)

    def group(self, length: int) -> str:
        """The group of the storage, whose record has `length` bytes; its first view decides."""
        if not self.views:
            return groups.OTHER
        return groups.group_of(self.views[0].name, self.dtype, length * 8 // self.dtype.bits, self.role)


def call_name(call: Call) -> str:
    """The name of the torch function called, empty for anything else."""
    function = call.function
    if type(function) is Global and function.module.startswith("torch"):
        return function.name
    return ""


def is_tensor(value: object) -> bool:
    """Whether a placeholder is a tensor or parameter."""
    return type(value) is Call and call_name(value) in _TENSOR_LIKE


def unwrap(call: Call) -> tuple[Call, list[object]]:
    """The call that makes the tensor inside parameters and subclasses, and the state of those."""
    states: list[object] = []
    for _ in range(_MAX_WRAPPERS):
        name = call_name(call)
        args = call.args
        if name not in _PARAMETER_CALLS and name not in _SUBCLASS_CALLS:
            break
        if call.state is not None:
            states.append(call.state)
        if not isinstance(args, tuple):
            break
        if name in _SUBCLASS_CALLS and len(args) > 2:
            states.extend(args[3:4])
            call = Call(args[0], args[2])
        elif name in _PARAMETER_CALLS and args and type(args[0]) is Call:
            states.extend(args[3:4])
            call = args[0]
        else:
            break
    return call, states


def parts_of(name: str, args: tuple[object, ...]) -> Iterator[tuple[str, object]] | None:
    """The tensors that make up a sparse, nested or quantised tensor, with the names of those parts."""
    if name == "_rebuild_nested_tensor":
        return zip(_NESTED_PARTS, args, strict=False)
    index = 4 if name == "_rebuild_qtensor" else 1
    if name not in {"_rebuild_qtensor", "_rebuild_sparse_tensor", "_rebuild_sparse_csr_tensor"}:
        return None
    holder = args[index] if len(args) > index else None
    tensors = [part for part in holder[:8] if is_tensor(part)] if isinstance(holder, tuple) else []
    if name == "_rebuild_qtensor":
        return zip(_QUANTIZER_PARTS, tensors, strict=False)
    names = _COMPRESSED_PARTS if len(tensors) == 3 else _COORDINATE_PARTS
    return zip(names, tensors, strict=False)


def storage_key(reference: PersistentId) -> str | None:
    """The key of a reference ('storage', class, key, location, count, ...), None for other references."""
    value = reference.value
    if not isinstance(value, tuple) or len(value) < 5 or _text(value[0]) != "storage":
        return None
    return _text(value[2])


def storage_of(key: str, reference: PersistentId) -> Storage:
    """What a reference says of the storage; its key was read by `storage_key`."""
    value = reference.value
    assert isinstance(value, tuple)
    name = value[1].name if type(value[1]) is Global else ""
    count = value[4]
    numel = count if type(count) is int and 0 <= count < _MAX_SIZE else None
    if name == "UntypedStorage":
        return Storage(key, UNKNOWN, 1, numel)
    if name not in _STORAGE_CLASSES:
        return Storage(key, UNKNOWN, None, None)
    dtype = BY_NAME[_STORAGE_CLASSES[name]]
    unit = dtype.bits // 8
    return Storage(key, dtype, unit, None if numel is None else numel * unit)


def dtype_of(name: str, args: tuple[object, ...]) -> DType | None:
    """The dtype that a call itself names: only _rebuild_tensor_v3 does, all others leave it to the storage."""
    if name != "_rebuild_tensor_v3" or len(args) < 7:
        return None
    value = args[6]
    if type(value) is not Global or value.module != "torch":
        return None
    return BY_TORCH_NAME.get(value.name)


def view_of(name: str, dtype: DType, args: tuple[object, ...]) -> View:
    """The view of a call (storage, offset, size, stride, ...).

    Torch counts F4 in pairs; the view counts single values, as safetensors does.
    """
    shape = _sizes(args[2])
    strides = _sizes(args[3])
    if shape is not None and strides is not None and _is_row_major(shape, strides):
        strides = None
    offset = args[1] if type(args[1]) is int and 0 <= args[1] < _MAX_SIZE else 0
    if dtype.name == "F4":
        offset *= 2
        shape = (*shape[:-1], shape[-1] * 2) if shape and strides is None else None
        strides = None
    return View(name, dtype, shape, strides, offset)


def _sizes(value: object) -> tuple[int, ...] | None:
    """A shape or strides: a tuple, a list, or a torch.Size around one; None when it is none of them."""
    if type(value) is Call and isinstance(value.args, tuple) and value.args:
        value = value.args[0]
    if isinstance(value, list):
        value = tuple(value[: _MAX_DIMENSIONS + 1])
    if not isinstance(value, tuple) or len(value) > _MAX_DIMENSIONS:
        return None
    for size in value:
        if type(size) is not int or not 0 <= size < _MAX_SIZE:
            return None
    return value


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    if len(shape) != len(strides):
        return False
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return 0 in shape
        expected *= size
    return True


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else None
