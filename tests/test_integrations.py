"""nvckpt inside the real trainers, where they are installed; processes of their own, since these are heavy to load."""

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

import nvckpt


def run(code: str, folder, *launcher: str) -> str:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, *launcher, str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


FSDP = """
    import json, os
    import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from nvckpt.integrations.distributed import Reader, Writer
    from nvckpt import decompress

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def build(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 7))
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return model, optimizer

    def step(model, optimizer):
        loss = model(torch.linspace(-1, 1, 64 * 4).view(4, 64) * (rank + 1)).square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        return loss.item()

    def state(model, optimizer):
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "epoch": 3, "note": "kept"}

    model, optimizer = build(1)
    for _ in range(2):
        step(model, optimizer)
    saved = state(model, optimizer)
    dcp.save(saved, storage_writer=Writer("compressed"))
    dcp.save(saved, storage_writer=dcp.FileSystemWriter("plain"))
    expected = [step(model, optimizer) for _ in range(2)]

    for number, reader in enumerate([Reader("compressed"), Reader("plain")]):
        model, optimizer = build(5 + number)
        loaded = state(model, optimizer) | {"epoch": 0, "note": ""}
        dcp.load(loaded, storage_reader=reader)
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        assert (loaded["epoch"], loaded["note"]) == (3, "kept")
        assert [step(model, optimizer) for _ in range(2)] == expected
    dist.barrier()
    if rank == 0:
        # Without nvckpt: decompressed, the folder is torch's own.
        for name in ("__0_0.distcp", "__1_0.distcp"):
            decompress(f"compressed/{name}.nvckpt", f"compressed/{name}")
        sizes = [os.path.getsize(f"{kind}/__0_0.distcp") for kind in ("compressed", "plain")]
        print(json.dumps(sizes))
    dist.barrier()
    model, optimizer = build(9)
    loaded = state(model, optimizer) | {"epoch": 0, "note": ""}
    dcp.load(loaded, storage_reader=dcp.FileSystemReader("compressed"))
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    assert [step(model, optimizer) for _ in range(2)] == expected
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_distributed_checkpoint_in_two_processes(tmp_path):
    """FSDP saves sharded, one archive a rank, and goes on bit for bit: from archives, and from torch's own files."""
    out = run(FSDP, tmp_path, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    compressed, plain = json.loads(out.splitlines()[-1])
    assert compressed == plain
    archives = sorted(path.name for path in (tmp_path / "compressed").glob("*.nvckpt"))
    assert archives == ["__0_0.distcp.nvckpt", "__1_0.distcp.nvckpt"]
    names = {name for tensor in nvckpt.inspect(tmp_path / "compressed" / archives[0]).tensors for name in tensor.names}
    assert "model.0.weight" in names


SHARDS = """
    import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard
    from nvckpt.integrations.distributed import Reader, Writer

    dist.init_process_group("cpu:gloo,cuda:gloo")
    rank = dist.get_rank()
    torch.cuda.set_device(0)
    mesh = DeviceMesh("cuda", [0, 1])

    def sharded(local):
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False)

    torch.manual_seed(rank)
    locals_ = {name: torch.randn(1500, 2000 + 8 * i, device="cuda") for i, name in enumerate(("w", "exp_avg"))}
    locals_["half"] = locals_["w"].bfloat16()
    saved = {name: sharded(local) for name, local in locals_.items()} | {"whole": torch.ones(9, device="cuda")}
    dcp.save(saved, storage_writer=Writer("compressed"))
    loaded = {name: sharded(torch.zeros_like(local)) for name, local in locals_.items()}
    loaded["whole"] = torch.zeros(9, device="cuda")
    dcp.load(loaded, storage_reader=Reader("compressed"))
    for name, local in locals_.items():
        assert loaded[name].to_local().is_cuda and torch.equal(loaded[name].to_local(), local), name
    assert loaded["whole"].sum().item() == 9
    dist.barrier()
    if rank == 0:
        print("equal")
    dist.destroy_process_group()
"""


@pytest.mark.gpu
def test_two_processes_save_from_one_gpu(tmp_path):
    """Shards of DTensors in the memory of a GPU that the processes share."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    out = run(SHARDS, tmp_path, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    assert "equal" in out
    archives = sorted((tmp_path / "compressed").glob("*.nvckpt"))
    assert [path.name for path in archives] == ["__0_0.distcp.nvckpt", "__1_0.distcp.nvckpt"]
    assert sum(path.stat().st_size for path in archives) < 2 * 1500 * (2000 * 6 + 2008 * 4) * 0.95


LIGHTNING = """
    import torch, warnings
    warnings.simplefilter("ignore")
    import {package} as L
    from nvckpt.integrations.lightning import NvckptCheckpointIO
    from nvckpt import inspect

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.net = torch.nn.Linear(40, 30)
        def training_step(self, batch, number):
            self.last = self.net(batch[0]).square().mean()
            return self.last
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.linspace(-1, 1, 320).view(8, 40)))
    common = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)

    def fit(epochs, plugin, path=None, save=None):
        net = Net()
        trainer = L.Trainer(max_epochs=epochs, plugins=[plugin], enable_checkpointing=False, **common)
        trainer.fit(net, data, ckpt_path=path)
        if save:
            trainer.save_checkpoint(save)
        return net.last.item()

    fit(1, NvckptCheckpointIO(blocking=False), save="one.ckpt")
    whole = fit(2, NvckptCheckpointIO())
    assert fit(2, NvckptCheckpointIO(), path="one.ckpt") == whole
    assert {{group.name for group in inspect("one.ckpt").groups}} >= {{"weights", "exp_avg"}}
    plugin = NvckptCheckpointIO(blocking=False)
    plugin.save_checkpoint({{"a": torch.ones(3)}}, "sub/two.ckpt")
    plugin.remove_checkpoint("sub/two.ckpt")
    try:
        plugin.load_checkpoint("sub/two.ckpt")
    except FileNotFoundError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_lightning_resumes_bit_for_bit(package, tmp_path):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert "Checkpoint file not found: sub/two.ckpt" in run(LIGHTNING.format(package=package), tmp_path)


