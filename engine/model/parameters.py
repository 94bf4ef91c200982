"""The decoder's tensors, and under which names checkpoints keep them.

Query, key and value projections are one matrix here, gate and up projections another, so that
a layer does four matrix products. `checkpoint_tensors` maps every name of a checkpoint to the
part of a parameter that it fills; loading and checking both go by that map.

Knows: shapes and names. Does not know: files, or where values come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Linear:
    """`weight` (out, in) and `bias` (out,) or None."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """One layer. H hidden, I intermediate, D head dim, Hq and Hkv heads."""

    input_norm: Tensor  # (H,)
    qkv: Linear  # ((Hq + 2 Hkv) D, H)
    q_norm: Tensor | None  # (D,)
    k_norm: Tensor | None  # (D,)
    output: Linear  # (H, Hq D)
    post_norm: Tensor  # (H,)
    gate_up: Linear  # (2 I, H)
    down: Linear  # (H, I)


@dataclass(frozen=True, slots=True)
class Parameters:
    """All tensors of a decoder. `head` is `embedding` itself where the config ties them."""

    embedding: Tensor  # (V, H)
    layers: tuple[LayerParameters, ...]
    final_norm: Tensor  # (H,)
    head: Tensor  # (V, H)

    def tensors(self) -> Iterator[Tensor]:
        """Every parameter once."""
        yield self.embedding
        for layer in self.layers:
            yield from _layer_tensors(layer)
        yield self.final_norm
        if self.head is not self.embedding:
            yield self.head

    @property
    def num_bytes(self) -> int:
        """Bytes held on the device."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())


def _layer_tensors(layer: LayerParameters) -> Iterator[Tensor]:
    linears = (layer.qkv, layer.output, layer.gate_up, layer.down)
    optional = (layer.q_norm, layer.k_norm, *(linear.bias for linear in linears))
    yield from (layer.input_norm, layer.post_norm, *(linear.weight for linear in linears))
    yield from (tensor for tensor in optional if tensor is not None)


@dataclass(frozen=True, slots=True)
class _Allocator:
    dtype: torch.dtype
    device: torch.device

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def linear(self, size_out: int, size_in: int, *, bias: bool) -> Linear:
        return Linear(self.empty(size_out, size_in), self.empty(size_out) if bias else None)


def empty_parameters(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Parameters:
    """Allocate a decoder's tensors, uninitialised."""
    new = _Allocator(dtype, device)
    embedding = new.empty(config.vocab_size, config.hidden_size)
    return Parameters(
        embedding=embedding,
        layers=tuple(_empty_layer(config, new) for _ in range(config.num_layers)),
        final_norm=new.empty(config.hidden_size),
        head=embedding if config.tied else new.empty(config.vocab_size, config.hidden_size),
    )


def _empty_layer(config: ModelConfig, new: _Allocator) -> LayerParameters:
    hidden, query, kv = config.hidden_size, config.query_size, config.kv_size
    return LayerParameters(
        input_norm=new.empty(hidden),
        qkv=new.linear(query + 2 * kv, hidden, bias=config.qkv_bias),
        q_norm=new.empty(config.head_dim) if config.qk_norm else None,
        k_norm=new.empty(config.head_dim) if config.qk_norm else None,
        output=new.linear(hidden, query, bias=config.output_bias),
        post_norm=new.empty(hidden),
        gate_up=new.linear(2 * config.intermediate_size, hidden, bias=config.mlp_bias),
        down=new.linear(hidden, config.intermediate_size, bias=config.mlp_bias),
    )


def checkpoint_tensors(config: ModelConfig, parameters: Parameters) -> dict[str, Tensor]:
    """Every tensor name of a checkpoint, with the view of `parameters` that it fills.

    The views do not overlap and together cover every parameter.
    """
    names = {
        "model.embed_tokens.weight": parameters.embedding,
        "model.norm.weight": parameters.final_norm,
    }
    if not config.tied:
        names["lm_head.weight"] = parameters.head
    for index, layer in enumerate(parameters.layers):
        prefix = f"model.layers.{index}."
        names |= {prefix + name: view for name, view in _layer_names(config, layer)}
    return names


def _layer_names(config: ModelConfig, layer: LayerParameters) -> Iterator[tuple[str, Tensor]]:
    query, kv, wide = config.query_size, config.kv_size, config.intermediate_size
    attention, mlp = "self_attn.", "mlp."
    yield "input_layernorm.weight", layer.input_norm
    yield "post_attention_layernorm.weight", layer.post_norm
    if layer.q_norm is not None and layer.k_norm is not None:
        yield attention + "q_norm.weight", layer.q_norm
        yield attention + "k_norm.weight", layer.k_norm
    qkv = {"q_proj": query, "k_proj": kv, "v_proj": kv}
    yield from _linear_names(attention, qkv, layer.qkv)
    yield from _linear_names(attention, {"o_proj": config.hidden_size}, layer.output)
    yield from _linear_names(mlp, {"gate_proj": wide, "up_proj": wide}, layer.gate_up)
    yield from _linear_names(mlp, {"down_proj": config.hidden_size}, layer.down)


def _linear_names(
    prefix: str, parts: dict[str, int], linear: Linear
) -> Iterator[tuple[str, Tensor]]:
    """The names of a merged matrix: its rows split into `parts`, name to number of rows."""
    sizes = list(parts.values())
    for name, rows in zip(parts, torch.split(linear.weight, sizes), strict=True):
        yield f"{prefix}{name}.weight", rows
    if linear.bias is not None:
        for name, rows in zip(parts, torch.split(linear.bias, sizes), strict=True):
            yield f"{prefix}{name}.bias", rows
