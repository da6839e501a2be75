"""Checkpoint files of every kind that a reader meets, made on the spot: FIXTURES[name](folder) -> path.

torch is imported inside the functions, so that tests which need none stay quick.
"""

import gzip
import io
import json
import pickle
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

FIXTURES: dict[str, Callable[[Path], Path]] = {}
# Fixtures that are whole and of a kind nvckpt knows: reading them warns nothing.
CLEAN: set[str] = set()
# What Source.format should say, by fixture.
FORMAT: dict[str, str] = {}


def fixture(format_name: str, clean: bool = True):
    def register(function):
        name = function.__name__
        FIXTURES[name] = function
        FORMAT[name] = format_name
        if clean:
            CLEAN.add(name)
        return function

    return register


def save(folder: Path, name: str, obj, **options) -> Path:
    import torch

    path = folder / name
    torch.save(obj, path, **options)
    return path


def write(folder: Path, name: str, raw: bytes) -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


def model():
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))


def training_state(**options):
    """A model and an AdamW optimizer that made two steps."""
    import torch

    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, **options)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2, "note": "état"}


# torch zip.


@fixture("torch-zip")
def zip_adamw(folder):
    return save(folder, "adamw.pt", training_state(amsgrad=True))


@fixture("torch-zip")
def zip_file_object(folder):
    import torch

    stream = io.BytesIO()
    torch.save(training_state(), stream)
    return write(folder, "stream.bin", stream.getvalue())


@fixture("torch-zip")
def zip_non_ascii_name(folder):
    return save(folder, "modèle 模型.pt", training_state())


def all_dtypes():
    import torch

    names = (
        "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex128 complex64 complex32 "
        "uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    )
    raw = torch.arange(64, dtype=torch.uint8) % 2
    tensors = {name: raw.clone().view(getattr(torch, name)) for name in names.split()}
    if hasattr(torch, "float4_e2m1fn_x2"):
        tensors["float4_e2m1fn_x2"] = raw.clone().view(torch.float4_e2m1fn_x2)
    return tensors


@fixture("torch-zip")
def zip_all_dtypes(folder):
    return save(folder, "dtypes.pt", all_dtypes())


@fixture("torch-zip")
def zip_views(folder):
    import torch

    base = torch.arange(600, dtype=torch.float32)
    tied = torch.randn(6, 4)
    return save(
        folder,
        "views.pt",
        {
            "slice": base[100:110],
            "overlap": base[105:120],
            "tail": base[590:].view(2, 5),
            "embed": tied,
            "head": tied,
            "transposed": torch.randn(3, 5).t(),
            "expanded": torch.randn(1, 4).expand(7, 4),
            "empty": torch.empty(0, 3),
            "nothing": None,
        },
    )


@fixture("torch-zip")
def zip_odd_tensors(folder):
    """Sparse, nested, conjugated, meta, parameter, and tensors with attributes."""
    import torch

    sparse = torch.sparse_coo_tensor([[0, 2], [1, 0]], [1.5, 2.5], (3, 3)).coalesce()
    attributed = torch.nn.Parameter(torch.randn(3, 3))
    attributed.tag = torch.randn(5)
    return save(
        folder,
        "odd.pt",
        {
            "sparse": sparse,
            "csr": torch.eye(3).to_sparse_csr(),
            "nested": torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(1, 3)]),
            "conj": torch.randn(4, dtype=torch.complex64).conj(),
            "meta": torch.empty(5, 5, device="meta"),
            "parameter": attributed,
            "storage": torch.arange(4, dtype=torch.int16).storage(),
            "untyped": torch.arange(4, dtype=torch.int16).untyped_storage(),
        },
    )


