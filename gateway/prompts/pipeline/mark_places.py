"""The places of cache breakpoints in a prompt's tokens.

A breakpoint stands after a content block of a chat. Only the template knows the tokens before it.
The chat up to this content block is therefore rendered too. The breakpoint's place is where the
tokens of this shorter chat and of the prompt first differ. The cache can find only the tokens
before this place. If a template refuses the shorter chat, a user's turn is added to it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.link.messages import Mark
from gateway.errors import BadRequest
from gateway.processes.fair_executor import Steps
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.generation_request import CacheMark, ChatPrompt
from gateway.prompts.pipeline.prompt_tokens import PromptTokens
from gateway.prompts.pipeline.tokenised import PromptContext
from gateway.prompts.tokens.tokenizer import TokenIds

_NEXT = Message("user", (Text("."),))


def placed_marks(
    marks: Sequence[CacheMark], token_ids: TokenIds, prompts: PromptTokens, asked: PromptContext
) -> Steps[tuple[Mark, ...]]:
    """Find the breakpoints' places in these tokens, in rising order."""
    placed, reached = [], 0
    for mark in marks:
        end = len(token_ids)
        if mark.chat is not None:
            yield
            alike = yield from _common(mark.chat, token_ids, prompts, asked)
            end = max(alike, reached)
        reached = end
        placed.append(Mark(end, mark.seconds))
    return tuple(placed)


def _common(
    chat: ChatPrompt, token_ids: TokenIds, prompts: PromptTokens, asked: PromptContext
) -> Steps[int]:
    ends = replace(chat, add_generation_prompt=False, continue_final_message=False)
    for tried in (ends, replace(ends, messages=(*ends.messages, _NEXT))):
        try:
            found = yield from prompts.tokenised(tried, asked, add_special_tokens=False)
        except BadRequest:
            continue
        return common_prefix(found.token_ids, token_ids)
    return 0


def common_prefix(one: TokenIds, other: TokenIds) -> int:
    """Count the tokens with which both token sequences begin."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length
