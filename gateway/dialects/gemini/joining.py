"""The joining of a request with the cached content that it names."""

from dataclasses import replace
from typing import TypeVar

from msgspec import structs

from gateway.dialects.gemini.chats.tools import DeclaredTools
from gateway.dialects.gemini.chats.turns import messages_of, system_of
from gateway.dialects.gemini.parts import listed
from gateway.dialects.gemini.schema import GeminiPrefix, GeminiPrompt
from gateway.errors import BadRequest
from gateway.prompts.generation_request import CacheMark, ChatPrompt

Wire = TypeVar("Wire", bound=GeminiPrompt)

_CACHED_ALONE = ("system_instruction", "tools", "tool_config")


def joined(wire: Wire, prefix: GeminiPrefix) -> Wire:
    """Put `prefix` before the contents of `wire`; raise BadRequest for a field that both set."""
    for field in structs.fields(wire):
        if field.name in _CACHED_ALONE and getattr(wire, field.name) is not None:
            raise BadRequest(
                "CachedContent can not be used with GenerateContent request setting"
                " system_instruction, tools or tool_config; they belong into the cached content",
                param=field.encode_name,
            )
    own = listed(wire.contents)
    if not own:
        raise BadRequest("there is nothing to answer", param="contents")
    return structs.replace(
        wire,
        contents=[*listed(prefix.contents), *own],
        system_instruction=prefix.system_instruction,
        tools=prefix.tools,
        tool_config=prefix.tool_config,
    )


def marked_prefix(
    prefix: GeminiPrefix, tools: DeclaredTools, prompt: ChatPrompt, seconds: float
) -> CacheMark:
    """Write the breakpoint at the end of `prefix`, which is the beginning of `prompt`."""
    contents = listed(prefix.contents)
    messages = (
        *system_of(prefix.system_instruction),
        *messages_of(contents, cached=len(contents)),
    )
    chat = replace(
        prompt,
        messages=messages,
        add_generation_prompt=False,
        continue_final_message=False,
        tools=[*tools.forms] or None,
    )
    return CacheMark(seconds, chat)
