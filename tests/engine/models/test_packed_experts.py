"""gpt-oss's experts equal those of `transformers`: biases, and alternating gate and up columns."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

from engine.models.errors import UnsupportedModel
from engine.models.layers.mixture import Mixture, MixtureConfig
from engine.models.modules import Allocator, Module, WeightFormat, walk
from engine.models.weight_formats.fp8_checkpoints import ONLINE_FP8
from engine.models.weight_formats.plain import PLAIN
from kernels.norms.gate import Gate
from kernels.ops import torch_ops
from tests.doubles.models.alternating_architecture import MIXTURE

HIDDEN = 48


def build(config: MixtureConfig, weight_format: WeightFormat = PLAIN) -> Mixture:
    new = Allocator(weight_format, torch.float32, torch.device("cpu"))
    return config.build("mlp.", HIDDEN, new)


def theirs() -> GptOssMLP:
    config = GptOssConfig(
        hidden_size=HIDDEN,
        intermediate_size=MIXTURE.size,
        num_local_experts=MIXTURE.num_experts,
        num_experts_per_tok=MIXTURE.top_k,
    )
    mlp = GptOssMLP(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in mlp.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)
    return mlp


def load(mixture: Mixture, mlp: GptOssMLP) -> None:
    """Copy every tensor of the reference into the mixture; check that the reference has no
    others.
    """
    given = {f"mlp.{name}": weight for name, weight in mlp.state_dict().items()}
    for module in walk(mixture, Module):  # type: ignore[type-abstract]
        for tensor in module.checkpoint_tensors():
            weight = given.pop(tensor.name)
            converted = weight if tensor.convert is None else tensor.convert(weight)
            assert converted.shape == tensor.view.shape
            tensor.view.copy_(converted)
    assert not given


@torch.inference_mode()
def test_the_mixture_is_that_of_transformers() -> None:
    mlp, mixture = theirs(), build(MIXTURE)
    load(mixture, mlp)
    x = 4 * torch.randn(20, HIDDEN, generator=torch.Generator().manual_seed(1))
    expected = cast("Any", mlp(x[None]))[0][0]
    torch.testing.assert_close(mixture.product(torch_ops(), x), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("part", ["gate", "bias"])
@torch.inference_mode()
def test_the_gate_and_the_biases_show(part: str) -> None:
    """Drop the activation's limit, or the biases (positive control): the outputs differ."""
    mlp, mixture = theirs(), build(MIXTURE)
    load(mixture, mlp)
    x = 4 * torch.randn(20, HIDDEN, generator=torch.Generator().manual_seed(1))
    expected = cast("Any", mlp(x[None]))[0][0]
    if part == "gate":
        object.__setattr__(mixture.experts.config, "gate", Gate())
    else:
        assert mixture.experts.gate_up.bias is not None
        mixture.experts.gate_up.bias.zero_()
    assert (mixture.product(torch_ops(), x) - expected).abs().max() > 0.1


def test_in_fp8_they_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="experts with biases"):
        build(MIXTURE, ONLINE_FP8)
