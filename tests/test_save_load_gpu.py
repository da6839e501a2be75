"""nvckpt.save and nvckpt.load of tensors in GPU memory: what the CPU would make, and equal either way."""

import odd_states
import pytest
import safetensors.torch
import torch
from odd_states import STATES, TRUSTED, fingerprint

import nvckpt
from nvckpt import state_cuda
from nvckpt.codecs.device import cuda_problem
from nvckpt.formats.byte_source import FileBytes
from nvckpt.original import Original

PROBLEM = cuda_problem() if torch.cuda.is_available() else "torch sees no GPU"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM)),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def small_states_too(monkeypatch):
    """Even a state of a few bytes goes through the GPU here."""
    monkeypatch.setattr(state_cuda, "_WORTH", 0)


def moved(value, device="cuda"):
    """The same with every plain tensor on the device, shared storages moved once."""
    _STORAGES.clear()
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: _move(t, device), value)


_STORAGES: dict[int, torch.UntypedStorage] = {}


def _move(tensor, device):
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.device.type == "meta":
        return tensor
    storage = tensor.untyped_storage()
    key = storage.data_ptr()
    if key not in _STORAGES or storage.nbytes() == 0:
        _STORAGES[key] = storage.to(device=device)
    made = torch.empty(0, dtype=tensor.dtype, device=device)
    made.set_(_STORAGES[key], tensor.storage_offset(), tensor.shape, tensor.stride())
    return torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made


def on_gpu(name):
    torch.manual_seed(3)
    kept = STATES[name]()
    return moved(kept), kept


@pytest.mark.parametrize("name", sorted(set(STATES) - {"bare_storages", "whole_module", "nested_subclass_in_module"}))
def test_odd_state_on_the_gpu(name, tmp_path):
    """Saved there it is sound, its file loads with torch, and it comes back to the GPU and to the CPU."""
    if name == "cycle":
        pytest.skip("the helper that moves tensors does not follow cycles")
    obj, _ = on_gpu(name)
    trusted = name in TRUSTED
    nvckpt.save(obj, tmp_path / "x", verify=True)
    assert nvckpt.verify(tmp_path / "x").damage == ()
    nvckpt.decompress(tmp_path / "x", tmp_path / "x.pt")
    # torch.load itself crashes where it is to put a nested tensor on the GPU.
    for location in (None, "cpu") if name == "nested_tensor" else (None, "cpu", "cuda:0"):
        expected = fingerprint(torch.load(tmp_path / "x.pt", location, weights_only=not trusted))
        assert fingerprint(nvckpt.load(tmp_path / "x", location, weights_only=not trusted)) == expected


def large():
    torch.manual_seed(1)
    weights = {f"w{i}": torch.randn(700 + i, 1000, device="cuda") for i in range(60)}
    half = {name: weight.bfloat16() for name, weight in weights.items()}
    return {"w": weights, "half": half, "tied": weights["w3"], "host": torch.randn(500, 500), "step": 7}


@pytest.mark.parametrize("level", ["default", "fast"])
def test_several_batches_and_host_tensors(level, tmp_path):
    obj = large()
    result = nvckpt.save(obj, tmp_path / "x", level=level).wait()
    assert result.device == "cuda:0"
    loaded = nvckpt.load(tmp_path / "x")
    assert fingerprint(loaded) == fingerprint(obj)
    assert loaded["tied"].data_ptr() == loaded["w"]["w3"].data_ptr()
    nvckpt.decompress(tmp_path / "x", tmp_path / "x.pt")
    assert fingerprint(torch.load(tmp_path / "x.pt")) == fingerprint(obj)
    cpu = nvckpt.load(tmp_path / "x", "cpu")
    # From the CPU to the GPU.
    nvckpt.save(cpu, tmp_path / "y", device="cpu", level="fast")
    assert fingerprint(nvckpt.load(tmp_path / "y", "cuda:0"))[1][:2] == fingerprint(moved(cpu))[1][:2]


