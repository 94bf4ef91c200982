"""Model directories in the published forms of gpt-oss and Gemma run completely in an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.startup.loading import open_model
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.gateway.support.tool_models import write_tool_model

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}
GPT_OSS: dict[str, Any] = {
    **SIZES,
    "architectures": ["GptOssForCausalLM"],
    "num_local_experts": 8,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    },
}
GEMMA2 = {**SIZES, "architectures": ["Gemma2ForCausalLM"]}
GEMMA3 = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": SIZES}


@pytest.mark.parametrize(
    ("format_name", "config", "ends"),
    [
        ("harmony", GPT_OSS, ("<|return|>", "<|call|>")),
        ("functiongemma", GEMMA3, ("<|im_end|>",)),
        ("functiongemma", GEMMA2, ("<|im_end|>",)),
    ],
)
def test_an_engine_opens_them_and_knows_what_ends_an_answer(
    tmp_path: Path, format_name: str, config: dict[str, Any], ends: tuple[str, ...]
) -> None:
    directory = tmp_path / "model"
    model = write_tool_model(directory, format_name)
    ids = [model.inner.token_to_id(end) for end in ends]
    (directory / "config.json").write_text(json.dumps({**config, "eos_token_id": 299}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    opened = open_model(
        EngineConfig.of(
            model_dir=str(directory),
            socket="",
            device="cpu",
            load_format="dummy",
            cache_tokens=512,
        )
    )
    own = model.inner.token_to_id("<|eos|>")
    assert opened.welcome.eos_token_ids == (*ids, own), "config.json's counts where no other does"
    assert opened.welcome.vocab_size == 300
    tokenizer = Tokenizer.load(directory)
    forms = AnswerForms.of(ChatTemplate.load(directory, tokenizer.control), tokenizer, None)
    assert forms.tools is not None
    assert forms.tools.name == format_name
