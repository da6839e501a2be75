"""The committed sample checkpoints: really trained, consistent, small, and made by the script beside them."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the samples are read with torch")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="one sample is a safetensors file")

FOLDER = Path(__file__).parents[1] / "sample_data"
CHECKPOINTS = FOLDER / "checkpoints"
NAMES = ["dense_fp32.pt", "dense_fp32.safetensors", "dense_legacy.pt", "dense_mixed.pt", "moe_mixed.pt"]
FULL = ["dense_fp32.pt", "dense_mixed.pt", "moe_mixed.pt"]
MIXED = ["dense_mixed.pt", "moe_mixed.pt"]
MAX_BYTES = 6_000_000
ZIP_MAGIC = b"PK\x03\x04"


def load(name, folder=CHECKPOINTS):
    if name.endswith(".safetensors"):
        return safetensors_torch.load_file(folder / name)
    return torch.load(folder / name, weights_only=True)


def bits(tensor):
    """Compare bits, not values: NaN and the two zeros count."""
    return tensor.contiguous().view(torch.uint8)


def same(one, other):
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    return torch.equal(bits(one), bits(other))


def exponent_entropy(tensors):
    """Return the order-0 entropy, in bits, of the exponents of FP32 tensors."""
    flat = torch.cat([t.detach().float().flatten() for t in tensors])
    counts = torch.bincount((flat.view(torch.int32) >> 23) & 255).double()
    share = counts[counts > 0] / counts.sum()
    return -(share * share.log2()).sum().item()


def moments(checkpoint, kind):
    return [state[kind] for state in checkpoint["optimizer"]["state"].values()]


def test_the_committed_files_are_the_documented_ones():
    """Each file is there under its name, and the README names each."""
    assert sorted(p.name for p in CHECKPOINTS.iterdir()) == NAMES
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in NAMES)


def test_the_samples_stay_small():
    """All samples together take at most 6 MB of the repository."""
    assert sum(p.stat().st_size for p in CHECKPOINTS.iterdir()) <= MAX_BYTES


@pytest.mark.parametrize("name", FULL)
def test_full_checkpoints_hold_what_trainers_save(name):
    """A full checkpoint loads with weights_only and can resume: weights, moments, step, generator, config."""
    checkpoint = load(name)
    assert {"model", "optimizer", "step", "rng_state", "config"} <= checkpoint.keys()
    assert checkpoint["step"] == checkpoint["config"]["steps"] >= 300
    assert len(checkpoint["optimizer"]["state"]) == len(checkpoint["model"])
    torch.Generator().set_state(checkpoint["rng_state"])


def test_containers_are_of_both_kinds():
    """The legacy sample is a pickle stream; the other .pt samples are zip archives."""
    kinds = {name: (CHECKPOINTS / name).read_bytes()[:4] == ZIP_MAGIC for name in NAMES if name.endswith(".pt")}
    assert kinds == {name: name != "dense_legacy.pt" for name in kinds}


def test_the_legacy_stream_holds_the_mixed_weights():
    """The legacy sample is the weights of the mixed-precision run, bit for bit."""
    legacy, model = load("dense_legacy.pt"), load("dense_mixed.pt")["model"]
    assert legacy.keys() == model.keys()
    assert all(same(legacy[name], model[name]) for name in model)


def test_the_safetensors_twin_holds_the_same_tensors():
    """Every weight and both moments of the FP32 run are in its safetensors twin, bit for bit."""
    twin, checkpoint = load("dense_fp32.safetensors"), load("dense_fp32.pt")
    assert all(same(twin[f"model.{name}"], tensor) for name, tensor in checkpoint["model"].items())
    for kind in ("exp_avg", "exp_avg_sq", "step"):
        flat = [t for name, t in twin.items() if name.startswith(f"optimizer.{kind}.")]
        digests = [
            sorted(bits(t.reshape(-1)).numpy().tobytes() for t in ts) for ts in (flat, moments(checkpoint, kind))
        ]
        assert digests[0] == digests[1]


@pytest.mark.parametrize("name", MIXED)
def test_bf16_weights_are_the_rounded_master(name):
    """In a mixed-precision sample each BF16 weight is the FP32 master rounded to nearest even."""
    checkpoint = load(name)
    assert checkpoint["model"].keys() == checkpoint["master"].keys()
    for key, master in checkpoint["master"].items():
        assert master.dtype == torch.float32
        word = master.view(torch.int32).long() & 0xFFFFFFFF
        rounded = ((word + 0x7FFF + ((word >> 16) & 1)) >> 16) & 0xFFFF  # by hand, not by the cast under test
        assert torch.equal(checkpoint["model"][key].view(torch.int16).long() & 0xFFFF, rounded), key


def test_gradients_are_bf16_and_alive():
    """The dense mixed sample carries a BF16 gradient for each weight, and most are not zero."""
    checkpoint = load("dense_mixed.pt")
    grads = checkpoint["grads"]
    assert grads.keys() == checkpoint["model"].keys()
    assert {g.dtype for g in grads.values()} == {torch.bfloat16}
    assert torch.cat([g.flatten() for g in grads.values()]).ne(0).float().mean() > 0.9


def test_experts_are_stacked():
    """The experts of a layer share one 3-D tensor per matrix: [experts, out, in]."""
    checkpoint = load("moe_mixed.pt")
    config, model = checkpoint["config"], checkpoint["model"]
    experts, dim, ffn = config["experts"], config["dim"], config["ffn"]
    assert experts == 4
    for key, shape in {"w1": (experts, ffn, dim), "w2": (experts, dim, ffn), "w3": (experts, ffn, dim)}.items():
        assert model[f"layers.0.mlp.{key}"].shape == shape


@pytest.mark.parametrize("name", FULL)
def test_the_bits_look_trained(name):
    """Weights and moments are finite, hardly ever zero, and their exponents spread as training spreads them."""
    checkpoint = load(name)
    weights = list(checkpoint.get("master", checkpoint["model"]).values())
    for tensors in (weights, moments(checkpoint, "exp_avg"), moments(checkpoint, "exp_avg_sq")):
        flat = torch.cat([t.detach().flatten() for t in tensors])
        assert flat.isfinite().all()
        assert flat.ne(0).float().mean() > 0.95
        assert 2.3 < exponent_entropy(tensors) < 4.0
    assert min(t.min().item() for t in moments(checkpoint, "exp_avg_sq")) >= 0.0
    norms = [t for t in weights if t.dim() == 1]
    assert all(t.ne(1).float().mean() > 0.9 for t in norms), "norms left at their initial ones"


def test_the_script_makes_the_same_set_of_files(tmp_path):
    """The training script runs from anywhere, and writes the committed names with the committed shapes."""
    command = [sys.executable, str(FOLDER / "make_samples.py"), "--steps", "2", "--out", str(tmp_path / "new")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == NAMES
    for name in MIXED:
        new, old = load(name, tmp_path / "new")["master"], load(name)["master"]
        assert {k: t.shape for k, t in new.items()} == {k: t.shape for k, t in old.items()}
    losses = [float(line.split("->")[1].split(",")[0]) for line in done.stdout.splitlines() if "->" in line]
    assert len(losses) == 3
    assert all(loss < math.log(256) for loss in losses)
