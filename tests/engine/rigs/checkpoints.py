"""Tiny random checkpoints of every family, made with `transformers`, whose models are the reference
of tests.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a library warns when it is imported
    import transformers

VOCAB_SIZE = 300
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
# Short and long factors are equal here: `transformers` chooses between them by each sequence's
# length.
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "short_factor": [1.0, 1.1, 1.3, 2.0, 3.0, 4.0],
    "long_factor": [1.0, 1.1, 1.3, 2.0, 3.0, 4.0],
}
SLIDING, LINEAR = "sliding_attention", "linear_attention"


@dataclass(frozen=True)
class Recipe:
    """A kind of checkpoint: its architecture, the fields that differ from SHAPE, and how it is
    saved.
    """

    family: str
    fields: dict[str, Any] = field(default_factory=dict)
    max_shard_size: str = "5GB"
    config: str = ""  # the config's class, if the family does not name it
    norm: float = 1.0  # mean of the norms' weights


# A recipe for each architecture with recurrent layers. Each has layers of both kinds for every
# stage.
RECURRENT = {
    "Qwen3NextForCausalLM": "qwen3-next",
    "Qwen3_5ForCausalLM": "qwen3.5",
    "Qwen3_5ForConditionalGeneration": "qwen3.5",
    "Qwen3_5MoeForCausalLM": "qwen3.5-moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen3.5-moe",
    "NemotronHForCausalLM": "nemotron-h",
}
HYBRID: dict[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": [LINEAR, LINEAR, "full_attention", LINEAR, "full_attention"],
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}
# Two groups of four heads, and factors so large that they change logits.
GRANITE_HYBRID: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [LINEAR, "full_attention", LINEAR, LINEAR],
    "hidden_size": 64,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 32,
    "shared_intermediate_size": 128,
    "embedding_multiplier": 0.5,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
    "num_local_experts": 0,
}
# Mixers with and without an MLP after them, and a lower limit that few time steps reach.
NEMOTRON_H: dict[str, Any] = {
    "layers_block_type": [LINEAR, "mlp", LINEAR, "full_attention", "mlp", LINEAR, "mlp"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "chunk_size": 32,
    "time_step_min": 1e-5,
    "pad_token_id": None,
}
# Experts without a gate after either mixer, and an MLP.
NEMOTRON_3: dict[str, Any] = {
    **NEMOTRON_H,
    "layers_block_type": [LINEAR, "moe", LINEAR, "full_attention", "moe", LINEAR, "mlp"],
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "routed_scaling_factor": 2.5,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.15,
    "logits_scaling": 2.0,
    "rms_norm_eps": 1e-3,
}
CORRECTED: dict[str, Any] = {
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.7,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [SLIDING, SLIDING, "full_attention", "full_attention"],
    "sliding_window": 24,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "final_logit_softcapping": 4.0,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
# Factors of cosines and of scores, so large that they change logits.
DEEPSEEK_ROPE = {**YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 1.3}
RECIPES = {
    "llama": Recipe("Llama"),
    "llama-tied-mha": Recipe("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama3-rope": Recipe("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": Recipe(
        "Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}
    ),
    "llama-biases": Recipe("Llama", {"attention_bias": True, "mlp_bias": True}),
    # Every second layer has experts; every third layer has no rope, and scaled queries.
    "llama4": Recipe(
        "Llama4",
        {
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 96,
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
            "no_rope_layer_interval": 3,
            "floor_scale": 16,
            "attn_scale": 0.5,
            "rope_parameters": {**LLAMA3_ROPE, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
        },
        config="Llama4TextConfig",
    ),
    "llama-sharded": Recipe("Llama", max_shard_size="60KB"),
    "mistral": Recipe("Mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": Recipe("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": Recipe("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3-yarn": Recipe("Qwen3", {"head_dim": 32, "rope_parameters": YARN_ROPE}),
    "mistral-window": Recipe("Mistral", {"sliding_window": 24}),
    "qwen2-window": Recipe(
        "Qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    ),
    "mixtral": Recipe(
        "Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24}
    ),
    "qwen3-moe": Recipe(
        "Qwen3Moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
            "head_dim": 32,
        },
    ),
    "phi3": Recipe(
        "Phi3",
        {
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 128,
            "rope_parameters": LONG_ROPE,
            "sliding_window": 24,
            "pad_token_id": None,
        },
    ),
    "qwen3-biases": Recipe("Qwen3", {"attention_bias": True}),
    # Limits and caps so low that they change logits.
    "gpt-oss": Recipe(
        "GptOss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 24,
            "rope_parameters": {**YARN_ROPE, "truncate": False},
            "swiglu_limit": 1.5,
        },
    ),
    "gemma2": Recipe(
        "Gemma2",
        {
            "sliding_window": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 4.0,
            "query_pre_attn_scalar": 9,
        },
        norm=0.0,
    ),
    "gemma3": Recipe(
        "Gemma3",
        {
            "num_hidden_layers": 4,
            "layer_types": [SLIDING, SLIDING, "full_attention", SLIDING],
            "sliding_window": 24,
            "query_pre_attn_scalar": 9,
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
            },
        },
        config="Gemma3TextConfig",
        norm=0.0,
    ),
    # As in 31B: heads of two sizes, and keys as values. As in E2B: inputs of layers, and last
    # layers that share KV. As in 26B-A4B: experts.
    "gemma4": Recipe(
        "Gemma4", {**GEMMA4, "attention_k_eq_v": True}, config="Gemma4TextConfig", norm=0.5
    ),
    "gemma4-shared": Recipe(
        "Gemma4",
        {
            **GEMMA4,
            "num_hidden_layers": 6,
            "layer_types": [SLIDING, "full_attention"] * 3,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 4,
            "use_double_wide_mlp": True,
        },
        config="Gemma4TextConfig",
        norm=0.5,
    ),
    "gemma4-moe": Recipe(
        "Gemma4",
        {
            **GEMMA4,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 3,
            "moe_intermediate_size": 32,
        },
        config="Gemma4TextConfig",
        norm=0.5,
    ),
    "granite": Recipe("Granite", GRANITE),
    "granite-moe": Recipe("GraniteMoe", {**GRANITE, "num_local_experts": 4}),
    "ministral3": Recipe(
        "Ministral3",
        {
            "rope_parameters": {
                **YARN_ROPE,
                "original_max_position_embeddings": 32,
                "llama_4_scaling_beta": 0.5,
            }
        },
    ),
    "smollm3": Recipe(
        "SmolLM3",
        {
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": 24,
            "pad_token_id": None,
        },
    ),
    "seed-oss": Recipe("SeedOss", {"mlp_bias": True}),
    "cwm": Recipe("Cwm", {"sliding_window": 24, "hidden_size": 64, "bos_token_id": 1}),
    "olmo2": Recipe("Olmo2"),
    "olmo3": Recipe(
        "Olmo3",
        {
            "num_hidden_layers": 4,
            "sliding_window": 24,
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": YARN_ROPE,
            },
        },
    ),
    "exaone4": Recipe("Exaone4", {"num_hidden_layers": 4, "sliding_window": 24}),
    "olmoe": Recipe("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3}),
    "qwen2-moe": Recipe("Qwen2Moe", {**EXPERTS, "mlp_only_layers": [1]}),
    "glm4-moe": Recipe("Glm4Moe", {**CORRECTED, "use_qk_norm": True, "attention_bias": True}),
    "dots1": Recipe("Dots1", {**CORRECTED, "sliding_window": 24, "max_window_layers": 2}),
    "deepseek-v2": Recipe(
        "DeepseekV2",
        {
            **LATENT,
            **CORRECTED,
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "norm_topk_prob": False,
            "rope_parameters": DEEPSEEK_ROPE,
        },
    ),
    "deepseek-v3": Recipe(
        "DeepseekV3", {**LATENT, **CORRECTED, "rope_parameters": DEEPSEEK_ROPE, "num_mtp_layers": 0}
    ),
    "glm4-moe-lite": Recipe(
        "Glm4MoeLite", {**LATENT, **CORRECTED, "v_head_dim": 48, "rope_interleave": False}
    ),
    "mistral4": Recipe(
        "Mistral4",
        {
            **LATENT,
            **CORRECTED,
            "kv_lora_rank": 64,
            "head_dim": 40,
            "rope_parameters": {
                **DEEPSEEK_ROPE,
                "original_max_position_embeddings": 32,
                "llama_4_scaling_beta": 0.5,
            },
        },
    ),
    "minimax-m2": Recipe(
        "MiniMaxM2", {"num_local_experts": 8, "num_experts_per_tok": 3, "rotary_dim": 8}
    ),
    "qwen3-next": Recipe("Qwen3Next", {**HYBRID, **EXPERTS, "mlp_only_layers": [1]}, norm=0.0),
    "qwen3.5": Recipe("Qwen3_5", HYBRID, config="Qwen3_5TextConfig", norm=0.0),
    "qwen3.5-moe": Recipe(
        "Qwen3_5Moe",
        {**HYBRID, **EXPERTS, "linear_num_key_heads": 4, "tie_word_embeddings": True},
        config="Qwen3_5MoeTextConfig",
        norm=0.0,
    ),
    "granite-hybrid": Recipe(
        "GraniteMoeHybrid", {**GRANITE_HYBRID, "tie_word_embeddings": True, "mamba_proj_bias": True}
    ),
    "nemotron-h": Recipe("NemotronH", {**NEMOTRON_H, "use_bias": True, "mlp_bias": True}),
    "nemotron-3": Recipe("NemotronH", NEMOTRON_3),
    "nemotron-3-latents": Recipe("NemotronH", {**NEMOTRON_3, "moe_latent_size": 32}),
    # Mamba-2 layers, each with experts beside the shared MLP.
    "granite-hybrid-moe": Recipe(
        "GraniteMoeHybrid",
        {
            **GRANITE_HYBRID,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "intermediate_size": 32,
        },
    ),
    "granite-shared": Recipe(
        "GraniteMoeHybrid",
        {
            **GRANITE_HYBRID,
            "num_hidden_layers": 2,
            "layer_types": ["full_attention"] * 2,
            "position_embedding_type": "rope",
            "attention_bias": True,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "intermediate_size": 32,
        },
    ),
}


# Recipes with one norm over all heads together, which one rank must compute.
TOGETHER = {"minimax-m2", "olmo2", "olmo3", "olmoe"}
# A recipe for each architecture whose layers ranks and stages can divide, and the host can hold.
DIVISIBLE = {
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma4ForCausalLM": "gemma4-moe",
    "Gemma4ForConditionalGeneration": "gemma4-shared",
    "Gemma4UnifiedForCausalLM": "gemma4",
    "Gemma4UnifiedForConditionalGeneration": "gemma4",
    "GptOssForCausalLM": "gpt-oss",
    "Llama4ForCausalLM": "llama4",
    "Llama4ForConditionalGeneration": "llama4",
    "GraniteForCausalLM": "granite",
    "CwmForCausalLM": "cwm",
    "DeepseekV2ForCausalLM": "deepseek-v2",
    "DeepseekV3ForCausalLM": "deepseek-v3",
    "Dots1ForCausalLM": "dots1",
    "Exaone4ForCausalLM": "exaone4",
    "Glm4MoeForCausalLM": "glm4-moe",
    "Glm4MoeLiteForCausalLM": "glm4-moe-lite",
    "GraniteMoeForCausalLM": "granite-moe",
    "MiMoForCausalLM": "qwen2",  # its decoder is Qwen2's
    "MiniMaxM2ForCausalLM": "minimax-m2",
    "Ministral3ForCausalLM": "ministral3",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "OlmoeForCausalLM": "olmoe",
    "Qwen2MoeForCausalLM": "qwen2-moe",
    "SeedOssForCausalLM": "seed-oss",
    "SmolLM3ForCausalLM": "smollm3",
    "GraniteMoeHybridForCausalLM": "granite-shared",
    "Phi3ForCausalLM": "phi3",
    "LlamaForCausalLM": "llama-biases",
    "MistralForCausalLM": "mistral",
    "Mistral3ForConditionalGeneration": "mistral",  # its decoder is Mistral's
    "Mistral4ForCausalLM": "mistral4",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3-moe",
}


@dataclass(frozen=True)
class Checkpoint:
    """A saved model and the same model in `transformers`."""

    model_dir: Path
    truth: Any

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """Return logits (tokens, V) float32, from one pass without any cache."""
        ids = torch.tensor([token_ids], device=self.truth.device)
        return torch.as_tensor(self.truth(ids, use_cache=False).logits[0].float())

    @torch.inference_mode()
    def decoded(self, prompt: list[int], tokens: list[int]) -> Tensor:
        """Return the logits (tokens, V) float32 that precede each of `tokens` after the prompt.

        As in an engine, one pass computes the prompt, and one each token. So sums run over the same
        rows, and are rounded alike.
        """
        given, cache, logits = prompt, None, []
        for token in tokens:
            ids = torch.tensor([given], device=self.truth.device)
            out = self.truth(ids, past_key_values=cache, use_cache=True)
            logits.append(out.logits[0, -1].float())
            given, cache = [token], out.past_key_values
        return torch.stack(logits)

    def most_likely(self, prompt: list[int], tokens: list[int]) -> list[int]:
        """Return the likeliest token after the prompt, and after each of `tokens` but the last.

        One pass computes them. They equal `tokens` only if `tokens` are the greedy continuation.
        """
        return self.logits([*prompt, *tokens[:-1]])[-len(tokens) :].argmax(-1).tolist()

    def greedy(self, token_ids: list[int], num_tokens: int) -> list[int]:
        """Return the likeliest continuation, each token from a pass over all earlier tokens."""
        ids = list(token_ids)
        for _ in range(num_tokens):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[len(token_ids) :]


def make_checkpoint(recipe: Recipe, model_dir: Path, seed: int = 0) -> Checkpoint:
    """Build, randomise and save the model of `recipe`."""
    torch.manual_seed(seed)
    config = config_of(recipe)
    if recipe.family == "Gemma2":
        # Use plain PyTorch: faster attention leaves out soft caps in some releases of
        # `transformers` (5.17).
        config._attn_implementation = "eager"
    model = getattr(transformers, f"{recipe.family}ForCausalLM")(config).eval()
    for module in model.modules():
        if type(module).__name__ == "GptOssExperts":
            module.limit = config.swiglu_limit  # `transformers` 5.17 ignores the config and uses 7
    _randomise(model, recipe.norm)
    model.save_pretrained(model_dir, max_shard_size=recipe.max_shard_size)
    return Checkpoint(model_dir, model)


def in_truth(name: str) -> str:
    """Return a file's tensor name as the model spells it: Nemotron-H's files say backbone."""
    return name.replace("backbone.", "model.")


def saved_seeing(model: Any, model_dir: Path) -> Checkpoint:
    """Draw the matrices of a vision model, and save it."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 1.5 * parameter.shape[1] ** -0.5)
    model.save_pretrained(model_dir)
    return Checkpoint(model_dir, model)


def config_of(recipe: Recipe) -> Any:
    """Return the recipe's config in `transformers`."""
    # Mistral4Config changes its arguments, so they are copied
    fields = copy.deepcopy({**SHAPE, **recipe.fields})
    if recipe.family in ("Qwen2", "Phi3", "Olmoe"):
        # These configs have no head_dim: it is hidden_size / heads.
        fields["hidden_size"] = fields.pop("head_dim") * fields["num_attention_heads"]
    return getattr(transformers, recipe.config or f"{recipe.family}Config")(**fields)


def _randomise(model: Any, norm: float) -> None:
    """Draw weights that spread the logits, and norms and biases that change them."""
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.3)
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(1.0 if "linear_attn" in name else norm, 0.2)
            elif name.endswith(("A_log", "dt_bias")):  # a state remembers about 50 tokens
                parameter.normal_(-1.0 if name.endswith("A_log") else -3.0, 0.3)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            else:
                parameter.normal_(0.0, 1.5 * parameter.shape[-1] ** -0.5)
