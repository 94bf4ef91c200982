"""Published files of Gemma 4 are read, with towers, older spellings and unused projections."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from cli.plan.decoder import read_decoder
from engine.models.checks import check_ranks, check_served
from engine.models.config import kv_layout
from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.grid import RankGrid
from engine.models.layers.gemma4 import Gemma4Layer
from engine.models.layers.rope import ProportionalScaling, RopeConfig
from engine.models.parameters import empty_parameters
from engine.models.served.reading import planned_layers, read_model_config
from engine.models.weight_formats.fp8 import Fp8Linear
from engine.models.weight_formats.plain import PlainLinear
from tests.doubles.engine.shapes import FP8_BY_CHANNEL
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.checkpoints import RECIPES, SHAPE, Checkpoint, saved_seeing
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt

SEEING = "Gemma4ForConditionalGeneration"
# The config of E2B as first published: two fields give the sizes of heads in global layers.
E2B: dict[str, Any] = {
    "architectures": [SEEING],
    "dtype": "bfloat16",
    "vision_config": {},
    "text_config": {
        "num_hidden_layers": 35,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_key_value_heads": 1,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 512,
        "num_global_key_value_heads": None,
    },
}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Make Gemma 4 with a vision tower, as in `transformers`."""
    torch.manual_seed(0)
    config = transformers.Gemma4Config(
        text_config={**SHAPE, **RECIPES["gemma4-shared"].fields},
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "position_embedding_size": 16,
        },
        audio_config=None,
    )
    model = transformers.Gemma4ForConditionalGeneration(config).eval()
    return saved_seeing(model, tmp_path_factory.mktemp("gemma4"))


def written(model_dir: Path, config: dict[str, Any], **text: Any) -> Path:
    whole = {**config, "text_config": {**config["text_config"], **text}}
    (model_dir / "config.json").write_text(json.dumps(whole))
    return model_dir


