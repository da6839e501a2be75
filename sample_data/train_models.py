"""Train models of about 300 million parameters on one GPU, a minute each, and write their checkpoints.

    python sample_data/train_models.py --model dense|moe --out FILE.pt [--layout seed,master,full]

`dense` is Llama-style (18 layers, width 1024), `moe` Mixtral-style (8 layers, width 768, 8 experts of which 2 see a
token). The text is Python source found below `sys.prefix` and in the standard library, so nothing is downloaded, and
another machine gives other bits. Weights and gradients are BF16; AdamW updates an FP32 master of which the weights are
the rounding. With several layouts the files are FILE.seed.pt, FILE.master.pt, ...

    seed     BF16 weights and gradients, FP32 moments: 12 bytes a parameter
    master   BF16 weights, FP32 master and moments: 14 bytes a parameter
    full     all of these: 16 bytes a parameter
"""

import argparse
import os
import random
import re
import sys
import sysconfig
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from make_samples import Run, mixed, train
from tiny_model import Config, Linear, product
from torch import Tensor, nn
from torch.nn import functional

LAYOUTS = ("seed", "master", "full")
TOKEN = re.compile(r"\n *|\w+|[^\w\s]")
UNKNOWN = 0

DENSE = Config(
    "dense-300m", steps=400, seed=11, vocab=32_000, dim=1024, layers=18, heads=16, kv_heads=16, ffn=2816,
    context=1024, batch=16, lr=6e-4, dtype="bfloat16",
)  # fmt: skip
EXPERTS = Config(
    "moe-300m", steps=300, seed=12, vocab=32_000, dim=768, layers=8, heads=12, kv_heads=4, ffn=1664, experts=8,
    context=1024, batch=16, lr=6e-4, dtype="bfloat16",
)  # fmt: skip
TEXT_BYTES = 40_000_000
# For a test of the script on a CPU: about 100,000 parameters.
TINY = {"steps": 3, "vocab": 512, "dim": 48, "layers": 2, "heads": 4, "kv_heads": 2, "context": 64, "batch": 4}
TINY_TEXT_BYTES = 400_000


class RoutedExperts(nn.Module):
    """Top-k routed experts; each computes only the tokens sent to it. Stacked tensors: [experts, out, in]."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.gate = Linear(cfg.dim, cfg.experts)
        stacks = {
            "gate_up_proj": torch.empty(cfg.experts, 2 * cfg.ffn, cfg.dim),
            "down_proj": torch.empty(cfg.experts, cfg.dim, cfg.ffn),
        }
        self.experts = nn.ParameterDict(stacks)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the routed output, shaped as `x`, and the load-balancing loss."""
        tokens = x.flatten(0, 1)
        logits = self.gate(tokens).float()
        best, index = logits.topk(self.cfg.top_k, dim=-1)
        share = best.softmax(-1).to(x.dtype)
        y = torch.zeros_like(tokens)
        # Unbound once: each slice taken on its own would make a gradient of the whole stack.
        stacks = (self.experts["gate_up_proj"].unbind(), self.experts["down_proj"].unbind())
        for expert, (gate_up, down) in enumerate(zip(*stacks, strict=True)):
            rows, ranks = (index == expert).nonzero(as_tuple=True)
            gate, up = product(tokens[rows], gate_up).chunk(2, dim=-1)
            out = product(functional.silu(gate) * up, down) * share[rows, ranks, None]
            y = y.index_add(0, rows, out)
        chosen = functional.one_hot(index, self.cfg.experts).float().sum(1)
        balance = self.cfg.experts * (chosen.mean(0) * logits.softmax(-1).mean(0)).sum()
        return y.view_as(x), balance


def sources() -> list[Path]:
    """Return the Python files of the standard library and the installed packages, always in one mixed order."""
    roots = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    # Packages may also lie in folders that PYTHONPATH or a .pth file adds.
    roots |= {Path(entry).resolve() for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")}
    found = {path for root in roots if root.is_dir() for path in root.rglob("*.py")}
    files = sorted(found, key=lambda path: (path.name, str(path)))
    random.Random(0).shuffle(files)
    return files


def texts(limit: int) -> Iterator[str]:
    """Yield the text of source files, `limit` bytes in all."""
    left = limit
    for path in sources():
        if left <= 0:
            return
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        text = text[:left]
        left -= len(text)
        yield text


def load_corpus(vocab: int, limit: int) -> Tensor:
    """Return the corpus as ids of words, marks and line starts; 0 stands for what is not among the most frequent."""
    counts: Counter[str] = Counter()
    for text in texts(limit):
        counts.update(TOKEN.findall(text))
    # Equally frequent ones by their spelling, so that one set of files gives one vocabulary.
    common = sorted(counts, key=lambda token: (-counts[token], token))[: vocab - 1]
    ids = {token: number for number, token in enumerate(common, start=1)}
    corpus = array("i")
    for text in texts(limit):
        corpus.extend(ids.get(token, UNKNOWN) for token in TOKEN.findall(text))
    print(f"text: {len(corpus):,} tokens, {len(ids):,} of {len(counts):,} different ones in the vocabulary", flush=True)
    return torch.frombuffer(corpus, dtype=torch.int32).long()


def on_host(value: Any) -> Any:
    """Copy the tensors in nested dictionaries and lists to the host, so that any machine loads them."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: on_host(item) for key, item in value.items()}
    if isinstance(value, list):
        return [on_host(item) for item in value]
    return value


def checkpoint(run: Run, layout: str) -> dict[str, Any]:
    """Return what a trainer with this layout saves; everything else is in all of them."""
    parts = mixed(run)
    if layout != "master":
        parts["grads"] = {name: p.grad for name, p in run.model.named_parameters()}
    if layout == "seed":
        del parts["master"]
    return parts


def configuration(model: str, scale: str, steps: int | None) -> Config:
    cfg = DENSE if model == "dense" else EXPERTS
    if scale == "tiny":
        cfg = replace(
            cfg, **TINY, name=f"{model}-tiny", ffn=32 if cfg.experts else 128, experts=4 if cfg.experts else 0
        )
    return replace(cfg, steps=steps) if steps else cfg


def output(path: Path, layout: str, layouts: list[str]) -> Path:
    return path if len(layouts) == 1 else path.with_suffix(f".{layout}.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=("dense", "moe"), required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.pt")
    parser.add_argument("--layout", default="full", help="seed, master, full; several with commas between them")
    parser.add_argument("--steps", type=int, help="by default 400 (dense) or 300 (moe), tiny 3")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--scale", choices=("full", "tiny"), default="full", help="tiny: 100,000 parameters, for tests")
    args = parser.parse_args()
    layouts = args.layout.split(",")
    if unknown := set(layouts) - set(LAYOUTS):
        parser.error(f"unknown layout {', '.join(sorted(unknown))}: choose from {', '.join(LAYOUTS)}")
    if args.steps is not None and args.steps < 1:
        parser.error("--steps takes 1 or more")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU that torch can use is here; --device cpu --scale tiny tries the script")
    # cuBLAS repeats its results only with a workspace of fixed size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    if args.device == "cpu":
        torch.set_num_threads(1)
    cfg = configuration(args.model, args.scale, args.steps)
    corpus = load_corpus(cfg.vocab, TINY_TEXT_BYTES if args.scale == "tiny" else TEXT_BYTES)
    run = train(cfg, corpus, args.device, RoutedExperts)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for layout in layouts:
        path = output(args.out, layout, layouts)
        torch.save(on_host(checkpoint(run, layout)), path)
        print(f"{path}: {path.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
