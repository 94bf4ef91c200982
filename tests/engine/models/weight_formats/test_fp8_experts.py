"""Mixtures of experts in fp8: as checkpoints keep them, against the rounded numbers."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from engine.models.architecture import read_model_config
from engine.models.errors import UnsupportedModel
from engine.models.modules import walk
from engine.models.weight_formats.fp8 import Fp8Experts
from engine.models.weights import load_parameters
from tests.engine.models.weight_formats.test_fp8 import (
    KINDS,
    PROMPT,
    STATIC,
    TOLERANCE,
    Kind,
    RoundedLinear,
    logits,
    say,
)
from tests.engine.rigs.checkpoints import Checkpoint, Recipe, make_checkpoint
from tests.engine.rigs.int4_checkpoints import rewrite

CPU = torch.device("cpu")
RECIPE = Recipe(
    "Qwen3Moe",
    {
        "hidden_size": 128,
        "intermediate_size": 256,
        "moe_intermediate_size": 128,
        "head_dim": 32,
        "num_key_value_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
)
EXPERT = re.compile(r"(?P<place>.+\.experts)\.(?P<number>\d+)\.(?P<name>\w+)")


class RoundedExperts(nn.Module):
    """Experts of the truth: matrices by their numbers and names."""

    def __init__(self, matrices: dict[tuple[int, str], RoundedLinear]) -> None:
        super().__init__()
        self._matrices = matrices

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for row, (own, times) in enumerate(zip(experts.tolist(), weights, strict=True)):
            for number, weight in zip(own, times, strict=True):
                gate, up, down = (
                    self._matrices[number, name] for name in ("gate_proj", "up_proj", "down_proj")
                )
                given = x[row : row + 1]
                total[row] += weight * down(F.silu(gate(given)) * up(given))[0]
        return total


def make_mixture(kind: Kind, model_dir: Path, seed: int = 0) -> Checkpoint:
    """A checkpoint of this kind, and its truth; routers, embedding and head are plain."""
    made = make_checkpoint(RECIPE, model_dir, seed)
    tensors = dict(load_file(model_dir / "model.safetensors"))
    of_experts: dict[str, dict[tuple[int, str], RoundedLinear]] = defaultdict(dict)
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        module = name.removesuffix(".weight")
        kept, rounded = kind.keep(module, tensors.pop(name))
        tensors |= {f"{module}.{suffix}": tensor.contiguous() for suffix, tensor in kept.items()}
        if expert := EXPERT.fullmatch(module):
            of_experts[expert["place"]][int(expert["number"]), expert["name"]] = rounded
        else:
            made.truth.set_submodule(module, rounded)
    for place, matrices in of_experts.items():
        made.truth.set_submodule(place, RoundedExperts(matrices))
    rewrite(model_dir, tensors)
    say(model_dir, kind.words)
    return made


@pytest.mark.parametrize("kind", ["channel", "block"])
def test_logits_are_those_of_the_rounded_numbers(kind: str, tmp_path: Path) -> None:
    """Of most tokens to the last digits, and of all nearly.

    A number halfway between two of e4m3 is rounded by the last bit of a sum, which is added up in
    another order here; tokens after it attend to what came of it.
    """
    equal = 0
    for seed in range(2):
        made = make_mixture(KINDS[kind], tmp_path / f"{seed}", seed)
        wanted = made.logits(PROMPT)
        apart = (logits(made.model_dir) - wanted).abs().amax(1)
        equal += int((apart < TOLERANCE).sum())
        plain = make_checkpoint(RECIPE, tmp_path / f"plain-{seed}", seed).logits(PROMPT)
        assert apart.max() < (wanted - plain).abs().amax(1).median(), "rounding shows"
    assert equal >= len(PROMPT)


def test_plain_experts_are_quantised_as_they_are_loaded(tmp_path: Path) -> None:
    make_checkpoint(RECIPE, tmp_path / "plain")
    saved = make_mixture(KINDS["channel"], tmp_path / "saved").model_dir
    online = read_model_config(tmp_path / "plain", quantization="fp8")
    loaded = load_parameters(tmp_path / "plain", online, torch.float32, CPU)
    wanted = load_parameters(saved, read_model_config(saved), torch.float32, CPU)
    assert list(walk(loaded.layers, Fp8Experts))
    for got, right in zip(loaded.tensors(), wanted.tensors(), strict=True):
        assert torch.equal(got.float(), right.float())


def test_experts_with_static_scales_are_refused(tmp_path: Path) -> None:
    make_mixture(KINDS["channel"], tmp_path)
    load_parameters(tmp_path, read_model_config(tmp_path), torch.float32, CPU)
    say(tmp_path, STATIC)
    with pytest.raises(UnsupportedModel, match="experts with static input scales"):
        load_parameters(tmp_path, read_model_config(tmp_path), torch.float32, CPU)
