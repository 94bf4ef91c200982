"""The texts of prompt modules: a text that cannot fit is not tokenised, and a long text is
tokenised in pieces.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import Bounds
from gateway.processes.fair_executor import at_once
from gateway.prompts.pipeline.prompt_tokens import PromptTokens
from gateway.prompts.pipeline.tokenised import PromptContext
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.long_text import KNOWN_CHUNK
from gateway.prompts.tokens.text_memory import TextMemory
from gateway.prompts.tokens.tokenizer import TokenIds, Tokenizer
from prefix_cache.namespace import Namespace

HANDBOOK = Path(__file__).parents[4] / "handbook" / "model"
ASKED = PromptContext("tenant", Namespace(b"n" * 16), 4096, 0, 1 << 20, ())


class WatchedTokenizer(Tokenizer):
    """A tokenizer that records the lengths of its texts."""

    lengths: list[int]

    def encode(self, prompt: str | Rendered, *, add_special_tokens: bool) -> TokenIds:
        if hasattr(self, "lengths"):
            self.lengths.append(len(prompt))
        return super().encode(prompt, add_special_tokens=add_special_tokens)


@pytest.fixture(scope="module")
def tokenizer() -> WatchedTokenizer:
    loaded = WatchedTokenizer.load(HANDBOOK)
    assert isinstance(loaded, WatchedTokenizer)
    return loaded


@pytest.fixture
def prompts(tokenizer: WatchedTokenizer) -> PromptTokens:
    made = PromptTokens(tokenizer, None, None, TextMemory(Bounds(), lambda: 0.0))
    tokenizer.lengths = []
    return made


def test_a_text_that_cannot_fit_is_not_tokenised(
    tokenizer: WatchedTokenizer, prompts: PromptTokens
) -> None:
    assert at_once(prompts.alone("x" * 10_000_000, 4, ASKED)) is None
    assert not tokenizer.lengths
    fits = at_once(prompts.alone("Elbe", 4, ASKED))
    assert fits is not None
    assert tokenizer.lengths == [4], "the control"
    assert at_once(prompts.alone("Elbe", len(fits) - 1, ASKED)) is None


def test_a_long_text_has_the_tokens_of_the_whole_and_is_remembered_in_pieces(
    tokenizer: WatchedTokenizer, prompts: PromptTokens
) -> None:
    text = "".join(f"The door code for house {number} is {number * 7}. " for number in range(400))
    whole = tokenizer.encode(Rendered((text,)), add_special_tokens=False).tolist()
    tokenizer.lengths.clear()
    ids = at_once(prompts.alone(text, 1 << 20, ASKED))
    assert ids is not None
    assert ids.tolist() == whole
    assert max(tokenizer.lengths) < 2 * KNOWN_CHUNK < len(text)
    tokenizer.lengths.clear()
    assert at_once(prompts.alone(text, 1 << 20, ASKED)) is not None
    assert not tokenizer.lengths, "all of it is known"
    at_once(prompts.alone(text, 1 << 20, replace(ASKED, tenant_id="other")))
    assert sum(tokenizer.lengths) == len(text), "to its tenant alone"
