"""Published configs of Granite 4.0 are read, and its limits of time steps are applied.

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
from engine.models.layers.mamba import MambaConfig
from engine.models.layers.mixture import MixtureConfig
from tests.doubles.engine.shapes import SHAPES
from tests.engine.rigs.checkpoints import GRANITE_HYBRID, Recipe, make_checkpoint
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt

TINY = SHAPES["granite-4.0-h-tiny"]


def read(tmp_path: Path, **fields: Any) -> ModelConfig:
    (tmp_path / "config.json").write_text(json.dumps(TINY | fields))
    return check_served(tmp_path, has_weights=False)


def test_the_published_config(tmp_path: Path) -> None:
    model = read(tmp_path)
    mambas = [one.mixer for one in model.layers if isinstance(one.mixer, MambaConfig)]
    assert (len(model.layers), len(mambas)) == (40, 36)
    mixture = model.layers[0].mlp
    assert isinstance(mixture, MixtureConfig)
    assert mixture.shared is not None
    # The model's name says 7B weights, 1B of them active for a token.
    assert 6.5e9 < sum(one.num_held_weights for one in model.layers) < 7.5e9
    assert 1.0e9 < sum(one.num_weights for one in model.layers) < 1.5e9
    states = state_layout(model.layers, "bfloat16")
    assert states is not None
    assert states.state_bytes == 36 * (48 * 64 * 128 * 4 + 3 * (48 * 64 + 2 * 128) * 2)


@pytest.mark.parametrize("largest", [inf, {"__float__": "Infinity"}, 0.1])
def test_limits_of_time_steps(tmp_path: Path, largest: Any) -> None:
    mixer = read(tmp_path, time_step_limit=[0.001, largest]).layers[0].mixer
    assert isinstance(mixer, MambaConfig)
    assert mixer.dt_limit == (0.001, 0.1 if largest == 0.1 else inf)


@pytest.mark.parametrize(
    ("fields", "kind", "line"),
    [
        ({"mamba_d_head": 32}, BadConfig, "mamba_n_heads 48 of mamba_d_head 32 are not mamba_ex"),
        ({"mamba_n_heads": 128, "mamba_d_head": 24}, UnsupportedModel, "24 columns of a state"),
        ({"mamba_n_groups": 5}, UnsupportedModel, "48 heads of states over 5 groups"),
        ({"mamba_d_conv": 5}, UnsupportedModel, "a convolution of 5 taps"),
        ({"hidden_act": "gelu"}, UnsupportedModel, "hidden_act 'gelu': only 'silu'"),
        ({"position_embedding_type": "alibi"}, BadConfig, "position_embedding_type"),
        ({"layer_types": ["mamba"] * 39 + ["moe"]}, UnsupportedModel, "layer_types 'moe': served"),
        ({"layer_types": ["mamba"] * 40}, UnsupportedModel, "without attention"),
        ({"num_experts_per_tok": 65}, BadConfig, "num_experts_per_tok 65 is more than the 64"),
    ],
)
def test_what_is_not_served_is_named(
    tmp_path: Path, fields: dict[str, Any], kind: type[ModelError], line: str
) -> None:
    with pytest.raises(kind, match=line):
        read(tmp_path, **fields)


def test_limits_of_time_steps_hold_for_single_tokens_too(tmp_path: Path) -> None:
    """Apply the limits of time steps to single tokens too.

    `transformers` applies them to prompts, but not to steps of one token.
    """
    limited = Recipe("GraniteMoeHybrid", {**GRANITE_HYBRID, "time_step_limit": [0.0, 0.03]})
    made = make_checkpoint(limited, tmp_path)
    driven, prompt = HandDriven(build_runner(made.model_dir)), random_prompt(12)
    sequence, wanted = driven.add(prompt), made.logits(prompt)
    for first, count in ((0, 9), (9, 1), (10, 1), (11, 1)):
        got = driven.logits([data_row(sequence, first, count)])
        assert (got - wanted[first : first + count]).abs().max() < 1e-4
    with_cache = made.decoded(prompt[:11], prompt[11:] * 2)[1]
    assert (with_cache - wanted[11]).abs().max() > 0.01, "the control: the limit matters"
