"""Each dense family in fp8 and in int4 has the logits and tokens of its dequantised weights.

`test_fp8` and `test_int4` compare the forms of files on one family. `test_fp8_experts`,
`test_int4_experts` and `test_mxfp4` test mixtures. Families differ in how they merge matrices, in
biases, and in the layers around the matrices.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.models.weight_formats.test_fp8 import (
    KINDS,
    PROMPT,
    TOLERANCE,
    compared,
    expect_greedy,
    logits,
    make_quantised,
)
from tests.engine.models.weight_formats.test_int4 import generated
from tests.engine.rigs.checkpoints import RECIPES, Recipe, make_checkpoint
from tests.engine.rigs.files.int4_checkpoints import KINDS as INT4
from tests.engine.rigs.files.int4_checkpoints import make_int4
from tests.examples import in_the_zoo

FEW = 24  # tokens; `test_int4` compares more of them, on one family
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_key_value_heads": 2}
PHI_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
LATENTS = {  # a model without experts
    "kv_lora_rank": 128,
    "q_lora_rank": 128,
    "v_head_dim": 64,
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "head_dim": 16,
    "first_k_dense_replace": 3,
}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "phi3": {"rope_parameters": PHI_ROPE, "sliding_window": None},
    "granite": {"residual_multiplier": 0.25},
    "glm4-moe": {"moe_intermediate_size": 128},
    "deepseek-v2": {**LATENTS, "q_lora_rank": None},
    "deepseek-v3": LATENTS,
    "granite-hybrid": {"residual_multiplier": 0.5, "shared_intermediate_size": 256},
    "nemotron-h": {"intermediate_size": 384},
    "gemma4-shared": {"hidden_size_per_layer_input": 128, "global_head_dim": 64},
    "gemma4-moe": {"moe_intermediate_size": 128},
    "nemotron-3": {
        "intermediate_size": 384,
        "moe_intermediate_size": 128,
        "moe_shared_expert_intermediate_size": 128,
    },
}
RECURRENT = ("qwen3.5", "granite-hybrid", "nemotron-h")
ATTENDING = (
    *("qwen2", "gemma2", "phi3", "granite", "olmo2"),
    "gemma4-shared",
)
# families that differ from others only in features that formats do not touch
ALIKE = ("qwen3", "mistral", "gemma3", "gemma4")
LATENT = ("deepseek-v2", "deepseek-v3")


def recipe_of(family: str) -> Recipe:
    """Return the family's recipe, with sizes that every format divides.

    Phi-3 and Mistral have no window here. With a window, a value halfway between two e4m3 numbers
    is rounded the other way, probably because `transformers` sums over keys in another order. For
    the same reason Granite's sums are multiplied by a power of two, and Nemotron-H is wider.
    """
    recipe = RECIPES[family]
    return replace(recipe, fields={**recipe.fields, **SIZES, **OF_FAMILY.get(family, {})})


@pytest.mark.parametrize("family", [*ATTENDING, *in_the_zoo(*ALIKE)])
def test_in_fp8(family: str, tmp_path: Path) -> None:
    made = make_quantised(KINDS["channel"], tmp_path, recipe_of(family))
    assert (logits(made.model_dir) - made.logits(PROMPT)).abs().max() < TOLERANCE
    expect_greedy(made)


@pytest.mark.parametrize(
    "family",
    [
        *("qwen3.5", "granite-hybrid", "deepseek-v3"),
        *in_the_zoo("nemotron-h", "deepseek-v2"),
    ],
)
def test_in_fp8_in_another_order(family: str, tmp_path: Path) -> None:
    """Compare families whose recurrences, or decodes over latents, sum in another order than
    `transformers`.

    A value halfway between two e4m3 numbers is then rounded the other way on some CPUs, and all
    later tokens depend on it.
    """
    made = make_quantised(KINDS["channel"], tmp_path / "fp8", recipe_of(family))
    assert (logits(made.model_dir) - made.logits(PROMPT)).abs().max() < TOLERANCE
    equal, differences = compared(made.model_dir, made)
    assert equal >= 56
    assert differences.median() < 0.05


def test_the_control_unquantised_weights_differ_more(tmp_path: Path) -> None:
    family = "granite-hybrid"
    made = make_quantised(KINDS["channel"], tmp_path / "fp8", recipe_of(family))
    plain = make_checkpoint(recipe_of(family), tmp_path / "plain")
    equal, differences = compared(plain.model_dir, made)
    assert equal < 56
    assert differences.median() > 0.05


@pytest.mark.parametrize(
    "family",
    [
        *(*ATTENDING, *LATENT, *RECURRENT, "gemma4-moe", "nemotron-3"),
        *in_the_zoo(*ALIKE, "glm4-moe"),
    ],
)
def test_in_int4(family: str, tmp_path: Path) -> None:
    made = make_int4(INT4["awq"], tmp_path, recipe_of(family))
    assert (logits(made.int4.model_dir) - made.int4.logits(PROMPT)).abs().max() < TOLERANCE
    tokens, logprobs = generated(made.int4.model_dir, FEW)
    plain_tokens, plain_logprobs = generated(made.written_out, FEW)
    assert tokens == plain_tokens
    assert len(tokens) == FEW
    assert max(abs(a - b) for a, b in zip(logprobs, plain_logprobs, strict=True)) < TOLERANCE