TRANSFORMERS = """
    import torch, sys
    from pathlib import Path
    from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed
    from nvckpt.integrations.transformers import Trainer

    config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=2, vocab_size=64, tie_word_embeddings=True)
    set_seed(1)
    rows = [{"input_ids": torch.randint(0, 64, (16,))} for _ in range(16)]
    for row in rows:
        row["labels"] = row["input_ids"]

    def train(folder, resume=None, **extra):
        set_seed(2)
        arguments = TrainingArguments(folder, max_steps=4, save_steps=2, per_device_train_batch_size=2, use_cpu=True,
                                      report_to=[], disable_tqdm=True, **extra)
        trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, eval_dataset=rows[:2])
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    def bits(trainer):
        return [p.detach().view(torch.int32).tolist() for p in trainer.model.parameters()]

    whole = train("whole", eval_strategy="steps", eval_steps=2, load_best_model_at_end=True)
    names = sorted(path.name for path in Path("whole/checkpoint-2").iterdir())
    assert "optimizer.pt.nvckpt" in names and "model.safetensors.nvckpt" in names, names
    assert "optimizer.pt" not in names and "model.safetensors" not in names, names
    resumed = train("resumed", "whole/checkpoint-2")
    assert bits(resumed) == bits(whole)
    assert sorted(path.name for path in Path("whole/checkpoint-2").iterdir()) == names
    weights = bits(whole)
    whole.save_model("final")
    whole.model = LlamaForCausalLM.from_pretrained("final")
    assert bits(whole) == weights
    print("resumed")
"""


@pytest.mark.slow
def test_transformers_trainer_resumes_bit_for_bit(tmp_path):
    if find_spec("transformers") is None or find_spec("accelerate") is None:
        pytest.skip("transformers and accelerate are not installed")
    assert "resumed" in run(TRANSFORMERS, tmp_path)
