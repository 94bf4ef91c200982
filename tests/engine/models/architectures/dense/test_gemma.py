"""Published configs of Gemma 3 are read, with a vision tower and with most fields left out."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.models.checkpoints.weights import load_parameters
from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.rope import LinearScaling, RopeConfig
from engine.models.parameters import Parameters
from engine.models.served.reading import planned_layers, planned_sizes, read_model_config
from tests.engine.rigs.checkpoints import RECIPES, SHAPE, Checkpoint, make_checkpoint, saved_seeing
from tests.engine.rigs.files.published import GEMMA_3_4B
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Make Gemma 3 with a vision tower, as in `transformers`."""
    torch.manual_seed(0)
    model_dir = tmp_path_factory.mktemp("gemma3")
    config = transformers.Gemma3Config(
        text_config={**SHAPE, **RECIPES["gemma3"].fields},
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        mm_tokens_per_image=4,
        boi_token_index=295,
        eoi_token_index=296,
        image_token_index=297,
    )
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    return saved_seeing(model, model_dir)


def test_of_a_gemma_3_that_sees_the_text_model_is_served(
    seeing: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    driven = HandDriven(build_runner(seeing.model_dir))
    for kind in ("vision_tower.*", "multi_modal_projector.*"):
        assert kind in caplog.text
    prompt = random_prompt(60)
    batch = driven.batch([data_row(driven.add(prompt), 0, 60)])
    pool = driven.runner.pool.layers
    got = driven.runner.decoder.logits(batch.token_ids, batch.layout, pool, torch.arange(60))
    expected = seeing.logits(prompt)
    assert expected.std() > 0.5, "logits this flat would agree whatever they are"
    assert (got - expected).abs().max() < 1e-4


@pytest.mark.parametrize("spelling", ["language_model.model.", "model.language_model."])
def test_both_spellings_of_its_names_are_read(tmp_path: Path, spelling: str) -> None:
    """Read both spellings of tensor names: that of the hub's files, and that of newer
    `transformers`.
    """
    plain = make_checkpoint(RECIPES["gemma3"], tmp_path / "plain")
    model_dir = Path(shutil.copytree(plain.model_dir, tmp_path / "seeing"))
    tensors = load_file(plain.model_dir / "model.safetensors")
    renamed = {name.replace("model.", spelling, 1): tensor for name, tensor in tensors.items()}
    save_file(renamed, model_dir / "model.safetensors")
    text = json.loads((model_dir / "config.json").read_text())
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    (model_dir / "config.json").write_text(json.dumps(whole))
    assert all(map(torch.equal, load(model_dir).tensors(), load(plain.model_dir).tensors()))


def load(model_dir: Path) -> Parameters:
    return load_parameters(
        model_dir, read_model_config(model_dir), torch.float32, torch.device("cpu")
    )


@pytest.mark.parametrize("parameters", [{"full_attention": 3}, {"sliding_attention": []}])
def test_ropes_that_are_none_are_named(tmp_path: Path, parameters: dict[str, Any]) -> None:
    text = {**GEMMA_3_4B["text_config"], "rope_parameters": parameters}
    (tmp_path / "config.json").write_text(json.dumps({**GEMMA_3_4B, "text_config": text}))
    with pytest.raises(BadConfig, match="rope scaling"):
        read_model_config(tmp_path)


def test_what_real_files_leave_out_is_as_transformers_has_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_3_4B))
    config, truth = read_model_config(tmp_path), transformers.Gemma3TextConfig()
    assert (config.vocab_size, config.max_positions) == (truth.vocab_size, 131072)
    assert (config.dtype, config.tied, config.eos_token_ids) == ("bfloat16", True, (1, 106))
    first, sixth = config.layers[0], config.layers[5]
    assert isinstance(first.mlp, MlpConfig)
    heads = first.attention.num_heads, first.attention.num_kv_heads, first.attention.head_dim
    assert heads == (truth.num_attention_heads, truth.num_key_value_heads, truth.head_dim)
    assert (first.attention.window, sixth.attention.window) == (1024, None)
    assert first.attention.rope == RopeConfig(10000.0)
    assert sixth.attention.rope == RopeConfig(1e6, LinearScaling(8.0))
    assert first.attention.scale == truth.query_pre_attn_scalar**-0.5
    path = tmp_path / "config.json"
    assert planned_sizes(path).vocab_size == truth.vocab_size
    assert [layer.attention.window for layer in planned_layers(path)].count(None) == 5


def test_one_that_answers_nothing_is_refused_within_its_text_config(tmp_path: Path) -> None:
    """Refuse EmbeddingGemma, whose text config says that attention goes in both directions."""
    text = {**GEMMA_3_4B["text_config"], "use_bidirectional_attention": True}
    (tmp_path / "config.json").write_text(json.dumps({**GEMMA_3_4B, "text_config": text}))
    with pytest.raises(UnsupportedModel, match="use_bidirectional_attention"):
        read_model_config(tmp_path)
