from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from handbook.training.checkpoint import (
    SHIPPED,
    DecoderShape,
    load_checkpoint,
    new_decoder,
    save_checkpoint,
    shape_of,
)
from tests.handbook.shapes import TINY


def test_reading_back_rounds_weights_to_bfloat16_and_no_further(
    shipped_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    decoder = new_decoder(TINY)
    save_checkpoint(decoder, TINY, shipped_tokenizer, tmp_path)
    again = load_checkpoint(tmp_path)
    assert shape_of(tmp_path) == TINY
    assert again.config.hidden_size == TINY.hidden_size
    for mine, theirs in zip(decoder.parameters(), again.parameters(), strict=True):
        assert theirs.dtype == torch.float32
        assert torch.equal(mine.bfloat16().float(), theirs)


def test_the_shipped_model_has_the_files_that_would_be_written_of_it(
    shipped_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    save_checkpoint(load_checkpoint(SHIPPED), DecoderShape(), shipped_tokenizer, tmp_path)
    for name in ("config.json", "generation_config.json"):
        written, shipped = ((at / name).read_text() for at in (tmp_path, SHIPPED))
        assert json.loads(written) == json.loads(shipped)
    written, shipped = (load_file(at / "model.safetensors") for at in (tmp_path, SHIPPED))
    assert written.keys() == shipped.keys()
    assert all(torch.equal(weight, shipped[name]) for name, weight in written.items())


@pytest.mark.parametrize(
    ("name", "std"),
    [("self_attn.q_proj.weight", 0.02), ("self_attn.o_proj.weight", 0.02 / math.sqrt(4))],
)
def test_a_product_that_ends_a_branch_begins_smaller(name: str, std: float) -> None:
    torch.manual_seed(0)
    weight = new_decoder(TINY).get_parameter(f"model.layers.0.{name}")
    assert weight.std().item() == pytest.approx(std, rel=0.1)
