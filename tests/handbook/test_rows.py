from __future__ import annotations

import random

import numpy as np
import pytest
from tokenizers import Tokenizer

from handbook.names import Source, Split
from handbook.rows import Rows, frame, marks_of, write_rows


def write(tokenizer: Tokenizer, count: int, length: int, seed: int = 0) -> Rows:
    return write_rows(Source(random.Random(seed), Split.TRAIN), tokenizer, count, length)


@pytest.mark.parametrize("length", [64, 256, 2048])
def test_rows_have_the_asked_size_and_begin_alike(
    shipped_tokenizer: Tokenizer, length: int
) -> None:
    rows = write(shipped_tokenizer, 5, length)
    assert rows.ids.shape == rows.answers.shape == (5, length + 1)
    assert set(rows.ids[:, 0].tolist()) == {marks_of(shipped_tokenizer).begin}


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
    marks = marks_of(shipped_tokenizer)
    ids, answers = frame(["user", "assistant"], [[50, 51], [60]], marks)
    assert ids == [marks.begin, marks.user, 50, 51, marks.end, marks.assistant, 60, marks.end]
    assert answers == [False] * 6 + [True] * 2
