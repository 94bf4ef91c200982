"""Random weights of a model's shape, for benchmarks and for trying a shape without a download.

Knows: scales at which activations keep their size and logits spread by about one. Does not
know: files.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.parameters import Linear, Parameters, empty_parameters

BIAS_SCALE = 0.02


@torch.inference_mode()
def dummy_parameters(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int
) -> Parameters:
    """Random parameters, made on `device`; the same for the same seed, dtype and device type."""
    parameters = empty_parameters(config, dtype, device)
    generator = torch.Generator(device).manual_seed(seed)
    _fill_matrix(parameters.embedding, generator)
    for layer in parameters.layers:
        for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
            _fill_linear(linear, generator)
        for norm in (layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm):
            if norm is not None:
                norm.fill_(1.0)
    parameters.final_norm.fill_(1.0)
    if not config.tied:
        _fill_matrix(parameters.head, generator)
    return parameters


def _fill_linear(linear: Linear, generator: torch.Generator) -> None:
    _fill_matrix(linear.weight, generator)
    if linear.bias is not None:
        linear.bias.normal_(0.0, BIAS_SCALE, generator=generator)


def _fill_matrix(matrix: Tensor, generator: torch.Generator) -> None:
    """Scaled by the fan-in, so that the product of a unit vector has unit entries."""
    matrix.normal_(0.0, matrix.shape[1] ** -0.5, generator=generator)
