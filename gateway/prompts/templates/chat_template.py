"""The renderer of chats into prompts, by the chat template of the model directory.

Clients supply only values for a template. A control token in a value is plain text.
`content_marks.py` tells it apart from the control tokens that the template writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.errors import BadRequest
from gateway.prompts.chats.content_marks import ContentMarks, Given, escaped
from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.chats.prefill import Prefill, spelled
from gateway.prompts.chats.shown_turns import shown_turns
from gateway.prompts.chats.template_variables import Scalar
from gateway.prompts.templates.compiled import CannotRender
from gateway.prompts.templates.files import DEFAULT, TOOL_USE, special_tokens, template_sources
from gateway.prompts.templates.fitted import FittedTemplate
from gateway.prompts.templates.limits import Limit, limits_of
from gateway.prompts.templates.removed_words import removed_words
from gateway.prompts.templates.verdicts import Judged, afresh
from gateway.prompts.tokens.control_tokens import ControlTokens, Rendered
from gateway.turn_formats.choose import reasoning_format
from gateway.turn_formats.turn_format import ToolFormat


@dataclass(frozen=True, slots=True)
class _Chat:
    messages: Sequence[Message]
    tools: Sequence[Tool] | None
    variables: Mapping[str, Scalar]
    asks: bool  # whether the text that begins an answer is added at the end

    @property
    def given(self) -> Given:
        return {"variables": self.variables, "messages": self.messages, "tools": self.tools}


class ChatTemplate:
    """A model's chat template, and the special tokens that the template may name.

    Some models have a second template, `tool_use`, for chats with tools.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str],
        tool_use: str | None = None,
        control: ControlTokens | None = None,
        variables: Mapping[str, Scalar] | None = None,
    ) -> None:
        """Compile a template, which may write the `control` tokens.

        `tokens` has special tokens by name. `variables` are defaults for chats that do not set
        them.
        """
        self.variables = variables or {}
        self._control = control or ControlTokens()
        self._marks = ContentMarks(self._control)
        self._plain = FittedTemplate(source, tokens)
        self._tool_use = self._plain if tool_use is None else FittedTemplate(tool_use, tokens)
        self.source = self._tool_use.source
        removed = [removed_words(one, self.render) for one in {source, tool_use or source}]
        self._marks = ContentMarks(self._control, frozenset().union(*removed))
        shows_calls = self._tool_use.traits.calls != "text"
        self.shown = shown_turns(self.source, self.render, shows_calls=shows_calls)
        self.reasoning = reasoning_format(self.shown)

    @classmethod
    def load(
        cls,
        model_dir: Path,
        control: ControlTokens,
        variables: Mapping[str, Scalar] | None = None,
        own: Path | None = None,
    ) -> ChatTemplate | None:
        """Load a model directory's template, or the operator's `own`; None without a template.

        Raises ModelFileBroken.
        """
        sources = template_sources(model_dir, own)
        if DEFAULT not in sources:
            return None
        tokens = special_tokens(model_dir)
        return cls(sources[DEFAULT], tokens, sources.get(TOOL_USE), control, variables)

    def telling(self, tool_format: ToolFormat) -> ChatTemplate:
        """Return a copy that shows tools and calls in the format if the template shows none."""
        told = copy(self)
        told._tool_use = self._tool_use.telling(tool_format)
        if self._plain is self._tool_use:
            told._plain = told._tool_use
        return told

    @property
    def shows_tools(self) -> bool:
        """True if the model sees the tools of a chat."""
        return self._tool_use.shows_tools

    @property
    def takes_text_beside_calls(self) -> bool:
        """True if one message may have a text and calls."""
        return self._tool_use.traits.text_beside_calls == "together"

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        variables: Mapping[str, Scalar] | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> Rendered:
        """Render the chat as text and control tokens; raise BadRequest if the template refuses it.

        With `continue_final_message` the text ends with the last message's text, which the model
        continues. `variables` cannot replace the inputs that every template receives. The template
        decides whether and where the model sees `tools`.
        """
        asked = {**self.variables, **(variables or {})}
        chat = _Chat(messages, tools or None, asked, asks=add_generation_prompt)
        return self._continued(chat) if continue_final_message else self._rendered(chat)

    def check(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Scalar] | None = None,
        tools: Sequence[Tool] | None = None,
        judged: Judged = afresh,
    ) -> None:
        """Raise BadRequest for the first message that the template does not show in its place.

        `judged` stores verdicts on shapes.
        """
        asked = {**self.variables, **(variables or {})}
        asks, has_tools = add_generation_prompt, bool(tools)
        self._of(tools).check(messages, asked, judged, has_tools=has_tools, asks=asks)

    def keeps_thoughts(self, variables: Mapping[str, Scalar], judged: Judged = afresh) -> bool:
        """Return whether chats with these variables show all thoughts that clients send back."""
        return self._tool_use.keeps_thoughts(variables, judged)

    def limits(self) -> dict[str, list[Limit]]:
        """List the chats that each template in use does not take, by the template's name."""
        used = {DEFAULT: self._plain}
        if self._tool_use is not self._plain:
            used[TOOL_USE] = self._tool_use
        return {name: limits_of(template, self.variables) for name, template in used.items()}

    def _of(self, tools: Sequence[Tool] | None) -> FittedTemplate:
        return self._tool_use if tools else self._plain

    def _rendered(self, chat: _Chat) -> Rendered:
        text, mark = self._text(chat)
        return self._control.split(text, mark)

    def _continued(self, chat: _Chat) -> Rendered:
        """Render the chat up to its last message's text. Append this text unchanged."""
        prefill = Prefill.of(chat.messages[-1])
        pieces = spelled(prefill.text or prefill.thought, self.reasoning)
        begun = self._begun(chat, prefill, opens=len(pieces) > 1)
        for number, piece in enumerate(pieces):
            more = self._control.split(piece) if number % 2 else self._said(piece)
            begun = begun.followed(more)
        return Rendered(begun.pieces, prefill.text or prefill.thought)

    def _begun(self, chat: _Chat, prefill: Prefill, *, opens: bool) -> Rendered:
        """Render the chat before a prefill. If `opens`, the prefill itself opens the reasoning."""
        asked = replace(chat, messages=chat.messages[:-1], asks=True)
        if opens and self.reasoning is not None:
            text, mark = self._text(asked)
            return self._control.split(self.reasoning.unopened(text), mark)
        end = self._marks.free(chat.given)
        messages = [*asked.messages, prefill.marked(end)]
        text, mark = self._text(replace(chat, messages=messages))
        if text.count(end) == 1:
            return self._control.split(text[: text.index(end)], mark)
        if prefill.thought and self.reasoning is not None:
            text, mark = self._text(asked)
            return self._control.split(self.reasoning.opened(text), mark)
        raise BadRequest(
            "the model's chat template would not show the message that is to be continued",
            param=prefill.message.param,
        )

    def _said(self, text: str) -> Rendered:
        """Render a text of the assistant, in which markup is the only kind of control token."""
        given: Given = {"messages": [Message("assistant", (Text(text),))]}
        mark = self._marks.mark_for(given)
        if not mark:
            return Rendered((text,))
        [message] = self._marks.marked(given, mark, near=False)["messages"]
        return self._control.split(message.parts[0].text, mark)

    def _text(self, chat: _Chat) -> tuple[str, str]:
        """Render the chat's text; return the text and its break character.

        The character is "" if the request has no control tokens to break up.
        """
        template = self._of(chat.tools)
        fitted = replace(chat, messages=template.fitted(chat.messages))

        def text_of(given: Given) -> str:
            return template.render(**given, asks=chat.asks)

        try:
            mark = self._marks.mark_for(fitted.given)
            if not mark:
                return text_of(fitted.given), mark
            return self._marked_text(fitted.given, mark, text_of), mark
        except CannotRender as refused:
            raise template.refusal(refused, **chat.given, asks=chat.asks) from None

    def _marked_text(self, given: Given, mark: str, text_of: Callable[[Given], str]) -> str:
        """Render the chat with its control tokens and near-tokens broken up by `mark`.

        Near-tokens stay whole if breaking them up changes the rest of the text. A template may
        compare a short string with a near-token, such as a mode named `think`.
        """

        def rendered(*, near: bool) -> str:
            text = text_of(self._marks.marked(given, mark, near=near))
            return text.replace(escaped(mark), mark)

        text = rendered(near=False)
        try:
            strict = rendered(near=True)
        except CannotRender:
            return text
        return strict if strict.replace(mark, "") == text.replace(mark, "") else text
