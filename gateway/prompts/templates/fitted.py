"""A chat template with its traits, which fits and renders chats, and finds hidden messages.

Traits are found with small chats, which cannot cover every case. The shape of each chat is
therefore rendered too. A chat with a message that the template leaves out is refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Literal

from msgspec.structs import replace

from gateway.errors import BadRequest
from gateway.prompts.chats.forms import Tool, given_of
from gateway.prompts.chats.messages import Message
from gateway.prompts.chats.traits import TemplateTraits
from gateway.prompts.templates.compiled import CannotRender, CompiledTemplate
from gateway.prompts.templates.fitting import fitted, with_system
from gateway.prompts.templates.probing import chat_of, find_traits
from gateway.prompts.templates.shapes import (
    ONE_TOOL,
    TurnKind,
    kinds_of,
    missed,
    shape_of,
    shortened,
    shows_tool,
    thoughts_of,
    words_of,
)
from gateway.prompts.templates.verdicts import Judged, afresh
from gateway.turn_formats.turn_format import ToolFormat, ToolsText

_MOST_KINDS = 64  # maximum messages of a shape; no verdict on longer shapes is remembered

Variables = Mapping[str, Any]


class FittedTemplate:
    """A chat template that fits, renders and checks chats by its traits. Thread-safe."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self._template = CompiledTemplate(source, tokens)
        self.source = source
        self.traits = find_traits(self._template)
        self._tools_text: ToolsText | None = None
        self._tool_format: ToolFormat | None = None

    def telling(self, tool_format: ToolFormat) -> FittedTemplate:
        """Return a copy that shows tools and calls in the format if the template shows none."""
        told = copy(self)
        told._tools_text = None if self.traits.shows_tools else tool_format.tools_text
        told._tool_format = tool_format
        return told

    @property
    def shows_tools(self) -> bool:
        """True if the model sees the tools, by the template or in a system message."""
        return self.traits.shows_tools or self._tools_text is not None

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """Fit the chat to the template's traits."""
        return fitted(messages, self.traits)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        variables: Variables,
        *,
        asks: bool,
    ) -> str:
        """Render a fitted chat, followed by the beginning of an answer if `asks`.

        Raises CannotRender.
        """
        if tools and self._tools_text is not None:
            messages = with_system(messages, self._tools_text(tools), self.traits)
        try:
            return self._rendered(messages, tools, variables, self.traits, asks=asks)
        except CannotRender:
            completed = replace(self.traits, completed_tools="deep")
            if not tools or completed == self.traits:
                raise
            # perhaps the template needs a field that these tools lack, unlike those of `probing.py`
            return self._rendered(messages, tools, variables, completed, asks=asks)

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        variables: Variables,
        traits: TemplateTraits,
        *,
        asks: bool,
    ) -> str:
        given = given_of(
            messages, tools, traits, add_generation_prompt=asks, tool_format=self._tool_format
        )
        return self._template.render({**variables, **given})

    def shows_thoughts(self, spelled: str, variables: Variables) -> bool:
        """Return whether a small chat, spelled as in `probing.py`, shows all its thoughts."""
        said = chat_of(spelled)
        tools = ONE_TOOL if "c" in spelled else None
        try:
            text = self.render(self.fitted(said), tools, variables, asks=True)
        except CannotRender:
            return False
        return all(thought in text for thought in thoughts_of(said))

    def keeps_thoughts(self, variables: Variables, judged: Judged = afresh) -> bool:
        """Return whether thoughts are kept and a growing chat's earlier text never changes."""
        chats, grown = ("u ar u", "u arc t", "u arc t a u"), ("s u ar u", "s u arc t")
        return judged(
            ("keeps", sorted(variables.items())),
            lambda: (
                all(self.shows_thoughts(one, variables) for one in chats)
                and all(self._is_begin(one, f"{one} arc t", variables) for one in grown)
            ),
        )

    def _is_begin(self, spelled: str, longer: str, variables: Variables) -> bool:
        chats = ((spelled, False), (spelled, True), (longer, True))
        try:
            shown, asked, after = (
                self.render(self.fitted(chat_of(chat)), ONE_TOOL, variables, asks=asks)
                for chat, asks in chats
            )
        except CannotRender:
            return False
        begin = shown.rstrip()
        if not asked.startswith(begin):
            return True
        # As many blanks must come before the answer as before the turn that the answer becomes.
        blanks = {
            len(one) - len(one.lstrip()) for one in (asked[len(begin) :], after[len(begin) :])
        }
        return after.startswith(begin) and len(blanks) == 1

    def check(
        self,
        messages: Sequence[Message],
        variables: Variables,
        judged: Judged = afresh,
        *,
        has_tools: bool,
        asks: bool,
    ) -> None:
        """Raise BadRequest for the first message that the template does not show in its place.

        Raises BadRequest for the tools if the template shows tools only in other chats. `judged`
        stores the verdict on a shape.
        """
        kinds = kinds_of(messages)
        short = shortened(kinds)
        keep = judged if len(short) <= _MOST_KINDS else afresh
        if keep(
            (short, sorted(variables.items()), has_tools, asks),
            lambda: self._missed(short, variables, has_tools, asks) is None,
        ):
            return
        place = self._missed(kinds, variables, has_tools, asks)
        if place == "tools":
            raise BadRequest(
                "the model's chat template would not show tools in this chat", param="tools"
            )
        if place is not None:
            raise BadRequest(
                "the model's chat template would not show this message, or not in its place",
                param=messages[place].param,
            )

    def _missed(
        self, kinds: Sequence[TurnKind], variables: Variables, has_tools: bool, asks: bool
    ) -> int | Literal["tools"] | None:
        """Find the first hidden message of a shape, or "tools" for hidden tools.

        Returns None if the template shows all of the shape, or refuses the shape.
        """
        shape = shape_of(kinds)
        said = self.fitted(shape)
        try:
            text = self.render(said, ONE_TOOL if has_tools else None, variables, asks=asks)
        except CannotRender:
            return None
        word = missed(text, said)
        if word is None:
            is_shown = not has_tools or not self.shows_tools or shows_tool(text)
            return None if is_shown else "tools"
        return next(place for place, one in enumerate(shape) if word in words_of(one))

    def refusal(
        self,
        refused: CannotRender,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        variables: Variables,
        *,
        asks: bool,
    ) -> BadRequest:
        """Make the error for a chat that cannot be rendered, with the wrong field."""
        if refused.said is None:
            what = "cannot render these messages"
        else:
            what = f"refuses these messages: {refused.said}"
        param = self._param(messages, tools, variables, asks=asks)
        return BadRequest(f"the model's chat template {what}", param=param)

    def _param(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        variables: Variables,
        *,
        asks: bool,
    ) -> str:
        """Name the first message that the template refuses with any text, or `tools`."""
        shape = shape_of(kinds_of(messages))
        stand_in = ONE_TOOL if tools else None

        def renders(length: int) -> bool:
            return self._renders(shape[:length], stand_in, variables, asks=asks)

        if renders(len(shape)):
            are_tools = tools and self._renders(messages, ONE_TOOL, variables, asks=asks)
            return "tools" if are_tools else "messages"
        lengths = range(1, len(shape))
        first = bisect_left(lengths, True, key=lambda length: not renders(length))
        return messages[first].param if messages else "messages"

    def _renders(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        variables: Variables,
        *,
        asks: bool,
    ) -> bool:
        try:
            self.render(self.fitted(messages), tools, variables, asks=asks)
        except CannotRender:
            return False
        return True
