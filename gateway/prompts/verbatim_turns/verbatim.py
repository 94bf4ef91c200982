"""The generated turns of a chat, put back into the chat's next prompt as the tokens generated.

A turn is found by its content and by all messages before the turn. The turn is put back on two
conditions:

- The chat before the turn is rendered and spliced as it was when the turn was generated.
- The template's rendering of the turn ends with a token at which the model stops. The rendering has
  the same last marker. Parsed as an answer, it has the same content, reasoning included.

If the client left the reasoning out, the turn is rendered with the reasoning. If the template takes
no text beside calls, a turn with both is rendered without its text. If the template drops
the reasoning of earlier turns, the content differs, and the rendering is used.

Elsewhere: what a tenant may share (`sharing/namespaces.py`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from gateway.errors import BadRequest
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.chat_tools import specs_of
from gateway.prompts.chats.messages import Reasoning, Text, ToolResult
from gateway.prompts.generation_request import AnswerForm, ChatPrompt, Origin
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.splicing import (
    ChatHash,
    Place,
    Splice,
    SplicedChat,
    before_control,
    before_last,
    between,
    end_of,
    is_before_control,
)
from gateway.prompts.tokens.tokenizer import TokenIds, Tokenizer
from gateway.prompts.verbatim_turns.fitting_text import as_generated, fits, text_digest
from gateway.prompts.verbatim_turns.history import Marks, Render, continued
from gateway.prompts.verbatim_turns.said import Said, said_by, said_in, without_text
from gateway.prompts.verbatim_turns.turn_memory import GeneratedTurn, TurnMemory
from gateway.turn_formats.families.objects.hermes import HermesFormat
from gateway.turn_formats.pieces import Piece
from gateway.turn_formats.reading import TurnReader

# maximum number of renderings of a chat with turns put back, besides the rendering without them
_RENDERINGS = 3
_TAIL = 16  # number of pieces at a prompt's end that are searched for tags of reasoning
_BYTES_PER_CHARACTER = 4  # bytes of a turn that count as the work of one tokenised character
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class ChatKeys:
    """The keys under which a chat's turns are remembered."""

    tenant_id: str
    of_turns: Mapping[int, bytes]  # keys by the index of the assistant's message
    chain: Any