@fixture("torch-zip")
def zip_subclass(folder):
    """A tensor around another one, as DTensor and torchao make them."""
    import torch

    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self._local_tensor = inner

        @classmethod
        def __torch_dispatch__(cls, function, _types, args=(), _kwargs=None):
            return function(*(a._local_tensor if isinstance(a, cls) else a for a in args))

    # Pickle looks the class up by its name.
    Wrapped.__qualname__ = "Wrapped"
    globals()["Wrapped"] = Wrapped
    states = {0: {"exp_avg": Wrapped(torch.randn(3, 4))}}
    optimizer = {"state": states, "param_groups": [{"params": [0]}]}
    return save(folder, "subclass.pt", {"w": Wrapped(torch.randn(3, 4)), "optimizer": optimizer})


@fixture("torch-zip")
def zip_quantized(folder):
    import torch

    values = torch.randn(4, 6)
    per_tensor = torch.quantize_per_tensor(values, 0.1, 3, torch.qint8)
    per_channel = torch.quantize_per_channel(
        values, torch.rand(4).double() + 0.1, torch.zeros(4, dtype=torch.long), 0, torch.quint8
    )
    return save(folder, "quantized.pt", {"a": per_tensor, "b": per_channel})


@fixture("torch-zip")
def zip_quantized_packed(folder):
    """Several values in a byte: the shape counts values, the storage bytes."""
    import torch

    values = torch.randn(4, 8)
    axis = (torch.rand(4) + 0.1, torch.zeros(4), 0)
    tensors = {
        "four": torch.quantize_per_channel(values, *axis, torch.quint4x2),
        "two": torch.quantize_per_channel(values, *axis, torch.quint2x4),
    }
    return save(folder, "packed.pt", tensors)


@fixture("torch-zip")
def zip_module(folder):
    return save(folder, "module.pt", {"net": model()})


@fixture("torch-zip")
def zip_one_tensor(folder):
    import torch

    return save(folder, "tensor.pt", torch.randn(10, 10).to(torch.bfloat16))


def _protocol(number: int):
    def make(folder):
        return save(folder, f"protocol{number}.pt", training_state(), pickle_protocol=number)

    make.__name__ = f"zip_protocol{number}"
    return make


for _number in (3, 4, 5):
    fixture("torch-zip")(_protocol(_number))


@fixture("torch-zip")
def zip_no_crc(folder):
    import torch

    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        return save(folder, "nocrc.pt", training_state())
    finally:
        torch.serialization.set_crc32_options(before)


@fixture("torch-zip")
def zip_alignment_4096(folder):
    from torch.utils.serialization import config

    before = config.save.storage_alignment
    config.save.storage_alignment = 4096
    try:
        return save(folder, "aligned.pt", training_state())
    finally:
        config.save.storage_alignment = before


def rezip(source: Path, target: Path, method: int = zipfile.ZIP_STORED, change=lambda records: records) -> Path:
    """The records of a zip written again by Python; `change` takes and gives [(name, bytes)]."""
    with zipfile.ZipFile(source) as old:
        records = [(info.filename, old.read(info)) for info in old.infolist()]
    with zipfile.ZipFile(target, "w", method) as new:
        for name, raw in change(records):
            new.writestr(name, raw)
    return target


@fixture("torch-zip")
def zip_deflated(folder):
    return rezip(zip_adamw(folder), folder / "deflated.pt", zipfile.ZIP_DEFLATED)


@fixture("torch-zip")
def zip_restored_by_python(folder):
    return rezip(zip_adamw(folder), folder / "restored.pt")


@fixture("torch-zip")
def zip_big_endian(folder):
    def swap(records):
        return [(n, b"big" if n.endswith("/byteorder") else r) for n, r in records]

    return rezip(zip_adamw(folder), folder / "big.pt", change=swap)


@fixture("torch-zip", clean=False)
def zip_duplicate(folder):
    import warnings

    def twice(records):
        name, raw = next(r for r in records if r[0].endswith("/data/0"))
        return [*records, (name, bytes(len(raw)))]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rezip(zip_adamw(folder), folder / "duplicate.pt", change=twice)


