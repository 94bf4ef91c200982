"""Published configs of Nemotron-H are read, and its limits of time steps are applied.

The tests of all families compare its logits and tokens with those of `transformers`.
"""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest

from engine.models.checks import check_served
from engine.models.config import ModelConfig, state_layout
from engine.models.errors import BadConfig, ModelError, UnsupportedModel
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.mamba import MambaConfig
from engine.models.layers.mixture import MixtureConfig
from tests.doubles.engine.shapes import SHAPES
from tests.engine.rigs.checkpoints import NEMOTRON_H, Recipe, make_checkpoint
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt

PUBLISHED = SHAPES["nemotron-h-8b"]
NANO = SHAPES["nemotron-3-nano"]
PATTERN = PUBLISHED["hybrid_override_pattern"]
# the values of `layers_block_type` before version 5 of `transformers`
WORDS = {"M": "mamba", "-": "mlp", "*": "attention"}


def read(tmp_path: Path, **fields: Any) -> ModelConfig:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | fields))
    return check_served(tmp_path, has_weights=False)


def test_the_published_config(tmp_path: Path) -> None:
    model = read(tmp_path)
    mixers = [one.mixer for one in model.layers]
    assert sum(isinstance(one, AttentionConfig) for one in mixers) == PATTERN.count("*") == 4
    assert sum(isinstance(one, MambaConfig) for one in mixers) == PATTERN.count("M")
    assert sum(one.mlp is not None for one in model.layers) == PATTERN.count("-")
    assert [index for index, one in enumerate(model.layers) if one.mlp is None] == [3, 9, 15, 21]
    # The model's name says 8B weights, including 1.07B in the embedding and output tables.
    assert 6.9e9 < sum(one.num_weights for one in model.layers) < 7.1e9
    states = state_layout(model.layers, "bfloat16")
    assert states is not None
    assert states.state_bytes == 24 * (128 * 64 * 128 * 4 + 3 * (128 * 64 + 16 * 128) * 2)


def test_the_published_config_of_a_mixture(tmp_path: Path) -> None:
    model = read(tmp_path, **NANO)
    mixtures = [one.mlp for one in model.layers if one.mlp is not None]
    assert all(isinstance(one, MixtureConfig) for one in mixtures)
    assert len(mixtures) == NANO["hybrid_override_pattern"].count("E") == 23
    # The model's name says 30B weights, 3B of them active for a token; the two tables have 0.7B.
    assert 30.5e9 < sum(one.num_held_weights for one in model.layers) < 31.5e9
    assert 2.7e9 < sum(one.num_weights for one in model.layers) < 3.3e9


def test_latents_have_no_biases(tmp_path: Path) -> None:
    latents = {**NANO, "moe_latent_size": 1024}
    width = read(tmp_path, **latents).layers[0].num_held_weights
    assert width < 0.5 * read(tmp_path, **NANO).layers[0].num_held_weights
    with pytest.raises(UnsupportedModel, match="mlp_bias beside moe_latent_size True"):
        read(tmp_path, **latents, mlp_bias=True)


@pytest.mark.parametrize("name", ["layers_block_type", "layer_types"])
def test_types_in_other_spellings(tmp_path: Path, name: str) -> None:
    listed = {"hybrid_override_pattern": None, name: [WORDS[one] for one in PATTERN]}
    assert read(tmp_path, **listed).layers == read(tmp_path).layers


@pytest.mark.parametrize(
    ("fields", "kind", "line"),
    [
        ({"hybrid_override_pattern": None}, BadConfig, "neither layers_block_type nor hybrid_ov"),
        ({"hybrid_override_pattern": ""}, BadConfig, "hybrid_override_pattern"),
        ({"hybrid_override_pattern": "M-*X"}, UnsupportedModel, "'X': served are linear_att"),
        ({"hybrid_override_pattern": "-M*"}, UnsupportedModel, "mlp of layer 0 comes after nei"),
        ({"hybrid_override_pattern": "M*--"}, UnsupportedModel, "mlp of layer 3 comes after nei"),
        ({"hybrid_override_pattern": "M*E-"}, UnsupportedModel, "mlp of layer 3 comes after nei"),
        ({"hybrid_override_pattern": "EM*"}, UnsupportedModel, "moe of layer 0 comes after nei"),
        ({"hybrid_override_pattern": "M-M-"}, UnsupportedModel, "without attention"),
        ({"mlp_hidden_act": "silu"}, UnsupportedModel, "mlp_hidden_act 'silu': served is 'relu2'"),
        ({"mamba_hidden_act": "gelu"}, UnsupportedModel, "mamba_hidden_act 'gelu': served is 's"),
        ({"sliding_window": 512}, UnsupportedModel, "sliding_window 512: served is None"),
        ({"residual_in_fp32": True}, UnsupportedModel, "residual_in_fp32 True: served is False"),
        ({"n_groups": 5}, UnsupportedModel, "128 heads of states over 5 groups"),
        ({"num_key_value_heads": 5}, BadConfig, "num_key_value_heads 5"),
    ],
)
def test_what_is_not_served_is_named(
    tmp_path: Path, fields: dict[str, Any], kind: type[ModelError], line: str
) -> None:
    with pytest.raises(kind, match=line):
        read(tmp_path, **fields)
    assert read(tmp_path).family == "nemotron_h"


def test_the_least_time_step_holds_for_single_tokens_too(tmp_path: Path) -> None:
    """Apply the least time step to single tokens too.

    `transformers` applies it to prompts, but not to steps of one token.
    """
    made = make_checkpoint(Recipe("NemotronH", {**NEMOTRON_H, "time_step_min": 0.5}), tmp_path)
    driven, prompt = HandDriven(build_runner(made.model_dir)), random_prompt(12)
    mixer = driven.runner.decoder.config.layers[0].mixer
    assert isinstance(mixer, MambaConfig)
    assert mixer.dt_limit == (0.5, inf)
    sequence, wanted = driven.add(prompt), made.logits(prompt)
    for first, count in ((0, 9), (9, 1), (10, 1), (11, 1)):
        got = driven.logits([data_row(sequence, first, count)])
        assert (got - wanted[first : first + count]).abs().max() < 1e-4
    with_cache = made.decoded(prompt[:11], prompt[11:] * 2)[1]
    assert (with_cache - wanted[11]).abs().max() > 0.01, "the control: the limit matters"
