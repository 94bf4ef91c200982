"""Fields of config.json: those that are read, their defaults, and refused values."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.models.config import ModelConfig, ModelSizes
from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.layers.layer import attentions
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.rope import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from engine.models.served.reading import planned_layers, read_model_config
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.checkpoints import RECIPES

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": None}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"]}
GEMMA2 = {**LLAMA, "architectures": ["Gemma2ForCausalLM"]}
GEMMA3 = {**LLAMA, "architectures": ["Gemma3ForCausalLM"]}
GPT_OSS = {**LLAMA, "architectures": ["GptOssForCausalLM"]}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def read(
    tmp_path: Path, config: object, generation: object = None, *, drop: tuple[str, ...] = ()
) -> ModelConfig:
    fields = {k: v for k, v in config.items() if k not in drop} if isinstance(config, dict) else 0
    (tmp_path / "config.json").write_text(json.dumps(fields or config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return read_model_config(tmp_path)


def num_file_layers(model: ModelConfig) -> int:
    """Count the layers in the files. Families whose layers may lack an MLP have one file layer for
    each half.
    """
    parts = sum(1 if one.mlp is None else 2 for one in model.layers)
    return parts if model.family == "nemotron_h" else len(model.layers)


@pytest.mark.parametrize("name", RECIPES)
def test_what_transformers_saves_is_read(checkpoint: MakeCheckpoint, name: str) -> None:
    saved = checkpoint(name)
    truth = saved.truth.config
    # allows reading fields that differ between layers; it returns those of the first layers
    truth.allow_global_per_layer_attribute_access = True
    config = read_model_config(saved.model_dir)
    assert config.hidden_size == truth.hidden_size
    assert num_file_layers(config) == truth.num_hidden_layers
    rope, every = getattr(truth, "rope_parameters", {}), attentions(config.layers)
    rotated = [one for one in every if one.rope is not None]
    first, attention = every[0], (rotated or every)[-1]
    if rope and "rope_type" not in rope:
        rope = rope[truth.layer_types[-1]]
    assert attention.num_heads == truth.num_attention_heads
    usual = truth.hidden_size // truth.num_attention_heads
    size = getattr(truth, "head_dim", usual)
    if hasattr(truth, "kv_lora_rank"):
        assert first.kept == (1, truth.kv_lora_rank + truth.qk_rope_head_dim, False)
    else:
        assert first.kept == (truth.num_key_value_heads, size, True)
    assert config.tied == truth.tie_word_embeddings
    assert (attention.rope is None) == name.startswith(("granite-hybrid", "nemotron"))
    if attention.rope is not None:
        assert attention.rope.theta == rope["rope_theta"]
        assert (attention.rope.scaling is None) == (rope["rope_type"] == "default")
    assert config.eos_token_ids == (2,)
    assert config.dtype == "float32"


def test_defaults_are_those_of_the_family(tmp_path: Path) -> None:
    config = read(tmp_path, LLAMA, drop=("num_key_value_heads", "eos_token_id"))
    assert config.layers[0].attention.num_kv_heads == 4
    assert config.layers[0].attention.head_dim == 16
    assert config.final_norm.eps == config.layers[0].norm.eps == 1e-6
    assert config.layers[0].attention.rope == RopeConfig(10000.0)
    assert config.eos_token_ids == ()
    assert config.dtype is None
    assert not config.tied
    assert read(tmp_path, QWEN3).layers[0].attention.head_dim == 128


@pytest.mark.parametrize(
    ("architecture", "theta"), [("MixtralForCausalLM", 1e6), ("LlamaForCausalLM", 1e4)]
)
def test_without_a_base_of_rope_it_is_the_familys(
    tmp_path: Path, architecture: str, theta: float
) -> None:
    rope = read(tmp_path, {**LLAMA, "architectures": [architecture]}).layers[0].attention.rope
    assert rope is not None
    assert rope.theta == theta


@pytest.mark.parametrize(
    ("fields", "biases"),
    [
        (LLAMA, (False, False, False)),
        ({**LLAMA, "attention_bias": True}, (True, True, False)),
        ({**LLAMA, "mlp_bias": True}, (False, False, True)),
        (MISTRAL, (False, False, False)),
        (QWEN2, (True, False, False)),
        (QWEN3, (False, False, False)),
        ({**QWEN3, "attention_bias": True}, (True, True, False)),
    ],
)
def test_biases_follow_family_and_flags(
    tmp_path: Path, fields: dict[str, Any], biases: tuple[bool, bool, bool]
) -> None:
    layer = read(tmp_path, fields).layers[0]
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(mlp, MlpConfig)
    assert (attention.qkv_bias, attention.output_bias, mlp.bias) == biases
    assert attention.qk_norm == (fields["architectures"] == QWEN3["architectures"])


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope_scaling": None, "rope_theta": 5e5}, RopeConfig(5e5)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, RopeConfig(1e4, LinearScaling(2.0))),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_theta": 5e5},
            RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 128)),
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}, RopeConfig(7e4)),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 7e4, **LLAMA3}},
            RopeConfig(7e4, Llama3Scaling(8.0, 1.0, 4.0, 128)),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 1.0}, "rope_theta": 1e6},
            RopeConfig(1e6, YarnScaling(1.0, 512)),
        ),
    ],
)
def test_both_spellings_of_rope_are_read(
    tmp_path: Path, scaling: dict[str, Any], expected: RopeConfig
) -> None:
    assert read(tmp_path, {**LLAMA, **scaling}).layers[0].attention.rope == expected


def test_yarn_is_added_to_a_config_whose_context_is_left_as_it_was(tmp_path: Path) -> None:
    """Extend the context by the YaRN that Qwen2.5's and Qwen3's model cards recommend adding."""
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert read(tmp_path, {**QWEN2, "rope_scaling": yarn}).max_positions == 2048
    assert read(tmp_path, QWEN2).max_positions == 512


@pytest.mark.parametrize(
    ("chunks", "positions"),
    [
        ({"chunk_size": 256, "local_size": 16, "original_max_position_embeddings": 128}, 128),
        ({"chunk_size": 256}, 256),
        ({"chunk_size": 1024}, 512),
        ({}, 512),
        (None, 512),
    ],
)
def test_of_a_qwen_for_a_million_tokens_the_context_is_that_of_one_chunk(
    tmp_path: Path, chunks: dict[str, int] | None, positions: int
) -> None:
    """Limit the context of Qwen's 1M models to one attention chunk.

    The config is a small version of Qwen2.5-7B-Instruct-1M's.
    """
    config = read(tmp_path, {**QWEN2, "dual_chunk_attention_config": chunks})
    assert config.max_positions == positions


@pytest.mark.parametrize(
    ("config_eos", "generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 5], None, (2, 5)),
        (2, {"eos_token_id": [7, 8]}, (7, 8)),
        (2, {"eos_token_id": 9}, (9,)),
        (2, {"temperature": 0.6}, (2,)),
        (None, None, ()),
    ],
)
def test_eos_comes_from_the_generation_config_first(
    tmp_path: Path, config_eos: object, generation: object, expected: tuple[int, ...]
) -> None:
    assert read(tmp_path, {**LLAMA, "eos_token_id": config_eos}, generation).eos_token_ids == (
        expected
    )


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": []}, "architectures"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "bitnet"}}, "quantization_config"),
        ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}, "rope_type 'ntk'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "layer to layer"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({**QWEN3, "layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({**GEMMA3, "hidden_activation": "gelu"}, "hidden_activation 'gelu': only 'gelu_pytorch"),
        ({**GEMMA3, "attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ({**GEMMA2, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({**GPT_OSS, "hidden_act": "relu"}, "hidden_act 'relu'"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(UnsupportedModel, match=refusal):
        read(tmp_path, {**LLAMA, **fields})
    assert read(tmp_path, LLAMA).family == "llama"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"hidden_size": "64"}, "hidden_size"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": 66}, "hidden_size 66"),
        ({"head_dim": 15}, "odd"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 5.0}}, "below"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({**MISTRAL, "sliding_window": 0}, "sliding_window 0"),
        ({**QWEN3, "layer_types": ["full_attention"]}, "layer_types has 1 entries, of 2 layers"),
        ({**QWEN3, "layer_types": ["full_attention", "sliding_attention"]}, "use_sliding_window"),
        ({**GPT_OSS, "sliding_window": None}, "sliding_window is null"),
        ({**GPT_OSS, "num_local_experts": 3}, "num_experts_per_tok 4"),
        ({**GEMMA3, "rope_parameters": {"rope_theta": 1e4}}, "rope_parameters has 'rope_theta'"),
    ],
)
def test_contradictions_and_wrong_types_are_named(
    tmp_path: Path, fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadConfig, match=complaint):
        read(tmp_path, {**LLAMA, **fields})
    assert read(tmp_path, LLAMA).hidden_size == 64


@pytest.mark.parametrize("name", ["architectures", "vocab_size", "max_position_embeddings"])
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadConfig, match=name):
        read(tmp_path, LLAMA, drop=(name,))


@pytest.mark.parametrize("text", ["", "{", "[]", '"llama"', '{"a": NaN}', "\ufeff{}"])
def test_a_config_that_is_no_json_object_is_a_bad_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadConfig):
        read_model_config(tmp_path)


def test_a_directory_without_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="is not there"):
        read_model_config(tmp_path)


def test_unreadable_bytes_are_a_bad_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"architectures": ["\xff\xfe"]}')
    with pytest.raises(BadConfig):
        read_model_config(tmp_path)


def sizes(**fields: Any) -> ModelSizes:
    given = {
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return msgspec.convert({**given, **fields}, ModelSizes)


def test_heads_and_their_width_that_are_not_given() -> None:
    assert (sizes().num_kv_heads, sizes().size_of_head(), sizes().size_of_head(64)) == (4, 16, 64)
    assert sizes(num_key_value_heads=2).num_kv_heads == 2
    assert sizes(head_dim=32).size_of_head(64) == 32


def planned_head_dim(tmp_path: Path, **fields: Any) -> int:
    path = tmp_path / "config.json"
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(sizes()), **fields}))
    first, second = planned_layers(path)
    assert first == second
    return first.attention.head_dim


def test_of_some_architectures_the_width_is_known(tmp_path: Path) -> None:
    assert planned_head_dim(tmp_path, architectures=["Qwen3ForCausalLM"]) == 128
    assert planned_head_dim(tmp_path, architectures=["Qwen3ForCausalLM"], head_dim=32) == 32
    assert planned_head_dim(tmp_path, architectures=["Qwen2ForCausalLM"]) == 16


def test_what_is_not_served_is_planned_as_a_llama_of_its_sizes(tmp_path: Path) -> None:
    assert planned_head_dim(tmp_path, architectures=["GPT2LMHeadModel"]) == 16
    assert planned_head_dim(tmp_path) == 16
    assert planned_head_dim(tmp_path, architectures=["Odd"], layer_types={"full": 1}) == 16
    windowed = {"architectures": ["MistralForCausalLM"], "sliding_window": 8, "head_dim": 32}
    assert planned_head_dim(tmp_path, **windowed) == 32


def test_the_dtype_in_either_spelling() -> None:
    assert sizes().dtype_name is None
    assert sizes(torch_dtype="float16").dtype_name == "float16"
    assert sizes(torch_dtype="float16", dtype="bfloat16").dtype_name == "bfloat16"


def test_reading_sizes_takes_no_torch() -> None:
    code = "import sys, cli.plan.decoder; print('torch' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "False"
