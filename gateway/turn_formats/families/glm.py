"""GLM 4.5 to 4.7, Hy3, and others that write as these: each argument as a key and a value.

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>

Since GLM 4.7 all of it stands on one line. Hy3 has other tags, and one around all calls.
"""

from typing import ClassVar

from msgspec.structs import replace

from gateway.turn_formats.families.tagged import TaggedFormat, Tags


class Glm45Format(TaggedFormat):
    """The `ToolFormat` of GLM 4.5 and 4.6, Ling 3 and Laguna."""

    name: ClassVar[str] = "glm45"
    tags: ClassVar[Tags] = Tags(
        call="<tool_call>",
        named="",
        key="<arg_key>",
        keyed=("</arg_key>", "<arg_value>"),
        value_end="</arg_value>",
        call_end="</tool_call>",
    )


class Glm47Format(TaggedFormat):
    """The `ToolFormat` of GLM 4.7 and Spark 2.5."""

    name: ClassVar[str] = "glm47"
    tags: ClassVar[Tags] = replace(Glm45Format.tags, line="")


class Hy3Format(TaggedFormat):
    """The `ToolFormat` of Hy3."""

    name: ClassVar[str] = "hy3"
    tags: ClassVar[Tags] = Tags(
        block="<tool_calls:opensource>",
        call="<tool_call:opensource>",
        named="<tool_sep:opensource>",
        key="<arg_key:opensource>",
        keyed=("</arg_key:opensource>", "<arg_value:opensource>"),
        value_end="</arg_value:opensource>",
        call_end="</tool_call:opensource>",
        block_end="</tool_calls:opensource>",
        holds_many=True,
    )
