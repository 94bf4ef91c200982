from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from handbook.checkpoint import load_checkpoint, save_checkpoint
from handbook.decoder import Decoder, Shape, rotary_table, rotate
from tests.handbook.shapes import TINY


def some_ids(rows: int = 2, length: int = 50) -> torch.Tensor:
    return torch.randint(
        0, TINY.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0)
    )


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(TINY)


def test_a_saved_decoder_gives_the_logits_of_transformers(
    decoder: Decoder, shipped_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    save_checkpoint(decoder, shipped_tokenizer, tmp_path)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(some_ids()).logits
        torch.testing.assert_close(
            load_checkpoint(tmp_path)(some_ids()), expected, atol=1e-4, rtol=0
        )


def test_reading_back_rounds_weights_to_bfloat16_and_no_further(
    decoder: Decoder, shipped_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    save_checkpoint(decoder, shipped_tokenizer, tmp_path)
    again = load_checkpoint(tmp_path)
    assert again.shape == decoder.shape
    for mine, theirs in zip(decoder.parameters(), again.parameters(), strict=True):
        assert theirs.dtype == torch.float32
        assert torch.equal(mine.bfloat16().float(), theirs)


def test_a_position_sees_nothing_after_it(decoder: Decoder) -> None:
    ids = some_ids()
    changed = ids.clone()
    changed[:, 30:] = 7
    with torch.inference_mode():
        before, after = decoder(ids), decoder(changed)
    assert torch.equal(before[:, :30], after[:, :30])
    assert not torch.equal(before[:, 30:], after[:, 30:])


def test_rotation_depends_on_distance_alone() -> None:
    cos, sin = rotary_table(Shape())
    q, k = torch.randn(2, 1, 32, generator=torch.Generator().manual_seed(1)).unbind()

    def score(at: int, other: int) -> torch.Tensor:
        left = rotate(q, cos[at : at + 1], sin[at : at + 1])
        return (left * rotate(k, cos[other : other + 1], sin[other : other + 1])).sum()

    torch.testing.assert_close(score(100, 90), score(3010, 3000), atol=1e-3, rtol=0)
    assert abs(score(100, 90) - score(100, 60)) > 1e-2
