from __future__ import annotations

import random

import numpy as np
import pytest
from tokenizers import Tokenizer

from handbook.training.checkpoint import SHIPPED
from handbook.training.names import Source, Split
from handbook.training.rows import (
    CURRICULUM,
    Feed,
    Rows,
    TrainingStage,
    frame,
    lengths_at,
    write_rows,
)
from handbook.training.tokenizer import ASSISTANT, BEGIN, END, USER


def write(tokenizer: Tokenizer, count: int, length: int, seed: int = 0) -> Rows:
    return write_rows(Source(random.Random(seed), Split.TRAIN), tokenizer, count, length)


@pytest.mark.parametrize("length", [64, 256, 2048])
def test_rows_have_the_asked_size_and_begin_alike(
    shipped_tokenizer: Tokenizer, length: int
) -> None:
    rows = write(shipped_tokenizer, 5, length)
    assert rows.ids.shape == rows.answers.shape == (5, length + 1)
    assert set(rows.ids[:, 0].tolist()) == {shipped_tokenizer.token_to_id(BEGIN)}


def test_the_same_seed_writes_the_same_rows(shipped_tokenizer: Tokenizer) -> None:
    first, again = (write(shipped_tokenizer, 3, 256, seed=4) for _ in range(2))
    assert np.array_equal(first.ids, again.ids)
    assert np.array_equal(first.answers, again.answers)
    assert not np.array_equal(first.ids, write(shipped_tokenizer, 3, 256, seed=5).ids)


def test_marked_tokens_are_the_answers_with_their_ends(shipped_tokenizer: Tokenizer) -> None:
    rows = write(shipped_tokenizer, 8, 1024)
    for ids, answers in zip(rows.ids, rows.answers, strict=True):
        whole = shipped_tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        marked = shipped_tokenizer.decode(ids[answers].tolist(), skip_special_tokens=False)
        spoken = [turn.split("<|end|>")[0] for turn in whole.split("<|assistant|>")[1:]]
        complete = len(marked.split("<|end|>")) - 1
        assert marked.split("<|end|>")[:complete] == spoken[:complete]
        assert complete > 5


def test_frame_marks_only_what_the_assistant_says(shipped_tokenizer: Tokenizer) -> None:
    ids, answers = frame(["user", "assistant"], [[50, 51], [60]], shipped_tokenizer.get_vocab())
    begin, user, assistant, end = map(shipped_tokenizer.token_to_id, (BEGIN, USER, ASSISTANT, END))
    assert ids == [begin, user, 50, 51, end, assistant, 60, end]
    assert answers == [False] * 6 + [True] * 2


def test_the_curriculum_goes_from_short_to_long() -> None:
    longest = [max(lengths_at(CURRICULUM, progress)) for progress in (0.0, 0.1, 0.5, 1.0)]
    assert longest == sorted(longest)
    assert longest[0] == 256
    assert longest[-1] == 4096


def test_a_stage_holds_until_the_next_begins() -> None:
    curriculum = (TrainingStage(0.0, (8,)), TrainingStage(0.5, (16, 32)))
    assert lengths_at(curriculum, 0.49) == (8,)
    assert lengths_at(curriculum, 0.5) == (16, 32)


def test_a_part_of_the_rows_offers_tools_and_the_larger_does_not(
    shipped_tokenizer: Tokenizer,
) -> None:
    rows = write(shipped_tokenizer, 200, 512)
    texts = [shipped_tokenizer.decode(ids.tolist()) for ids in rows.ids]
    assert 50 < sum("<tools>" in text for text in texts) < 100
    for ids, answers in zip(rows.ids, rows.answers, strict=True):
        marked = shipped_tokenizer.decode(ids[answers].tolist())
        assert "<tool_response>" not in marked
        assert ("<tool_call>" in marked) <= ("<tools>" in shipped_tokenizer.decode(ids.tolist()))


def test_workers_write_batches_of_the_asked_tokens_and_end_with_the_context() -> None:
    feed = Feed(SHIPPED, (TrainingStage(0.0, (64,)),), tokens=256, seed=0)
    with feed.running(workers=1):
        batches = [feed.next() for _ in range(3)]
    assert {batch.ids.shape for batch in batches} == {(4, 65)}
    assert len({batch.ids.tobytes() for batch in batches}) == 3
