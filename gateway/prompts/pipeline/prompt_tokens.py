"""A prompt's token ids: of a text, of a rendered chat, or as the client gave them.

Only this module decides a prompt's tokens, whether the request is answered or only counts tokens.
Generated turns in a chat keep the tokens that the model generated, if possible (`verbatim.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.errors import BadRequest
from gateway.processes.fair_executor import Steps
from gateway.prompts.chats.template_variables import PRESERVE_THINKING, Scalar
from gateway.prompts.generation_request import ChatPrompt, Prompt
from gateway.prompts.pipeline.module_place import divided, marked, new_mark
from gateway.prompts.pipeline.tokenised import PromptContext, Tokenised, check_ids, too_long
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.templates.verdicts import Judged, Verdicts, afresh
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.long_text import CHUNK, LongTexts
from gateway.prompts.tokens.splicing import SplicedChat
from gateway.prompts.tokens.text_memory import Owner, TextMemory
from gateway.prompts.tokens.tokenizer import TokenIds, Tokenizer
from gateway.prompts.verbatim_turns.verbatim import ChatKeys, VerbatimTurns
from gateway.tenant_limits import Limits

# The number of last pieces of a rendered chat in which a tag may open the answer's reasoning.
_TAIL = 4
_TAIL_CHARS = 256
_LAST_CHARS = 32  # number of characters before an answer that may change the answer's first token


class PromptTokens:
    """The tokeniser of all kinds of prompts. Thread-safe."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        turns: VerbatimTurns | None,
        texts: TextMemory | None = None,
        verdicts: Verdicts | None = None,
    ) -> None:
        """Make a tokeniser. Without `turns`, the template alone renders every chat.

        Without `texts` every text is tokenised whole. Without `verdicts` every shape is judged
        anew.
        """
        self._verdicts = verdicts
        self._tokenizer = tokenizer
        self._texts = LongTexts(tokenizer, texts)
        self._longest_token = tokenizer.longest_token
        self._template = template
        self._turns = turns

    def check_sizes(self, prompts: Sequence[Prompt], asked: PromptContext, limits: Limits) -> None:
        """Raise BadRequest for a prompt whose size alone shows that it is too long.

        Otherwise many prompts could be tokenised before the request's last prompt is refused.
        """
        context = min(limits.max_request_tokens or asked.most, asked.most)
        is_tenants = context < asked.most
        for prompt in prompts:
            if isinstance(prompt, np.ndarray):
                needed = len(prompt) + asked.room
                if needed > context:
                    raise too_long(needed, context, "prompt", of_tenant=is_tenants)
            elif isinstance(prompt, str) and _has_more_bytes(prompt, context * self._longest_token):
                raise too_long(None, context, "prompt", of_tenant=is_tenants)

    def tokenised(
        self, prompt: Prompt, asked: PromptContext, *, add_special_tokens: bool
    ) -> Steps[Tokenised]:
        """Tokenise a prompt; raise BadRequest if the prompt is too long, or cannot be rendered."""
        special = add_special_tokens
        if isinstance(prompt, np.ndarray):
            return Tokenised(_checked(prompt, asked))
        if isinstance(prompt, str):
            ids = yield from self._encoded(prompt, asked, "prompt", add_special_tokens=special)
            return Tokenised(ids)
        self._check(prompt, asked)
        turns = self._turns
        keys = None if turns is None else turns.keys(prompt, asked.tenant_id, asked.namespace)
        if turns is not None and keys is not None:
            yield turns.size(keys)
            chat = self._spliced(turns, prompt, keys, asked)
            found = yield from self._with_turns(chat, asked, add_special_tokens=special)
            if found is not None:
                return self._of_chat(prompt, keys, found, asked)
        chat = SplicedChat(self._render(prompt))
        ids = yield from self._joined(chat, asked, add_special_tokens=special)
        return self._of_chat(prompt, keys, (chat, ids), asked)

    def divided(
        self, prompt: Prompt, asked: PromptContext, *, add_special_tokens: bool
    ) -> Steps[tuple[TokenIds, Tokenised]]:
        """Tokenise a prompt's text before its modules, and its text after them.

        Raises the BadRequest errors of `tokenised`. Also raises BadRequest for a chat that has no
        place for modules.
        """
        special, nothing = add_special_tokens, Rendered(("",))
        if isinstance(prompt, np.ndarray):
            return np.empty(0, np.int32), Tokenised(_checked(prompt, asked))
        if isinstance(prompt, str):
            head = yield from self._encoded(nothing, asked, "prompt", add_special_tokens=special)
            ids = yield from self._encoded(prompt, asked, "prompt", add_special_tokens=False)
            return head, Tokenised(ids)
        mark = new_mark()
        chat = marked(prompt, mark)
        self._check(chat, asked)
        before, after = divided(self._render(chat), mark)
        head = yield from self._encoded(before, asked, "messages", add_special_tokens=special)
        ids = yield from self._encoded(after, asked, "messages", add_special_tokens=False)
        return head, self._of_chat(prompt, None, (SplicedChat(after), ids), asked)

    def alone(self, text: str, most: int, asked: PromptContext) -> Steps[TokenIds | None]:
        """Tokenise a module's text or a parameter's value; return None beyond `most` tokens.

        A long text is cut where a cut does not change its tokens, and its pieces are remembered.
        """
        if _has_more_bytes(text, most * self._longest_token):
            return None
        ids = yield from self._texts.encode(
            Rendered((text,)),
            add_special_tokens=False,
            most=most,
            owner=Owner(asked.tenant_id, asked.namespace),
            goes_on=True,
        )
        return None if ids is None or len(ids) > most else ids

    def continued(self, text: str, found: Tokenised, asked: PromptContext) -> Steps[TokenIds]:
        """Tokenise `text` as the model would write `text` after the prompt `found`.

        Raises BadRequest if `text` has more tokens than a context.
        """
        before, param = found.last_text, "prediction"
        alone = yield from self._encoded(
            Rendered((before,)), asked, param, add_special_tokens=False
        )
        ids = yield from self._encoded(
            Rendered((before + text,)), asked, param, add_special_tokens=False
        )
        if np.array_equal(ids[: len(alone)], alone):
            ids = ids[len(alone) :]
        else:  # the model cannot write a token that crosses the prompt's end
            ids = yield from self._encoded(
                Rendered((text,)), asked, param, add_special_tokens=False
            )
        if len(ids) > asked.most:
            raise too_long(len(ids), asked.most, param)
        return ids

    def _spliced(
        self, turns: VerbatimTurns, prompt: ChatPrompt, keys: ChatKeys, asked: PromptContext
    ) -> SplicedChat:
        chat = None
        if self._keeps_thoughts(prompt, asked):
            chat = turns.continued(prompt, keys, self._render, asked.ends)
        return chat or turns.spliced(prompt, keys, self._render, asked.ends)

    def _keeps_thoughts(self, chat: ChatPrompt, asked: PromptContext) -> bool:
        """Return whether to keep thoughts that the template would drop."""
        variables = {**self._chats.variables, **self._variables(chat)}
        wants = variables.get(PRESERVE_THINKING) is True
        return wants and not self._chats.keeps_thoughts(variables, self._judged(asked))

    def _with_turns(
        self, chat: SplicedChat, asked: PromptContext, *, add_special_tokens: bool
    ) -> Steps[tuple[SplicedChat, TokenIds] | None]:
        special = add_special_tokens
        try:
            ids = yield from self._joined(chat, asked, add_special_tokens=special)
        except BadRequest:
            if not chat.splices:
                raise
            return None
        has_room = len(ids) + asked.room <= asked.most
        return (chat, ids) if has_room or not chat.splices else None

    def _of_chat(
        self,
        prompt: ChatPrompt,
        keys: ChatKeys | None,
        found: tuple[SplicedChat, TokenIds],
        asked: PromptContext,
    ) -> Tokenised:
        chat, ids = found
        prefill = chat.rendered.prefill
        tail, last = _tail_of(chat.rendered), chat.rendered.pieces[-1][-_LAST_CHARS:]
        if self._turns is None or keys is None:
            return Tokenised(ids, tail, prefill, None, last, chat.rendered)
        keeps = self._keeps_thoughts(prompt, asked)
        origin = self._turns.origin(prompt, keys, chat, ids, keeps_thoughts=keeps)
        return Tokenised(ids, tail, prefill, origin, last, chat.rendered)

    def _joined(
        self, chat: SplicedChat, asked: PromptContext, *, add_special_tokens: bool
    ) -> Steps[TokenIds]:
        special, found, size = add_special_tokens, list[TokenIds](), 0
        for place, part in enumerate(chat.parts()):
            if isinstance(part, Rendered):
                goes_on = place < 2 * len(chat.splices)
                part = yield from self._encoded(
                    part, asked, "messages", add_special_tokens=special, goes_on=goes_on
                )
                special = False
            found.append(part)
            size += len(part)
            if size > asked.most:
                raise too_long(None, asked.most, "messages")
        return np.concatenate(found) if len(found) > 1 else found[0]

    def _encoded(
        self,
        text: Rendered | str,
        asked: PromptContext,
        param: str,
        *,
        add_special_tokens: bool,
        goes_on: bool = False,
    ) -> Steps[TokenIds]:
        most, special = asked.most, add_special_tokens
        if _has_more_bytes(text, most * self._longest_token):
            # The prompt is certainly longer than the context, and tokenising it could take minutes.
            raise too_long(None, most, param)
        if len(text) > CHUNK:
            yield
        token_ids = yield from self._texts.encode(
            text,
            add_special_tokens=special,
            most=most,
            owner=Owner(asked.tenant_id, asked.namespace),
            goes_on=goes_on,
        )
        if token_ids is None:
            raise too_long(None, most, param)
        return token_ids

    def _check(self, chat: ChatPrompt, asked: PromptContext) -> None:
        self._chats.check(
            chat.messages,
            add_generation_prompt=chat.add_generation_prompt,
            variables=self._variables(chat),
            tools=chat.tools,
            judged=self._judged(asked),
        )

    def _judged(self, asked: PromptContext) -> Judged:
        if self._verdicts is None:
            return afresh
        return self._verdicts.of(asked.tenant_id, asked.namespace)

    def _variables(self, chat: ChatPrompt) -> dict[str, Scalar]:
        set_by_operator = self._chats.variables
        implied = chat.implied.items()
        others = {name: value for name, value in implied if name not in set_by_operator}
        return {**others, **(chat.variables or {})}

    @property
    def _chats(self) -> ChatTemplate:
        if self._template is None:
            raise BadRequest(
                "the model has no chat template; use /v1/completions", param="messages"
            )
        return self._template

    def _render(self, chat: ChatPrompt) -> Rendered:
        return self._chats.render(
            chat.messages,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            variables=self._variables(chat),
            tools=chat.tools,
        )


def _tail_of(rendered: Rendered) -> str:
    if not rendered.prefill:
        return "".join(rendered.pieces[-_TAIL:])
    return rendered.text.removesuffix(rendered.prefill)[-_TAIL_CHARS:]


def _checked(token_ids: TokenIds, asked: PromptContext) -> TokenIds:
    if len(token_ids) >= asked.most:
        raise too_long(len(token_ids) + 1, asked.most, "prompt")
    check_ids(token_ids, asked.vocab_size, "prompt")
    return token_ids


def _has_more_bytes(text: str | Rendered, most: int) -> bool:
    """Return whether `text` has over `most` bytes of UTF-8. A character has up to four bytes."""
    if len(text) > most or 4 * len(text) <= most:
        return len(text) > most
    return len((text if isinstance(text, str) else text.text).encode()) > most