class VerbatimTurns:
    """The memory of generated turns, which puts turns back into chats. Thread-safe."""

    def __init__(
        self,
        memory: TurnMemory,
        forms: AnswerForms,
        tokenizer: Tokenizer,
        *,
        takes_text: bool = True,
    ) -> None:
        """Remember turns in `memory`. `takes_text`: the template takes text beside calls."""
        self.memory = memory
        self._takes_text = takes_text
        self._forms = forms
        self._tokenizer = tokenizer
        self._control = tokenizer.control_ids()

    def keys(self, chat: ChatPrompt, tenant_id: str, namespace: bytes) -> ChatKeys | None:
        """Hash a chat's turns; return None without remembered turns, or if a call is unreadable."""
        if not self.memory.is_on:
            return None
        chain = hashlib.blake2b(digest_size=32)
        _add(chain, tenant_id, namespace, sorted((chat.variables or {}).items()), chat.tools)
        keys: dict[int, bytes] = {}
        for place, message in enumerate(chat.messages):
            if message.role != "assistant":
                _add(chain, message.role, message.name, *map(_text_of, message.parts))
                continue
            turn = said_by(message)
            if turn is None:
                return None
            _add_turn(chain, turn, message.name)
            keys[place] = chain.digest()
        if chat.continue_final_message:
            keys.pop(len(chat.messages) - 1, None)
        return ChatKeys(tenant_id, keys, chain)

    def size(self, keys: ChatKeys) -> int:
        """Return the work of putting back remembered turns, in units of one tokenised character."""
        return sum(turn.size for turn in self._found(keys).values()) // _BYTES_PER_CHARACTER

    def spliced(
        self, chat: ChatPrompt, keys: ChatKeys, render: Render, ends: Sequence[int]
    ) -> SplicedChat:
        """Render `chat` with the remembered turns that may be put back.

        `ends` are the tokens at which the model stops. Raises the errors of `render`.
        """
        found = self._found(keys)
        for _ in range(_RENDERINGS if found else 0):
            try:
                rendered = render(as_generated(chat, found, takes_text=self._takes_text))
            except BadRequest:  # perhaps the template refuses only the changed turns
                break
            splices = self._fitting(chat, rendered, found, self._texts(ends))
            if len(splices) == len(found):
                self._used(rendered, splices, found, keys)
                return SplicedChat(rendered, tuple(splices.values()))
            found = {place: found[place] for place in splices}
        return SplicedChat(render(chat))

    def continued(
        self, chat: ChatPrompt, keys: ChatKeys, render: Render, ends: Sequence[int]
    ) -> SplicedChat | None:
        """Render `chat` after the tokens up to its last remembered turn, if any.

        The prompt then keeps its thoughts, even if the template would drop them.
        """
        if not self.memory.knows(keys.tenant_id):
            return None

        def find(key: bytes) -> GeneratedTurn | None:
            return self.memory.find(keys.tenant_id, key)

        marks = Marks(self._texts(ends), self._forms.markers, self._begin)
        found = continued(chat, keys.of_turns, find, render, marks)
        if found is not None:
            # Uses the turns in reverse, so that a chat's first turn stays in memory longest.
            for key in reversed([*keys.of_turns.values()]):
                if find(key) is not None:
                    self.memory.use(keys.tenant_id, key)
        return found

    def origin(
        self,
        chat: ChatPrompt,
        keys: ChatKeys,
        prompt: SplicedChat,
        token_ids: TokenIds,
        *,
        keeps_thoughts: bool = False,
    ) -> Origin | None:
        """Return the origin of the answer to `chat`, whose prompt became `token_ids`.

        Returns None if the answer will not be a separate turn.
        """
        if not chat.add_generation_prompt or chat.continue_final_message:
            return None
        begin = self._begin(prompt.rendered)
        # a token might cross the beginning of the answer
        if not is_before_control(prompt.rendered, begin):
            begin = end_of(prompt.rendered)
        opened = between(prompt.rendered, begin, end_of(prompt.rendered))
        ids = self._tokenizer.encode(opened, add_special_tokens=False)
        if not np.array_equal(token_ids[len(token_ids) - len(ids) :], ids):
            return None
        found = Origin(keys.tenant_id, keys.chain, begin, prompt.digest(begin), ids)
        if not keeps_thoughts:
            return found
        known = 0 if prompt.parent is None else len(prompt.splices[0].token_ids)
        since = token_ids[known : len(token_ids) - len(ids)].copy()  # frees the rest of the array
        return replace(found, since=since, parent=prompt.parent)

    def remember(self, origin: Origin, pieces: Sequence[Piece], token_ids: Sequence[int]) -> None:
        """Remember a complete answer: the answer's tokens and parsed content."""
        said = said_in(pieces)
        if said is None or not said.order or _NO_CHARACTER in said.text + said.reasoning:
            return
        controls = [self._control[one] for one in token_ids if one in self._control]
        # the parser does not see some of these control tokens
        if not self._forms.markers.issuperset(controls):
            return
        key = origin.chain.copy()
        _add_turn(key, said, None)
        turn = GeneratedTurn(
            origin.begin,
            origin.before,
            np.concatenate([origin.opened, np.array(token_ids, np.int32)]),
            said,
            controls[-1] if controls else None,
            since=origin.since,
            parent=origin.parent,
        )
        self.memory.add(origin.tenant_id, key.digest(), turn)

    def _found(self, keys: ChatKeys) -> dict[int, GeneratedTurn]:
        if not self.memory.knows(keys.tenant_id):
            return {}
        turns = ((at, self.memory.find(keys.tenant_id, key)) for at, key in keys.of_turns.items())
        return {place: turn for place, turn in turns if turn is not None}

    def _fitting(
        self,
        chat: ChatPrompt,
        rendered: Rendered,
        found: Mapping[int, GeneratedTurn],
        ends: frozenset[str],
    ) -> dict[int, Splice]:
        """Select the turns of `found` that fit the rendering of the chat with all found turns."""
        tools = (*specs_of(chat.tools or ()), *chat.later_tools)
        parser = self._forms.parser(AnswerForm(tools), "") or TurnReader
        parsers = (parser, partial(HermesFormat().parser, tools))
        hashed = ChatHash(rendered)
        fitting: dict[int, Splice] = {}
        for place, turn in found.items():
            if not hashed.is_before(turn.begin) or hashed.read_to(turn.begin) != turn.before:
                continue
            end = before_control(rendered, turn.begin, ends)
            said = turn.said if self._takes_text else without_text(turn.said)
            if end is None or not fits(between(rendered, turn.begin, end), turn, said, parsers):
                continue
            fitting[place] = Splice(turn.begin, end, turn.token_ids)
            hashed.splice(fitting[place])
        return fitting

    def _used(
        self,
        rendered: Rendered,
        splices: Mapping[int, Splice],
        found: dict[int, GeneratedTurn],
        keys: ChatKeys,
    ) -> None:
        """Keep the turns that were put back, and digests of the template's text for each.

        A turn's key covers the tools and all messages, so the template writes the same text again.
        """
        # in reverse, so that a chat's first turn stays in memory longest
        for place in reversed(found):
            turn, key = found[place], keys.of_turns[place]
            if turn.written:
                self.memory.use(keys.tenant_id, key)
                continue
            written = text_digest(between(rendered, turn.begin, splices[place].end))
            self.memory.add(keys.tenant_id, key, replace(turn, written=written))

    def _begin(self, prompt: Rendered) -> Place:
        """Find where the answer to `prompt` begins, before final tags of reasoning."""
        tail = "".join(prompt.pieces[-_TAIL:])
        reasoning = self._forms.reasoning
        before = tail if reasoning is None else reasoning.unopened(tail)
        return before_last(prompt, len(tail) - len(before))

    def _texts(self, token_ids: Sequence[int]) -> frozenset[str]:
        return frozenset(self._control[one] for one in token_ids if one in self._control)


def _text_of(part: Any) -> str | None:
    return part.text if isinstance(part, Text | ToolResult | Reasoning) else None


def _add_turn(chain: Any, said: Said, name: str | None) -> None:
    """Hash a turn without its reasoning, which clients may leave out."""
    _add(chain, "assistant", name, said.text, said.calls)


def _add(chain: Any, *values: Any) -> None:
    """Hash values, framed so that different lists have different hashes."""
    spelled = msgspec.json.encode(values)
    chain.update(len(spelled).to_bytes(8, "little") + spelled)
