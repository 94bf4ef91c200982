"""Extra tensors of a checkpoint: those that text does not need are logged and skipped; any other
refuses the start.
"""

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
from engine.models.errors import CheckpointError, UnsupportedModel
from engine.models.parameters import Parameters
from engine.models.served.reading import read_model_config
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.checkpoints import SHAPE, Checkpoint, Recipe, make_checkpoint, saved_seeing
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt

CPU = torch.device("cpu")
DRAFTING = "model.layers.3."
SURPLUS = {
    "visual.blocks.0.attn.qkv.weight": 24,
    "model.visual.merger.weight": 12,
    "vision_tower.ln_pre.weight": 4,
    "model.vision_tower.ln_pre.weight": 4,
    "multi_modal_projector.norm.weight": 4,
    "mtp.fc.weight": 8,
    "model.layers.0.self_attn.k_scale": 4,
    "model.layers.0.self_attn.v_scale": 4,
    "model.layers.1.self_attn.q_scale": 4,
    "model.layers.1.self_attn.kv_scale": 4,
    "model.layers.0.self_attn.rotary_emb.inv_freq": 32,
    DRAFTING + "eh_proj.weight": 16,
}


@pytest.fixture
def model_dir(checkpoint: MakeCheckpoint, tmp_path: Path) -> Path:
    """Make a checkpoint that a test may damage; its config has one draft layer."""
    copied = Path(shutil.copytree(checkpoint("llama").model_dir, tmp_path / "model"))
    return with_config(copied, num_nextn_predict_layers=1)


def with_config(model_dir: Path, **fields: Any) -> Path:
    path = model_dir / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return model_dir


def add(model_dir: Path, sizes: dict[str, int]) -> None:
    """Add tensors of these `sizes`, in bytes, to the checkpoint."""
    path = model_dir / "model.safetensors"
    more = {name: torch.zeros(size // 4) for name, size in sizes.items()}
    save_file({**load_file(path), **more}, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def load(model_dir: Path) -> Parameters:
    return load_parameters(model_dir, read_model_config(model_dir), torch.float32, CPU)


def test_one_line_names_what_was_left(model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    without = load(model_dir)
    assert not caplog.messages
    add(model_dir, {name: 1000 * size for name, size in SURPLUS.items()})
    assert all(map(torch.equal, load(model_dir).tensors(), without.tensors()))
    [line] = caplog.messages
    assert line.startswith("left 12 tensors in the files, 0.1 MB, which text does not need: ")
    for kind in ("1 visual.*", "1 model.visual.*", "1 mtp.*", f"1 {DRAFTING}*", "1 *.k_scale"):
        assert kind in line


@pytest.mark.parametrize("name", SURPLUS)
def test_each_kind_is_left(model_dir: Path, name: str) -> None:
    add(model_dir, {name: SURPLUS[name]})
    assert load(model_dir).num_bytes


@pytest.mark.parametrize(
    "name",
    [
        "audio_tower.weight",
        # the config has one draft layer, so this second one is extra
        "model.layers.4.eh_proj.weight",
        "model.layers.0.mlp.gate_proj.weight_scale",
        "revisual.weight",
        "lm_head.bias",
    ],
)
def test_what_is_not_known_ends_the_start_with_its_name(model_dir: Path, name: str) -> None:
    load(model_dir)
    add(model_dir, {name: 16})
    with pytest.raises(CheckpointError, match=f"{name} has no place"):
        load(model_dir)


def test_layers_that_the_config_does_not_speak_of_are_not_left(model_dir: Path) -> None:
    add(model_dir, {DRAFTING + "eh_proj.weight": 16})
    load(model_dir)
    with_config(model_dir, num_nextn_predict_layers=0)
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.eh_proj\.weight has no place"):
        load(model_dir)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Make Mistral 3 with a vision tower, as in `transformers`."""
    torch.manual_seed(0)
    model_dir = tmp_path_factory.mktemp("mistral3")
    config = transformers.Mistral3Config(
        text_config={**SHAPE, "model_type": "mistral", "sliding_window": None, "head_dim": 32},
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "head_dim": 16,
        },
        image_token_index=10,
        tie_word_embeddings=False,
    )
    model = transformers.Mistral3ForConditionalGeneration(config).eval()
    return saved_seeing(model, model_dir)


def test_of_mistral_3_the_text_model_is_served(
    seeing: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    driven = HandDriven(build_runner(seeing.model_dir))
    assert "vision_tower.*" in caplog.text
    prompt = random_prompt(20)
    batch = driven.batch([data_row(driven.add(prompt), 0, 20)])
    pool = driven.runner.pool.layers
    got = driven.runner.decoder.logits(batch.token_ids, batch.layout, pool, torch.arange(20))
    expected = seeing.logits(prompt)
    assert expected.std() > 0.5, "logits this flat would agree whatever they are"
    assert (got - expected).abs().max() < 1e-4


@pytest.mark.parametrize("spelling", ["language_model.model.", "model.language_model."])
def test_both_spellings_of_its_names_are_read(tmp_path: Path, spelling: str) -> None:
    plain = make_checkpoint(Recipe("Mistral", {"sliding_window": None}), tmp_path / "plain")
    model_dir = Path(shutil.copytree(plain.model_dir, tmp_path / "seeing"))
    head = "language_model.lm_head." if spelling.startswith("l") else "lm_head."
    tensors = {
        name.replace("model.", spelling, 1).replace("lm_head.", head): tensor
        for name, tensor in load_file(plain.model_dir / "model.safetensors").items()
    }
    save_file(tensors, model_dir / "model.safetensors")
    text = json.loads((model_dir / "config.json").read_text())
    dtype = text.pop("dtype")
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "dtype": dtype}
    (model_dir / "config.json").write_text(json.dumps({**whole, "text_config": text}))
    assert all(map(torch.equal, load(model_dir).tensors(), load(plain.model_dir).tensors()))
    assert read_model_config(model_dir).dtype == "float32"
    for kind, family in (("mistral", "mistral"), ("ministral3", "ministral3"), ("mistral5", None)):
        changed = {**whole, "text_config": {**text, "model_type": kind}}
        (model_dir / "config.json").write_text(json.dumps(changed))
        if family is not None:
            assert read_model_config(model_dir).family == family
            continue
        with pytest.raises(UnsupportedModel, match=r"text_config\.model_type 'mistral5': served"):
            load(model_dir)
