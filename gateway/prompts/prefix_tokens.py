"""The tokens of a published source.

A source's tokens are the first tokens of all prompts that continue the source. The tokens at a
text's end depend on the text that follows, and a template may write something between messages. The
source is therefore rendered with several continuations. The common first tokens of the results are
the prefix.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from gateway.errors import BadRequest
from gateway.prompts.chats.messages import Message, Text, stored_message
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.tokenizer import TokenIds, Tokenizer
from gateway.state.records import PrefixSource

# Texts with different first characters, one text for each kind of character that tokenizers tell
# apart.
_CONTINUATIONS = ("Zebra", "a", "7", " b", "\n", ".", "é", "日")
_NEXT = (("user",), ("assistant",))
_FIRST = (("system", "user"), *_NEXT)


class PrefixTokens:
    """The tokeniser of published sources. Thread-safe. Long sources take long."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template

    def of(self, source: PrefixSource) -> TokenIds:
        """Tokenise a source, as int32; raise BadRequest if the model's template refuses it."""
        if source.text is not None:
            return self._common([source.text + more for more in _CONTINUATIONS], special=True)
        return self._common(self._rendered(source), special=False)

    def text(self, token_ids: TokenIds) -> str:
        """Decode these token ids, including special tokens."""
        return self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=False)

    def _rendered(self, source: PrefixSource) -> list[Rendered]:
        """Render the chat with each continuation, in each role that the template accepts next."""
        if self._template is None:
            raise BadRequest("the model has no chat template; publish a text", param="messages")
        messages = [stored_message(form) for form in source.messages or []]
        texts, refusals = [], []
        for roles, more in product(_NEXT if messages else _FIRST, _CONTINUATIONS):
            chat = [*messages, *(Message(role, (Text(more),)) for role in roles)]
            try:
                texts.append(
                    self._template.render(chat, add_generation_prompt=False, tools=source.tools)
                )
            except BadRequest as refusal:
                refusals.append(refusal)
        if not texts:
            raise refusals[0]
        return texts

    def _common(self, texts: Sequence[str | Rendered], *, special: bool) -> TokenIds:
        common = self._tokenizer.encode(texts[0], add_special_tokens=special)
        for text in texts[1:]:
            other = self._tokenizer.encode(text, add_special_tokens=special)
            length = min(len(common), len(other))
            differs = np.flatnonzero(common[:length] != other[:length])
            common = common[: differs[0] if len(differs) else length]
        return common
