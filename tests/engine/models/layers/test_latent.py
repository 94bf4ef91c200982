"""Absorbed latent attention equals plain attention, in every weight format."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.models.layers.latent import LatentAttention
from engine.models.weight_formats.fp8 import Fp8Linear
from engine.models.weight_formats.plain import PlainLinear
from tests.engine.models.weight_formats.test_every_family import recipe_of
from tests.engine.models.weight_formats.test_fp8 import KINDS, make_quantised
from tests.engine.rigs.hand_driven import build_runner


def test_the_absorbed_matrix_is_dequantised_once(tmp_path: Path) -> None:
    made = make_quantised(KINDS["channel"], tmp_path, recipe_of("deepseek-v2"))
    for index, layer in enumerate(build_runner(made.model_dir).decoder.parameters.layers):
        mixer = layer.mixer
        assert isinstance(mixer, LatentAttention)
        assert isinstance(mixer.first, Fp8Linear), "the control"
        assert isinstance(mixer.keys_values, PlainLinear)
        truth = made.truth.model.layers[index].self_attn.kv_b_proj.weight
        assert torch.equal(mixer.keys_values.weight, truth)
        assert mixer.dequantised() is mixer
