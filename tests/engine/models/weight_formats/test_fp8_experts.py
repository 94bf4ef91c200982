"""Mixtures of experts in fp8, in each form of checkpoints, compared with the rounded weights."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from engine.models.checkpoints.weights import load_parameters
from engine.models.errors import UnsupportedModel
from engine.models.modules import walk
from engine.models.served.reading import read_model_config
from engine.models.weight_formats.fp8 import Fp8Experts
from tests.engine.models.weight_formats.test_fp8 import (
    FLIP,
    KINDS,
    PROMPT,
    STATIC,
    TOLERANCE,
    Kind,
    RoundedLinear,
    compared,
    expect_greedy,
    logits,
    say,
)
from tests.engine.rigs.checkpoints import (
    CORRECTED,
    RECIPES,
    Checkpoint,
    Recipe,
    in_truth,
    make_checkpoint,
)
from tests.engine.rigs.files.int4_checkpoints import rewrite
from tests.examples import in_the_zoo

CPU = torch.device("cpu")
NUM_EXPERTS = 4
SIZES = {"hidden_size": 128, "head_dim": 32, "num_key_value_heads": 4, "num_experts_per_tok": 2}
FAMILIES = {
    "qwen3-moe": Recipe(
        "Qwen3Moe",
        {
            **SIZES,
            "intermediate_size": 256,
            "moe_intermediate_size": 128,
            "num_experts": NUM_EXPERTS,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "mixtral": Recipe(
        "Mixtral", {**SIZES, "intermediate_size": 128, "num_local_experts": NUM_EXPERTS}
    ),
    "glm4-moe": Recipe(
        "Glm4Moe", {**CORRECTED, **SIZES, "intermediate_size": 256, "moe_intermediate_size": 128}
    ),
}
RECIPE = FAMILIES["qwen3-moe"]
# Hybrid models. In the files, Granite's experts are stacked, and Nemotron's have no gate.
HYBRIDS: dict[str, dict[str, Any]] = {
    "granite-hybrid-moe": {
        "shared_intermediate_size": 256,
        "intermediate_size": 128,
        "residual_multiplier": 0.5,
    },
    "nemotron-3": {
        "intermediate_size": 384,
        "moe_intermediate_size": 128,
        "moe_shared_expert_intermediate_size": 128,
    },
}
MATRIX = re.compile(r"(?P<module>.+(?:proj|\.w[123]|_linear))\.weight")
EXPERT = re.compile(r"(?P<place>.+\.experts)\.(?P<number>\d+)\.(?P<name>\w+)")
ORDER = ("gate_proj", "up_proj", "down_proj")
# Mixtral's names of the three matrices
NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


class RoundedExperts(nn.Module):
    """Experts of the reference: their matrices, by name.

    An expert's tokens are computed together, as in the engine. Their number decides the last bits
    of sums, and so how values halfway between two e4m3 numbers are rounded.
    """

    def __init__(self, matrices: dict[tuple[int, str], RoundedLinear]) -> None:
        super().__init__()
        self._matrices = matrices

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        parts = x.new_zeros((*experts.shape, x.shape[1]))
        for number in sorted(set(experts.flatten().tolist())):
            rows, places = (experts == number).nonzero(as_tuple=True)
            gate, up, down = (self._matrices.get((number, name)) for name in ORDER)
            assert up is not None
            assert down is not None
            inner = up(x[rows])
            inner = F.relu(inner).square() if gate is None else F.silu(gate(x[rows])) * inner
            put_out = down(inner)
            parts[rows, places] = weights[rows, places, None] * put_out
        return parts.sum(1)


def make_mixture(kind: Kind, model_dir: Path, recipe: Recipe = RECIPE) -> Checkpoint:
    """Make a checkpoint of this form and its reference; routers and the two tables are
    unquantised.
    """
    made = make_checkpoint(recipe, model_dir)
    tensors = dict(load_file(model_dir / "model.safetensors"))
    of_experts: dict[str, dict[tuple[int, str], RoundedLinear]] = defaultdict(dict)
    for matrix in [found for name in tensors if (found := MATRIX.fullmatch(name))]:
        module = matrix["module"]
        weight = tensors.pop(matrix[0])
        if weight.dim() == 3:
            kept, experts = stacked(kind, module, weight)
            of_experts[f"{module.rpartition('.')[0]}.experts"] |= experts
        else:
            kept, rounded = kind.keep(module, weight)
            if expert := EXPERT.fullmatch(module):
                place = expert["place"].replace("block_sparse_moe", "mlp")
                name = NAMES.get(expert["name"], expert["name"])
                of_experts[place][int(expert["number"]), name] = rounded
            else:
                rounded.bias = made.truth.get_submodule(in_truth(module)).bias
                made.truth.set_submodule(in_truth(module), rounded)
        tensors |= {f"{module}.{suffix}": tensor.contiguous() for suffix, tensor in kept.items()}
    for place, matrices in of_experts.items():
        made.truth.set_submodule(in_truth(place), RoundedExperts(matrices))
    rewrite(model_dir, tensors)
    say(model_dir, kind.words)
    return made


def stacked(
    kind: Kind, module: str, weight: Tensor
) -> tuple[dict[str, Tensor], dict[tuple[int, str], RoundedLinear]]:
    """Quantise each expert's gate and up (E, N, K) separately, and stack the results."""
    names = ORDER[:2] if "input" in module else ORDER[2:]
    experts: dict[tuple[int, str], RoundedLinear] = {}
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for number, both in enumerate(weight):
        for name, matrix in zip(names, both.chunk(len(names)), strict=True):
            kept, experts[number, name] = kind.keep(module, matrix)
            for suffix, tensor in kept.items():
                parts[suffix].append(tensor)
    whole = {suffix: torch.cat(tensors) for suffix, tensors in parts.items()}
    return {
        suffix: one.view(len(weight), -1, *one.shape[1:]) for suffix, one in whole.items()
    }, experts