@fixture("torch-zip")
def zip_trailing_junk(folder):
    path = zip_adamw(folder)
    path.write_bytes(path.read_bytes() + b"left behind by another tool" * 20)
    return path


@fixture("torch-zip", clean=False)
def zip_truncated(folder):
    path = zip_adamw(folder)
    path.write_bytes(path.read_bytes()[:-22])
    return path


@fixture("torch-zip")
def zip_flipped_data(folder):
    """A bit of a tensor flipped: torch loads it without a word, and so do we."""
    path = zip_one_tensor(folder)
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        record = archive.read("tensor/data/0")
    raw[raw.find(record) + 7] ^= 16
    path.write_bytes(raw)
    return path


# torch legacy.


def _legacy(number: int):
    def make(folder):
        return save(
            folder,
            f"legacy{number}.pt",
            training_state(),
            pickle_protocol=number,
            _use_new_zipfile_serialization=False,
        )

    make.__name__ = f"legacy_protocol{number}"
    return make


for _number in (2, 4):
    fixture("torch-legacy")(_legacy(_number))


@fixture("torch-legacy")
def legacy_views(folder):
    import torch

    base = torch.arange(50, dtype=torch.float16)
    tensors = {"a": base[3:9], "b": base, "c": torch.zeros(0), "d": torch.arange(3)}
    return save(folder, "legacyviews.pt", tensors, _use_new_zipfile_serialization=False)


@fixture("torch-legacy")
def legacy_untyped(folder):
    """A dtype without a storage class, which torch 2.13 writes and cannot load again."""
    import torch

    tensor = torch.arange(8, dtype=torch.uint8).view(torch.uint16)
    return save(folder, "untyped.pt", {"a": tensor}, _use_new_zipfile_serialization=False)


@fixture("torch-legacy")
def legacy_python2(folder):
    """Text as Python 2 wrote it: keys, class names and dict keys are byte strings."""
    return write(folder, "python2.pt", python2_legacy())


def python2_legacy(little_endian: bool = True) -> bytes:
    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def tensor(key: bytes, count: int) -> bytes:
        reference = b"(" + text(b"storage") + b"ctorch\nFloatStorage\n" + text(key) + text(b"cpu")
        reference += b"K" + bytes([count]) + b"NtQ"
        sizes = b"K" + bytes([count]) + b"\x85" + b"K\x01\x85"
        return b"ctorch._utils\n_rebuild_tensor\n(" + reference + b"K\x00" + sizes + b"tR"

    pairs = b"".join(
        b"](" + text(name) + tensor(key, count) + b"e"
        for name, key, count in ((b"fc.weight", b"111", 6), (b"fc.bias", b"222", 3))
    )
    obj = b"\x80\x02ccollections\nOrderedDict\n](" + pairs + b"e\x85R."
    system = pickle.dumps({"protocol_version": 1001, "little_endian": little_endian}, 2)
    keys = b"\x80\x02](" + text(b"111") + text(b"222") + b"e."
    head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    storages = b"".join(struct.pack(f"<q{n}f", n, *range(1, n + 1)) for n in (6, 3))
    return head + system + obj + keys + storages


@fixture("torch-legacy", clean=False)
def legacy_truncated(folder):
    path = FIXTURES["legacy_protocol2"](folder)
    path.write_bytes(path.read_bytes()[:-5])
    return path


@fixture("torch-legacy", clean=False)
def legacy_trailing(folder):
    path = FIXTURES["legacy_protocol2"](folder)
    path.write_bytes(path.read_bytes() + b"x")
    return path


# TorchScript and its relatives.


@fixture("torchscript")
def torchscript(folder):
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU())
    path = folder / "script.pt"
    torch.jit.trace(net, torch.randn(2, 4)).save(str(path), _extra_files={"notes.txt": "hello"})
    return path


@fixture("zip", clean=False)
def torch_package(folder):
    import torch
    from torch.package import PackageExporter

    path = folder / "package.pt"
    with PackageExporter(str(path)) as exporter:
        exporter.save_pickle("weights", "weights.pkl", {"w": torch.randn(4)})
    return path