def test_of_one_that_sees_the_text_model_is_served(
    seeing: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """Serve the text model of a published file, whose layers that share KV have unused
    projections.
    """
    path = seeing.model_dir / "model.safetensors"
    tensors, layer = load_file(path), "model.language_model.layers.4.self_attn."
    assert f"{layer}q_proj.weight" in tensors
    assert f"{layer}k_proj.weight" not in tensors
    unread = {f"{layer}{name}.weight": torch.ones(2) for name in ("k_proj", "v_proj", "k_norm")}
    save_file({**tensors, **unread}, path)
    caplog.set_level(logging.INFO)
    driven = HandDriven(build_runner(seeing.model_dir))
    for kind in ("model.vision_tower.*", "model.embed_vision.*", "*.self_attn.k_norm.*"):
        assert kind in caplog.text
    prompt = random_prompt(60)
    batch = driven.batch([data_row(driven.add(prompt), 0, 60)])
    pool = driven.runner.pool.layers
    assert len(pool) == 2, "of six layers the first two have KV"
    got = driven.runner.decoder.logits(batch.token_ids, batch.layout, pool, torch.arange(60))
    expected = seeing.logits(prompt)
    assert expected.std() > 0.5, "logits this flat would agree whatever they are"
    assert (got - expected).abs().max() < 1e-4


def test_both_spellings_of_heads_are_one_model(tmp_path: Path) -> None:
    older = read_model_config(written(tmp_path, E2B))
    truth = transformers.Gemma4Config(**E2B)
    text = {**truth.to_dict(), "architectures": [SEEING]}
    assert "per_layer_config" in text["text_config"]
    assert "global_head_dim" not in text["text_config"]
    newer = read_model_config(written(tmp_path, text))
    assert newer.layers == older.layers
    assert newer.layer_inputs == older.layer_inputs


def test_the_shape_of_e2b(tmp_path: Path) -> None:
    model = check_served(written(tmp_path, E2B), has_weights=False)
    first, fifth, last = (model.layers[index].attention for index in (0, 4, 34))
    assert (first.head_dim, first.window, first.kv_of) == (256, 512, None)
    assert (fifth.head_dim, fifth.window, fifth.kv_of) == (512, None, None)
    assert first.rope == RopeConfig(10_000.0)
    assert fifth.rope == RopeConfig(1e6, ProportionalScaling(0.25))
    assert (last.kv_of, model.layers[33].attention.kv_of) == (14, 13)
    assert [model.layers[index].mlp.size for index in (14, 15)] == [6144, 12288]  # type: ignore[union-attr]
    layout = kv_layout(model.layers, "bfloat16", 16)
    assert layout.token_bytes == 2 * 2 * (12 * 256 + 3 * 512), "of the layers that keep any"
    planned = read_decoder(tmp_path / "config.json")
    assert [one.num_weights for one in planned_layers(tmp_path / "config.json")] == [
        one.num_weights for one in model.layers
    ]
    assert planned.kv.token_bytes == layout.token_bytes
    assert 4.6e9 < planned.parameters < 4.7e9, "E2B has 2.3 billion beside its tables"


def test_plain_matrices_are_named_as_in_the_files(tmp_path: Path) -> None:
    """Read E2B as llm-compressor saves it: unquantised matrices have full names, with the text
    model's prefix.
    """
    below = "model.language_model.layers."
    plain = [f"{below}0.per_layer_input_gate", rf"re:{below}1\.per_layer_.*"]
    words = {**FP8_BY_CHANNEL, "ignore": ["lm_head", *plain]}
    model = read_model_config(written(tmp_path, {**E2B, "quantization_config": words}))
    parameters = empty_parameters(model, torch.bfloat16, torch.device("meta"))
    kinds = [
        [type(one) for one in (layer.own.gate, layer.own.projection)]
        for layer in parameters.layers[:3]
        if isinstance(layer, Gemma4Layer) and layer.own is not None
    ]
    assert kinds == [[PlainLinear, Fp8Linear], [PlainLinear] * 2, [Fp8Linear] * 2]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ({"num_kv_shared_layers": 35}, "num_kv_shared_layers 35: no layer before"),
        ({"num_kv_shared_layers": 31}, "no layer before them is of type 'full_attention'"),
        ({"vocab_size_per_layer_input": 100}, "is less than vocab_size"),
        ({"per_layer_config": {"35": {"head_dim": 512}}}, "no layer's number"),
        ({"enable_moe_block": True}, "enable_moe_block without"),
        ({"num_attention_heads": 9, "num_key_value_heads": 2}, "is no multiple"),
    ],
)
def test_configs_that_contradict_themselves_are_named(
    tmp_path: Path, text: dict[str, Any], why: str
) -> None:
    read_model_config(written(tmp_path, E2B))
    with pytest.raises(BadConfig, match=why):
        read_model_config(written(tmp_path, E2B, **text))


@pytest.mark.parametrize(
    "text", [{"use_bidirectional_attention": "all"}, {"hidden_activation": "silu"}]
)
def test_what_is_not_computed_is_refused(tmp_path: Path, text: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=next(iter(text))):
        read_model_config(written(tmp_path, E2B, **text))
    read_model_config(written(tmp_path, E2B, use_bidirectional_attention="vision"))


def test_stages_do_not_divide_layers_that_share(checkpoint: MakeCheckpoint) -> None:
    alone, shared = (
        read_model_config(checkpoint(f"gemma4{kind}").model_dir) for kind in ("", "-shared")
    )
    check_ranks(alone, 16, RankGrid(tensor=2, stages=2))
    check_ranks(shared, 16, RankGrid(tensor=2))
    with pytest.raises(UnsupportedModel, match="pipeline_parallel 2: a model whose layers share"):
        check_ranks(shared, 16, RankGrid(stages=2))


def test_layers_that_see_all_are_alike(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    """Treat all global layers alike, since those of one step use one size of key splits."""
    config = json.loads((checkpoint("gemma4").model_dir / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_served(tmp_path, has_weights=False)
    *_, last = config["per_layer_config"]
    del config["per_layer_config"][last]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="layers without a window that differ"):
        check_served(tmp_path, has_weights=False)
