"""A predicted answer is tokenised as a continuation of the prompt, as the model would write it."""

from __future__ import annotations

import pytest

from gateway.errors import BadRequest
from gateway.processes.fair_executor import at_once
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.pipeline.prompt_tokens import PromptTokens
from gateway.prompts.pipeline.tokenised import PromptContext
from prefix_cache.namespace import Namespace
from tests.gateway.support.families import FAMILIES, Family

ASKED = PromptContext("ada", Namespace(b"own"), 1_000, 1, 1 << 20, ())
QUESTION = Message("user", (Text("Hi"),), None, "")


def said(text: str) -> Message:
    return Message("assistant", (Text(text),), None, "")


def prompt_and_continuation(
    family: Family, text: str, *, prefill: str = ""
) -> tuple[list[int], list[int]]:
    tokens = PromptTokens(family.ours, family.template, None, None)
    messages = (QUESTION, said(prefill)) if prefill else (QUESTION,)
    chat = ChatPrompt(
        messages, add_generation_prompt=not prefill, continue_final_message=bool(prefill)
    )
    found = at_once(tokens.tokenised(chat, ASKED, add_special_tokens=False))
    return found.token_ids.tolist(), at_once(tokens.continued(text, found, ASKED)).tolist()


def shown(family: Family, text: str) -> list[int]:
    """Return the tokens of a chat whose last message is the answer `text`."""
    tokens = PromptTokens(family.ours, family.template, None, None)
    chat = ChatPrompt((QUESTION, said(text), QUESTION))
    token_ids = at_once(tokens.tokenised(chat, ASKED, add_special_tokens=False)).token_ids
    return [int(one) for one in token_ids]


@pytest.mark.parametrize("name", ["qwen3", "llama3", "mistral-legacy", "handbook"])
@pytest.mark.parametrize("text", ["The quick fox", "return 3 * r"])
def test_it_is_what_the_chat_has_there_once_it_was_said(name: str, text: str) -> None:
    family = FAMILIES[name]()
    prompt, continuation = prompt_and_continuation(family, text)
    assert continuation
    assert shown(family, text)[: len(prompt) + len(continuation)] == prompt + continuation


def test_alone_some_tokenizers_cut_it_in_another_way() -> None:
    """Tokenise a prediction without its prompt (positive control): some tokenizers then split it in
    another way.
    """
    family = FAMILIES["mistral-legacy"]()
    _, continuation = prompt_and_continuation(family, "return 3 * r")
    assert family.ours.encode("return 3 * r", add_special_tokens=False).tolist() != continuation


def test_no_token_of_it_begins_in_the_prompt() -> None:
    family = FAMILIES["qwen3"]()
    words, rest = family.ours.encode("The quick", add_special_tokens=False), "ick"
    assert len(words) < 9, "the control: whole words are tokens"
    prompt, continuation = prompt_and_continuation(family, rest, prefill="The qu")
    decoded = family.ours.decode(continuation, skip_special_tokens=False)
    assert decoded == rest
    assert family.ours.decode(prompt, skip_special_tokens=False).endswith("The qu")


def test_one_that_is_longer_than_the_context_is_refused() -> None:
    # This family's texts cannot be split into chunks, so all of them are tokenised.
    family = FAMILIES["mistral-legacy"]()
    assert len(prompt_and_continuation(family, "7" * 990)[1]) > 900
    with pytest.raises(BadRequest) as refused:
        prompt_and_continuation(family, "7" * 1_100)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prediction")
