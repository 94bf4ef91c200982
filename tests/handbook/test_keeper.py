from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from handbook.training.checkpoint import SHIPPED, load_checkpoint, new_decoder, shape_of
from handbook.training.keeper import Accuracy, Checks, Keeper
from tests.handbook.shapes import TINY

CHECKS = Checks(count=6, tokens=(20, 100), tool_tokens=(80, 300), tool_turns=1)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_best_is_written_whole_and_a_poorer_one_leaves_it(
    shipped_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    best = load_checkpoint(SHIPPED)
    keeping = Keeper(CHECKS, shape_of(SHIPPED), shipped_tokenizer, "cpu", tmp_path)
    found = keeping.check(best)
    assert found.handbooks > 0.9
    assert keeping.best == found
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors"}
    kept = (tmp_path / "model.safetensors").read_bytes()
    with torch.no_grad():
        for parameter in best.parameters():
            parameter.zero_()
    assert keeping.check(best).handbooks == 0
    assert (tmp_path / "model.safetensors").read_bytes() == kept
    assert keeping.best == found


def test_the_first_is_written_however_poor(shipped_tokenizer: Tokenizer, tmp_path: Path) -> None:
    found = Keeper(CHECKS, TINY, shipped_tokenizer, "cpu", tmp_path).check(new_decoder(TINY))
    assert found.rank == (0, 0)
    assert load_checkpoint(tmp_path).config.hidden_size == TINY.hidden_size


def test_the_poorer_of_the_two_decides_and_then_both() -> None:
    even, uneven, both = (Accuracy(*pair, {}) for pair in ((0.9, 0.9), (1.0, 0.8), (1.0, 0.9)))
    assert uneven.rank < even.rank < both.rank


def test_accuracy_is_told_by_kind() -> None:
    told = Accuracy(1.0, 0.5, {"tools: talk, no call": 0.25}).told()
    assert told == "handbooks 100.0%, tools 50.0% (tools: talk, no call 25.0%)"


def test_the_card_has_a_row_for_each_kind() -> None:
    assert Accuracy(1.0, 0.5, {"tools: talk, no call": 0.25}).table().splitlines()[2:] == [
        "| handbooks | 100.0% |",
        "| tools, all | 50.0% |",
        "| tools: talk, no call | 25.0% |",
    ]
