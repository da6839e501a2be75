"""The scripts of the recorded GPU run, on a CPU and tiny models: they start, and make what they say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the scripts train with torch")

FOLDER = Path(__file__).parents[1] / "sample_data"
GROUPS = {"weights", "grads", "exp_avg", "exp_avg_sq", "master"}


def call(script, *arguments):
    command = [sys.executable, str(FOLDER / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    call("train_models.py", "--model", "moe", "--scale", "tiny", "--device", "cpu", "--layout", "seed,master,full",
         "--out", folder / "moe.pt")  # fmt: skip
    return folder


def groups(path):
    command = [sys.executable, "-m", "nvckpt.cli", "compress", "--json", "--no-verify", str(path)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["results"][0]["groups"]
    return {group["name"]: group for group in found}


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "absent"), [("seed", "master"), ("master", "grads"), ("full", None)])
def test_trained_checkpoints_have_the_groups_of_their_layout(trained, layout, absent):
    """Every tensor of a trained checkpoint is in the group that its layout says; none is left over."""
    path = trained / f"moe.{layout}.pt"
    found = groups(path)
    assert set(found) == GROUPS - {absent} | {"rng", "scalar", "structure", "archive"}
    parameters = len(torch.load(path)["model"])
    assert all(found[name]["tensors"] == parameters for name in GROUPS - {absent})


@pytest.mark.slow
def test_experts_are_stacked_and_trained(trained):
    """Experts are [experts, out, in], the weights are the rounded master, and gradients reached every expert."""
    state = torch.load(trained / "moe.full.pt")
    for name, shape in {"gate_up_proj": (4, 64, 48), "down_proj": (4, 48, 32)}.items():
        key = f"layers.1.mlp.experts.{name}"
        assert state["model"][key].shape == shape
        assert (state["grads"][key] != 0).flatten(1).any(1).all()
    for key, weights in state["model"].items():
        assert weights.dtype == state["grads"][key].dtype == torch.bfloat16
        assert torch.equal(state["master"][key].bfloat16(), weights)


@pytest.mark.slow
def test_a_run_is_recorded_section_by_section(trained, tmp_path):
    """On a CPU: files are measured and come back, GPU-only parts say why not, and the summary has them."""
    dense, out = trained / "moe.full.pt", tmp_path / "run"
    call("measure_gpu.py", "--device", "cpu", "--dense", dense, "--out", out, "--scratch", tmp_path, "--runs", 1,
         "--sizes", "0.002,0.004", "--only", "conditions,files,recipe,bench_dense", "--sample", 1,
         "--bench-codecs", "store ans")  # fmt: skip
    found = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    assert [size["identical"] for size in found["files"]["sizes"]] == [True, True]
    for size in found["files"]["sizes"]:
        assert 0 < size["bytes"] - size["gigabytes"] * 1e9 < 1e6
        assert size["compress"]["peak_host"] > 1e7
        assert size["compress"]["runs"][0]["said"]["ratio"] < 2, "the copies are not copies of each other"
    assert "GPU" in found["recipe"]["skipped"]
    codecs = {row["codec"]: row["ok"] for row in found["bench_dense"]["results"]}
    assert codecs == {"store": True, "ans": False}
    summary = (out / "README.md").read_text()
    assert "| decompress |" in summary
    assert "ans, all: needs an NVIDIA GPU" in summary
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "the scratch folder is left behind"
