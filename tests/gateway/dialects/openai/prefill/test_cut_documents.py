"""Documents cut to a number of tokens: the cutting is charged, divided into steps, and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gateway.config import Bounds
from gateway.dialects.openai.prefill.rerank import ANSWERS, request_of_rerank
from gateway.dialects.openai.prefill.schema import RerankRequest
from gateway.dialects.prefill_request import PrefillRequest
from gateway.processes.fair_executor import INLINE_SIZE, Steps, at_once
from gateway.prompts.chats.messages import Text
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.tokenizer import TokenIds, Tokenizer
from tests.seams.support.small_qwen import write_tokenizer

CONTEXT = 50_000
LONG = "yes and no, " * 10_000


class NotingTokenizer:
    """A tokenizer that records how many characters of documents it encodes."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner = inner
        self.encoded: list[int] = []

    def encode(self, prompt: str | Rendered, **how: Any) -> TokenIds:
        text = prompt if isinstance(prompt, str) else "".join(prompt.pieces)
        if text not in ANSWERS:
            self.encoded.append(len(text))
        return self._inner.encode(prompt, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def tokenizer(tmp_path: Path) -> NotingTokenizer:
    write_tokenizer(tmp_path / "qwen", appends=False)
    return NotingTokenizer(Tokenizer.load(tmp_path / "qwen"))


def asked(tokenizer: Any, documents: list[str], **fields: Any) -> Steps[PrefillRequest]:
    body = {"query": "Which?", "documents": documents, **fields}
    return request_of_rerank(
        msgspec.convert(body, RerankRequest), "r", Bounds(), tokenizer, CONTEXT
    )


def text_of(prompt: Any) -> str:
    assert isinstance(prompt, ChatPrompt)
    [part] = prompt.messages[-1].parts
    assert isinstance(part, Text)
    return part.text.partition("<Document>: ")[2]


def test_only_what_may_be_read_is_tokenised(tokenizer: NotingTokenizer) -> None:
    """Tokenise only the part of a document that may be read.

    The client is charged for that part, so it could otherwise cause any amount of work for free.
    """
    made = at_once(asked(tokenizer, [LONG], max_tokens_per_doc=100))
    assert sum(tokenizer.encoded) < 2_000
    read = text_of(made.asked.prompts[0])
    assert LONG.startswith(read)
    assert len(tokenizer.encode(read, add_special_tokens=False)) == 100


def test_more_is_tokenised_where_tokens_are_long(tokenizer: NotingTokenizer) -> None:
    class LongTokens(NotingTokenizer):
        def encode(self, prompt: str | Rendered, **how: Any) -> TokenIds:
            return np.array(super().encode(prompt, **how)[::20])

    made = at_once(asked(LongTokens(tokenizer._inner), [LONG[:3_000]], max_tokens_per_doc=100))
    assert len(tokenizer.encode(text_of(made.asked.prompts[0]), add_special_tokens=False)) == 100


def test_each_document_is_a_step_and_the_first_tells_the_work(tokenizer: NotingTokenizer) -> None:
    steps = list(asked(tokenizer, [LONG, LONG, "a"], max_tokens_per_doc=20_000))
    assert steps[0] == 2 * len(LONG) + 1 > INLINE_SIZE
    assert len(steps) == 4
    assert list(asked(tokenizer, [LONG, "a"])) == [], "the control: nothing is tokenised"


def test_no_more_is_tokenised_than_a_prompt_may_have(tokenizer: NotingTokenizer) -> None:
    at_once(asked(tokenizer, [20 * LONG], max_tokens_per_doc=1_000_000))
    assert sum(tokenizer.encoded) <= 8 * CONTEXT < 20 * len(LONG)
