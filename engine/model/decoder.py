"""The forward pass of every decoder this engine serves.

Knows: the order of norms, projections, attention and MLP. Does not know: which kernels do the
work (`Ops`), how weights came here, or which sequences the tokens are of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.parameters import LayerParameters, Parameters
from engine.model.rope import rope_table
from kernels.batch_layout import BatchLayout, layer_view
from kernels.ops import Ops

# The first layer begins with another norm than those behind it, and the last one goes on with fewer
# tokens. What those between launch, these two launch as well.
UNLIKE_LAYERS = 2


class Late(Protocol):
    """The pool's layers from `first` on may be on their way when a step begins."""

    first: int

    def wait(self) -> None:
        """Let what is launched next wait for them."""
        ...


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder on its device. `cos_sin` (positions, D) float32."""

    config: ModelConfig
    parameters: Parameters
    cos_sin: Tensor
    ops: Ops
    late: Late | None = None  # None: every layer is there when a step is launched

    @torch.inference_mode()
    def logits(
        self, token_ids: Tensor, layout: BatchLayout, pool: Tensor, outputs: Tensor
    ) -> Tensor:
        """Compute T tokens, write their KV to `pool`, return logits of the tokens at `outputs`.

        Only tokens that are followed by a sampled one, and few are, go through all that is behind
        the last layer's attention.

        `token_ids` (T,) int64, `outputs` (S,) int64 indices into T; (S, V) in the model's
        dtype. The result is the caller's to change. Does not wait for the device.
        """
        computed = self._layers(token_ids, layout, pool, outputs)
        if computed is None:
            return self.parameters.head.new_empty((0, self.config.vocab_size))
        (hidden, residual), eps = computed, self.config.rms_norm_eps
        hidden, _ = self.ops.add_rms_norm(hidden, residual, self.parameters.final_norm, eps)
        return self.ops.linear(hidden, self.parameters.head, None)

    def _layers(
        self, token_ids: Tensor, layout: BatchLayout, pool: Tensor, outputs: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """The last layer's output at `outputs`, whole or in parts, and its residual (S, H).

        None where there are no outputs: all KV is written, and the rest is left out.
        """
        eps, layers = self.config.rms_norm_eps, self.parameters.layers
        residual = F.embedding(token_ids, self.parameters.embedding)
        hidden = self.ops.rms_norm(residual, layers[0].input_norm, eps)
        for index, layer in enumerate(layers):
            if self.late is not None and index == self.late.first:
                self.late.wait()
            if index > 0:
                hidden, residual = self.ops.add_rms_norm(hidden, residual, layer.input_norm, eps)
            kv = layer_view(pool, index)
            queries = self._write_kv(layer, hidden, layout, kv)
            is_last = index == len(layers) - 1
            if is_last and outputs.shape[0] == 0:
                return None
            attended = self.ops.paged_attention(
                queries, kv, layout, self.config.head_dim**-0.5
            ).flatten(1)
            if is_last:  # nobody reads more than the KV of the other tokens
                attended, residual = attended[outputs], residual[outputs]
            projected = self.ops.linear_in_parts(attended, layer.output.weight, layer.output.bias)
            hidden, residual = self.ops.add_rms_norm(projected, residual, layer.post_norm, eps)
            hidden = self._mlp(layer, hidden)
        return hidden, residual

    def _write_kv(
        self, layer: LayerParameters, hidden: Tensor, layout: BatchLayout, kv: Tensor
    ) -> Tensor:
        """The queries (T, Hq, D); keys and values go to their slots in `kv`."""
        config = self.config
        return self.ops.rope_write_kv(
            self.ops.linear_in_parts(hidden, layer.qkv.weight, layer.qkv.bias),
            layout.positions,
            self.cos_sin,
            layer.q_norm,
            layer.k_norm,
            config.rms_norm_eps,
            kv,
            layout.slots,
            config.num_heads,
        )

    def _mlp(self, layer: LayerParameters, hidden: Tensor) -> Tensor:
        gate_up = self.ops.linear(hidden, layer.gate_up.weight, layer.gate_up.bias)
        gated = self.ops.silu_mul(gate_up)
        return self.ops.linear_in_parts(gated, layer.down.weight, layer.down.bias)


def first_layers(decoder: Decoder, count: int) -> Decoder:
    """The same decoder without the layers behind the first `count`."""
    layers = decoder.parameters.layers[:count]
    return replace(
        decoder,
        config=replace(decoder.config, num_layers=len(layers)),
        parameters=replace(decoder.parameters, layers=layers),
    )


def build_decoder(
    config: ModelConfig, parameters: Parameters, ops: Ops, num_positions: int
) -> Decoder:
    """A decoder for sequences of up to `num_positions` tokens, on the parameters' device."""
    device = parameters.embedding.device
    table = rope_table(config.rope, config.head_dim, num_positions, device)
    return Decoder(config, parameters, table, ops)
