"""States that torch.save takes and that are odd in one way each, and a fingerprint that tells any two apart."""

import collections
import enum
import pathlib
from collections.abc import Callable

import numpy as np
import torch

STATES: dict[str, Callable[[], object]] = {}


def state(make):
    STATES[make.__name__] = make
    return make


class Colour(enum.Enum):
    RED = 1


class Holder:
    """A user's own class, which needs weights_only=False."""

    def __init__(self, value):
        self.value = value


class Tagged(torch.Tensor):
    """A subclass of a tensor."""


# Each of these needs more than weights_only=True allows.
TRUSTED = {"own_class", "whole_module", "numpy_array", "path_and_enum", "tensor_subclass", "nested_subclass_in_module"}


def _bits(dtype, count=64):
    raw = torch.arange(count, dtype=torch.uint8) * 37
    return (raw % 2).view(dtype) if dtype == torch.bool else raw.view(dtype)


@state
def number():
    return 5


@state
def nothing():
    return None


@state
def empty_dict():
    return {}


@state
def single_tensor():
    return torch.arange(7)


@state
def zero_dimensions():
    return {"f": torch.tensor(1.5), "b": torch.tensor(True), "i": torch.tensor(-3)}


@state
def empty_shapes():
    return [torch.empty(0), torch.empty(3, 0, 2), torch.empty(0, 5)]


@state
def every_dtype():
    names = (
        "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex128 complex64 complex32 "
        "uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    )
    return {name: _bits(getattr(torch, name)) for name in names.split()}


@state
def four_bit_floats():
    return {"f4": torch.arange(32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).reshape(4, 8)}


@state
def special_values():
    bits = torch.tensor([0x7FC00000, 0x7F800001, -1, -(2**31), 1, 0x7F800000], dtype=torch.int32)
    return {"nan_payloads": bits.view(torch.float32), "minus_zero": torch.tensor([-0.0, 0.0])}


@state
def tied_weights():
    tied = torch.randn(40, 30)
    return {"embed": tied, "head": tied}


@state
def same_storage_twice():
    base = torch.arange(600.0)
    return {"all": base, "middle": base[100:200], "overlapping": base[150:250], "matrix": base[:12].view(3, 4)}


@state
def small_view_of_large():
    return torch.arange(100_000)[5:8]


@state
def transposed():
    return torch.randn(30, 50).t()


@state
def expanded():
    return torch.randn(1, 40).expand(70, 40)


@state
def strided_and_offset():
    return torch.arange(1000.0)[3:900:7]


@state
def channels_last():
    return torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last)


@state
def storage_larger_than_view():
    return torch.empty(0).set_(torch.arange(50.0).untyped_storage(), 10, (2, 3), (7, 2))


@state
def parameters():
    frozen = torch.nn.Parameter(torch.randn(4), requires_grad=False)
    return {"p": torch.nn.Parameter(torch.randn(3, 3)), "frozen": frozen, "buffer": torch.nn.Buffer(torch.ones(2))}


@state
def requires_grad():
    return torch.ones(3, requires_grad=True)


@state
def parameter_with_attributes():
    parameter = torch.nn.Parameter(torch.randn(3))
    parameter.note = "kept"
    return parameter


@state
def tensor_subclass():
    return torch.randn(4, 4).as_subclass(Tagged)


@state
def nested_subclass_in_module():
    net = torch.nn.Linear(3, 2)
    net.extra = torch.randn(2).as_subclass(Tagged)
    return net


@state
def conjugate_and_negative():
    z = torch.randn(5, dtype=torch.complex64)
    return {"conj": z.conj(), "neg": torch._neg_view(torch.randn(3)), "z": z}


@state
def sparse():
    return torch.sparse_coo_tensor([[0, 2], [1, 0]], [1.5, 2.5], (3, 3)).coalesce()


@state
def sparse_rows():
    return torch.tensor([[0.0, 1.0], [2.0, 0.0]]).to_sparse_csr()


@state
def quantized():
    values = torch.randn(6, 4)
    rows = torch.quantize_per_channel(values, torch.rand(6) + 0.1, torch.zeros(6, dtype=torch.long), 0, torch.qint8)
    return {"tensor": torch.quantize_per_tensor(values, 0.1, 3, torch.quint8), "channel": rows}


@state
def nested_tensor():
    return torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])


@state
def meta_tensor():
    return {"meta": torch.empty(3, 4, device="meta"), "real": torch.ones(2)}


@state
def bare_storages():
    base = torch.arange(10, dtype=torch.uint8)
    return {"untyped": base.untyped_storage(), "tensor": base, "typed": torch.arange(3.0).storage()}


