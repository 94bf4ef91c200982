"""A Llama decoder in plain PyTorch, with Hugging Face's parameter names, for training and checking.

Whole sequences only: no cache of keys and values, no generation. Knows nothing of text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder, named as in a Hugging Face config.json."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 640
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    max_position_embeddings: int = 4096
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """The width of one attention head."""
        return self.hidden_size // self.num_attention_heads


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.groups = shape.num_attention_heads // shape.num_key_value_heads
        width = shape.num_attention_heads * shape.head_dim
        kv_width = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend within each row of `x` (rows, length, hidden); same shape out."""
        rows, length, _ = x.shape
        heads = (rows, length, -1, self.head_dim)
        q = rotate(self.q_proj(x).view(heads).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(heads).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        k, v = (t.repeat_interleave(self.groups, dim=1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        merged: Tensor = self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))
        return merged


class Mlp(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Each position on its own; same shape out."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """One layer over (rows, length, hidden)."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)


class Decoder(nn.Module):
    """The whole model; the output head is the embedding (tied)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        cos, sin = rotary_table(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.apply(self._initialise)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (rows, length, vocab) for token ids (rows, length)."""
        length = ids.shape[1]
        cos, sin = self.get_buffer("cos")[:length], self.get_buffer("sin")[:length]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, (Attention, Mlp)):
            last = module.o_proj if isinstance(module, Attention) else module.down_proj
            nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * self.shape.num_hidden_layers))


def rotary_table(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines (max positions, head_dim), each frequency twice as Llama has them."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    positions = torch.arange(shape.max_position_embeddings, dtype=torch.float32)
    angles = torch.outer(positions, shape.rope_theta**-exponents).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn `x` (..., length, head_dim) by its positions' angles; keeps the dtype of `x`."""
    low, high = x.float().chunk(2, dim=-1)
    turned = torch.cat((-high, low), dim=-1)
    return (x.float() * cos + turned * sin).to(x.dtype)