def test_momentum_of_low_rank_is_decoded_on_the_gpu(tmp_path):
    """Level max of the CPU predicts it (codec lowrank)."""
    torch.manual_seed(4)
    noise = [0.02 * torch.randn(300 + i, 500) for i in range(4)]
    momentum = [each + torch.randn(len(each), 3) @ torch.randn(3, 500) for each in noise]
    nvckpt.save({"fp32": momentum, "bf16": [each.bfloat16() for each in momentum]}, tmp_path / "x", level="max")
    tensors = nvckpt.load(tmp_path / "x", "cuda:0")
    for mine, half, theirs in zip(tensors["fp32"], tensors["bf16"], momentum, strict=True):
        assert mine.is_cuda and torch.equal(mine.cpu(), theirs) and torch.equal(half.cpu(), theirs.bfloat16())


def test_the_state_of_the_call_is_what_a_background_save_writes(tmp_path):
    obj = large()
    expected = fingerprint(obj)
    saving = nvckpt.save(obj, tmp_path / "x", blocking=False)
    for weight in obj["w"].values():
        weight.zero_()
    obj["host"].zero_()
    saving.wait()
    assert fingerprint(nvckpt.load(tmp_path / "x")) == expected


def test_work_that_is_still_under_way_is_waited_for(tmp_path):
    """The tensors come from kernels that run on torch's stream."""
    a = torch.randn(6000, 6000, device="cuda")
    product = a @ a @ a @ a
    nvckpt.save({"p": product}, tmp_path / "x")
    assert torch.equal(nvckpt.load(tmp_path / "x")["p"], product)


def test_loading_decodes_on_the_gpu(tmp_path):
    """Nothing fell back to the CPU's way: that would raise here."""
    obj = large()
    nvckpt.save(obj, tmp_path / "x")
    with (tmp_path / "x").open("rb") as file:
        original = Original(FileBytes(file.fileno()))
        for location in (None, "cuda", torch.device("cuda:0")):
            expected = obj if location is None else moved(obj)
            assert fingerprint(state_cuda.load_on_gpu(original, location, None, 0)) == fingerprint(expected)
        original.close()


def test_damage_is_named(tmp_path):
    good, bad = (torch.randn(1 << 20, device="cuda") for _ in range(2))
    nvckpt.save({"good": good, "bad": bad}, tmp_path / "x")
    raw = bytearray((tmp_path / "x").read_bytes())
    raw[len(raw) - 1_000_000] ^= 1
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(RuntimeError, match=r"^bad"):
        nvckpt.load(tmp_path / "x")


def test_safetensors_on_the_gpu(tmp_path):
    tensors = odd_states.every_dtype()
    for name in ("complex128", "complex32"):
        del tensors[name]
    tensors = {name: tensor.cuda() for name, tensor in tensors.items()} | large()["w"] | {"e": torch.empty(0, 3)}
    nvckpt.save_file(tensors, tmp_path / "x", {"format": "pt"})
    loaded = nvckpt.load_file(tmp_path / "x", "cuda")
    for name, tensor in tensors.items():
        assert loaded[name].is_cuda
        assert fingerprint(loaded[name].cpu()) == fingerprint(tensor.cpu()), name
    nvckpt.decompress(tmp_path / "x", tmp_path / "x.safetensors")
    assert safetensors.torch.load_file(tmp_path / "x.safetensors").keys() == tensors.keys()


def test_memory_stays_below_a_gibibyte(tmp_path):
    """Whatever the state's size, and however often: batches bound it."""
    import cupy

    state = {f"w{i}": torch.randn(64 << 20, device="cuda") for i in range(8)}
    cupy.get_default_memory_pool().free_all_blocks()
    for _ in range(4):
        nvckpt.save(state, tmp_path / "x")
    pool = cupy.get_default_memory_pool()
    assert pool.total_bytes() < 1 << 30