@fixture("zip", clean=False)
def pt2(folder):
    """The layout of torch.export, without needing its compiler."""
    with zipfile.ZipFile(folder / "model.pt2", "w") as archive:
        archive.writestr("model/archive_format", "pt2")
        archive.writestr("model/models/model.json", "{}")
        archive.writestr("model/data/weights/weight_0", bytes(64))
    return folder / "model.pt2"


@fixture("zip", clean=False)
def plain_zip(folder):
    with zipfile.ZipFile(folder / "plain.zip", "w") as archive:
        archive.writestr("a.txt", "hello" * 50)
    return folder / "plain.zip"


@fixture("distcp")
def distcp(folder):
    """A folder of torch.distributed.checkpoint; the path is its only shard."""
    import warnings

    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(flat_training_state(), checkpoint_id=str(folder / "dcp"), no_dist=True)
    return next((folder / "dcp").glob("*.distcp"))


def flat_training_state():
    """As torch.distributed.checkpoint.state_dict names things: by parameter, not by number."""
    state = training_state()
    names = [n for n, _ in model().named_parameters()]
    optimizer = {
        "state": {names[i]: v for i, v in state["optimizer"]["state"].items()},
        "param_groups": [{"lr": 1e-3, "params": names}],
    }
    return {"model": state["model"], "optim": optimizer, "step": 7}


@fixture("distcp")
def distcp_without_metadata(folder):
    path = distcp(folder)
    (path.parent / ".metadata").unlink()
    return path


# Frameworks, by the shape of their dicts.


@fixture("torch-zip")
def lightning(folder):
    import torch

    state = training_state()
    return save(
        folder,
        "epoch=1.ckpt",
        {
            "epoch": 1,
            "global_step": 10,
            "pytorch-lightning_version": "2.5.0",
            "state_dict": state["model"],
            "loops": {"fit_loop": {"state_dict": {}}},
            "callbacks": {"EarlyStopping": {"best_score": torch.tensor(0.5), "history": torch.randn(5)}},
            "optimizer_states": [state["optimizer"]],
            "lr_schedulers": [{"base_lrs": [0.1]}],
        },
    )


@fixture("torch-zip")
def deepspeed_zero1(folder):
    import torch

    flat = torch.randn(200)
    return save(
        folder,
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        {
            "optimizer_state_dict": {
                "zero_stage": 1,
                "partition_count": [1],
                "group_paddings": [0],
                "single_partition_of_fp32_groups": [flat],
                "base_optimizer_state": {
                    "state": {
                        0: {"exp_avg": flat * 0.1, "exp_avg_sq": flat**2, "step": torch.tensor(3.0)},
                    }
                },
            },
            "ds_version": "0.16",
        },
    )


@fixture("torch-zip")
def deepspeed_model(folder):
    import torch

    buffer = torch.randn(300).to(torch.bfloat16)
    module = {"a.weight": buffer[:100].view(10, 10), "a.bias": buffer[100:110], "b.weight": buffer[110:]}
    return save(folder, "mp_rank_00_model_states.pt", {"module": module, "buffer_names": [], "optimizer": None})


@fixture("torch-zip")
def megatron(folder):
    import torch

    weight = torch.randn(8, 8)
    return save(
        folder,
        "model_optim_rng.pt",
        {
            "args": {"lr": 0.1},
            "checkpoint_version": 3.0,
            "iteration": 5,
            "model": {"decoder.layers.0.linear.weight": weight.bfloat16()},
            "optimizer": {
                "optimizer": {
                    "state": {0: {"exp_avg": weight * 0.1, "exp_avg_sq": weight**2}},
                    "param_groups": [{"params": [0]}],
                },
                "fp32_from_fp16_params": [[weight]],
            },
            "rng_state": [{"torch_rng_state": torch.get_rng_state(), "cuda_rng_state": torch.get_rng_state()}],
        },
    )


