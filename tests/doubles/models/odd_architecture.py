"""A made-up architecture in one file, with its reference in plain PyTorch.

    x -> norm -> QKV -> rope -> attention -> output -> norm -> + -> norm -> GeGLU -> norm -> + x

Norms multiply by 1 + weight; every second layer has another MLP and fewer query heads; every third
layer has no rope. `SERVED` registers the architecture under its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from engine.models.config import ModelConfig, ModelSizes, read_json, served_dtype
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.mlp import GatedMlp, MlpConfig
from engine.models.layers.norms import RmsNorm, RmsNormConfig
from engine.models.layers.rope import RopeConfig
from engine.models.layers.sandwich import SandwichLayerConfig
from engine.models.modules import Allocator
from engine.models.served.registry import ServedModels
from kernels.collectives.peer_rows import PeerProduct
from kernels.linear import split_k as parts
from kernels.linear.fp8_rows import Fp8Rows
from kernels.ops import Ops

EPS, THETA = 1e-5, 1000.0
NAME = "OddForCausalLM"
CONFIG: dict[str, Any] = {
    "architectures": [NAME],
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 64,
    "odd_intermediate_size": 96,
    "num_attention_heads": 4,
    "odd_num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


class Raw(ModelSizes, kw_only=True):
    """The fields of the made-up model's config.json."""

    odd_intermediate_size: int
    odd_num_attention_heads: int
    max_position_embeddings: int


class OnePlusNorm(RmsNorm):
    """A norm that computes (1 + weight) x / sqrt(mean(x^2) + eps), rounded once."""

    def norm(self, ops: Ops, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * (1.0 + self.weight.float())).to(x.dtype)

    def add(self, ops: Ops, x: Tensor | PeerProduct, residual: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(x, Tensor), "it is on a CPU"
        total = parts.whole(x, residual.dtype) + residual
        return self.norm(ops, total), total

    def fill(self, generator: torch.Generator) -> None:
        self.weight.zero_()


class OnePlusNormConfig(RmsNormConfig):
    def build(self, name: str, size: int, new: Allocator) -> RmsNorm:
        return OnePlusNorm(name, new.empty(size), self.eps)


class GegluMlp(GatedMlp):
    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        gate, up = self.gate_up.product(ops, x).chunk(2, dim=-1)
        return self.down.product(ops, F.gelu(gate, approximate="tanh") * up)


class GegluConfig(MlpConfig):
    def build(self, prefix: str, hidden: int, new: Allocator, *, in_parts: bool = True) -> GatedMlp:
        plain = MlpConfig.build(self, prefix, hidden, new, in_parts=in_parts)
        return GegluMlp(plain.gate_up, plain.down, plain.gate)


class Odd:
    """The made-up architecture. Implements `Architecture`."""

    examples = ("none",)

    def read(self, path: Path) -> ModelConfig:
        raw = read_json(path, Raw)
        return ModelConfig(
            family="odd",
            vocab_size=raw.vocab_size,
            hidden_size=raw.hidden_size,
            layers=self.layers(path),
            final_norm=OnePlusNormConfig(EPS),
            max_positions=raw.max_position_embeddings,
            tied=raw.tie_word_embeddings,
            dtype=served_dtype(raw),
        )

    def sizes(self, path: Path) -> ModelSizes:
        return read_json(path, Raw)

    def layers(self, path: Path) -> tuple[SandwichLayerConfig, ...]:
        raw = read_json(path, Raw)
        return tuple(_layer(raw, index) for index in range(raw.num_hidden_layers))


def _layer(raw: Raw, index: int) -> SandwichLayerConfig:
    attention = AttentionConfig(
        num_heads=raw.odd_num_attention_heads if index % 2 else raw.num_attention_heads,
        num_kv_heads=raw.num_kv_heads,
        head_dim=raw.size_of_head(),
        rope=RopeConfig(THETA) if index % 3 else None,
    )
    mlp = GegluConfig(raw.odd_intermediate_size if index % 2 else raw.intermediate_size)
    return SandwichLayerConfig(raw.hidden_size, attention, mlp, OnePlusNormConfig(EPS))


SERVED = ServedModels({NAME: Odd()})


def make_odd_checkpoint(model_dir: Path, num_layers: int = 7) -> dict[str, Tensor]:
    """Write a model of random weights, and return the weights by name."""
    torch.manual_seed(0)
    config = {**CONFIG, "num_hidden_layers": num_layers}
    (model_dir / "config.json").write_bytes(msgspec.json.encode(config))
    shapes = {"model.embed_tokens.weight": (300, 48), "model.norm.weight": (48,)}
    for index in range(num_layers):
        heads, size = (2, 96) if index % 2 else (4, 64)
        layer = f"model.layers.{index}."
        norms = ["input", "post_attention", "pre_feedforward", "post_feedforward"]
        shapes |= {f"{layer}{norm}_layernorm.weight": (48,) for norm in norms}
        own, mlp = layer + "self_attn.", layer + "mlp."
        shapes |= {own + "q_proj.weight": (16 * heads, 48), own + "o_proj.weight": (48, 16 * heads)}
        shapes |= {own + "k_proj.weight": (32, 48), own + "v_proj.weight": (32, 48)}
        shapes |= {mlp + "gate_proj.weight": (size, 48), mlp + "up_proj.weight": (size, 48)}
        shapes |= {mlp + "down_proj.weight": (48, size)}
    scales = {name: 1.5 * shape[-1] ** -0.5 if shape[1:] else 0.2 for name, shape in shapes.items()}
    weights = {name: scales[name] * torch.randn(shape) for name, shape in shapes.items()}
    save_file(weights, model_dir / "model.safetensors")
    return weights


@torch.inference_mode()
def truth(weights: dict[str, Tensor], token_ids: list[int]) -> Tensor:
    """Return all tokens' logits (T, V), in one pass, without cache, pages or merged matrices."""
    positions = torch.arange(len(token_ids))
    x = weights["model.embed_tokens.weight"][token_ids]
    for index in range(sum("q_proj" in name for name in weights)):
        layer = f"model.layers.{index}."
        names = [name for name in weights if name.startswith(layer)]
        w = {name.removeprefix(layer).removesuffix(".weight"): weights[name] for name in names}
        normed = _normed(x, w["input_layernorm"])
        q, k, v = (
            (normed @ w[f"self_attn.{one}_proj"].T).view(len(token_ids), -1, 16) for one in "qkv"
        )
        if index % 3:
            q, k = _rotated(q, positions), _rotated(k, positions)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        q, k, v = (one.transpose(0, 1) for one in (q, k, v))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended = heads.transpose(0, 1).flatten(1)
        x = x + _normed(attended @ w["self_attn.o_proj"].T, w["post_attention_layernorm"])
        normed = _normed(x, w["pre_feedforward_layernorm"])
        gate = F.gelu(normed @ w["mlp.gate_proj"].T, approximate="tanh")
        gated = gate * (normed @ w["mlp.up_proj"].T)
        x = x + _normed(gated @ w["mlp.down_proj"].T, w["post_feedforward_layernorm"])
    return _normed(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), 1.0 + weight, EPS)


def _rotated(heads: Tensor, positions: Tensor) -> Tensor:
    angles = positions[:, None] * THETA ** (-torch.arange(0, 16, 2) / 16)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = heads.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