@state
def adamw_state():
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(net.parameters(), amsgrad=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 0.9**step])
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        scheduler.step()
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}


@state
def sgd_momentum():
    net = torch.nn.Linear(5, 5)
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    net(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


@state
def random_states():
    return {"cpu": torch.get_rng_state(), "seed": torch.initial_seed()}


@state
def odd_keys():
    return {0: torch.ones(1), ("a", 1): torch.zeros(1), 2.5: torch.ones(2), "": torch.ones(3), "é\n": torch.ones(4)}


@state
def same_names():
    return {"a.b": torch.ones(3), "a": {"b": torch.zeros(3)}}


@state
def containers():
    inner = collections.OrderedDict(x=torch.ones(2))
    counts = collections.Counter("aab")
    return {"tuple": (1, torch.ones(1)), "set": {1, 2}, "od": inner, "counts": counts, "bytes": b"\0\xff", "big": 2**80}


@state
def cycle():
    outer: dict[str, object] = {"t": torch.ones(3)}
    outer["self"] = outer
    return outer


@state
def deep():
    value: object = torch.ones(1)
    for _ in range(150):
        value = [value]
    return value


@state
def many_small():
    return {f"layer.{i}": torch.full((3,), i, dtype=torch.float32) for i in range(500)}


@state
def several_windows():
    noise = torch.randn(1 << 20)
    return {"large": noise.repeat(10), "small": torch.ones(5), "second": noise[:300_001].clone(), "half": noise.half()}


@state
def large_objects_that_are_no_tensors():
    return {"text": "checkpoint " * 50_000, "blob": bytes(range(256)) * 2000, "t": torch.ones(4)}


@state
def dtypes_and_devices():
    return {"dtype": torch.bfloat16, "device": torch.device("cuda:1"), "size": torch.Size([2, 3])}


@state
def own_class():
    return Holder({"t": torch.arange(5)})


@state
def whole_module():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())


@state
def numpy_array():
    return {"array": np.arange(12).reshape(3, 4), "scalar": np.float64(2.5), "t": torch.ones(2)}


@state
def path_and_enum():
    return {"path": pathlib.PurePosixPath("/a/b"), "enum": Colour.RED, "t": torch.ones(2)}


PLAIN = (bool, int, float, str, bytes, torch.dtype, torch.device, enum.Enum)


def fingerprint(value: object) -> object:
    """Everything that must come back: types, order, dtypes, shapes, strides, offsets, bytes, and what is shared."""
    return _Fingerprint().of(value)


class _Fingerprint:
    def __init__(self):
        self._storages = {}
        self._seen = {}
        self._alive = []

    def of(self, value):
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if torch.is_storage(value):
            return ("storage", self._storage(value))
        if value is None or isinstance(
            value, bool | int | float | str | bytes | torch.dtype | torch.device | enum.Enum
        ):
            return (type(value).__name__, repr(value))
        if id(value) in self._seen:
            return ("again", self._seen[id(value)])
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if isinstance(value, np.ndarray | np.generic):
            return (type(value).__name__, str(value.dtype), value.shape, value.tobytes())
        if isinstance(value, dict):
            return (type(value).__name__, [(self.of(k), self.of(v)) for k, v in value.items()])
        if isinstance(value, set):
            return ("set", sorted(value))
        if isinstance(value, list | tuple):
            return (type(value).__name__, [self.of(v) for v in value])
        if isinstance(value, pathlib.PurePath):
            return ("path", str(value))
        inside = {k: v for k, v in vars(value).items() if not callable(v)}
        return (type(value).__name__, self.of(inside))

    def _tensor(self, tensor):
        facts = (type(tensor).__name__, str(tensor.dtype), str(tensor.device), str(tensor.layout), tensor.requires_grad)
        if tensor.is_nested or tensor.layout != torch.strided:
            return (*facts, [self.of(part) for part in _parts(tensor)])
        facts += (tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg())
        if tensor.is_quantized:
            facts += (str(tensor.qscheme()), _raw(tensor.int_repr()), _raw(tensor.dequantize()))
        extra = self.of(dict(vars(tensor))) if vars(tensor) else None
        return (*facts, extra, self._storage(tensor.untyped_storage()))

    def _storage(self, storage):
        storage = storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage
        if storage.device.type == "meta" or storage.nbytes() == 0:
            return (storage.device.type, storage.nbytes())
        self._alive.append(storage)
        number = self._storages.setdefault(storage.data_ptr(), len(self._storages))
        raw = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu().numpy().tobytes()
        return (number, raw)


def _raw(tensor):
    return tensor.cpu().numpy().tobytes()


def _parts(tensor):
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout == torch.sparse_csr:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.indices(), tensor.values()]
