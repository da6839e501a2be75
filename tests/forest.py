"""Checkpoint trees as frameworks write them, small: FOREST[name](folder) makes one and returns what is compressed."""

import io
import json
import shutil
import tarfile
import warnings
from pathlib import Path

import checkpoints
from checkpoints import FIXTURES


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _put(path: Path, fixture: str) -> str:
    """Make a fixture's file under another name; returns the name below the tree's parent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.parent / "scratch"
    scratch.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shutil.move(FIXTURES[fixture](scratch), path)
    shutil.rmtree(scratch)
    return path.name


def transformers(folder: Path) -> set[str]:
    """Shards with their index, which names them, and the files beside them."""
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    taken = {_put(folder / shard, "safetensors_model") for shard in shards}
    index = {"metadata": {"total_size": 8}, "weight_map": {"a": shards[0], "b": shards[1]}}
    _text(folder / "model.safetensors.index.json", json.dumps(index))
    _text(folder / "config.json", "{}")
    _text(folder / "tokenizer.json", '{"version": "1.0"}')
    _text(folder / "merges.txt", "a b\n")
    _text(folder / "README.md", "# model\n")
    return taken


def trainer(folder: Path) -> set[str]:
    """checkpoint-N of the Transformers Trainer."""
    inner = folder / "checkpoint-10"
    files = {
        "model.safetensors": "safetensors_model",
        "optimizer.pt": "zip_adamw",
        "scheduler.pt": "zip_one_tensor",
        "rng_state.pth": "zip_all_dtypes",
        "training_args.bin": "zip_module",
    }
    taken = {f"checkpoint-10/{_put(inner / name, fixture)}" for name, fixture in files.items()}
    _text(inner / "trainer_state.json", '{"epoch": 1}')
    _text(inner / "vocab.txt", "a\n")
    return taken


def dcp(folder: Path) -> set[str]:
    """torch.distributed.checkpoint: the names are in `.metadata`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shard = checkpoints.distcp(folder)
    return {f"dcp/{shard.name}", "dcp/.metadata"}


def deepspeed(folder: Path) -> set[str]:
    """ZeRO: a folder a step, and a text file that names the latest."""
    inner = folder / "global_step10"
    taken = {
        _put(inner / "mp_rank_00_model_states.pt", "deepspeed_model"),
        _put(inner / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "deepspeed_zero1"),
    }
    _text(folder / "latest", "global_step10")
    _text(folder / "zero_to_fp32.py", "import torch\n")
    return {f"global_step10/{name}" for name in taken}


def megatron(folder: Path) -> set[str]:
    """iter_N/mp_rank_NN, and a text file that names the latest."""
    inner = folder / "iter_0000010" / "mp_rank_00"
    taken = {
        _put(inner / "model_optim_rng.pt", "megatron"),
        _put(inner / "distrib_optim.pt", "megatron_distrib_optim"),
    }
    _text(folder / "latest_checkpointed_iteration.txt", "10")
    return {f"iter_0000010/mp_rank_00/{name}" for name in taken}


def nemo(folder: Path) -> set[str]:
    """A .nemo file is a tar; unpacked, weights in folders of ranks."""
    weights = folder / "mp_rank_00" / "model_weights.ckpt"
    _put(weights, "lightning")
    _text(folder / "model_config.yaml", "a: 1\n")
    with tarfile.open(folder / "whole.nemo", "w") as tar:
        tar.add(weights, "model_weights.ckpt")
        tar.addfile(tarfile.TarInfo("model_config.yaml"), io.BytesIO())
    return {"whole.nemo", "mp_rank_00/model_weights.ckpt"}


FOREST = {
    "transformers": transformers,
    "trainer": trainer,
    "dcp": dcp,
    "deepspeed": deepspeed,
    "megatron": megatron,
    "nemo": nemo,
}
