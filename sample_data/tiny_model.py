"""The models of the samples: a small Llama-like decoder, dense or with Mixtral-like experts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCAB = 96  # the newline and the 95 printable ASCII characters; of 256 byte rows most would never be trained
EPS = 1e-6


@dataclass(frozen=True)
class Config:
    """Everything that fixes a run, saved with its checkpoint as trainers do."""

    name: str
    steps: int
    seed: int
    vocab: int = VOCAB
    dim: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 176
    experts: int = 0  # 0: a dense feed-forward
    top_k: int = 2
    aux_coef: float = 0.02  # weight of the load-balancing loss, as in Mixtral
    context: int = 64
    batch: int = 16
    lr: float = 3e-3
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    dtype: str = "float32"


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x times the transposed weight, summed in FP32 and rounded to x's type, as on a GPU.

    The detour through FP32 gives the BF16 result that tensor cores give, several times quicker than BF16
    products on a CPU without instructions for them.
    """
    if x.is_cuda:
        return x @ weight.mT
    return (x.float() @ weight.float().mT).to(x.dtype)


class Linear(nn.Linear):
    """A linear layer without bias."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__(fan_in, fan_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply with FP32 accumulation."""
        return product(x, self.weight)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation, computed in FP32 whatever the weights' type."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Scale each row to unit mean square, then by the trained weight."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * self.weight


def rotate(x: Tensor) -> Tensor:
    """Apply rotary position embeddings to [batch, heads, time, head_dim]."""
    half = x.shape[-1] // 2
    time, pair = torch.arange(x.shape[-2], device=x.device), torch.arange(half, device=x.device)
    angle = torch.outer(time, 10000.0 ** (-pair / half))
    cos, sin = angle.cos(), angle.sin()
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with fewer key/value heads than query heads, as in Llama."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        kv_dim = cfg.dim // cfg.heads * cfg.kv_heads
        self.q_proj = Linear(cfg.dim, cfg.dim)
        self.k_proj = Linear(cfg.dim, kv_dim)
        self.v_proj = Linear(cfg.dim, kv_dim)
        self.o_proj = Linear(cfg.dim, cfg.dim)

    def _split(self, x: Tensor) -> Tensor:
        heads = x.view(*x.shape[:-1], -1, self.cfg.dim // self.cfg.heads)
        return heads.transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the present and the past."""
        q, k, v = self._split(self.q_proj(x)), self._split(self.k_proj(x)), self._split(self.v_proj(x))
        repeats = self.cfg.heads // self.cfg.kv_heads
        k, v = rotate(k).repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        y = functional.scaled_dot_product_attention(rotate(q), k, v, is_causal=True)
        out: Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """The gated feed-forward of Llama."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.gate_proj = Linear(cfg.dim, cfg.ffn)
        self.up_proj = Linear(cfg.dim, cfg.ffn)
        self.down_proj = Linear(cfg.ffn, cfg.dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and no auxiliary loss, in the shape that `MoE` returns."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x)), torch.zeros(())


class MoE(nn.Module):
    """Top-k routed experts, stacked in one tensor per matrix: [experts, out, in]."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.gate = Linear(cfg.dim, cfg.experts)
        self.w1 = nn.Parameter(torch.empty(cfg.experts, cfg.ffn, cfg.dim))
        self.w2 = nn.Parameter(torch.empty(cfg.experts, cfg.dim, cfg.ffn))
        self.w3 = nn.Parameter(torch.empty(cfg.experts, cfg.ffn, cfg.dim))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the routed output and the load-balancing loss.

        Every expert sees every token and the router's zeros drop what was not chosen: at this size that is
        quicker than gathering, and the gradients are those of the sparse form.
        """
        tokens = x.flatten(0, 1)
        logits = self.gate(tokens).float()
        best, index = logits.topk(self.cfg.top_k, dim=-1)
        chosen = functional.one_hot(index, self.cfg.experts).float()
        share = (best.softmax(-1).unsqueeze(-1) * chosen).sum(1)
        hidden = functional.silu(product(tokens, self.w1)) * product(tokens, self.w3)
        y = (product(hidden, self.w2) * share.T.unsqueeze(-1).to(x.dtype)).sum(0)
        balance = self.cfg.experts * (chosen.sum(1).mean(0) * logits.softmax(-1).mean(0)).sum()
        return y.view_as(x), balance


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, cfg: Config, experts: Callable[[Config], nn.Module]) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(cfg.dim)
        self.self_attn = Attention(cfg)
        self.post_attention_layernorm = RMSNorm(cfg.dim)
        self.mlp = experts(cfg) if cfg.experts else MLP(cfg)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream and the layer's auxiliary loss."""
        x = x + self.self_attn(self.input_layernorm(x))
        y, aux = self.mlp(self.post_attention_layernorm(x))
        return x + y, aux


class LanguageModel(nn.Module):
    """A decoder-only transformer, its tensors named as in published checkpoints.

    `experts` makes the feed-forward of a layer where the configuration has experts.
    """

    def __init__(self, cfg: Config, experts: Callable[[Config], nn.Module] = MoE) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(cfg.vocab, cfg.dim)
        self.layers = nn.ModuleList(Block(cfg, experts) for _ in range(cfg.layers))
        self.norm = RMSNorm(cfg.dim)
        self.lm_head = Linear(cfg.dim, cfg.vocab)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                into_stream = name.endswith(("o_proj.weight", "down_proj.weight", "w2", "experts.down_proj"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * cfg.layers) if into_stream else 0.02)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the mean auxiliary loss of the layers."""
        x, aux = self.embed_tokens(ids), torch.zeros(())
        for layer in self.layers:
            x, layer_aux = layer(x)
            aux = aux + layer_aux / len(self.layers)
        return self.lm_head(self.norm(x)), aux
