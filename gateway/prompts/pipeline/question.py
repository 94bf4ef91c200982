"""The place in a chat's tokens where the last user message's text begins.

Prompts with other questions about the same documents differ from this place on. For a model with
recurrent layers, the engine keeps a recurrent state before this place. The place is a hint. The
place is found by the message's text in the rendered chat, so nothing is rendered twice. Only the
text between the last control token and the message's text is tokenised again.
"""

from __future__ import annotations

import numpy as np

from gateway.prompts.chats.messages import Text
from gateway.prompts.generation_request import ChatPrompt, Prompt
from gateway.prompts.pipeline.mark_places import common_prefix
from gateway.prompts.pipeline.tokenised import Tokenised
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.tokenizer import Tokenizer

_MOST = 1 << 14  # maximum number of characters to tokenise again, which takes some milliseconds


def question_start(prompt: Prompt, found: Tokenised, tokenizer: Tokenizer) -> int:
    """Count the tokens before the last message's text; return 0 if the place is unknown."""
    said, rendered = _last_text(prompt), found.rendered
    if rendered is None or not said:
        return 0
    pieces = rendered.pieces
    ends = (at for at in range(len(pieces) - 1, -1, -2) if pieces[at].rstrip().endswith(said))
    at = next(ends, None)
    rest = Rendered(() if at is None else pieces[at:])
    if at is None or len(rest) > _MOST:
        return 0
    before = pieces[at][: pieces[at].rindex(said)]
    head, tail = (
        tokenizer.encode(one, add_special_tokens=False) for one in (Rendered((before,)), rest)
    )
    start = len(found.token_ids) - len(tail)
    if start < 0 or not np.array_equal(found.token_ids[start:], tail):
        return 0
    return start + common_prefix(head, tail)


def _last_text(prompt: Prompt) -> str:
    last = prompt.messages[-1] if isinstance(prompt, ChatPrompt) and prompt.messages else None
    if last is None or last.role != "user":
        return ""
    return "".join(part.text for part in last.parts if isinstance(part, Text)).strip()
