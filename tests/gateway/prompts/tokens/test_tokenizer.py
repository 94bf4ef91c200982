"""The tokenizer remembers no text after it tokenised it."""

from __future__ import annotations

import tokenizers
from tokenizers.models import BPE

from gateway.prompts.tokens.tokenizer import Tokenizer


def small() -> tokenizers.Tokenizer:
    vocabulary = {"a": 0, "b": 1, "ab": 2, "<unknown>": 3, "<other>": 4}
    return tokenizers.Tokenizer(BPE(vocabulary, [("a", "b")], unk_token="<unknown>"))


def test_a_word_that_was_tokenised_is_looked_up_again() -> None:
    """Look up a word again after the model's vocabulary has changed, which shows that no result was
    remembered.
    """
    inner, kept = small(), small()
    ours = Tokenizer(inner)
    assert ours.encode("abz", add_special_tokens=False).tolist() == [2, 3]
    assert kept.encode("abz").ids == [2, 3]
    inner.model.unk_token = kept.model.unk_token = "<other>"
    assert ours.encode("abz", add_special_tokens=False).tolist() == [2, 4]
    assert kept.encode("abz").ids == [2, 3], "the control: the library itself keeps words"
