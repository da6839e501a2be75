"""Train three small language models on the CPU and write the sample checkpoints.

Compression depends on the bits that training leaves behind: exponents that cluster, mantissas that look
random, second moments over many binades. Random numbers would show none of it, so these models are trained,
on text that every CPython ships (the source of its own standard library), with nothing to download.

    python sample_data/make_samples.py [--out DIR] [--steps N]
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_model import VOCAB, Config, LanguageModel, MoE
from torch import Tensor
from torch.nn import functional

# Plain modules of CPython 3.11 and later. Their files are found without importing them; modules that are
# frozen into the interpreter, or have become packages in some version, are avoided.
CORPUS = (
    "argparse",
    "configparser",
    "difflib",
    "doctest",
    "inspect",
    "ipaddress",
    "mailbox",
    "optparse",
    "pickle",
    "smtplib",
    "statistics",
    "subprocess",
    "tarfile",
    "textwrap",
)
FIRST_PRINTABLE = 32

DENSE_FP32 = Config("dense-fp32", steps=600, seed=1)
DENSE_MIXED = Config("dense-mixed", steps=600, seed=2, dtype="bfloat16")
MOE_MIXED = Config("moe-mixed", steps=600, seed=3, ffn=32, experts=4, dtype="bfloat16")


def load_corpus() -> Tensor:
    """Return the corpus as token ids: 0 is the newline, 1 to 95 the printable characters, the rest dropped."""
    text = bytearray()
    for name in CORPUS:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"the standard library's {name} has no source file here")
        text += Path(spec.origin).read_bytes().replace(b"\r\n", b"\n").replace(b"\t", b"    ")
    codes = torch.frombuffer(text, dtype=torch.uint8).long()
    ids = codes - FIRST_PRINTABLE + 1
    ids[codes == ord("\n")] = 0
    return ids[(ids >= 0) & (ids < VOCAB)]


@dataclass
class Run:
    """A finished run: what a trainer holds in memory when it saves."""

    cfg: Config
    model: LanguageModel
    master: dict[str, Tensor]
    optimizer: torch.optim.AdamW

    def common(self) -> dict[str, Any]:
        """Return the entries that every full checkpoint carries."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "step": self.cfg.steps,
            "rng_state": torch.get_rng_state(),
            "config": asdict(self.cfg),
        }


def make_optimizer(cfg: Config, master: dict[str, Tensor]) -> torch.optim.AdamW:
    """Decay the matrices and leave the norms alone, as trainers do."""
    groups = [
        {"params": [p for p in master.values() if p.dim() > 1], "weight_decay": cfg.weight_decay},
        {"params": [p for p in master.values() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    on_gpu = any(p.is_cuda for p in master.values())
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=(cfg.beta1, cfg.beta2), fused=on_gpu or None)


def learning_rate(cfg: Config, step: int) -> float:
    """Warm up over the first tenth, then fall along a cosine to a tenth of the peak."""
    warm_up = max(1, cfg.steps // 10)
    if step < warm_up:
        return cfg.lr * (step + 1) / warm_up
    done = (step - warm_up) / max(1, cfg.steps - warm_up)
    return cfg.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def train(cfg: Config, corpus: Tensor, device: str = "cpu", experts: Callable[[Config], torch.nn.Module] = MoE) -> Run:
    """Train one model; the FP32 master is what AdamW updates, the model's weights are its rounding."""
    torch.manual_seed(cfg.seed)
    model = LanguageModel(cfg, experts).to(device)
    master = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.to(getattr(torch, cfg.dtype))
    optimizer = make_optimizer(cfg, master)
    losses, start = [], time.perf_counter()
    for step in range(cfg.steps):
        at = torch.randint(len(corpus) - cfg.context - 1, (cfg.batch, 1)) + torch.arange(cfg.context + 1)
        tokens = corpus[at].to(device)
        logits, aux = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        model.zero_grad()
        (loss + cfg.aux_coef * aux).backward()
        for name, p in model.named_parameters():
            master[name].grad = None if p.grad is None else p.grad.float().clone()
        torch.nn.utils.clip_grad_norm_(master.values(), cfg.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(cfg, step)
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(master[name])  # to BF16 this rounds to the nearest, ties to even
        losses.append(loss.item())
    count = sum(p.numel() for p in master.values())
    seconds = time.perf_counter() - start
    fall = f"loss {losses[0]:.3f} -> {losses[-1]:.3f}"
    print(f"{cfg.name}: {count} parameters, {cfg.steps} steps, {fall}, {seconds:.0f} s", flush=True)
    return Run(cfg, model, master, optimizer)


def flatten(run: Run) -> dict[str, Tensor]:
    """Name the model's and the optimizer's tensors in one flat space, for safetensors."""
    flat = {f"model.{name}": t for name, t in run.model.state_dict().items()}
    for name, p in run.master.items():
        flat |= {f"optimizer.{kind}.{name}": t for kind, t in run.optimizer.state[p].items()}
    return flat


def write_dense_fp32(run: Run, out: Path) -> None:
    """Write the FP32 run as a zip checkpoint, and the same tensors as safetensors."""
    torch.save({"model": run.model.state_dict(), **run.common()}, out / "dense_fp32.pt")
    save_file(flatten(run), out / "dense_fp32.safetensors", {"format": "pt", "step": str(run.cfg.steps)})


def mixed(run: Run) -> dict[str, Any]:
    """Return a mixed-precision checkpoint: BF16 weights beside the FP32 master they were rounded from."""
    return {"model": run.model.state_dict(), "master": run.master, **run.common()}


def write_dense_mixed(run: Run, out: Path) -> None:
    """Write the mixed-precision run with its last gradients, and its weights alone in the legacy stream."""
    grads = {name: p.grad for name, p in run.model.named_parameters()}
    torch.save({**mixed(run), "grads": grads}, out / "dense_mixed.pt")
    torch.save(run.model.state_dict(), out / "dense_legacy.pt", _use_new_zipfile_serialization=False)


def write_moe_mixed(run: Run, out: Path) -> None:
    """Write the mixture of experts, without gradients to stay small."""
    torch.save(mixed(run), out / "moe_mixed.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the sample models and write their checkpoints.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "checkpoints")
    parser.add_argument("--steps", type=int, help="train each model for so many steps, not its own number")
    args = parser.parse_args()
    if args.steps is not None and args.steps < 1:
        parser.error("--steps takes 1 or more")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    args.out.mkdir(parents=True, exist_ok=True)
    corpus = load_corpus()

    def run(cfg: Config) -> Run:
        return train(replace(cfg, steps=args.steps) if args.steps else cfg, corpus)

    # Each run is written before the next one starts, so that the generator's state saved is its own.
    write_dense_fp32(run(DENSE_FP32), args.out)
    write_dense_mixed(run(DENSE_MIXED), args.out)
    write_moe_mixed(run(MOE_MIXED), args.out)
    for path in sorted(args.out.iterdir()):
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