@fixture("torch-zip")
def megatron_distrib_optim(folder):
    import torch

    flat = torch.randn(64)
    bucket = {"param": flat, "exp_avg": flat * 0.1, "exp_avg_sq": flat**2, "numel_unpadded": 60}
    return save(folder, "distrib_optim.pt", {0: {(torch.bfloat16, torch.float32): bucket}})


# safetensors.


def safetensors_bytes(entries: dict, data: bytes, pad: bool = True, text: str | None = None) -> bytes:
    header = (json.dumps(entries) if text is None else text).encode()
    if pad:
        header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype: str, shape: list, begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@fixture("safetensors")
def safetensors_model(folder):
    from safetensors.torch import save_file

    path = folder / "model.safetensors"
    save_file({k: v.contiguous() for k, v in model().state_dict().items()}, path, metadata={"format": "pt"})
    return path


def _safetensors(name: str, make: Callable[[], bytes], clean: bool = True):
    def build(folder):
        return write(folder, f"{name}.safetensors", make())

    build.__name__ = f"safetensors_{name}"
    fixture("safetensors", clean)(build)


_FIRST = {"a": entry("F32", [1], 0, 4)}
_SECOND = {"a": entry("F32", [1], 4, 8)}
_ONE = {"a": entry("F32", [2], 0, 8)}
_MORE = {
    "unpadded": lambda: safetensors_bytes(_ONE, bytes(8), pad=False),
    "pretty": lambda: safetensors_bytes({}, bytes(8), text=json.dumps(_ONE, indent=4)),
    "leading_space": lambda: safetensors_bytes({}, bytes(8), text="  " + json.dumps(_ONE)),
    "any_order": lambda: safetensors_bytes({"b": entry("U8", [3], 8, 11), "a": entry("F32", [2], 0, 8)}, bytes(11)),
    "repeated": lambda: safetensors_bytes({}, bytes(8), text=json.dumps(_ONE)[:-1] + "," + json.dumps(_ONE)[1:]),
    "misaligned": lambda: safetensors_bytes({"a": entry("U8", [3], 0, 3), "b": entry("F32", [2], 3, 11)}, bytes(11)),
    "no_tensors": lambda: safetensors_bytes({}, b""),
    "null_metadata": lambda: safetensors_bytes({"__metadata__": None, **_ONE}, bytes(8)),
    "only_metadata": lambda: safetensors_bytes({"__metadata__": {"a": "b"}}, b""),
    "zero_size": lambda: safetensors_bytes({"a": entry("F32", [0, 3], 0, 0), "b": entry("F32", [], 0, 4)}, bytes(4)),
    "names": lambda: safetensors_bytes({'q"\n🙂[bold]': entry("F32", [2], 0, 8)}, bytes(8)),
    "f4": lambda: safetensors_bytes({"a": entry("F4", [8], 0, 4), "b": entry("F6_E2M3", [4], 4, 7)}, bytes(7)),
    "unknown_dtype": lambda: safetensors_bytes(
        {"a": entry("F3_NEW", [8], 0, 4), "b": entry("F32", [1], 4, 8)}, bytes(8)
    ),
    # Lengths whose bytes look like other formats: zlib, gzip, zip.
    "length_like_zlib": lambda: safetensors_bytes({}, bytes(8), pad=False, text=json.dumps(_ONE).ljust(0x2078)),
    "length_like_gzip": lambda: safetensors_bytes({}, bytes(8), pad=False, text=json.dumps(_ONE).ljust(0x8B1F)),
}
_BROKEN = {
    "trailing": lambda: safetensors_bytes(_ONE, bytes(9)),
    "hole": lambda: safetensors_bytes({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 12, 16)}, bytes(16)),
    "overlap": lambda: safetensors_bytes({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)),
    "cut": lambda: safetensors_bytes(_ONE, bytes(5)),
    "header_cut": lambda: safetensors_bytes(_ONE, bytes(8))[:30],
    "wrong_size": lambda: safetensors_bytes({"a": entry("F32", [3], 0, 8)}, bytes(8)),
    "two_of_a_name": lambda: safetensors_bytes(
        {}, bytes(8), text=json.dumps(_FIRST)[:-1] + "," + json.dumps(_SECOND)[1:]
    ),
    "metadata_not_text": lambda: safetensors_bytes({"__metadata__": {"a": 1}, **_ONE}, bytes(8)),
    "not_json": lambda: safetensors_bytes({}, bytes(8), text='{"a": ]'),
    "not_utf8": lambda: struct.pack("<Q", 8) + b'{"\xff\xfe":1' + bytes(8),
    "deep": lambda: safetensors_bytes({}, bytes(8), text='{"a":' + "[" * 200_000),
    "huge_int": lambda: safetensors_bytes({}, bytes(8), text='{"a":' + "9" * 50_000 + "}"),
    "negative": lambda: safetensors_bytes({"a": entry("F32", [2], -8, 0)}, bytes(8)),
    "bools": lambda: safetensors_bytes({"a": entry("U8", [True], 0, 1)}, bytes(1)),
    "floats": lambda: safetensors_bytes({"a": entry("U8", [1.0], 0, 1)}, bytes(1)),
    "overflow": lambda: safetensors_bytes({"a": entry("U8", [2**63, 2**63], 0, 1)}, bytes(1)),
    "wrong_types": lambda: safetensors_bytes({"a": 1, "b": [], "c": {"dtype": 3}, **_ONE}, bytes(8)),
}
for _name, _make in _MORE.items():
    _safetensors(_name, _make)
