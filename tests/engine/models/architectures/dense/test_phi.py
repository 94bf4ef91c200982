"""Phi-3's merged matrices, and its rope, whose factors depend on the longest sequence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import EngineConfig
from engine.models.checkpoints.weights import load_parameters
from engine.models.errors import BadConfig, CheckpointError, UnsupportedModel
from engine.models.layers.rope import LongRopeScaling, PairScaling, RopeConfig
from engine.models.served.reading import read_model_config
from engine.startup.loading import open_model
from engine.startup.metadata import ModelMetadata, read_metadata
from tests.engine.models.test_config import LLAMA
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, Recipe, make_checkpoint
from tests.engine.rigs.files.int4_checkpoints import KINDS, SIZES, make_int4, rewrite
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt

SHORT, LONG = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
FIELDS = RECIPES["phi3"].fields
DIFFERENT = {**FIELDS["rope_parameters"], "short_factor": SHORT, "long_factor": LONG}
# From config.json of microsoft/Phi-3-mini-128k-instruct.
PHI3: dict[str, Any] = {
    **LLAMA,
    "architectures": ["Phi3ForCausalLM"],
    "original_max_position_embeddings": 128,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
}


@pytest.fixture(scope="module")
def phi(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    recipe = Recipe("Phi3", {**FIELDS, "rope_parameters": DIFFERENT})
    return make_checkpoint(recipe, tmp_path_factory.mktemp("phi3"))


def metadata(phi: Checkpoint, max_model_len: int | None) -> ModelMetadata:
    return read_metadata(
        EngineConfig.of(
            model_dir=str(phi.model_dir), socket="", device="cpu", max_model_len=max_model_len
        )
    )


def rope_of(metadata: ModelMetadata) -> RopeConfig:
    rope = metadata.model.layers[0].attention.rope
    assert rope is not None
    return rope


def test_sequences_that_may_be_long_have_the_long_factors(phi: Checkpoint) -> None:
    assert rope_of(metadata(phi, None)).scaling == PairScaling(tuple(LONG))
    assert rope_of(metadata(phi, 129)).scaling == PairScaling(tuple(LONG))
    assert rope_of(metadata(phi, 128)).scaling == PairScaling(tuple(SHORT))


def test_blocks_of_short_sequences_are_not_found_by_long_ones(phi: Checkpoint) -> None:
    def fingerprint(max_model_len: int) -> bytes:
        config = EngineConfig.of(
            model_dir=str(phi.model_dir),
            socket="",
            device="cpu",
            max_model_len=max_model_len,
            cache_tokens=512,
        )
        return open_model(config, metadata(phi, max_model_len)).welcome.fingerprint

    assert fingerprint(128) == fingerprint(64) != fingerprint(512)


@pytest.mark.parametrize(("length", "positions"), [(131, 512), (60, 128)])
def test_logits_are_those_of_transformers_with_the_same_factors(
    phi: Checkpoint, length: int, positions: int
) -> None:
    """Compare logits under the same rope factors.

    `transformers` chooses the factors of each sequence by its length.
    """
    runner = build_runner(phi.model_dir, num_positions=positions)
    driven, prompt = HandDriven(runner), random_prompt(length)
    batch = driven.batch([data_row(driven.add(prompt), 0, length)])
    got = runner.decoder.logits(
        batch.token_ids, batch.layout, runner.pool.layers, torch.arange(length)
    )
    assert (got - phi.logits(prompt)).abs().max() < 1e-4
    other = build_runner(phi.model_dir, num_positions=640 - positions)
    tables = [one.decoder.places[0].cos_sin for one in (other, runner)]
    assert not torch.equal(*(table[:60] for table in tables if table is not None))


def read(tmp_path: Path, **changes: Any) -> RopeConfig:
    (tmp_path / "config.json").write_text(json.dumps({**PHI3, **changes}))
    rope = read_model_config(tmp_path).layers[0].attention.rope
    assert rope is not None
    return rope


def test_what_stands_beside_the_scaling_counts(tmp_path: Path) -> None:
    expected = LongRopeScaling((1.0,) * 8, (2.0,) * 8, 128)
    assert read(tmp_path).scaling == expected
    within = {**PHI3["rope_scaling"], "original_max_position_embeddings": 64}
    assert read(tmp_path, rope_scaling=within).scaling == expected
    assert read(tmp_path, rope_scaling={**PHI3["rope_scaling"], "type": "su"}).scaling == expected
    assert read(tmp_path, rope_scaling=None).scaling is None
    assert read(tmp_path, rope_scaling=None, partial_rotary_factor=0.5).partial == 0.5


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"rope_scaling": {**PHI3["rope_scaling"], "short_factor": [1.0] * 7}},
            "short_factor has 7",
        ),
        ({"partial_rotary_factor": 0.5}, "short_factor has 8 numbers, for 4 pairs"),
        ({"partial_rotary_factor": 0.2, "rope_scaling": None}, "partial_rotary_factor 0.2 of"),
    ],
)
def test_a_rope_that_does_not_go_with_the_heads_is_named(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadConfig, match=complaint):
        read(tmp_path, **changes)
    assert read(tmp_path).attention_factor > 1


def test_of_others_a_part_of_a_head_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "partial_rotary_factor": 0.5}))
    with pytest.raises(UnsupportedModel, match=r"partial_rotary_factor 0\.5: served is 1"):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda name, value: {name: value[1:].contiguous()},
        lambda name, value: {name.replace("qkv_proj", "kv_proj"): value},
        lambda name, value: {name: value, name.replace("weight", "bias"): value[:, 0].clone()},
    ],
)
def test_merged_matrices_that_do_not_fit_are_named(
    phi: Checkpoint, tmp_path: Path, spoil: Callable[[str, Tensor], dict[str, Tensor]]
) -> None:
    model_dir = Path(shutil.copytree(phi.model_dir, tmp_path / "model"))
    config, path = read_model_config(model_dir), model_dir / "model.safetensors"
    load_parameters(model_dir, config, torch.float32, torch.device("cpu"))
    tensors = load_file(path)
    name = "model.layers.1.self_attn.qkv_proj.weight"
    spoiled = spoil(name, tensors.pop(name))
    save_file({**tensors, **spoiled}, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)
    with pytest.raises(CheckpointError, match="kv_proj"):
        load_parameters(model_dir, config, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("kind", ["awq", "gptq-asym", "packed-asym"])
def test_merged_matrices_may_be_in_int4(tmp_path: Path, kind: str) -> None:
    """Read merged matrices in int4.

    Each form packs eight rows, or one, into a word, along another dimension.
    """
    fields = {**SIZES, "num_key_value_heads": 4, "pad_token_id": None}
    made = make_int4(KINDS[kind], tmp_path, Recipe("Phi3", fields))
    prompt = random_prompt(40)
    runner = build_runner(made.int4.model_dir)
    batch = (driven := HandDriven(runner)).batch([data_row(driven.add(prompt), 0, len(prompt))])
    got = runner.decoder.logits(
        batch.token_ids, batch.layout, runner.pool.layers, torch.arange(len(prompt))
    )
    assert (got - made.int4.logits(prompt)).abs().max() < 1e-4
    tensors = dict(load_file(made.int4.model_dir / "model.safetensors"))
    name = next(
        one for one in tensors if one.endswith(("qkv_proj.qweight", "qkv_proj.weight_packed"))
    )
    tensors[name] = tensors[name][:-8, :-8].contiguous()
    rewrite(made.int4.model_dir, tensors)
    with pytest.raises(CheckpointError, match=rf"{name} is .*, the config gives \d+ in dimension"):
        build_runner(made.int4.model_dir)
