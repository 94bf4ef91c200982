"""Configs in published forms: the model that each is served as, or the line that refuses it.

Some also have fields for observers, initialisers or training, as published files do. The tests of
architectures and weight formats have each form's tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.models.checks import check_served
from engine.models.errors import ModelNotServed
from tests.doubles.engine.shapes import SHAPES
from tests.engine.rigs.files.published import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    GEMMA_3_4B,
    GLM_4_5_AIR,
    GRANITE_3_3_8B,
    MIMO_7B,
    MINIMAX_M2,
    MINISTRAL_3_8B,
    MISTRAL_SMALL_4,
    SMOLLM3_3B,
)

LLAMA, MIXTURE, PHI = SHAPES["llama-3.1-8b"], SHAPES["qwen3-30b-a3b"], SHAPES["phi-4-mini"]
QWEN2: dict[str, Any] = {
    **SHAPES["qwen3-0.6b"],
    "architectures": ["Qwen2ForCausalLM"],
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "rope_scaling": None,
}
QWEN3 = {**QWEN2, "architectures": ["Qwen3ForCausalLM"], "sliding_window": None}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "rope_scaling": None}
MIXTRAL = {**MISTRAL, "architectures": ["MixtralForCausalLM"], "num_local_experts": 8}
OSS_PLAIN = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


def numbers(strategy: str, bits: int = 8, kind: str = "float", **more: object) -> dict[str, Any]:
    """Return the fields of a number format, as compressed-tensors 0.9 writes them."""
    usual = {"block_structure": None, "dynamic": False, "group_size": None, "symmetric": True}
    said = {"num_bits": bits, "type": kind, "strategy": strategy, "observer": "minmax"}
    return {**usual, **said, "actorder": None, "observer_kwargs": {}, **more}


BY_TOKEN = numbers("token", dynamic=True)
INT4 = numbers("group", 4, "int", group_size=128)


def compressed(
    weights: dict[str, Any], inputs: dict[str, Any] | None, ignore: list[str], **more: object
) -> dict[str, Any]:
    group = {"weights": weights, "input_activations": inputs, "targets": ["Linear"]}
    return {
        "config_groups": {"group_0": {**group, "output_activations": None}},
        "format": "float-quantized" if inputs else "pack-quantized",
        "global_compression_ratio": 1.5,
        "ignore": ignore,
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        **more,
    }


HEAD = ["lm_head"]
AWQ = {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True}
GPTQ = {
    "bits": 4, "damp_percent": 0.01, "desc_act": False, "group_size": 128, "quant_method": "gptq",
    "model_file_base_name": "model", "model_name_or_path": None, "sym": True,
    "true_sequential": True, "static_groups": False,
}  # fmt: skip
BLOCKS = {
    "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": [
        *HEAD,
        *(f"model.layers.{i}.{name}" for i in range(48)
          for name in ("input_layernorm", "mlp.gate", "post_attention_layernorm")),
    ],
}  # fmt: skip

QWEN_PLAIN = [
    *HEAD,
    *(f"model.layers.{i}.linear_attn.{name}" for i in range(64)
      for name in ("conv1d", "in_proj_a", "in_proj_b")),
]  # fmt: skip


def quantised(config: dict[str, Any], words: dict[str, Any]) -> dict[str, Any]:
    return {**config, "quantization_config": words}


def llama_in(weights: dict[str, Any], inputs: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return quantised(LLAMA, compressed(weights, inputs, **{"ignore": HEAD, **more}))


KV_SCHEME = numbers("tensor")
STATIC = numbers("tensor"), numbers("tensor")
OLDER = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": HEAD}
# For each config: the weight format, the context length, the windows, and the factor of cosines.
SERVED: dict[str, tuple[dict[str, Any], tuple[str, int, set[int | None], float]]] = {
    "Qwen3.5 27B": (SHAPES["qwen3.5-27b"], ("plain", 262144, {None}, 1.0)),
    "Qwen3.5 35B-A3B": (
        {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "text_config": {**SHAPES["qwen3.5-35b-a3b"], "mtp_num_hidden_layers": 1},
            "tie_word_embeddings": False,
            "vision_config": {"depth": 27},
        },
        ("plain", 262144, {None}, 1.0),
    ),
    "Qwen3.5 27B in fp8": (
        quantised(SHAPES["qwen3.5-27b"], {**BLOCKS, "modules_to_not_convert": QWEN_PLAIN}),
        ("fp8", 262144, {None}, 1.0),
    ),
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, ("plain", 163840, {None}, 1.0)),
    "DeepSeek-V3": (DEEPSEEK_V3, ("fp8", 163840, {None}, 1.0)),
    "GLM-4.7-Flash": (SHAPES["glm-4.7-flash"], ("plain", 202752, {None}, 1.0)),
    "Mistral Small 4": (MISTRAL_SMALL_4, ("plain", 1048576, {None}, 1.0)),
    "Llama 3.1": (LLAMA, ("plain", 131072, {None}, 1.0)),
    "fp8, dynamic": (
        llama_in(numbers("channel"), BY_TOKEN),
        ("compressed-tensors", 131072, {None}, 1.0),
    ),
    "fp8, static": (llama_in(*STATIC), ("compressed-tensors", 131072, {None}, 1.0)),
    "fp8 with scales of KV": (
        llama_in(*STATIC, kv_cache_scheme=KV_SCHEME),
        ("compressed-tensors", 131072, {None}, 1.0),
    ),
    "fp8 with scales of KV, older": (
        quantised(LLAMA, {**OLDER, "kv_cache_scheme": "static"}),
        ("fp8", 131072, {None}, 1.0),
    ),
    "w4a16": (
        llama_in({**INT4, "actorder": "weight"}, None, ignore=["re:.*lm_head"]),
        ("compressed-tensors", 131072, {None}, 1.0),
    ),
    "w4a16, newer": (
        llama_in(INT4, None, transform_config={}, sparsity_config={}, version="0.11.0"),
        ("compressed-tensors", 131072, {None}, 1.0),
    ),
    "w4a16 with no rotations": (
        llama_in(INT4, None, transform_config={"config_groups": {}}),
        ("compressed-tensors", 131072, {None}, 1.0),
    ),
    "AWQ": (
        quantised(QWEN2, {**AWQ, "modules_to_not_convert": None}),
        ("awq", 32768, {None}, 1.0),
    ),
    "AWQ of Mixtral": (
        quantised(MIXTRAL, {**AWQ, "modules_to_not_convert": ["gate"]}),
        ("awq", 131072, {None}, 1.0),
    ),
    "GPTQ": (quantised(LLAMA, GPTQ), ("gptq", 131072, {None}, 1.0)),
    "GPTQ, second form": (
        quantised(LLAMA, {**GPTQ, "sym": False, "checkpoint_format": "gptq_v2"}),
        ("gptq", 131072, {None}, 1.0),
    ),
    "GPTQ of a mixture": (
        quantised(MIXTURE, {**GPTQ, "dynamic": {r"-:.*mlp\.gate\..*": {}}}),
        ("gptq", 40960, {None}, 1.0),
    ),
    "Qwen3-30B-A3B-FP8": (quantised(MIXTURE, BLOCKS), ("fp8", 40960, {None}, 1.0)),
    "Qwen3-Coder-30B-A3B-Instruct-FP8": (
        {**quantised(MIXTURE, BLOCKS), "max_position_embeddings": 262144, "use_qk_norm": True},
        ("fp8", 262144, {None}, 1.0),
    ),
    "a mixture by llm-compressor": (
        quantised(MIXTURE, compressed(numbers("channel"), BY_TOKEN, [*HEAD, "re:.*mlp.gate$"])),
        ("compressed-tensors", 40960, {None}, 1.0),
    ),
    "Qwen2.5 with windows": (
        {**QWEN2, "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 21},
        ("plain", 32768, {None, 4096}, 1.0),
    ),
    "Qwen2.5 with YaRN": (
        {**QWEN2, "rope_scaling": {"type": "yarn", **YARN}},
        ("plain", 131072, {None}, 1.1386294361),
    ),
    "DeepSeek-R1-0528-Qwen3-8B": (
        {
            **QWEN3,
            "max_position_embeddings": 131072,
            "rope_scaling": {"rope_type": "yarn", "attn_factor": 0.8782488562869419, **YARN},
        },
        ("plain", 131072, {None}, 1.0),
    ),
    "DeepSeek-R1-Distill-Qwen": (
        {**QWEN2, "max_position_embeddings": 131072, "sliding_window": 4096},
        ("plain", 131072, {None}, 1.0),
    ),
    "Mistral 7B v0.1": ({**MISTRAL, "sliding_window": 4096}, ("plain", 131072, {4096}, 1.0)),
    "Mistral 7B v0.3": ({**MISTRAL, "sliding_window": None}, ("plain", 131072, {None}, 1.0)),
    "Phi-4": (
        {**PHI, "rope_scaling": None, "sliding_window": None, "max_position_embeddings": 16384,
         "partial_rotary_factor": 1.0},
        ("plain", 16384, {None}, 1.0),
    ),
    "Phi-4 mini": (PHI, ("plain", 131072, {None}, 1.1902380714)),
    "Phi-3.5 mini": (
        {**PHI, "rope_scaling": {**PHI["rope_scaling"], "type": "su"}},
        ("plain", 131072, {None}, 1.1902380714),
    ),
    "gpt-oss-20b": (
        quantised(
            SHAPES["gpt-oss-20b"],
            {"quant_method": "mxfp4", "modules_to_not_convert": [*OSS_PLAIN, "lm_head"]},
        ),
        ("mxfp4", 131072, {None, 128}, 1.3465735903),
    ),
    "Granite 3.3": (GRANITE_3_3_8B, ("plain", 131072, {None}, 1.0)),
    "GLM-4.5-Air": (GLM_4_5_AIR, ("plain", 131072, {None}, 1.0)),
    "GLM-4.5-Air-FP8": (
        quantised(
            GLM_4_5_AIR,
            compressed(
                numbers("channel"), BY_TOKEN,
                [*HEAD, *(f"model.layers.{i}.mlp.gate" for i in range(1, 46))],
            ),
        ),
        ("compressed-tensors", 131072, {None}, 1.0),
    ),
    "MiMo-7B": (MIMO_7B, ("plain", 32768, {None}, 1.0)),
    "MiniMax-M2": (MINIMAX_M2, ("fp8", 196608, {None}, 1.0)),
    "Ministral 3": (MINISTRAL_3_8B, ("fp8", 262144, {None}, 1.0)),
    "SmolLM3": (SMOLLM3_3B, ("plain", 65536, {None}, 1.0)),
    "Gemma 3 that sees": (GEMMA_3_4B, ("plain", 131072, {None, 1024}, 1.0)),
    "Gemma 3 that sees, fp8": (
        quantised(
            GEMMA_3_4B,
            compressed(numbers("channel"), BY_TOKEN, ["re:.*lm_head", "re:vision_tower.*"]),
        ),
        ("compressed-tensors", 131072, {None, 1024}, 1.0),
    ),
}  # fmt: skip
REFUSED = {
    "GPTQ out of order": (quantised(LLAMA, {**GPTQ, "desc_act": True}), "desc_act True: served"),
    "GPTQ of 8 bits": (quantised(LLAMA, {**GPTQ, "bits": 8}), "bits 8: served is 4"),
    "a scale a row": (quantised(LLAMA, {**GPTQ, "group_size": -1}), "group_size -1: served is 32"),
    "w4a16 out of order": (
        llama_in({**INT4, "actorder": "group"}, None), "weights.actorder 'group': served is null",
    ),
    "a pattern that is none": (
        llama_in(INT4, None, ignore=["re:*lm_head"]), "ignore '*lm_head': nothing to repeat",
    ),
    "a quantised head": (llama_in(INT4, None, ignore=[]), "ignore []: served is a list"),
    "w8a8": (
        llama_in(numbers("channel", kind="int"), BY_TOKEN, format="int-quantized"),
        "format 'int-quantized': served is float-quantized or pack-quantized",
    ),
    "nvfp4": (
        llama_in(numbers("tensor_group", 4), BY_TOKEN, format="nvfp4-pack-quantized"),
        "format 'nvfp4-pack-quantized': served",
    ),
    "rotated": (
        llama_in(INT4, None, transform_config={"config_groups": {"R1": {"type": "hadamard"}}}),
        "transform_config ['config_groups']: served is none",
    ),
    "AWQ for one row": (quantised(LLAMA, {**AWQ, "version": "gemv"}), "version 'gemv': served is"),
    "static experts": (
        quantised(MIXTRAL, OLDER), "experts with static input scales are not served; served are",
    ),
    "bitsandbytes": (
        quantised(LLAMA, {"quant_method": "bitsandbytes"}), "'bitsandbytes'; served are plain",
    ),
    "Qwen3.5 without gates": (
        {**SHAPES["qwen3.5-27b"], "attn_output_gate": False}, "attn_output_gate false: served is",
    ),
    "Qwen3.5 with wide convolutions": (
        {**SHAPES["qwen3.5-27b"], "linear_conv_kernel_dim": 8}, "8 taps",
    ),
    "Qwen3.5 with values that keys do not divide": (
        {**SHAPES["qwen3.5-27b"], "linear_num_value_heads": 24}, "no multiple of linear_num_key",
    ),
    "Qwen3.5 without attention": (
        {**SHAPES["qwen3.5-27b"], "layer_types": ["linear_attention"] * 64}, "without attention",
    ),
    "gpt-oss in int4": (
        quantised(SHAPES["gpt-oss-20b"], AWQ), "one tensor in the files are served in plain",
    ),
    "Granite without layers in its sums": (
        {**GRANITE_3_3_8B, "residual_multiplier": 0}, "$.residual_multiplier",
    ),
    "GLM in five groups": ({**GLM_4_5_AIR, "n_routed_experts": 192, "n_group": 5}, "n_group 5"),
    "GLM by softmax": ({**GLM_4_5_AIR, "scoring_func": "softmax"}, "scoring_func 'softmax': "),
    "MiniMax with lightning attention": (
        {**MINIMAX_M2, "attn_type_list": [0, 1]}, "attn_type_list [0, 1]: served is [1]",
    ),
    "SmolLM3 of too few layers with rope": (
        {**SMOLLM3_3B, "no_rope_layers": [1, 0]}, "no_rope_layers has 2 of 36 layers",
    ),
    "queries by an unknown context": (
        {**MINISTRAL_3_8B, "text_config": {
            **MINISTRAL_3_8B["text_config"], "rope_parameters": {"llama_4_scaling_beta": 0.1}}},
        "llama_4_scaling_beta without original_max_position_embeddings",
    ),
    "DeepSeek V3.2": ({**DEEPSEEK_V3, "architectures": ["DeepseekV32ForCausalLM"]}, "served are"),
    "DeepSeek V2 with weights of experts that add up to 1": (
        {**DEEPSEEK_V2_LITE, "norm_topk_prob": True}, "norm_topk_prob True: served is False",
    ),
    "DeepSeek V3 with biases": ({**DEEPSEEK_V3, "attention_bias": True}, "attention_bias True"),
    "latents of 500 numbers": ({**DEEPSEEK_V3, "kv_lora_rank": 500}, "kv_lora_rank 500, "),
    "GLM-4.7-Flash of an unknown kind of MLP": (
        {**SHAPES["glm-4.7-flash"], "mlp_layer_types": ["dense"] * 46 + ["odd"]}, "mlp_layer_types",
    ),
    "rope for video": (
        {**QWEN2, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        "rope_type 'mrope': served are default",
    ),
}  # fmt: skip


def written(tmp_path: Path, config: dict[str, Any]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize("name", SERVED)
def test_what_is_served_as_what(tmp_path: Path, name: str) -> None:
    config, (weight_format, positions, windows, factor) = SERVED[name]
    model = check_served(written(tmp_path, config), has_weights=False)
    assert model.weight_format.name == weight_format
    assert model.max_positions == positions
    assert {one.window for one in model.attentions} == windows
    ropes = [one.rope for one in model.attentions]
    assert max(rope.attention_factor for rope in ropes if rope) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("name", "maker", "words"),
    [
        ("hf_quant_config.json", "ModelOpt", {"quantization": {"quant_algo": "FP8"}}),
        ("quantize_config.json", "AutoGPTQ", GPTQ),
        ("quant_config.json", "AutoAWQ", {"q_group_size": 128, "w_bit": 4, "version": "GEMM"}),
    ],
)
def test_a_file_beside_the_config_may_say_that_weights_are_quantised(
    tmp_path: Path, name: str, maker: str, words: dict[str, Any]
) -> None:
    (tmp_path / name).write_text(json.dumps(words))
    check_served(written(tmp_path, quantised(LLAMA, AWQ)), has_weights=False)
    with pytest.raises(ModelNotServed, match=f"{name}: weights quantised by {maker}.*; served are"):
        check_served(written(tmp_path, LLAMA), has_weights=False)


def test_a_file_of_weights_in_onnx_beside_plain_ones_says_nothing_of_these(tmp_path: Path) -> None:
    """Ignore a quantisation file of an ONNX export, which transformers.js writes under the name of
    AutoGPTQ's.
    """
    words = {"modes": ["q8"], "per_channel": False, "reduce_range": False, "block_size": None}
    (tmp_path / "quantize_config.json").write_text(json.dumps(words))
    model = check_served(written(tmp_path, LLAMA), has_weights=False)
    assert model.weight_format.name == "plain"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_by_which_line(tmp_path: Path, name: str) -> None:
    config, line = REFUSED[name]
    with pytest.raises(ModelNotServed) as caught:
        check_served(written(tmp_path, config), has_weights=False)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