for _name, _make in _BROKEN.items():
    _safetensors(_name, _make, clean=False)


# Not checkpoints.


def _other(name: str, format_name: str, make: Callable[[], bytes], clean: bool = False):
    def build(folder):
        return write(folder, name, make())

    build.__name__ = name
    fixture(format_name, clean)(build)


def _tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        info = tarfile.TarInfo("model_weights.ckpt")
        info.size = 1000
        archive.addfile(info, io.BytesIO(bytes(1000)))
    return stream.getvalue()


_other("empty", "empty", lambda: b"", clean=True)
_other("one_byte", "unknown", lambda: b"\x80")
_other("random_bytes", "unknown", lambda: random.Random(1).randbytes(5000))
_other("zeros", "unknown", lambda: bytes(5000))
_other("text", "unknown", lambda: b"learning rate: 0.1\n" * 40)
_other(
    "lfs_pointer",
    "git-lfs-pointer",
    lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12\n",
)
_other("gzip_data", "compressed", lambda: gzip.compress(bytes(500)))
_other("gguf", "gguf", lambda: b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
_other("tar", "tar", _tar)
_other("plain_pickle", "pickle", lambda: pickle.dumps({"a": [1, 2, 3]}, 4))
_other("numpy", "numpy", lambda: b"\x93NUMPY\x01\x00" + bytes(100))
_other("zip_only_magic", "zip", lambda: b"PK\x03\x04")


@fixture("pickle", clean=False)
def pickled_tensors(folder):
    import torch

    return write(folder, "tensors.pkl", pickle.dumps({"a": torch.randn(4)}, 2))


# Too large or too many to be in FIXTURES.


def many_tensors(folder: Path, count: int = 70_000) -> Path:
    """A zip of `count` tiny tensors, written without torch, which needs a minute for it."""
    return write(folder, "many.pt", torch_zip_bytes({f"layers.{i}.weight": bytes(4) for i in range(count)}))


def torch_zip_bytes(tensors: dict[str, bytes], top: str = "archive") -> bytes:
    """A torch.save zip of one-dimensional F32 tensors, with the layout that torch gives it."""
    names = [f"{top}/data.pkl", f"{top}/byteorder", *(f"{top}/data/{i}" for i in range(len(tensors)))]
    records = [state_dict_pickle({n: len(r) // 4 for n, r in tensors.items()}), b"little", *tensors.values()]
    out = bytearray()
    central = bytearray()
    for name, raw in zip(names, records, strict=True):
        header = len(out)
        label = name.encode()
        padding = -(header + 30 + len(label) + 4) % 64
        extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
        fields = (0, 0x0808, 0, 0, 0)
        out += struct.pack("<4s5H3I2H", b"PK\x03\x04", *fields, 0, 0, 0, len(label), len(extra)) + label + extra
        out += raw + struct.pack("<4s3I", b"PK\x07\x08", 0, len(raw), len(raw))
        central += struct.pack(
            "<4s6H3I5H2I", b"PK\x01\x02", 0, *fields, 0, len(raw), len(raw), len(label), 0, 0, 0, 0, 0, header
        )
        central += label
    return bytes(out + central + _ends(len(names), len(central), len(out)))


def _ends(count: int, size: int, offset: int) -> bytes:
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 0, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, offset + size, 1)
    short = min(count, 0xFFFF)
    return (
        end64
        + locator
        + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, short, short, min(size, 0xFFFFFFFF), min(offset, 0xFFFFFFFF), 0)
    )


def state_dict_pickle(counts: dict[str, int]) -> bytes:
    """What torch.save pickles for {name: F32 tensor of so many elements}."""
    parts = [b"\x80\x02}("]
    for index, (name, count) in enumerate(counts.items()):
        label = name.encode()
        key = str(index).encode()
        number = b"J" + struct.pack("<i", count)
        parts.append(b"X" + struct.pack("<I", len(label)) + label)
        parts.append(b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n")
        parts.append(b"X" + struct.pack("<I", len(key)) + key + b"X\x03\x00\x00\x00cpu" + number + b"tQ")
        parts.append(b"K\x00" + number + b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR")
    parts.append(b"u.")
    return b"".join(parts)


def safetensors_length_like_zip(folder: Path) -> Path:
    """A header of 67324752 bytes, whose length starts with PK, 3, 4; nearly all of it spaces."""
    return write(
        folder,
        "like_zip.safetensors",
        safetensors_bytes({}, bytes(8), pad=False, text=json.dumps(_ONE).ljust(0x04034B50)),
    )


def huge_zip(folder: Path) -> Path:
    """Two tensors of 4.4 GB and 64 bytes as torch writes them, the first one a hole in the file."""
    large = 4_400_000_000
    raw = state_dict_pickle({"large.weight": 1, "small.weight": 16})
    # Both counts were written as small ints; the large one becomes a LONG1.
    raw = raw.replace(b"J\x01\x00\x00\x00", b"\x8a\x05" + (large // 4).to_bytes(5, "little"))
    records = ((b"huge/data.pkl", raw, len(raw)), (b"huge/data/0", b"", large), (b"huge/data/1", bytes(64), 64))
    path = folder / "huge.pt"
    central = bytearray()
    with path.open("wb") as out:
        for name, content, size in records:
            header = out.tell()
            wide = b"".join(struct.pack("<Q", n) for n in (size, size, header) if n > 0xFFFFFFFE)
            sizes = [min(size, 0xFFFFFFFF)] * 2
            extra = struct.pack("<HH", 1, len(wide)) + wide if wide else b""
            fields = (0, 0x0808, 0, 0, 0)
            out.write(struct.pack("<4s5H3I2H", b"PK\x03\x04", *fields, 0, 0, 0, len(name), 0) + name + content)
            out.seek(size - len(content), 1)
            out.write(struct.pack("<4sIQQ", b"PK\x07\x08", 0, size, size))
            central += struct.pack("<4s6H3I", b"PK\x01\x02", 0, *fields, 0, *sizes)
            central += struct.pack("<5H2I", len(name), len(extra), 0, 0, 0, 0, min(header, 0xFFFFFFFF))
            central += name + extra
        offset = out.tell()
        out.write(central + _ends(len(records), len(central), offset))
    return path
