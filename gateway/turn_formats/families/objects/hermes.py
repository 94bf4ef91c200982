"""Hermes, Qwen2.5 and Qwen3: a JSON object in `<tool_call>`.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Oslo"}}
</tool_call>
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.turn_formats.shapes.object_calls import ObjectFormat
from gateway.turn_formats.turn_format import ToolsText

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TOLD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
_OTHER_FORMATS = ("<function=", "<arg_key>")  # other formats' tags within <tool_call>


def _tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    return _TOLD.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))


class HermesFormat(ObjectFormat, begin=_OPEN, end=_CLOSE, opens="\n", between=None, closes="\n"):
    """The `ToolFormat` of Hermes, Qwen2.5 and Qwen3."""

    name: ClassVar[str] = "hermes"

    @property
    def tools_text(self) -> ToolsText | None:
        """The tools text of Qwen2.5's template."""
        return _tools_text

    def is_in(self, template: str) -> bool:
        is_other = any(other in template for other in _OTHER_FORMATS)
        return _OPEN in template and "arguments" in template and not is_other
