"""nvckpt.load(lazy=True): nothing decoded before it is used, and then what an eager load gives."""

import copy
import io
import pickle

import odd_states
import pytest
import torch
from odd_states import STATES, TRUSTED, fingerprint

import nvckpt
from nvckpt import original as original_module
from nvckpt.frames import decode_frame
from nvckpt.lazy import LazyTensor

pytestmark = pytest.mark.filterwarnings("ignore")
# What torch looks into while it loads, or makes in other ways, and what would be left without values or attributes.
CAREFUL = {
    *("parameters", "sparse", "sparse_rows", "quantized", "nested_tensor"),
    *("parameter_with_attributes", "bare_storages", *TRUSTED),
}


def plain(value):
    if isinstance(value, LazyTensor):
        return value.materialize()
    if type(value) in (tuple, list):
        return type(value)(map(plain, value))
    if isinstance(value, dict):
        for key in value:
            value[key] = plain(value[key])
    return value


@pytest.mark.parametrize("name", sorted(set(STATES) - {"cycle"}))
def test_materialized_it_is_what_an_eager_load_gives(name, tmp_path):
    nvckpt.save(STATES[name](), tmp_path / "x", level="fast")
    if name in CAREFUL:
        with pytest.raises((ValueError, pickle.UnpicklingError), match=r"lazily|Weights only load failed"):
            nvckpt.load(tmp_path / "x", lazy=True)
        return
    lazy = nvckpt.load(tmp_path / "x", lazy=True)
    eager = nvckpt.load(tmp_path / "x")
    assert fingerprint(plain(lazy)) == fingerprint(eager)


def test_nothing_is_decoded_before_it_is_used(tmp_path, monkeypatch):
    """Not even a tensor's frame for its shape; then one frame for one tensor, and once."""
    seen = []

    def counting(reader, number, *references):
        seen.append(number)
        return decode_frame(reader, number, *references)

    monkeypatch.setattr(original_module, "decode_frame", counting)
    tied = torch.randn(500, 500)
    obj = {"a": tied, "b": torch.randn(400, 400), "c": tied}
    nvckpt.save(obj, tmp_path / "x")
    lazy = nvckpt.load(tmp_path / "x", lazy=True)
    structure = len(seen)
    assert (lazy["a"].shape, lazy["a"].dtype, lazy["b"].device.type) == ((500, 500), torch.float32, "cpu")
    assert "LazyTensor" in repr(lazy["a"])
    assert len(seen) == structure
    assert torch.equal(lazy["a"] + 1, tied + 1)
    assert len(seen) == structure + 1
    lazy["a"].zero_()
    assert lazy["c"].sum() == 0
    assert len(seen) == structure + 1


def test_models_and_optimizers_take_it(tmp_path):
    """load_state_dict, further training, saving and copying go on as with plain tensors."""
    state = odd_states.adamw_state()
    nvckpt.save(state, tmp_path / "x")
    lazy = nvckpt.load(tmp_path / "x", lazy=True)
    expected = fingerprint(state["optimizer"])
    nets = []
    for source in (lazy, state):
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
        net.load_state_dict(source["model"])
        optimizer = torch.optim.AdamW(net.parameters(), amsgrad=True)
        optimizer.load_state_dict(source["optimizer"])
        torch.manual_seed(5)
        net(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        nets.append(net.state_dict())
    assert fingerprint(nets[0]) == fingerprint(nets[1])
    lazy = nvckpt.load(tmp_path / "x", lazy=True)
    stream = io.BytesIO()
    torch.save(copy.deepcopy(lazy["model"]), stream)
    nvckpt.save(lazy, tmp_path / "y")
    assert fingerprint(nvckpt.load(tmp_path / "y")["optimizer"]) == expected


def test_what_cannot_be_lazy(tmp_path):
    nvckpt.save({"a": torch.ones(3)}, tmp_path / "x")
    with pytest.raises(ValueError, match="path of an archive"), (tmp_path / "x").open("rb") as file:
        nvckpt.load(file, lazy=True)
    with pytest.raises(ValueError, match=r"cannot be loaded lazily"):
        nvckpt.load(tmp_path / "x", lazy=True, weights_only=False)
    torch.save({"a": torch.ones(3)}, tmp_path / "old", _use_new_zipfile_serialization=False)
    nvckpt.compress(tmp_path / "old")
    with pytest.raises(ValueError, match=r"cannot be loaded lazily"):
        nvckpt.load(tmp_path / "old.nvckpt", lazy=True)
    # A cycle of dicts is followed once.
    nvckpt.save(odd_states.cycle(), tmp_path / "y")
    lazy = nvckpt.load(tmp_path / "y", lazy=True)
    assert lazy["self"] is lazy
    assert lazy["t"].sum() == 3
