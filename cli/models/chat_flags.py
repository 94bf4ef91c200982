"""Checks of the flags for chats, without reading a model."""

import msgspec

from cli.errors import BadSetting
from gateway.prompts.chats.template_variables import variables_in
from gateway.turn_formats.choose import tool_format_names


def check_tool_format(name: str | None) -> None:
    """Raise BadSetting for an unknown format of tool calls."""
    names = tool_format_names()
    if name is not None and name not in names:
        raise BadSetting("--tool-format", f"{name!r} is none of {', '.join(names)}")


def check_variables(spelled: str | None) -> None:
    """Raise BadSetting for malformed defaults of the chat template's variables."""
    try:
        variables_in(spelled)
    except msgspec.DecodeError as error:
        raise BadSetting("--default-chat-template-kwargs", str(error)) from error