@pytest.mark.parametrize("family", HYBRIDS)
def test_beside_states(family: str, tmp_path: Path) -> None:
    """Compare mixtures in models with recurrent states. Positive control: unquantised weights
    differ more.

    The sizes follow `test_every_family`.
    """
    usual = RECIPES[family]
    recipe = replace(usual, fields={**usual.fields, **SIZES, **HYBRIDS[family]})
    made = make_mixture(KINDS["channel"], tmp_path / "fp8", recipe)
    unquantised = make_checkpoint(recipe, tmp_path / "plain").model_dir
    assert (logits(made.model_dir) - made.logits(PROMPT)).abs().max() < FLIP
    assert (logits(unquantised) - made.logits(PROMPT)).abs().max() > 10 * FLIP
    equal, differences = compared(made.model_dir, made)
    plain, far = compared(unquantised, made)
    assert equal >= 56 > plain
    assert differences.median() < 0.05 < far.median()


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        *(("block", "qwen3-moe"), ("channel", "mixtral"), ("channel", "glm4-moe")),
        *in_the_zoo(("channel", "qwen3-moe"), ("block", "mixtral"), ("block", "glm4-moe")),
    ],
)
def test_logits_and_greedy_tokens_are_those_of_the_rounded_numbers(
    kind: str, family: str, tmp_path: Path
) -> None:
    recipe = FAMILIES[family]
    made = make_mixture(KINDS[kind], tmp_path / "fp8", recipe)
    wanted = made.logits(PROMPT)
    assert (logits(made.model_dir) - wanted).abs().max() < TOLERANCE
    plain = make_checkpoint(recipe, tmp_path / "plain").logits(PROMPT)
    assert (wanted - plain).abs().max() > 100 * TOLERANCE, "rounding shows"
    expect_greedy(made)


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
